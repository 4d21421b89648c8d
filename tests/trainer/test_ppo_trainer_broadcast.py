"""What a controller does around the broadcast of weights: dead engines, and the evaluation of a restored step."""

from types import SimpleNamespace

import pytest
from openrlhf.trainer import ppo_trainer_async
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from ray.exceptions import ActorDiedError

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer import engine_health, ppo_trainer
from openrlhf_cov.trainer.ppo_trainer import CovPPOTrainer, CovTrainingActor
from openrlhf_cov.utils.metrics_log import read_metrics

STATES = {"episode": 0, "global_step": 3, "total_consumed_prompts": 9, "data_loader_state_dict": {"generator": {}}}


@pytest.fixture
def restart(tmp_path, monkeypatch):
    """Function (dead engines, class, eval.steps, eval data, states) -> a controller that starts from step 3.

    Its ``calls`` note what reaches upstream; an evaluation gives an accuracy of 0.75.
    """

    def make(dead, kind=CovPPOTrainer, steps=3, eval_dataloader="eval", states=STATES, **flags):
        trainer = object.__new__(kind)
        calls = []

        (tmp_path / "state" / "_actor").mkdir(parents=True)
        if states["global_step"]:
            (tmp_path / "state" / "_actor" / "latest").write_text("global_step3")

        def run_on_actors(method_name, **call):
            if method_name == "export_best":
                calls.append(call["record"])
            return ["global_step3" if states["global_step"] else None]

        def remote(name):
            return SimpleNamespace(remote=lambda: calls.append(name))

        upstream = {
            "init_checkpoint_states": lambda self: states | {"optimizer": "of DeepSpeed"},
            "broadcast_to_vllm": lambda self: calls.append("broadcast"),
            "ppo_train": lambda self, global_steps: {},
        }
        for name, method in upstream.items():
            monkeypatch.setattr(BasePPOTrainer, name, method)
        for module in (ppo_trainer, ppo_trainer_async):
            monkeypatch.setattr(module, "ray", SimpleNamespace(get=lambda refs: refs, put=lambda value: value))
        monkeypatch.setattr(ppo_trainer, "dead_engines", lambda engines: calls.append(f"check {engines}") or dead)
        evaluation = SimpleNamespace(steps=steps, temperature=0.5, n_samples_per_prompt=4)
        vars(trainer).update(
            args=SimpleNamespace(
                ckpt=SimpleNamespace(output_dir=str(tmp_path), path=str(tmp_path / "state"), load_enable=True),
                critic=SimpleNamespace(model_name_or_path=None),
                eval=evaluation,
                train=SimpleNamespace(partial_rollout_enable=False),
                **({"eval_at_start": False, "vllm_no_progress_timeout": 0.0} | flags),
            ),
            best_eval_metric_key="eval_task_pass1",
            best_eval_metric_value=float("-inf"),
            kl_ctl=SimpleNamespace(value=0.5),
            actor_model_group=SimpleNamespace(async_run_method=run_on_actors),
            critic_model_group=None,
            vllm_engines="engines" if states["global_step"] else [],
            vllm_lock=SimpleNamespace(acquire=remote("acquire"), release=remote("release")),
            _partial_rollout=False,
            eval_dataloader=eval_dataloader,
            generate_kwargs={"temperature": 1.0, "max_len": 64},
            evaluate=lambda step, **settings: calls.append((step, settings)) or {"eval_task_pass1": 0.75},
            calls=calls,
        )
        trainer.init_checkpoint_states()
        return trainer

    return make


def locked(kind, *calls):
    """The asynchronous trainer holds its lock meanwhile: no engine that dies during a rollout is missed."""
    return ["acquire", *calls, "release"] if kind is CovTrainingActor else list(calls)


BOTH = pytest.mark.parametrize("kind", [CovPPOTrainer, CovTrainingActor])


