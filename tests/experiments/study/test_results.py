import json
import lzma
import math
import time
import tracemalloc

import numpy as np
import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.scores import pass_at_k
from openrlhf_cov.experiments.study import result_records, run_results
from openrlhf_cov.experiments.study.run_plan import REPORT, SCREEN, Score, StudyRun
from openrlhf_cov.experiments.study.run_results import area, pack, read_result, reported_metrics, score_of, unpack
from openrlhf_cov.experiments.study.spec_file import spec_of


def test_an_area_by_hand():
    # 0.2 to 0.4 over 10 steps (mean 0.3), 0.4 over 30: (3 + 12) / 40
    assert area([0, 10, 40], [0.2, 0.4, 0.4]) == pytest.approx(0.375)
    assert math.isnan(area([5], [1.0]))


def asked(run):
    return ["--task", "x", *run.configuration, "--train.seed", str(run.seed)]


def test_a_score_is_the_last_accuracy_and_the_area(make_result):
    # 0.4 to 0.8 over 20 steps, 0.8 over 20
    assert score_of(make_result(StudyRun("GRPO", REPORT, (), 0), 0.8)) == Score(0.8, pytest.approx(0.7), 0.8)


def test_packed_results_are_the_same_to_four_digits(tmp_path, make_result):
    runs = [make_result(StudyRun("GRPO", REPORT, ("--x", "1"), seed), 0.1 * seed) for seed in range(4)]
    pack(runs, tmp_path / "x.jsonl.xz", asked)
    for before, after in zip(runs, unpack(tmp_path / "x.jsonl.xz"), strict=True):
        assert after.run == before.run
        assert after.greedy.tolist() == before.greedy.tolist()
        assert pass_at_k(after.sampled, 8) == pass_at_k(before.sampled, 8)
        assert (after.samples, after.kinds) == (64, before.kinds)
        for name, values in before.metrics.columns.items():
            np.testing.assert_allclose(after.metrics.column(name), values, rtol=5.1e-4)
        greedy = (each.evaluations.column("greedy") for each in (after, before))
        np.testing.assert_allclose(*greedy, rtol=5.1e-4)


def test_a_packed_run_of_tuning_keeps_what_points_are_chosen_by(tmp_path, make_result):
    tuned, reported = (make_result(StudyRun("GRPO", stage, (), 0), 0.8) for stage in (SCREEN, REPORT))
    shares = {"cov/acc_low", "cov/token_acc_high", "cov/group_weighted_acc_low"}  # the first two are left out
    reported.metrics.columns.update(dict.fromkeys(shares, reported.metrics.column("reward")))
    pack([tuned, reported], tmp_path / "x.jsonl.xz", asked)
    tuned_after, reported_after = unpack(tmp_path / "x.jsonl.xz")
    assert score_of(tuned_after) == score_of(tuned) == score_of(reported_after)
    assert tuned_after.right.tolist() == tuned.right.tolist()
    # of the names of OF_TUNING the four that this run has, one number a step
    columns = tuned_after.metrics.columns
    assert set(columns) == {"reward", "entropy/mean", "entropy/position_0", "gradient/norm"}
    assert {len(values) for values in columns.values()} == {len(tuned.metrics)}
    left_out = set(reported.metrics.columns) - set(reported_after.metrics.columns)
    assert left_out == {"cov/acc_low", "cov/token_acc_high"}


def test_a_packed_run_has_the_keys_of_published_files(tmp_path, make_result):
    path = tmp_path / "x.jsonl.xz"
    pack([make_result(StudyRun("GRPO", REPORT, ("--x", "1"), 3), 0.5)], path, asked)
    # Published files of all versions name the method "arm" and its configuration "cell".
    expected = {"arm": "GRPO", "stage": "report", "cell": ["--x", "1"], "seed": 3}
    assert json.loads(lzma.decompress(path.read_bytes()))["run"] == expected


def test_only_runs_of_the_flags_that_are_asked_for_are_taken(tmp_path, make_result):
    path = tmp_path / "x.jsonl.xz"
    pack([make_result(StudyRun("GRPO", REPORT, (), seed), 0.5) for seed in range(3)], path, asked)
    taken = unpack(path, lambda run: asked(run) if run.seed == 1 else ["--task", "y"])
    assert [each.run.seed for each in taken] == [1]


