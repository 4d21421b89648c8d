import re
from pathlib import Path

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.reproduction.exhibits import FIGURES, TABLES, PaperRun, Recipe
from openrlhf_cov.experiments.reproduction.paper_commands import VARIABLES, submission, training

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"

SCRIPT = """#!/usr/bin/env bash
set -euo pipefail
ray job submit -- python -m m --model "${MODEL:-default}" --out "$OUTPUT" $(printf '%s ' --a 1) "$@"
"""


@pytest.fixture
def scripts(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return tmp_path


def test_the_words_are_those_that_the_script_submits(scripts, monkeypatch):
    monkeypatch.setenv("MODEL", "of the shell")
    monkeypatch.setenv("PATH", f"{scripts / 'no ray here'}:/usr/bin:/bin")
    words = submission(scripts, "train.sh", {"OUTPUT": "/a b"}, ["--seed", "7\n8"])
    assert words == [
        *("ray", "job", "submit", "--", "python", "-m", "m", "--model", "default", "--out", "/a b"),
        *("--a", "1", "--seed", "7\n8"),
    ]


def test_no_variable_of_a_recipe_comes_from_the_shell():
    # the address of the cluster is the reader's, not the run's
    scripts = {run.recipe.script for each in (*FIGURES.values(), *TABLES.values()) for run in each.runs if run.recipe}
    scripts |= {"eval_qwen2.5.sh"}
    read = {name for script in scripts for name in re.findall(r"\$\{(\w+):", (SCRIPTS / script).read_text())}
    assert read - {"RAY_DASHBOARD"} <= set(VARIABLES)
    assert {"NODES", "ENGINES", "EPISODES"} <= read


def test_paths_of_a_run_are_those_of_the_reader(scripts, tmp_path):
    variables = {"MODEL": "/data/eval/code.jsonl"}
    run = PaperRun(name="law", recipe=Recipe(script="train.sh", data="gsm8k", template="plain", variables=variables))
    words = training(run, scripts, tmp_path / "d", tmp_path / "out")
    assert words[8:11] == [f"{tmp_path}/d/eval/code.jsonl", "--out", f"{tmp_path}/out/law"]


def test_without_the_recipes_there_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"train\.sh is not there: the paper's scale takes the recipes of a clone"):
        submission(tmp_path, "train.sh", {}, ())


def test_a_script_that_fails_is_one_line(scripts):
    (scripts / "train.sh").write_text("#!/usr/bin/env bash\necho no >&2\nexit 3\n")
    with pytest.raises(UsageError, match=r"train\.sh: status 3: no$"):
        submission(scripts, "train.sh", {}, ())
