"""The problems with programs that come with the package: each has a solution that passes."""

import json
from pathlib import Path

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.evaluation.benchmarks import select
from openrlhf_cov.evaluation.data import load_problems, ungradable
from openrlhf_cov.rewards.code.sandbox import Sandbox, SandboxError
from openrlhf_cov.rewards.sources import grade_label

SOLUTIONS = Path(__file__).with_name("code_basics_solutions.jsonl")


@pytest.mark.slow
def test_the_solutions_pass_and_nothing_does_not():
    (benchmark,) = select("code_basics")
    problems = load_problems(benchmark, None)
    assert ungradable(benchmark, problems) == []
    try:
        Sandbox().close()
    except SandboxError as error:
        pytest.skip(f"this machine has no sandbox: {error}")
    rows = [json.loads(line) for line in SOLUTIONS.read_text("utf-8").splitlines()]
    programs = {row["id"]: row["program"] for row in rows}
    config = RewardConfig(reward_source="code", code_extract="fence")
    for problem in problems:
        right = f"Thus:\n```python\n{programs[problem.id]}\n```"
        assert grade_label(right, problem.answer, config).verdict == "passed", problem.id
        assert not grade_label("```python\npass\n```", problem.answer, config).correct, problem.id