def test_a_file_that_was_cut_off_is_refused(tmp_path, make_result):
    path = tmp_path / "x.jsonl.xz"
    pack([make_result(StudyRun("GRPO", REPORT, (), seed), 0.5) for seed in range(3)], path, asked)
    others = (b"7\n", b'{"run": 7}\n', b'{"run": {}, "metrics": []}\n', b"[" * 9000)
    for content in (path.read_bytes()[:-40], b"{}", *map(lzma.compress, others)):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="holds no results of a study"):
            list(unpack(path))


# Functions: up to a quarter of a gigabyte each, which nobody needs but the test.
BOMBS = {
    "one line": lambda: [b"0" * 2**28],
    "a list": lambda: [b"[" + b"[]," * 2**26],
    "empty lines": lambda: [b"\n" * 2**28],
    "lines": lambda: [b"{}\n" * 2**26],
    "spaces": lambda: [b'{"run": 1' + b" " * 2**27 + b"}\n"],
    "two streams": lambda: [b"{}\n", b"{}\n" * 2**20],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_at_once(tmp_path, name):
    path = tmp_path / "x.jsonl.xz"
    path.write_bytes(b"".join(lzma.compress(each, preset=1) for each in BOMBS[name]()))
    started = time.process_time()
    tracemalloc.start()
    with pytest.raises(UsageError, match="holds no results of a study"):
        list(unpack(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * 2**20
    assert time.process_time() - started < 10.0


def test_a_file_that_asks_for_much_memory_is_refused(tmp_path):
    path = tmp_path / "x.jsonl.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**30}]
    path.write_bytes(lzma.compress(b"{}\n", filters=filters))
    with pytest.raises(UsageError, match="holds no results of a study"):
        list(unpack(path))


def test_a_line_over_several_chunks_is_whole(tmp_path, monkeypatch, make_result):
    monkeypatch.setattr(run_results, "CHUNK", 100)
    pack([make_result(StudyRun("GRPO", REPORT, (), seed), 0.5) for seed in range(3)], tmp_path / "x.jsonl.xz", asked)
    assert [each.run.seed for each in unpack(tmp_path / "x.jsonl.xz")] == [0, 1, 2]


def test_a_large_file_of_a_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(result_records, "MAX_FILE_BYTES", 100)
    (tmp_path / "result.json").write_text('{"greedy": 1, "x": "' + "x" * 100 + '"}')
    with pytest.raises(ValueError, match=r"result.json: it has more than 100 bytes"):
        run_results.read_run(tmp_path)


def test_a_folder_without_its_last_file_is_unfinished(tmp_path):
    run = StudyRun("GRPO", REPORT, (), 0)
    (tmp_path / run.folder).mkdir(parents=True)
    (tmp_path / run.folder / "test.json").write_text("{}")
    assert read_result(tmp_path, run) is None


@pytest.mark.slow
def test_the_metrics_of_reported_runs_depend_on_the_study(tmp_path, make_result):
    tuned, reported = (make_result(StudyRun("GRPO", stage, (), 0), 0.8) for stage in (SCREEN, REPORT))
    extra = ("decision/sampled_own/a", "decision_other", "cov/mean")
    reported.metrics.columns.update(dict.fromkeys(extra, reported.metrics.column("reward")))
    pack([tuned, reported], tmp_path / "x.jsonl.xz", asked, ("reward", "decision/"))
    tuned_after, reported_after = unpack(tmp_path / "x.jsonl.xz")
    # Runs of tuning keep no more than reported ones. A slash stands for a whole group, and for its names alone.
    assert set(tuned_after.metrics.columns) == {"reward"}
    assert set(reported_after.metrics.columns) == {"reward", "decision/sampled_own/a"}


def test_long_studies_keep_what_their_pages_read():
    content = {"title": "t", "task": "shortcut", "seeds": [0], "arms": [{"name": "GRPO"}]}
    assert reported_metrics(spec_of(content)) is None
    assert "gradient/zero_frac" in reported_metrics(spec_of(content | {"learned": 0.5}))
    sweep = {"grid": {"--shortcut_share": [0.1, 0.2]}}
    assert reported_metrics(spec_of(content | {"learned": 0.5, "sweep": sweep})) == ("reward", "entropy/mean")
