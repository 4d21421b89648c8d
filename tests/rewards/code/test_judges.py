"""Each data set has the comparison of its published judge, and its programs find what that judge gives them."""

import json
from dataclasses import fields, replace

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.inputs import TRAINING_SETS
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS
from openrlhf_cov.evaluation.flags import GRADING_FLAGS
from openrlhf_cov.rewards.code import datasets, rule
from openrlhf_cov.rewards.code.comparison import JUDGES
from openrlhf_cov.rewards.code.judge import ProgramBudget, Verdict
from openrlhf_cov.rewards.code.tests import parse_tests, with_judge

IO = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
BUDGET = ProgramBudget(seconds=4.0, total_seconds=20.0, memory_mb=1024, output_mb=1)
OURS = {"exact", "plain"}
STARS = {"livecodebench", "prime"}


@pytest.mark.parametrize(
    ("label", "judge"),
    [
        ({"stdin": [["1", "2"]]}, "exact"),
        ({"stdin": [["1", "2"]], "judge": "plain"}, "plain"),
        (IO, "apps"),
        (IO | {"judge": "prime"}, "prime"),
        (IO | {"fn_name": "f", "inputs": [[1]], "outputs": [[2]]}, "apps"),
        ([{"input": "1", "output": "2"}], "livecodebench"),
    ],
)
def test_the_judge_of_a_label(label, judge):
    tests = parse_tests(json.dumps(label))
    assert tests.judge == judge
    assert tests.with_settings(0.0, "label").judge == judge
    assert tests.with_settings(0.0, "plain").judge == "plain"


def test_a_judge_that_is_none_is_refused():
    with pytest.raises(ValueError, match="judge is one of exact, plain, livecodebench, apps, prime, got 'codeforces'"):
        parse_tests(json.dumps(IO | {"judge": "codeforces"}))


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ({"stdin": [["1", "2"]]}, {"stdin": [["1", "2"]], "judge": "prime"}),
        (IO, IO | {"judge": "prime"}),
        ([{"input": "1", "output": "2"}], {"stdin": [["1", "2"]], "judge": "prime"}),
        (IO | {"judge": "plain"}, IO | {"judge": "plain"}),
        (["assert f(1)"], ["assert f(1)"]),
        ({"pytest": "def test_f(): pass"}, {"pytest": "def test_f(): pass"}),
        ({"inputs": 3}, {"inputs": 3}),
        (3, 3),
    ],
)
def test_a_label_gets_a_judge_where_outputs_are_compared_and_none_is_named(label, named):
    assert json.loads(with_judge(json.dumps(label), "prime")) == named
    assert with_judge("no JSON", "prime") == "no JSON"


def test_the_records_name_the_published_judge():
    assert BENCHMARKS["livecodebench"].judge == "livecodebench"
    assert {name: each.judge for name, each in TRAINING_SETS.items() if each.judge} == {
        "eurus-2-code": "prime",
        "taco": "apps",
        "apps": "apps",
    }
    used = {each.judge for each in (*BENCHMARKS.values(), *TRAINING_SETS.values())} - {""}
    assert used <= JUDGES.keys()
    row = {"ability": "code", "prompt": [{"content": "?"}], "reward_model": {"ground_truth": json.dumps(IO)}}
    assert parse_tests(datasets.eurus(row)[1]).judge == "prime"
    row = {"question_content": "?", "public_test_cases": '[{"input": "1", "output": "2"}]'}
    assert parse_tests(datasets.livecodebench(row | {"private_test_cases": "[]"})[1]).judge == "livecodebench"


