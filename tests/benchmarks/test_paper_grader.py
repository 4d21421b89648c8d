import json

import pytest


@pytest.fixture(scope="module")
def benchmark(load_benchmark):
    return load_benchmark("paper_grader")


@pytest.mark.parametrize(
    ("answer", "near"), [("27", "28"), ("19", "18"), (r"\frac{3}{4}\pi", r"\frac{3}{5}\pi"), ("Evelyn", "Evelyn")]
)
def test_a_near_miss_differs_in_its_last_digit(benchmark, answer, near):
    assert benchmark.near_miss(answer) == near


def test_three_answers_to_a_problem_less_those_that_are_the_label(benchmark, tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"answer": answer}) + "\n" for answer in ("1", "x", "1")))
    pairs = [(pair.response[len(r"The answer is \boxed{") : -2], pair.gold) for pair in benchmark.labels(path, 0)]
    # the last problem's next is the first, whose label is its own
    assert pairs == [("1", "1"), ("x", "1"), ("2", "1"), ("x", "x"), ("1", "x"), ("1", "1"), ("2", "1")]


def test_agreement(benchmark):
    # (strict, published, the paper's): strict agrees in the first and last of four, published in three
    verdicts = [(True, True, True), (True, True, False), (False, True, True), (False, False, False)]
    assert benchmark.against(verdicts, 0) == ("50.00%", "1, 1")
    assert benchmark.against(verdicts, 1) == ("75.00%", "1, 0")
