"""Which folders a run may use: a new one, or one of the same run."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation.response_records import RunSettings, read_responses, read_settings, record_line
from openrlhf_cov.evaluation.runner import open_run, regrade, run


def changed(settings, benchmarks="pq", p=(), **changes):
    """The settings with changes: in which benchmarks there are, in those of p, and in others."""
    found = {benchmark.name: benchmark for benchmark in settings.benchmarks}
    found["p"] = replace(found["p"], **dict(p))
    return replace(settings, benchmarks=tuple(found[name] for name in benchmarks), **changes)


@pytest.mark.parametrize(
    ("wanted", "difference"),
    [
        (dict(model="n", seed=4), "model was 'm', now 'n'"),  # the first one
        (dict(benchmarks="p"), "benchmarks were p, q, now p"),
        (dict(benchmarks="qp"), "benchmarks were p, q, now q, p"),
        (dict(p={"samples": 4}), "samples of p was 2, now 4"),
        (dict(p={"version": 2, "top_p": 0.5}), "version of p was 1, now 2"),
    ],
)
def test_the_folder_of_another_run_is_refused_with_what_differs(again, straight, small, wanted, difference):
    folder = again()
    small.evaluate(folder, small.Model())
    with pytest.raises(UsageError) as refused:
        open_run(folder, changed(small.settings, **wanted), small.plan.problems)
    assert str(refused.value) == f"--output {folder} holds another run: {difference}; choose another folder"
    assert small.files(folder) == small.files(straight)


def test_every_setting_but_the_packages_is_compared(tmp_path, small):
    open_run(tmp_path / "run", small.settings, small.plan.problems)
    # A setting that is not compared, such as the seed, would mix responses of two runs in one score.
    for name in {field.name for field in fields(RunSettings)} - {"packages", "benchmarks"}:
        other = replace(small.settings, **{name: "another"})
        with pytest.raises(UsageError, match=f"holds another run: {name} was .*, now 'another'"):
            open_run(tmp_path / "run", other, small.plan.problems)


def test_other_packages_may_continue_a_run(again, straight, small):
    folder = again()
    with pytest.raises(RunStopped):
        small.evaluate(folder, small.Model(stop_after=3))
    later = replace(small.settings, packages={"vllm": "2", "torch": "3"})
    assert len(open_run(folder, later, small.plan.problems)) == 3 + len(small.too_long)
    # Both versions made responses, so that a comparison names them.
    assert read_settings(folder).packages == {"vllm": "1, 2", "torch": "3"}
    open_run(folder, later, small.plan.problems)
    assert read_settings(folder).packages == {"vllm": "1, 2", "torch": "3"}


def test_a_finished_run_keeps_its_packages(straight, small):
    open_run(straight, replace(small.settings, packages={"vllm": "2"}), small.plan.problems)
    assert read_settings(straight).packages == {"vllm": "1"}


@pytest.mark.parametrize("name", ["responses.jsonl", ".hidden"])
def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path, small, name):
    (tmp_path / name).write_text("mine")
    (tmp_path / "problems.jsonl").write_text("mine")
    with pytest.raises(UsageError) as refused:
        open_run(tmp_path, small.settings, small.plan.problems)
    assert str(refused.value) == f"--output {tmp_path} is not empty and holds no evaluation; choose another folder"
    assert small.files(tmp_path) == {name: b"mine", "problems.jsonl": b"mine"}


def test_a_file_in_the_way_is_refused(tmp_path, small):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"file is not empty and holds no evaluation; choose another folder$"):
        open_run(tmp_path / "file", small.settings, small.plan.problems)
    with pytest.raises(UsageError, match=r"^--output .*/file/run cannot be written: Not a directory$"):
        open_run(tmp_path / "file" / "run", small.settings, small.plan.problems)


def test_the_last_rewrite_and_a_regrade_are_refused_in_one_line_too(again, monkeypatch, small):
    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device")

    folder = again()
    done = open_run(folder, small.settings, small.plan.problems)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UsageError, match=r"run cannot be written: No space left"):
        run(folder, small.requests, done, small.grader(), small.Model(), workers=2)
    assert len(read_responses(folder)) == len(small.requests)
    with pytest.raises(UsageError, match=r"run cannot be written: No space left"):
        regrade(folder, small.config, workers=2)


def test_a_response_to_nothing_that_was_asked_does_not_break_the_run(again, straight, small):
    # summaries refuse it by name
    folder = again()
    small.evaluate(folder, small.Model())
    stranger = replace(read_responses(straight)[0], id="p9")
    lines = (folder / "responses.jsonl").read_text(encoding="utf-8")
    (folder / "responses.jsonl").write_text(record_line(stranger) + "\n" + lines, encoding="utf-8")
    small.evaluate(folder, small.Model())
    assert read_responses(folder) == [*read_responses(straight), stranger]
