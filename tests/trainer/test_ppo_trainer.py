import json
import logging
import math
import pickle
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from controller import OWN_STATES, Store, Trainer, Upstream, started, states

from openrlhf_cov.errors import RunStopped, StoppedBySignal
from openrlhf_cov.trainer import ppo_trainer, shared_argument
from openrlhf_cov.trainer.ppo_trainer import (
    CheckpointedRollouts,
    CovPPOTrainer,
    CovTrainingActor,
)
from openrlhf_cov.utils.metrics_log import read_metrics


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.setattr(ppo_trainer, "ray", Store())
    monkeypatch.setattr(ppo_trainer, "stop_requested", lambda: None)


@pytest.fixture
def warnings(caplog):
    ppo_trainer.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    yield caplog
    ppo_trainer.logger.removeHandler(caplog.handler)


def test_a_step_is_on_disk_before_upstream_logs_and_saves(tmp_path):
    trainer = started(tmp_path)
    trainer.save_logs_and_checkpoints(1, {"policy_loss": 0.5, "generated_samples": ["x"]}, states(1))
    name, *call, lines = trainer.calls.pop()
    assert (name, lines) == ("save_logs_and_checkpoints", 1)
    assert call == [1, {"policy_loss": 0.5, "generated_samples": ["x"]}, states(1) | OWN_STATES]
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (line["step"], line["policy_loss"], "generated_samples" in line) == (1, 0.5, False)


def test_an_evaluation_has_a_line_of_its_own(tmp_path):
    trainer = started(tmp_path)
    trainer.save_best_checkpoint({"eval_task_pass1": 0.25}, 4, {"episode": 1})
    assert trainer.calls == []  # no best model unless a flag asks for it
    (line,) = read_metrics(tmp_path / "eval.jsonl")
    assert (line["step"], line["eval_task_pass1"]) == (4, 0.25)


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_evaluation_no_line(tmp_path, nothing):
    trainer = started(tmp_path)
    trainer.save_best_checkpoint(nothing, 4)
    assert not (tmp_path / "eval.jsonl").exists()
    assert trainer.calls == []


@pytest.mark.parametrize(
    ("key", "chosen"),
    [
        ("eval/math/avg@4", "eval/math/avg@4"),
        ("", "eval_a_pass1"),  # --ckpt.best_metric_key auto: the first of upstream's metrics
    ],
)
def test_a_better_model_is_exported_where_a_flag_asks_for_it(tmp_path, key, chosen):
    trainer = started(tmp_path)
    trainer.best_eval_metric_key = key
    # better, worse, equal, NaN, better
    for step, value in enumerate((0.25, 0.125, 0.25, float("nan"), 0.5)):
        trainer.save_best_checkpoint({"eval/math/avg@4": value, "eval_a_pass1": value, "eval_b_pass1": 0.0}, step)
    records = [
        {"global_step": 0, "metric": chosen, "value": 0.25},
        {"global_step": 4, "metric": chosen, "value": 0.5},
    ]
    assert trainer.calls == [("export_best", {"record": record}) for record in records]
    assert trainer.best_eval_metric_value == 0.5


def test_a_metric_that_no_evaluation_has_exports_nothing_and_warns(tmp_path, caplog):
    trainer = started(tmp_path)
    trainer.best_eval_metric_key = "eval/maths"
    ppo_trainer.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    trainer.save_best_checkpoint({"eval/math/avg@4": 0.5}, 4)
    ppo_trainer.logger.removeHandler(caplog.handler)
    assert trainer.calls == []
    assert "--ckpt.best_metric_key eval/maths: the evaluation has no such metric; choose one of eval/math/avg@4" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("own", "saved", "restored"),
    [
        ("eval/math/avg@4", "eval/math/avg@4", True),
        ("", "eval_a_pass1", True),  # auto, which upstream had already resolved
        ("eval/math/avg@4", "eval/aime24/avg@32", False),  # another metric was asked for since
        ("eval/math/avg@4", "none", False),
        ("none", "eval/math/avg@4", False),
        ("", "none", False),
    ],
)
def test_the_best_value_of_a_checkpoint_counts_for_its_own_metric(tmp_path, own, saved, restored):
    trainer = started(tmp_path)
    trainer.best_eval_metric_key = own
    trainer.restore_best_checkpoint_state({"best_eval_metric_key": saved, "best_eval_metric_value": 0.5})
    assert trainer.best_eval_metric_key == (saved if restored else own)
    assert trainer.best_eval_metric_value == (0.5 if restored else float("-inf"))


