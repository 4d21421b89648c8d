"""The runs of a report, by their paths and names."""

from pathlib import Path

import pytest
from texts import missing

from openrlhf_cov.analysis.report.build_contents import check_metric, check_names, read_runs, unlike
from openrlhf_cov.errors import UsageError


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/r/one", "/r/two"], ["one", "two"]),
        (["/a/run", "/b/run", "/b/other"], ["a/run", "b/run", "other"]),
        # the last two parts of the first and the third are the same: three are needed for all three
        (["/x/a/run", "/x/b/run", "/y/a/run"], ["x/a/run", "x/b/run", "y/a/run"]),
    ],
)
def test_equal_names_get_as_much_of_their_path_as_it_takes(paths, names):
    paths = [Path(path) for path in paths]
    assert unlike([path.name for path in paths], paths) == names


def test_a_csv_and_a_folder_of_one_name_are_told_apart(write_run, tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run.csv").write_text("step,entropy/mean,reward\n1,0.5,0.1\n")
    runs = read_runs([tmp_path / "run", tmp_path / "run.csv"])
    assert [run.name for run in runs] == [f"{tmp_path.name}/run", f"{tmp_path.name}/run.csv"]


@pytest.mark.parametrize("second", ["run", "run/../run", "run/metrics.jsonl"])
def test_a_run_given_twice_is_refused(write_run, tmp_path, second):
    write_run(tmp_path / "run")
    with pytest.raises(UsageError, match="is given twice"):
        read_runs([tmp_path / "run", tmp_path / second])


def test_an_unknown_metric_names_those_that_are_there(write_run, tmp_path):
    runs = read_runs([write_run(tmp_path / "run", evaluations={"eval/math/avg@4": [0.1, 0.2]})])
    check_metric("eval/math/avg@4", runs)
    check_metric("score", runs)
    with pytest.raises(UsageError) as caught:
        check_metric("eval/math/avg@8", runs)
    known = ("eval/math/avg@4?", "reward, score, eval/math/avg@4")
    assert missing(str(caught.value), "--metric eval/math/avg@8", *known) == []


def test_an_unknown_run_is_refused(write_run, tmp_path):
    runs = read_runs([write_run(tmp_path / "qwen7b")])
    with pytest.raises(UsageError, match=r"^--size qwen-7b: did you mean qwen7b\? there are qwen7b$"):
        check_names("--size", ["qwen-7b"], runs)
