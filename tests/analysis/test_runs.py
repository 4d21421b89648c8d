import numpy as np
import pytest
from texts import missing

from openrlhf_cov.analysis.runs import Run, RunFollower, evaluation_points, interventions, read_run, training_points
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.command import write_settings
from openrlhf_cov.utils.metrics_log import MetricsLog


def table(steps, **columns):
    return Table(np.asarray(steps), {name.replace("__", "/"): np.array(c, dtype=float) for name, c in columns.items()})


@pytest.fixture
def folder(tmp_path):
    """A run of ours as the trainer writes it: 4 steps, an evaluation at step 2."""
    log, evaluations = MetricsLog(tmp_path / "demo/metrics.jsonl"), MetricsLog(tmp_path / "demo/eval.jsonl")
    for step in range(1, 5):
        delta = float("nan") if step == 1 else -0.1
        log.write(step, {"entropy/mean": 1 - step / 10, "reward": step / 10, "entropy/delta": delta})
    evaluations.write(2, {"eval/math/avg@4": 0.5})
    (tmp_path / "demo/command.txt").write_text("python -m x -- --cov_type kl_cov --algo.kl.init_coef 1e-3 --flag\n")
    return tmp_path / "demo"


# --- reading


@pytest.mark.parametrize("path", [".", "metrics.jsonl"])
def test_a_run_of_ours(folder, path):
    run = read_run(folder / path)
    assert (run.name, run.warnings) == ("demo", ())
    np.testing.assert_allclose(run.training.column("entropy/mean"), [0.9, 0.8, 0.7, 0.6])
    assert np.isnan(run.training.column("entropy/delta")[0])
    assert run.evaluations.column("eval/math/avg@4").tolist() == [0.5]
    assert run.settings["--cov_type"] == "kl_cov"


def test_a_table(tmp_path):
    (tmp_path / "x.csv").write_text("global_step,actor/entropy,critic/score/mean\n1,0.5,0.25\n")
    run = read_run(tmp_path / "x.csv", mapping="verl")
    assert (run.name, run.training.column("reward").tolist()) == ("x", [0.25])


def test_a_folder_of_runs_is_refused_with_the_runs(tmp_path):
    run = tmp_path / "study" / "report" / "grpo" / "point" / "seed-0"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    for folder in (run.parent, tmp_path / "study"):
        with pytest.raises(UsageError, match=f"{folder} is a folder of runs, not a run; name the runs: {run}$"):
            read_run(folder)


def test_what_is_no_run(tmp_path):
    for path, why in ((tmp_path / "none", "does not exist"), (tmp_path, "is not a run; give a folder")):
        with pytest.raises(UsageError, match=why):
            read_run(path)
    (tmp_path / "metrics.jsonl").write_text('{"step"')
    with pytest.raises(UsageError, match=r"holds no step yet; metrics\.jsonl: the last line is cut"):
        read_run(tmp_path)


def test_missing_steps_are_one_warning_and_those_of_evaluations_none(tmp_path):
    log, evaluations = MetricsLog(tmp_path / "metrics.jsonl"), MetricsLog(tmp_path / "eval.jsonl")
    for step in (1, 2, 3, 6, 7, 9):
        log.write(step, {"reward": 0.5})
    for step in (1, 2, 6, 7):
        evaluations.write(step, {"eval/math/avg@4": 0.5})
    # 4, 5 and 8
    (warning,) = read_run(tmp_path).warnings
    assert missing(warning, "metrics.jsonl: steps missing", "3", "after step 3") == []
    (tmp_path / "x.csv").write_text("step,entropy,reward\n" + "".join(f"{step},1,1\n" for step in (1, 2, 4, 5)))
    (warning,) = read_run(tmp_path / "x.csv").warnings
    assert missing(warning, "x.csv: steps missing", "1", "after step 2") == []


def test_following_a_run(folder):
    follower = RunFollower(folder)
    assert follower.poll()
    assert not follower.poll()
    assert len(follower.run.training) == 4
    MetricsLog(folder / "metrics.jsonl", resumed_step=4).write(5, {"entropy/mean": 0.5})
    assert follower.poll()
    assert len(follower.run.training) == 5
    MetricsLog(folder / "eval.jsonl", resumed_step=4).write(4, {"eval/math/avg@4": 0.6})
    assert follower.poll()
    assert len(follower.run.evaluations) == 2


def test_following_a_run_that_goes_back(folder):
    follower = RunFollower(folder)
    follower.poll()
    MetricsLog(folder / "metrics.jsonl", resumed_step=2)  # moves steps 3 and 4 to a backup
    assert follower.poll()
    assert follower.run.training.steps.tolist() == [1, 2]


