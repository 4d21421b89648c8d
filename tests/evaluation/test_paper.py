import pytest

from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, GROUPS
from openrlhf_cov.evaluation.paper import COLUMN_OF, COLUMNS, ROWS, UNCERTAIN, published


def test_the_rows_have_the_sums_of_the_table():
    # sums of the seven printed columns, added up by hand: a slip in one number shows
    sums = {"GRPO": 273.6, "clip-higher": 278.9, "Clip-Cov": 292.2, "KL-Cov": 287.6}
    assert {method: sum(row) for method, row in ROWS["paper-7b"].items()} == pytest.approx(sums, abs=1e-9)
    sums = {"GRPO": 316.2, "clip-higher": 325.2, "Clip-Cov": 354.4, "KL-Cov": 361.1}
    assert {method: sum(row) for method, row in ROWS["paper-32b"].items()} == pytest.approx(sums, abs=1e-9)


def test_scores_are_fractions_of_the_right_column():
    assert published("paper-7b", "aime24") == {"GRPO": 0.212, "clip-higher": 0.181, "Clip-Cov": 0.221, "KL-Cov": 0.226}
    assert published("paper-32b", "minerva_math")["KL-Cov"] == 0.463
    assert published("paper-7b", "omni_math")["GRPO"] == 0.279
    assert published("paper-7b", "amc23") == published("paper-7b", "amc_2022_2023")
    assert published("paper-7b", "gsm8k") == published("paper-7b", "omni_math_500") == {}


def test_every_column_has_a_benchmark():
    assert set(COLUMN_OF.values()) == set(COLUMNS)
    assert set(GROUPS["paper"]) <= COLUMN_OF.keys() <= BENCHMARKS.keys()
    assert set(UNCERTAIN) <= set(COLUMNS)