@BOTH
def test_new_weights_go_to_engines_that_live(restart, kind):
    trainer = restart([], kind)
    trainer.ppo_train(3)
    trainer.broadcast_to_vllm()
    assert trainer.calls == locked(kind, "check engines", "broadcast")
    assert trainer.dead_engines == []


@BOTH
def test_a_dead_engine_is_not_waited_for_and_the_step_is_finished(restart, kind, caplog):
    trainer = restart([1], kind)
    trainer.ppo_train(3)
    ppo_trainer.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    trainer.broadcast_to_vllm()
    ppo_trainer.logger.removeHandler(caplog.handler)
    assert trainer.calls == locked(kind, "check engines")
    assert trainer.dead_engines == [1]
    assert "vLLM engine 1 died; " in caplog.text


@BOTH
def test_a_dead_engine_at_the_start_stops_a_resumed_run(restart, kind):
    trainer = restart([0, 2], kind)
    with pytest.raises(RunStopped, match=r"vLLM engine 0, 2 died; .*; no step was made"):
        trainer.broadcast_to_vllm()
    assert trainer.calls == locked(kind, "check engines")


def best(value, step=3):
    """What is exported with the model of an evaluation."""
    return {"global_step": step, "metric": "eval_task_pass1", "value": value}


def test_the_evaluation_of_the_restored_step_is_made_up_for_with_its_weights(restart, tmp_path):
    trainer = restart([])
    trainer.broadcast_to_vllm()
    evaluated = (3, {"temperature": 0.5, "n_samples_per_prompt": 4, "max_len": 64})
    assert trainer.calls == ["check engines", "broadcast", evaluated, best(0.75)]
    (line,) = read_metrics(tmp_path / "eval.jsonl")
    assert (line["step"], line["eval_task_pass1"]) == (3, 0.75)


def test_an_evaluation_that_was_made_is_not_made_again_but_may_be_the_best(restart, tmp_path):
    (tmp_path / "eval.jsonl").write_text('{"step": 3, "eval_task_pass1": 0.25, "eval_task_pass4": null}\n')
    trainer = restart([])
    trainer.broadcast_to_vllm()
    assert trainer.calls == ["check engines", "broadcast", best(0.25)]
    assert len(read_metrics(tmp_path / "eval.jsonl")) == 1


@pytest.mark.parametrize(("steps", "data"), [(2, "eval"), (float("inf"), "eval"), (3, None)])
def test_no_evaluation_was_due(restart, steps, data):
    trainer = restart([], steps=steps, eval_dataloader=data)
    trainer.broadcast_to_vllm()
    assert trainer.calls == ["check engines", "broadcast"]


FRESH = STATES | {"global_step": 0, "total_consumed_prompts": 0}


@pytest.mark.parametrize("steps", [3, float("inf")])
def test_a_fresh_start_evaluates_its_policy_where_a_flag_asks_for_it(restart, tmp_path, steps):
    trainer = restart([], steps=steps, states=FRESH, eval_at_start=True)
    trainer.restore_best_checkpoint_state(FRESH)
    assert trainer.calls == [(0, {"temperature": 0.5, "n_samples_per_prompt": 4, "max_len": 64}), best(0.75, step=0)]
    (line,) = read_metrics(tmp_path / "eval.jsonl")
    assert (line["step"], line["eval_task_pass1"]) == (0, 0.75)


def test_a_start_that_is_repeated_evaluates_again(restart, tmp_path):
    # the former attempt left no checkpoint, so nothing tells whether it had the same model and settings
    (tmp_path / "eval.jsonl").write_text('{"step": 0, "eval_task_pass1": 0.25}\n')
    trainer = restart([], states=FRESH, eval_at_start=True)
    trainer.restore_best_checkpoint_state(FRESH)
    assert trainer.calls[1:] == [best(0.75, step=0)]
    (line,) = read_metrics(tmp_path / "eval.jsonl")
    assert line["eval_task_pass1"] == 0.75
    (former,) = read_metrics(tmp_path / "eval.jsonl.bak")
    assert former["eval_task_pass1"] == 0.25