@pytest.mark.parametrize(
    ("program", "given", "expected", "judges"),
    [
        ("print(3)", "", "3", set(JUDGES)),
        ("print(3.0)", "", "3", JUDGES.keys() - {"exact"}),
        # names that nobody imported
        ("print(len(deque([1])), gcd(4, 6), Counter('a')['a'])", "", "1 2 1", JUDGES.keys() - OURS),
        ("print(stdin.readline().strip())", "5\n", "5", JUDGES.keys() - OURS),
        ("print(comb(4, 2), reduce(mul, [1, 2, 3]), dumps([1]))", "", "6 6 [1]", STARS),
        ("print(pow(2, 3), max(1, 2), datetime.date(2020, 1, 1))", "", "8 2 2020-01-01", STARS),
        # the recursion limit: 1,000 frames of Python, 50,000 of LiveCodeBench, 600,000 of PRIME
        ("def f(n): return n and 1 + f(n - 1)\nprint(f(40_000))", "", "40000", STARS),
        # the input by other ways
        ("print(open(0).read().strip())", "7\n", "7", set(JUDGES)),
        ("print(open('/dev/stdin').read().strip())", "7\n", "7", set(JUDGES)),
        ("print(open('/dev/stdin', 'rb').read().decode().strip())", "7\n", "7", set(JUDGES)),
        ("print(open('input.txt').read().strip())", "7\n", "7", JUDGES.keys() - OURS),
        ("open('a', 'w').write('x')\nprint(open('a').read())", "7\n", "x", set(JUDGES)),
        # an exit is the end of the output, whatever its status
        ("import sys\nprint(3)\nsys.exit(1)", "", "3", JUDGES.keys() - OURS),
        ("import sys\nsys.exit(0)", "", "3", set()),
        ("print(3)\n1 / 0", "", "3", set()),
        # what judges give is in no program's way
        (
            "from __future__ import annotations\nif __name__ == '__main__':\n    print(input())",
            "3\n",
            "3",
            set(JUDGES),
        ),
        ("import random as sqrt\nmath = 3\nprint(math)", "", "3", set(JUDGES)),
    ],
)
def test_what_programs_find_and_how_they_are_compared(verdict, program, given, expected, judges):
    label = {"stdin": [[given, expected]]}
    found = {judge: verdict(program, label | {"judge": judge}, BUDGET).status for judge in JUDGES}
    assert {judge for judge, status in found.items() if status == "passed"} == judges


@pytest.mark.parametrize("judge", JUDGES)
def test_functions_find_the_names_and_return_numbers(verdict, judge):
    program = "class Solution:\n    def f(self, a: List[int]) -> int:\n        return float(sum(deque(a)))"
    tests = {"function": "f", "calls": [[[[1, 2]], 3]], "judge": judge}
    assert verdict(program, tests).status == "passed"
    deep = "def f(n): return n and 1 + f(n - 1)"
    tests = {"function": "f", "calls": [[[40_000], 40_000]], "judge": judge}
    assert (verdict(deep, tests, BUDGET).status == "passed") == (judge in STARS)


def test_one_program_leaves_nothing_for_the_next(verdict):
    tests = {"stdin": [["", "1"]], "judge": "livecodebench"}
    spoiled = "deque = 3\nmath.sqrt = None\nimport builtins\nbuiltins.open = None\nprint(1)"
    assert verdict(spoiled, tests).status == "passed"
    assert verdict("print(len(deque([1])) * int(math.sqrt(1)))", tests).status == "passed"


@pytest.mark.parametrize("name", [entry.name for entry in fields(RewardConfig) if entry.name.startswith("code_")])
def test_evaluation_has_the_options_of_training(name):
    assert (name in GRADING_FLAGS) == (name != "code_reward")  # which says what a share is worth in training


def test_a_verdict_is_kept_for_its_judge_alone(monkeypatch):
    judged = []

    def judge(program, label, budget, config):
        judged.append(config.code_judge)
        return Verdict(status="passed", passed=1, total=1)

    monkeypatch.setattr(rule, "_judge_here", judge)
    monkeypatch.setattr(rule, "_verdicts", rule.Verdicts())
    config = RewardConfig(reward_source="code")
    for name in ("label", "label", "plain", "exact"):  # exact is what the label says
        rule.grade_code("```python\nprint(3)\n```", '{"stdin": [["", "3"]]}', replace(config, code_judge=name))
    assert judged == ["label", "plain"]
