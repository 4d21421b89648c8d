import json
import re
import sys

import numpy as np
import pytest
from texts import missing

from openrlhf_cov.analysis.foreign_logs import event_folder, read_csv, read_events, read_trainer_state, state_file
from openrlhf_cov.analysis.runs import read_run
from openrlhf_cov.errors import UsageError


@pytest.fixture
def table(tmp_path):
    def write(text, name="run.csv"):
        path = tmp_path / name
        path.write_text(text, newline="")
        return path

    return write


VERL = """training/global_step,actor/entropy,critic/score/mean,val-core/math/acc/mean@4
0,,,0.1
1,0.9,0.2,
2,0.8,0.3,0.2
"""


def test_csv(table):
    training, evaluations, warnings = read_csv(table(VERL))
    assert training.steps.tolist() == [1, 2]
    assert training.column("entropy/mean").tolist() == [0.9, 0.8]
    assert training.column("reward").tolist() == training.column("score").tolist() == [0.2, 0.3]
    assert evaluations.steps.tolist() == [0, 2]
    assert evaluations.column("val-core/math/acc/mean@4").tolist() == [0.1, 0.2]
    assert warnings == []


# A history of W&B: OpenRLHF logs training and evaluations in rows of their own, each with its own column for the step.
OPENRLHF = """_step,_timestamp,train/global_step,train/entropy_loss,train/reward,eval/math_pass1,eval/global_step
0,1000,,,,0.1,0
1,1010,1,0.9,0.2,,
2,1020,2,0.8,0.3,,
3,1030,,,,0.4,2
"""


def test_evaluations_of_openrlhf_have_their_step(table):
    training, evaluations, warnings = read_csv(table(OPENRLHF), columns=["reward", "time"])
    assert training.steps.tolist() == [1, 2]
    assert training.column("time").tolist() == [1010, 1020]
    assert evaluations.steps.tolist() == [0, 2]
    assert evaluations.column("math_pass1").tolist() == [0.1, 0.4]
    assert "global_step" not in evaluations.columns
    assert warnings == []


def test_a_resumed_run_leaves_rows_behind_by_the_clock_of_wandb(table):
    # Resumed from step 1, the run makes step 2 again and ends: the evaluation of step 3 and the row of step 3 before
    # it belong to no one.
    text = OPENRLHF + "4,1040,3,0.7,0.9,,\n5,1050,,,,0.9,3\n6,5000,2,0.85,0.25,,\n7,5010,,,,0.35,2\n"
    training, evaluations, warnings = read_csv(table(text), columns=["reward", "time"])
    assert training.steps.tolist() == [1, 2]
    assert training.column("reward").tolist() == [0.2, 0.25]
    assert evaluations.steps.tolist() == [0, 2]
    assert evaluations.column("math_pass1").tolist() == [0.1, 0.35]
    assert any("before the run was resumed" in warning for warning in warnings)


def test_evaluations_that_a_resumed_run_has_not_come_to_again_are_left_out(table):
    # Steps 1 to 4 with evaluations at 2 and 4; resumed after step 2, now at step 3, before the one of 4.
    rows = [(1, 10, ""), (2, 20, 0.2), (3, 30, ""), (4, 40, 0.4), (3, 50, "")]
    text = "".join(f"{step},{time},0.5,{step / 10},{score}\n" for step, time, score in rows)
    path = table("step,time,entropy,reward,eval/math500/avg@1\n" + text)
    training, evaluations, warnings = read_csv(path)
    assert training.steps.tolist() == [1, 2, 3]
    assert evaluations.steps.tolist() == [2]
    assert any("evaluations from before the run was resumed left out, 1" in warning for warning in warnings)


def test_a_late_evaluation_leaves_no_training_behind(table):
    # The evaluation of step 1 ends when step 3 is done, and has a row of its own.
    path = table(
        "step,time,entropy,reward,eval/math500/avg@1\n1,10,0.5,0.1,\n2,20,0.5,0.2,\n3,30,0.5,0.3,\n1,35,,,0.4\n"
    )
    training, evaluations, _ = read_csv(path)
    assert training.steps.tolist() == [1, 2, 3]
    assert evaluations.steps.tolist() == [1]


