"""What W&B and TensorBoard get: one W&B run for all attempts of a run, and metrics with one prefix."""

import sys
from types import SimpleNamespace

import pytest

from openrlhf_cov.trainer import cpu_host

cpu_host.install()

from openrlhf_cov.trainer.ppo_trainer import CovTensorboardLogger, CovWandbLogger  # noqa: E402


class FakeWandb:
    """The part of the module that upstream uses. Like the real one it reads the id of the run from the environment."""

    api = SimpleNamespace(api_key="key")
    Table = staticmethod(lambda columns: SimpleNamespace(columns=columns, data=[]))

    def __init__(self, environment):
        self.environment, self.runs, self.logged = environment, [], []

    def init(self, **settings):
        self.runs.append((self.environment.get("WANDB_RUN_ID"), self.environment.get("WANDB_RESUME")))

    def define_metric(self, *args, **settings):
        pass

    def log(self, values):
        self.logged.append(values)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Function (load_enable, folder) -> the fake module and the tracker of a run that was just started there.

    Every start is a process of its own, which has no id in its environment unless the user gave one.
    """
    import os

    wandb = FakeWandb(os.environ)
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    def run(load_enable=False, folder="run", run_id=None):
        for name in ("WANDB_RUN_ID", "WANDB_RESUME"):
            monkeypatch.setenv(name, "")  # so that the variables are as before after the test
            os.environ.pop(name)
        if run_id:
            os.environ["WANDB_RUN_ID"] = run_id
        names = SimpleNamespace(key="key", org=None, project="p", group=None, run_name="r")
        args = SimpleNamespace(
            logger=SimpleNamespace(wandb=names, tensorboard_dir=str(tmp_path / "tensorboard")),
            ckpt=SimpleNamespace(
                output_dir=str(tmp_path / folder), path=str(tmp_path / folder / "state"), load_enable=load_enable
            ),
            critic=SimpleNamespace(model_name_or_path=None),
        )
        return wandb, CovWandbLogger(args), args

    return run


def put_checkpoint(folder):
    (folder / "state" / "_actor").mkdir(parents=True)
    (folder / "state" / "_actor" / "latest").write_text("global_step1")


def test_a_resumed_run_continues_its_wandb_run(start, tmp_path):
    start()
    put_checkpoint(tmp_path / "run")
    start(load_enable=True)
    wandb, *_ = start(load_enable=True)
    (first, how), *others = wandb.runs
    assert first == (tmp_path / "run" / "wandb_run_id").read_text()
    assert how == "allow"
    assert others == [(first, "allow")] * 2


def test_other_runs_and_fresh_starts_have_wandb_runs_of_their_own(start, tmp_path):
    start()
    start(folder="other")
    wandb, *_ = start(load_enable=True)  # killed before its first checkpoint: step 1 is made again
    assert len({run_id for run_id, _ in wandb.runs}) == 3


def test_an_id_that_the_user_gives_is_taken(start):
    wandb, *_ = start(run_id="mine")
    assert wandb.runs == [("mine", "allow")]


METRICS = {"eval/aime24/avg@32": 0.25, "eval/mean/avg": 0.5, "eval_task_pass1": 0.75}
NAMES = {"eval/aime24/avg@32", "eval/mean/avg", "eval/eval_task_pass1"}


def test_metrics_of_an_evaluation_have_one_prefix_in_wandb(start):
    wandb, tracker, _ = start()
    tracker.log_eval(4, METRICS)
    assert wandb.logged[-1].keys() == NAMES | {"eval/global_step"}


def test_metrics_of_an_evaluation_have_one_prefix_in_tensorboard(start, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    *_, args = start()
    tracker = CovTensorboardLogger(args)
    tracker.log_eval(4, METRICS)
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard" / "r"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == NAMES
