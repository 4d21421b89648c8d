"""The notebook runs from top to bottom, and its runs show what its text says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "entropy_collapse.ipynb"

# IPython is not a dependency, so a stand-in records what the cells display. Only this module: matplotlib behaves
# differently where it finds one of the name IPython.
IPYTHON = """
import sys, types
displayed = []
display_module = types.ModuleType("IPython.display")
display_module.HTML = str
display_module.display = displayed.append
sys.modules["IPython.display"] = display_module
"""
RESULT = """
import json
evaluations = {name: rows for name, (_, rows) in runs.items()}
Path("notebook.json").write_text(json.dumps({"displayed": displayed, "evaluations": evaluations}))
"""


def code_cells() -> list[str]:
    """Return the source of each code cell, in order."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_stays_small_enough_for_a_repository():
    assert NOTEBOOK.stat().st_size < 300_000


@pytest.mark.e2e
@pytest.mark.long
def test_the_notebook_runs_and_shows_what_it_says(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join([IPYTHON, *code_cells(), RESULT]), encoding="utf-8")
    environment = os.environ | {"MPLBACKEND": "agg", "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "notebook.json").read_text(encoding="utf-8"))

    (token_view,) = result["displayed"]
    assert token_view.count("→") == 12  # eight responses of the highest covariance, four of the lowest

    # GRPO stays near the accuracy of always naming `a`, 14 of 32, where the others have left it
    evaluations = {name: {row["step"]: row for row in rows} for name, rows in result["evaluations"].items()}
    assert set(evaluations) == {"GRPO", "Clip-Cov", "KL-Cov", "your method"}
    halfway = {name: rows[30] for name, rows in evaluations.items()}
    assert halfway["GRPO"]["greedy"] < 0.5
    for name in ("Clip-Cov", "your method"):
        assert halfway[name]["greedy"] > halfway["GRPO"]["greedy"] + 0.1
        assert halfway[name]["entropy/position_0"] > 2 * halfway["GRPO"]["entropy/position_0"]