# --- settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"--cov_type": "none", "--actor.entropy_coef": "0.0"}, []),
        ({"--cov_type": "clip_cov"}, ["--cov_type clip_cov"]),
        ({"--actor.entropy_coef": "0:0.005:100"}, ["--actor.entropy_coef 0:0.005:100"]),
        ({"--actor.eps_clip_low_high": "0.2 0.28"}, ["--actor.eps_clip_low_high 0.2 0.28"]),
        ({"--actor.eps_clip_low_high": "0.2 0.2"}, []),
        ({"--actor.eps_clip": "0.3"}, ["--actor.eps_clip 0.3"]),
        ({"--actor.eps_clip": "0.1"}, []),
        ({"--actor.eps_clip": "0.3", "--actor.eps_clip_low_high": "0.2 0.2"}, []),  # upstream takes the pair
    ],
)
def test_interventions(tmp_path, settings, expected):
    settings = {"--algo.kl.init_coef": "0"} | settings
    assert interventions(Run("r", tmp_path, table([1], reward=[0]), settings=settings)) == expected


def test_selected_tokens_are_an_intervention(tmp_path):
    run = Run("r", tmp_path, table([1, 2], cov__selected_frac=[np.nan, 0.002]))
    assert interventions(run) == ["a covariance method (cov/selected_frac above 0)"]


def test_a_kl_to_the_reference_is_an_intervention_where_flags_are_not_known(tmp_path):
    columns = table([1, 2], kl=[0.0, 0.02])
    (found,) = interventions(Run("r", tmp_path, columns))
    assert missing(found, "KL", "kl that is not 0") == []
    assert interventions(Run("r", tmp_path, table([1, 2], kl=[0.0, np.nan]))) == []
    known = {"--algo.kl.init_coef": "0"}
    assert interventions(Run("r", tmp_path, columns, settings=known)) == []


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({"--algo.kl.init_coef": "0.01"}, ["--algo.kl.init_coef 0.01 (the program's default)"]),
        ({"--algo.kl.init_coef": "0.0"}, []),
        ({"--cov_type": "none", "--method": "none", "--actor.entropy_coef": ""}, []),
        ({"--actor.eps_clip_low_high": "0.2 0.28"}, ["--actor.eps_clip_low_high 0.2 0.28"]),
        ({"--actor.eps_clip_low_high": "", "--actor.eps_clip": "0.3"}, ["--actor.eps_clip 0.3"]),
    ],
)
def test_interventions_are_read_from_what_the_run_recorded(tmp_path, recorded, expected):
    run = Run("r", tmp_path, table([1], reward=[0]), settings={"--data.max_len": "48"}, resolved=recorded)
    assert interventions(run) == expected


def test_settings_that_a_run_recorded_are_read_with_it(tmp_path):
    MetricsLog(tmp_path / "metrics.jsonl").write(1, {"reward": 1.0})
    write_settings(tmp_path, {"--algo.kl.init_coef": 0.02, "--cov_type": "none"})
    run = read_run(tmp_path)
    assert run.resolved == {"--algo.kl.init_coef": "0.02", "--cov_type": "none"}
    assert run.setting("--algo.kl.init_coef") == "0.02"
    assert run.setting("--actor.entropy_coef") is None


# --- points of the law


def test_training_points(tmp_path):
    run = Run("r", tmp_path, table([1, 2, 3], entropy__mean=[0.9, np.nan, 0.7], reward=[1, 2, 3], score=[4, 5, 6]))
    points = training_points(run)
    assert (points.steps.tolist(), points.entropy.tolist(), points.reward.tolist()) == ([1, 3], [0.9, 0.7], [1, 3])
    assert training_points(run, "score").reward.tolist() == [4, 6]
    assert len(training_points(run, "missing")) == 0


def test_evaluations_have_the_entropy_of_their_policy(tmp_path):
    # before training: line 1; after step 2: line 3; after step 5, which has no line after it: between 4 and 8, at 6;
    # after step 8, the last: line 8; after step 30: nothing near
    run = Run(
        "r",
        tmp_path,
        table([1, 2, 3, 4, 8, 9], entropy__mean=[0.9, 0.8, 0.7, 0.6, 0.2, np.nan]),
        table([0, 2, 5, 8, 30], acc=[0.1, 0.2, 0.3, 0.4, 0.5]),
    )
    points = evaluation_points(run, "acc")
    assert points.steps.tolist() == [0, 2, 5, 8]
    np.testing.assert_allclose(points.entropy, [0.9, 0.7, 0.4, 0.2])
    assert points.reward.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert len(evaluation_points(run, "missing")) == 0
    assert len(evaluation_points(Run("r", tmp_path, table([1], reward=[1]), run.evaluations), "acc")) == 0