def test_two_columns_of_one_name_are_refused_where_one_is_read(table):
    path = table("step,entropy,reward,other,other\n1,0.9,0.2,5,6\n")
    training, _, _ = read_csv(path, columns=["entropy/mean", "reward"])
    assert training.column("reward").tolist() == [0.2]
    with pytest.raises(UsageError, match="two columns are called 'reward'"):
        read_csv(table("step,entropy,reward,reward\n1,0.9,0.2,0.8\n"), columns=["entropy/mean", "reward"])


def test_csv_with_a_mapping_and_chosen_columns(table):
    text = "global_step,H,R,other,name\n1,0.9,0.2,5,a\n2,0.8,0.3,6,b\n"
    mapping = {"step": "global_step", "entropy": "H", "reward": "R"}
    training, evaluations, warnings = read_csv(table(text), mapping, ["entropy/mean", "reward"])
    assert {name: column.tolist() for name, column in training.columns.items()} == {
        "entropy/mean": [0.9, 0.8],
        "reward": [0.2, 0.3],
    }
    assert (len(evaluations), warnings) == (0, [])
    (warning,) = read_csv(table(text), mapping)[2]
    assert missing(warning, "run.csv", "not finite", "2") == []


BROKEN = {
    "windows": VERL.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + VERL,
    "cut": VERL + "3,0.7",
    "a row too long": VERL + "3,1,2,3,4,5\n",
    "rows in two parts": VERL.replace("2,0.8,0.3,0.2", "2,0.8,0.3,\n2,,,0.2"),
    "repeated": VERL.replace("2,0.8,0.3,0.2", "2,9,9,\n2,0.8,0.3,0.2"),
    "quoted": VERL.replace("0.9", '"0.9"'),
    "no step": VERL + ",5,5,5\n",
    "empty rows": VERL.replace("1,0.9", "\n1,0.9"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tables(table, name):
    training, evaluations, warnings = read_csv(table(BROKEN[name]))
    assert training.steps.tolist() == [1, 2]
    assert training.column("entropy/mean").tolist() == [0.9, 0.8]
    assert evaluations.column("val-core/math/acc/mean@4").tolist() == [0.1, 0.2]
    assert bool(warnings) == (name in ("cut", "a row too long", "repeated", "no step"))


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("a,b\n1,2\n", "no column with the step; name it")])
def test_a_table_without_steps(table, text, said):
    with pytest.raises(UsageError, match=said):
        read_csv(table(text))


def test_a_table_that_is_none(table):
    with pytest.raises(UsageError, match="cannot be read"):
        read_csv(table(VERL + '3,"' + "x" * 200_000 + '",1,1\n'))


# --- TensorBoard