def test_resuming_drops_later_steps_of_both_files(tmp_path):
    for name in ("metrics.jsonl", "eval.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 6)))
    trainer = started(tmp_path, restored_step=3)
    trainer.save_logs_and_checkpoints(4, {}, states(4))
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert [line["step"] for line in read_metrics(tmp_path / "eval.jsonl")] == [1, 2, 3]


def test_actors_know_the_step_before_they_train(tmp_path):
    trainer = started(tmp_path, status={"policy_loss": 1.0})
    assert trainer.ppo_train(7) == {"policy_loss": 1.0}
    assert trainer.calls == [("start_step", {"global_step": 7}), ("ppo_train", 7)]


def test_so_does_the_critic(tmp_path):
    trainer, told = started(tmp_path), []
    trainer.critic_model_group = SimpleNamespace(async_run_method=lambda **call: told.append(call))
    trainer.ppo_train(7)
    assert told == [{"method_name": "start_step", "global_step": 7}]


def test_the_law_of_all_steps_so_far_is_logged_from_the_20th_and_survives_a_restart(tmp_path):
    # R = -0.2 exp(H) + 0.9 exactly, H = 1/step: ceiling 0.9 - 0.2 = 0.7, R² 1
    def status_of(step):
        entropy = 1 / step
        return {"entropy/mean": entropy, "reward": 0.9 - 0.2 * math.exp(entropy)}

    trainer = started(tmp_path)
    for step in range(1, 20):
        trainer.status = status_of(step)
        logs, _ = trainer.train_step([], step)
        assert math.isnan(logs["law/ceiling"])
        assert math.isnan(logs["law/r2"])
    trainer.save_logs_and_checkpoints(19, logs, states(19))
    saved = pickle.loads(pickle.dumps(trainer.calls.pop()[3]))

    resumed = Trainer(tmp_path, status=status_of(20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Upstream, "init_checkpoint_states", lambda self: saved)
        resumed.init_checkpoint_states()
    logs, _ = resumed.train_step([], 20)
    assert logs["law/ceiling"] == pytest.approx(0.7, abs=1e-12)
    assert logs["law/r2"] == pytest.approx(1.0, abs=1e-12)


def test_a_step_that_trains_no_policy_has_no_law(tmp_path):
    logs, _ = started(tmp_path, status={"critic_loss": 1.0}).train_step([], 1)
    assert "law/ceiling" not in logs


def sample(prompt="a", label="1", **info):
    return SimpleNamespace(info=info, prompts=[prompt], labels=[label])


def numbers(trainer, samples, step=4):
    trainer.train_step(samples, step)
    return [sample.info["sample_id"].item() for sample in samples]


def test_every_sample_has_a_number(tmp_path):
    reward = torch.tensor([1.0])
    samples = [sample(reward=reward), sample(), sample(sample_id=torch.tensor([77]))]  # the last: of an earlier step
    trainer = started(tmp_path, status={"policy_loss": 1.0})
    assert trainer.train_step(samples, 4) == ({"policy_loss": 1.0}, 5)
    name, seen, step = trainer.calls[0]
    assert (name, step) == ("train_step", 4)
    assert trainer.args.global_step == 4  # dynamic batches are shuffled by seed and step
    assert [info["sample_id"].item() for info in seen] == [0, 1, 2]
    assert [info["reward"].item() for info in seen] == [reward, 0.0, 0.0]  # every sample has every metric
    for info in seen:  # upstream concatenates the entries of one micro-batch: one row per sample
        assert (info["sample_id"].shape, info["sample_id"].dtype) == (torch.Size([1]), torch.int64)


def test_the_numbers_do_not_depend_on_which_prompt_is_ready_first(tmp_path):
    groups = [("b", "1"), ("a", {"answer": "2"}), ("a", {"answer": "1"})]
    for order in permutations(groups):
        samples = [sample(*group) for group in order for _ in range(2)]
        ids = numbers(started(tmp_path), samples)
        # the responses to one prompt are neighbours, in the order in which they came
        first = {("a", "1"): 0, ("a", "2"): 2, ("b", "1"): 4}
        keys = [(prompt, label["answer"] if isinstance(label, dict) else label) for prompt, label in order]
        assert ids == [first[key] + i for key in keys for i in range(2)]


def test_equal_prompts_stay_apart(tmp_path):
    assert numbers(started(tmp_path), [sample() for _ in range(4)]) == [0, 1, 2, 3]


def test_samples_that_wait_for_training_keep_their_numbers(tmp_path):
    # --critic.freezing_steps: upstream fills the actors' buffers and does not call their fit
    trainer = started(tmp_path, status={"critic_loss": 1.0})
    assert numbers(trainer, [sample(), sample()], 0) == [0, 1]
    assert numbers(trainer, [sample(), sample()], 1) == [2, 3]
    trainer.status = {"critic_loss": 1.0, "policy_loss": 1.0, "entropy/mean": 0.5, "reward": 1.0}
    assert numbers(trainer, [sample(), sample()], 2) == [4, 5]
    assert numbers(trainer, [sample(), sample()], 3) == [0, 1]


def test_the_mean_of_the_numbers_is_no_metric(tmp_path):
    # upstream's training_step averages every entry of Experience.info into the status
    trainer = started(tmp_path, status={"policy_loss": 1.0, "sample_id": 3.5})
    assert trainer.train_step([], 7) == ({"policy_loss": 1.0}, 8)


def test_the_tokenizer_is_pickled_once_for_all_prompts(monkeypatch):
    class Owner:
        def __init__(self, pretrain, strategy):
            self.samples_generator = SimpleNamespace(tokenizer=Words())
            self.prompts_dataloader = []

    class Words:
        pickled = 0

        def __reduce__(self):
            Words.pickled += 1
            return Words, ()

    monkeypatch.setattr(shared_argument.ray, "put", lambda value: value)
    cov_owner = type("CovOwner", (CheckpointedRollouts, Owner), {})
    owner = cov_owner(None, SimpleNamespace(args=SimpleNamespace(train=SimpleNamespace(seed=1))))
    requests = [pickle.dumps(owner.samples_generator.tokenizer, protocol=5) for _ in range(3)]
    assert Words.pickled == 1
    assert len({id(pickle.loads(request)) for request in requests}) == 1


@pytest.mark.parametrize(("p99", "count"), [(2.0, 0), (2.01, 1)])
def test_a_policy_that_runs_away_is_reported(tmp_path, warnings, p99, count):
    trainer = started(tmp_path, status={"ppo/ratio_p99": p99, "ppo/ratio_max": 37.5})
    trainer.ppo_train(1)
    messages = [record.getMessage() for record in warnings.records if record.levelno == logging.WARNING]
    assert len(messages) == count
    assert all("ppo/ratio_p99 2.01" in text and "ppo/ratio_max 37.5" in text for text in messages)


@pytest.mark.parametrize(("trainer", "upstream"), [(CovPPOTrainer, "PPOTrainer"), (CovTrainingActor, "TrainingActor")])
def test_both_controllers_put_our_methods_first(trainer, upstream):
    order = [base.__name__ for base in trainer.__mro__ if base.__name__ != "CheckpointedRollouts"]
    assert order[1:6] == ["StepLogging", "InstalledActor", upstream, "CheckedBroadcast", "BasePPOTrainer"]


@pytest.mark.parametrize(
    ("save_steps", "on_signal", "disable_ds", "saves", "advice"),
    [
        (float("inf"), "checkpoint", False, [float("inf"), 1], "continue with --ckpt.load_enable from"),
        (float("inf"), "stop", False, [float("inf")], "no checkpoint was asked for"),
        (2, "checkpoint", False, [2], "continue with --ckpt.load_enable from"),  # step 4 is saved anyway
        (float("inf"), "checkpoint", True, [float("inf")], "no checkpoint was asked for"),
    ],
)
@pytest.mark.parametrize(
    ("signum", "dead", "error", "cause"),
    [(15, [], StoppedBySignal, "SIGTERM"), (None, [1], RunStopped, "vLLM engine 1 died")],
)
def test_a_signal_and_a_dead_engine_end_the_run_after_the_step(
    tmp_path, monkeypatch, signum, dead, error, cause, save_steps, on_signal, disable_ds, saves, advice
):
    trainer = started(tmp_path)
    trainer.args.ckpt.save_steps, trainer.args.ckpt.disable_ds = save_steps, disable_ds
    trainer.args.on_signal = on_signal
    seen = []
    monkeypatch.setattr(Upstream, "save_logs_and_checkpoints", lambda self, *_: seen.append(self.args.ckpt.save_steps))
    monkeypatch.setattr(ppo_trainer, "stop_requested", lambda: signum)
    trainer.dead_engines = dead
    with pytest.raises(error, match=f"{cause}: stopped after global step 4; {advice}") as stopped:
        trainer.save_logs_and_checkpoints(4, {"loss": 1.0}, states(4))
    assert type(stopped.value) is error
    assert seen == saves
    assert trainer.args.ckpt.save_steps == save_steps
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_a_disk_that_is_full_stops_the_run_with_one_line(tmp_path, monkeypatch):
    trainer = started(tmp_path)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(trainer.metrics_log, "write", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(RunStopped, match="cannot be written at global step 4: No space left on device"):
        trainer.save_logs_and_checkpoints(4, {"loss": 1.0}, states(4))


def test_a_signal_does_not_stop_a_run_that_is_over(tmp_path, monkeypatch):
    trainer = started(tmp_path)
    monkeypatch.setattr(ppo_trainer, "stop_requested", lambda: 15)
    trainer.save_logs_and_checkpoints(4, {"loss": 1.0}, states(4, is_over=True))  # upstream's loop ends by itself
    assert [call[0] for call in trainer.calls] == ["save_logs_and_checkpoints"]
