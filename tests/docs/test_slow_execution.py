"""Blocks of the docs that take minutes, executed as they stand in one folder, those of ``make`` first."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(not Path(sys.prefix, ".ready").is_file(), reason="needs the environment that make has set up"),
]

# Inputs that the pages name, as rows of JSON Lines.
FILES = {"FILE.jsonl": [{"id": "1", "problem": "What is 2 + 3?", "answer": "5", "source": "math"}]}


@pytest.fixture(scope="module")
def world(linked_clone, page) -> dict[str, object]:
    """Arguments of subprocess: a clone with nothing run, in which a demo has three steps."""
    for name, rows in FILES.items():
        (linked_clone / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for block in page("docs/extending.md").blocks:
        if named := re.search(r'title="(\w+\.jsonl)"', block.language):
            (linked_clone / named[1]).write_text(block.text, encoding="utf-8")
    (linked_clone / "MODEL").symlink_to("runs/smollm2")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"cwd": linked_clone, "env": os.environ | {"PATH": path, "DEMO_ARGS": "--steps 3"}}


@pytest.fixture(scope="module")
def done() -> set[str]:
    """Lines of ``make`` that have been executed."""
    return set()


def test_a_block_that_takes_minutes_runs(minutes_block, world, done):
    lines = [line for line in minutes_block.text.splitlines() if line not in done]
    script = re.sub(r"^(openrlhf-cov doctor.*)$", r"\1 || test $? = 1", "\n".join(lines), flags=re.M)
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], **world, capture_output=True, text=True, timeout=1500
    )
    assert ended.returncode == 0, f"{minutes_block.place}: status {ended.returncode}\n{ended.stdout}{ended.stderr}"
    done |= {line for line in lines if line.startswith("make ")}