@pytest.fixture
def events(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter

    def write(scalars, folder="tb"):
        with writer(str(tmp_path / folder)) as out:
            for tag, step, value, time in scalars:
                out.add_scalar(tag, value, step, walltime=time)
        return tmp_path / folder

    return write


SCALARS = [
    (f"train/{tag}", step, value * step, 100.0 * step)
    for step in (1, 2, 3)
    for tag, value in (("reward", 0.25), ("entropy/mean", 0.5))
]
SCALARS.append(("eval/eval_math_pass1", 2, 0.75, 250.0))


def test_events(events):
    training, evaluations, warnings = read_events(events(SCALARS))
    assert training.steps.tolist() == [1, 2, 3]
    assert training.column("reward").tolist() == [0.25, 0.5, 0.75]
    assert training.column("entropy/mean").tolist() == [0.5, 1, 1.5]
    assert training.column("time").tolist() == [100, 200, 300]
    assert (evaluations.steps.tolist(), evaluations.column("eval_math_pass1").tolist()) == ([2], [0.75])
    assert warnings == []
    assert list(read_events(events(SCALARS), columns=["reward"])[0].columns) == ["time", "reward"]


def test_events_with_gaps_and_missing_values(events):
    folder = events([*SCALARS, ("train/reward", 9, float("nan"), 900.0), ("train/kl", 9, 0.5, 901.0)])
    training, _, warnings = read_events(folder)
    assert training.steps.tolist() == [1, 2, 3, 9]
    np.testing.assert_array_equal(training.column("reward"), [0.25, 0.5, 0.75, np.nan])
    np.testing.assert_array_equal(training.column("kl"), [np.nan] * 3 + [0.5])
    assert training.column("time").tolist() == [100, 200, 300, 901]
    assert [missing(warning, "tb: train/reward", "not finite", "1") for warning in warnings] == [[]]


def test_values_that_a_step_may_lack_are_no_warning(events):
    nan = [(f"train/{tag}", step, float("nan"), 100.0 * step) for step in (1, 2) for tag in ("cov/acc_low", "kl")]
    folder = events([*SCALARS, *nan, ("train/kl", 3, float("inf"), 300.0), ("train/cov/acc_low", 3, 0.5, 300.0)])
    training, _, warnings = read_events(folder)
    np.testing.assert_array_equal(training.column("cov/acc_low"), [np.nan, np.nan, 0.5])
    assert [missing(warning, "tb: train/kl", "not finite", "1") for warning in warnings] == [[]]


def test_events_of_a_resumed_run(events):
    events(SCALARS)
    folder = events([("train/reward", 2, 7.0, 400.0), ("train/entropy/mean", 2, 7.0, 400.0)])
    training, _, warnings = read_events(folder)
    assert training.column("reward").tolist() == [0.25, 7.0]
    assert "before the run was resumed" in warnings[0]


def test_evaluations_of_events_that_a_resumed_run_left_behind(events):
    events([*SCALARS, ("eval/eval_math_pass1", 3, 0.9, 350.0)])
    folder = events([("train/reward", 2, 7.0, 400.0), ("train/entropy/mean", 2, 7.0, 400.0)])
    _, evaluations, warnings = read_events(folder)
    assert evaluations.steps.tolist() == [2]
    assert any("eval_math_pass1: evaluations from before the run was resumed left out, 1" in each for each in warnings)


def test_folders_of_events(events, tmp_path):
    events(SCALARS, "runs/first")
    assert event_folder(tmp_path / "runs") == tmp_path / "runs/first"
    events(SCALARS, "runs/second")
    with pytest.raises(UsageError, match="one folder with TensorBoard events is needed, got first, second"):
        event_folder(tmp_path / "runs")
    events(SCALARS, "runs")
    assert event_folder(tmp_path / "runs") == tmp_path / "runs"


def test_tensorboard_is_asked_for_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(UsageError, match=r"needs TensorBoard: pip install tensorboard$"):
        read_events(tmp_path)


STATE = {
    "log_history": [
        {"step": 1, "reward": 0.25, "entropy": 0.9, "completions/mean_length": 7.0, "note": "warm-up"},
        {"step": 2, "reward": 0.5, "entropy": 0.8, "completions/mean_length": 6.0},
        {"step": 2, "eval_reward": 0.4},
        {"step": 2, "train_runtime": 12.5},  # the last entry of a finished run
    ]
}


def checkpoint(folder, number, state=STATE):
    path = folder / f"checkpoint-{number}" / "trainer_state.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(state))
    return path


def test_the_log_of_a_checkpoint_of_trl(tmp_path):
    training, evaluations, warnings = read_trainer_state(checkpoint(tmp_path, 2))
    assert training.steps.tolist() == [1, 2]
    assert training.column("reward").tolist() == [0.25, 0.5]
    assert training.column("entropy/mean").tolist() == [0.9, 0.8]
    assert training.column("response_length").tolist() == [7.0, 6.0]
    assert evaluations.steps.tolist() == [2]
    assert evaluations.column("eval_reward").tolist() == [0.4]
    assert [missing(warning, "trainer_state.json", "not finite", "1") for warning in warnings] == [[]]


def test_a_folder_of_checkpoints_is_its_last_checkpoint(tmp_path):
    checkpoint(tmp_path, 9)
    last = checkpoint(tmp_path, 10)  # behind 9 in order of the alphabet
    (tmp_path / "checkpoint-11").mkdir()  # one that is being written
    assert state_file(tmp_path) == state_file(last.parent) == state_file(last) == last
    assert read_run(tmp_path).name == tmp_path.name
    assert read_run(last).name == "checkpoint-10"
    assert state_file(tmp_path / "checkpoint-11") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read: not JSON"),
        ('{"log_history": [{"st', "cannot be read: not JSON"),
        ("[]", "cannot be read: it is not a JSON object"),
        ("{}", "has no list log_history; give a trainer_state.json"),
        ('{"log_history": [7]}', "has no list log_history"),
        ('{"log_history": []}', "is empty; give a log with a step in every row"),
        ('{"log_history": [{"reward": 1}]}', "name it, such as --mapping step=reward; the columns are reward"),
    ],
)
def test_a_state_without_a_log(tmp_path, content, said):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UsageError, match=re.escape(said)):
        read_run(tmp_path)