@pytest.mark.parametrize(("states", "at_start"), [(FRESH, False), (STATES, True)])
def test_a_start_without_the_flag_and_a_resume_do_not_evaluate_first(restart, states, at_start):
    trainer = restart([], states=states, eval_at_start=at_start)
    trainer.restore_best_checkpoint_state(states)
    assert trainer.calls == []


@BOTH
def test_a_transfer_that_hangs_ends_the_run(restart, kind, monkeypatch):
    killed = []

    class Clock:
        """Stands in for ``threading.Timer``; its time runs out when the transfer waits."""

        def __init__(self, seconds, function):
            assert seconds == 30.0
            Clock.function = function

        def start(self):
            pass

        def cancel(self):
            Clock.cancelled = True

    monkeypatch.setattr(engine_health, "Timer", Clock)
    monkeypatch.setattr(engine_health, "ray", SimpleNamespace(kill=killed.append))
    trainer = restart([], kind, vllm_no_progress_timeout=30.0)
    trainer.ppo_train(3)
    trainer.vllm_engines = ["engine 0", "engine 1"]
    trainer.actor_model_group._actor_handlers = ["rank 0"]
    trainer.broadcast_to_vllm()
    assert (killed, Clock.cancelled) == ([], True)

    def hang(self):
        Clock.function()
        raise ActorDiedError()

    monkeypatch.setattr(BasePPOTrainer, "broadcast_to_vllm", hang)
    with pytest.raises(RunStopped, match=r"within 30 s \(--vllm.no_progress_timeout\).* --ckpt.load_enable"):
        trainer.broadcast_to_vllm()
    assert killed == ["engine 0", "engine 1", "rank 0"]
    # the asynchronous trainer has released its lock
    assert (trainer.calls[-1] == "release") is (kind is CovTrainingActor)


def test_a_transfer_that_fails_in_time_is_no_hang(restart, monkeypatch):
    def fail(self):
        raise ActorDiedError()

    trainer = restart([], vllm_no_progress_timeout=3600.0)
    trainer.ppo_train(3)
    monkeypatch.setattr(BasePPOTrainer, "broadcast_to_vllm", fail)
    with pytest.raises(ActorDiedError):
        trainer.broadcast_to_vllm()


class Check:
    """Stands in for a ``WeightCheck`` and notes when it is asked."""

    def __init__(self, calls):
        self.before_transfer = lambda: calls.append("before")
        self.after_transfer = lambda: calls.append("after")


@BOTH
def test_weights_are_checked_around_their_transfer(restart, kind):
    trainer = restart([], kind)
    trainer.weight_check = Check(trainer.calls)
    trainer.ppo_train(3)
    trainer.broadcast_to_vllm()
    assert trainer.calls == locked(kind, "check engines", "before", "broadcast", "after")


def test_engines_that_are_paused_for_a_transfer_are_asked_before_and_after(restart, monkeypatch):
    trainer = restart([], CovTrainingActor)
    trainer._partial_rollout = trainer.args.train.partial_rollout_enable = True
    monkeypatch.setattr(ppo_trainer_async, "batch_vllm_engine_call", lambda engines, name: trainer.calls.append(name))
    trainer.weight_check = Check(trainer.calls)
    trainer.ppo_train(3)
    trainer.broadcast_to_vllm()
    paused = ["acquire", "pause_generation", "check engines", "broadcast", "resume_generation", "release"]
    assert trainer.calls == ["before", *paused, "after"]


@BOTH
def test_weights_that_did_not_go_out_are_not_checked(restart, kind):
    trainer = restart([1], kind)
    trainer.weight_check = Check(trainer.calls)
    trainer.ppo_train(3)
    trainer.broadcast_to_vllm()
    assert trainer.calls == locked(kind, "check engines")
