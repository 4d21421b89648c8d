from dataclasses import replace

import numpy as np
import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.samples import group_samples, read_samples

TABLES = {"aime24": ["1 2 -", "1 1 3"], "gsm8k": ["5"]}


@pytest.fixture
def run(make_evaluation):
    return make_evaluation(TABLES)


def test_responses_are_grouped_by_problem_whatever_their_order(run):
    aime, gsm8k = group_samples(run.settings, run.problems, run.responses[::-1])
    assert [item.problem.id for item in aime.items] == ["aime24-0", "aime24-1"]
    assert aime.answers == [["1", "2", None], ["1", "1", "3"]]
    np.testing.assert_array_equal(aime.correct, [[True, False, False], [True, True, False]])
    assert [response.key for response in aime.responses[:4]] == [
        ("aime24", "aime24-0", 0),
        ("aime24", "aime24-0", 1),
        ("aime24", "aime24-0", 2),
        ("aime24", "aime24-1", 0),
    ]
    assert (gsm8k.settings.name, gsm8k.correct.tolist()) == ("gsm8k", [[False]])


def test_benchmarks_may_have_the_same_ids(run):
    problems = [replace(problem, id=problem.id[-1]) for problem in run.problems]
    responses = [replace(response, id=response.id[-1]) for response in run.responses]
    assert [len(each.items) for each in group_samples(run.settings, problems, responses)] == [2, 1]


def test_a_run_that_is_not_finished_is_refused_with_the_number(run):
    with pytest.raises(UsageError) as refused:
        group_samples(run.settings, run.problems, [run.responses[i] for i in (0, 2, 3, 5, 6)])
    assert str(refused.value) == (
        "the run is not finished: 2 of 7 responses are missing, the first of them sample 1 of aime24-0 of aime24; "
        "run `evaluate` again to continue it"
    )


def test_responses_to_nothing_and_missing_problems_are_refused(run):
    stray = replace(run.responses[0], sample=3)
    with pytest.raises(UsageError, match=r"1 responses belong to no request of the run.*'aime24-0', 3\)"):
        group_samples(run.settings, run.problems, [*run.responses, stray])
    with pytest.raises(UsageError, match="there are 1 problems of aime24, but the settings name 2"):
        group_samples(run.settings, run.problems[1:], run.responses)


def test_a_folder_is_read_and_named_where_it_is_not_finished(run, tmp_path):
    settings, samples = read_samples(run.write(tmp_path))
    assert (settings, samples) == (run.settings, run.samples)
    replace(run, responses=run.responses[1:]).write(tmp_path)
    with pytest.raises(UsageError, match=f"^{tmp_path}: the run is not finished: 1 of 7 "):
        read_samples(tmp_path)
