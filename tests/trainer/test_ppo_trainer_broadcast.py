"""What a controller does around the broadcast of weights: dead engines, and the evaluation of a restored step."""

from types import SimpleNamespace

import pytest
from openrlhf.trainer import ppo_trainer_async
from openrlhf.trainer.ppo_trainer import BasePPOTrainer

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.dynamics import RunningLaw
from openrlhf_cov.trainer import ppo_trainer
from openrlhf_cov.trainer.ppo_trainer import CovPPOTrainer, CovTrainingActor
from openrlhf_cov.utils.metrics_log import read_metrics

STATES = {"episode": 0, "global_step": 3, "total_consumed_prompts": 9, "data_loader_state_dict": {"generator": {}}}


@pytest.fixture
def restart(tmp_path, monkeypatch):
    """Function (dead engines, class, eval.steps, eval data) -> a controller that starts from step 3.

    Its ``calls`` note what reaches upstream; an evaluation gives an accuracy of 0.75.
    """

    def make(dead, kind=CovPPOTrainer, steps=3, eval_dataloader="eval"):
        trainer = object.__new__(kind)
        calls = []

        def remote(name):
            return SimpleNamespace(remote=lambda: calls.append(name))

        upstream = {
            "init_checkpoint_states": lambda self: STATES | {"optimizer": "of DeepSpeed"},
            "broadcast_to_vllm": lambda self: calls.append("broadcast"),
            "ppo_train": lambda self, global_steps: {},
            "save_best_checkpoint": lambda self, *call: calls.append(call),
        }
        for name, method in upstream.items():
            monkeypatch.setattr(BasePPOTrainer, name, method)
        for module in (ppo_trainer, ppo_trainer_async):
            monkeypatch.setattr(module, "ray", SimpleNamespace(get=lambda refs: refs, put=lambda value: value))
        monkeypatch.setattr(ppo_trainer, "dead_engines", lambda engines: calls.append(f"check {engines}") or dead)
        evaluation = SimpleNamespace(steps=steps, temperature=0.5, n_samples_per_prompt=4)
        vars(trainer).update(
            args=SimpleNamespace(ckpt=SimpleNamespace(output_dir=str(tmp_path), load_enable=False), eval=evaluation),
            kl_ctl=SimpleNamespace(value=0.5),
            actor_model_group=SimpleNamespace(async_run_method=lambda **call: []),
            critic_model_group=None,
            vllm_engines="engines",
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


SAVED = STATES | {"kl_coef": 0.5, "law": RunningLaw().state_dict()}
"""The client states of the step, as upstream passes them right after it."""


def test_the_evaluation_of_the_restored_step_is_made_up_for_with_its_weights(restart, tmp_path):
    trainer = restart([])
    trainer.broadcast_to_vllm()
    evaluated = (3, {"temperature": 0.5, "n_samples_per_prompt": 4, "max_len": 64})
    assert trainer.calls == ["check engines", "broadcast", evaluated, ({"eval_task_pass1": 0.75}, 3, SAVED)]
    (line,) = read_metrics(tmp_path / "eval.jsonl")
    assert (line["step"], line["eval_task_pass1"]) == (3, 0.75)


def test_an_evaluation_that_was_made_is_not_made_again_but_may_be_the_best(restart, tmp_path):
    (tmp_path / "eval.jsonl").write_text('{"step": 3, "eval_task_pass1": 0.25, "eval_task_pass4": null}\n')
    trainer = restart([])
    trainer.broadcast_to_vllm()
    assert trainer.calls == ["check engines", "broadcast", ({"eval_task_pass1": 0.25}, 3, SAVED)]
    assert len(read_metrics(tmp_path / "eval.jsonl")) == 1


@pytest.mark.parametrize(("steps", "data"), [(2, "eval"), (float("inf"), "eval"), (3, None)])
def test_no_evaluation_was_due(restart, steps, data):
    trainer = restart([], steps=steps, eval_dataloader=data)
    trainer.broadcast_to_vllm()
    assert trainer.calls == ["check engines", "broadcast"]
