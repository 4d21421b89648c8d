"""The training loop on played models and engines: what a step does in which order, and how a run begins and ends."""

import logging
import time
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import torch
from character_tokenizer import character_tokenizer
from openrlhf.utils.logging_utils import TensorboardLogger
from played_models import PlayedGroup
from played_ray import PlayedActor
from ray.exceptions import ActorDiedError
from scored_samples import flags, sample
from texts import missing

from openrlhf_cov.errors import RunStopped, StoppedBySignal
from openrlhf_cov.settings import Schedule
from openrlhf_cov.trainer import loop as loop_module
from openrlhf_cov.trainer.checkpoint.checkpoints import ROLLOUTS
from openrlhf_cov.trainer.loop import TrainingLoop
from openrlhf_cov.trainer.metrics import logs
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import Rollout, StepResult
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.scoring import ScoredAhead
from openrlhf_cov.trainer.weights.weight_check import WeightCheck
from openrlhf_cov.utils.metrics_log import read_metrics

NEVER = float("inf")
UPDATE = StepResult(
    {"policy_loss": 0.25, "entropy/mean": 0.5, "cov/prob_weighted_mean": 0.2, "cov/mean": 0.4},
    mean_entropy=0.5,
    updates=2,
    learning_rate=0.1,
)


class PlayedSampler:
    """Gives one rollout after another: two groups of four samples each."""

    def __init__(self, calls, rollouts, **fields):
        self.calls, self.rollouts, self.fields = calls, rollouts, fields
        self.engines = EngineGroup([PlayedActor(check_health=None, needs_weights=False) for _ in range(2)])
        self.step = 0
        self.restored = None

    def next_batch(self, version, watch=None):
        if self.step >= self.rollouts:
            return None
        self.calls.append(("engines", "sample", (self.step, version)))
        self.step += 1
        samples = [sample(i, float(i % 2), 2, prompt=2, source="maths") for i in range(8)]
        state = {"step": self.step, "is_over": self.step >= self.rollouts}
        values = {"metrics": {"sampling/kept": 2.0}, "seconds": 3.0, "pass_rate": None, "version": version}
        return Rollout(samples, sampler_state=state, **values | self.fields)

    def restore(self, state):
        self.restored = state
        self.step = state["step"]


class Run:
    """A run of some steps in a folder, and the calls that it made in order: (model or engines, method, arguments)."""

    def __init__(self, folder, monkeypatch, rollouts=3, evaluations=(0.5,) * 9, **settings):
        self.folder, self.calls = folder, []
        self.accuracies = list(evaluations)
        self.signal = None
        sampler_fields = settings.pop("rollout", {})
        results = {"update": UPDATE} | settings.pop("policy", {})
        critic = settings.pop("critic", None)
        self.args = args = flags(
            **{
                "ckpt.output_dir": str(folder), "ckpt.path": str(folder / "state"), "ckpt.save_steps": NEVER,
                "ckpt.best_metric_key": "eval_pass1", "eval.steps": NEVER, "logger.tensorboard_dir": "board",
                **settings,
            }
        )  # fmt: skip
        self.tracker = create_autospec(TensorboardLogger, instance=True)
        monkeypatch.setattr(logs, "TensorboardLogger", lambda args: self.tracker)
        monkeypatch.setattr(loop_module, "stop_requested", lambda: self.signal)
        self.sampler = PlayedSampler(self.calls, rollouts, **sampler_fields)
        policy = PlayedGroup("policy", calls=self.calls, save_checkpoint=self.note_lines, **results)
        trained_critic = PlayedGroup("critic", calls=self.calls, update=critic) if critic else None
        self.weight_check = None
        self.loop = TrainingLoop(
            args,
            ModelGroups(args, policy, critic=trained_critic),
            self.sampler,
            evaluation=self,
            weight_check=None,
            tokenizer=character_tokenizer(),
        )

    def engine_answers(self, **answers):
        """Change what the second engine answers."""
        self.sampler.engines.engines[1].answers |= answers

    def run(self, engines):
        """Evaluate, as the loop asks for it."""
        return self.evaluate(engines)

    def evaluate(self, engines):
        assert engines is self.sampler.engines
        self.calls.append(("engines", "evaluate", ()))
        accuracy = self.accuracies.pop(0)
        return {} if accuracy is None else {"eval_pass1": accuracy}

    def note_lines(self, rank):
        self.calls.append(("disk", "lines", len(self.metrics)))

    def resumes(self, step, **states):
        """Let the run continue from the checkpoint of a step, which is there."""
        folder = self.folder / "state" / "_actor"
        folder.mkdir(parents=True)
        (folder / "latest").write_text(f"global_step{step}")
        self.args.ckpt.load_enable = True
        saved = {"global_step": step, ROLLOUTS: {"step": step, "is_over": False}}
        self.loop.groups.policy.results |= {
            "get_restored": f"global_step{step}", "get_checkpoint_states": saved | states,
        }  # fmt: skip
        return self

    def ends(self):
        """Run to the end, and return this."""
        self.loop.run()
        return self

    def has_reference(self):
        """Give the run a reference model."""
        groups = self.loop.groups
        self.loop.groups = ModelGroups(self.args, groups.policy, PlayedGroup("reference", calls=self.calls))

    def changes_rollouts(self, change):
        """Let the run train on ``change(rollout)`` instead of each rollout."""
        sample_now = self.sampler.next_batch

        def changed(version):
            rollout = sample_now(version)
            return rollout and change(rollout)

        self.sampler.next_batch = changed

    @property
    def metrics(self):
        path = self.folder / "metrics.jsonl"
        return read_metrics(path) if path.exists() else []

    @property
    def evaluations(self):
        path = self.folder / "eval.jsonl"
        return [(line["step"], line["eval_pass1"]) for line in read_metrics(path)] if path.exists() else []

    def names(self, *left_out):
        """Return the names of the calls, without those left out."""
        return [method for _, method, _ in self.calls if method not in left_out]

    def arguments(self, method):
        return [arguments for _, name, arguments in self.calls if name == method]

    @property
    def orders(self):
        return [order for _, order, _ in self.arguments("update")]


@pytest.fixture
def make_run(tmp_path, monkeypatch, played_ray):
    """Function (rollouts, evaluations, settings) -> a ``Run``."""
    return lambda *args, **settings: Run(tmp_path, monkeypatch, *args, **settings)


# A step.


def test_a_step_samples_scores_trains_and_sends_weights(make_run):
    run = make_run().ends()
    assert run.names() == ["sample", "score", "update", "send_weights"] * 3
    # Every rollout is sampled with the weights of the step before it.
    assert run.arguments("sample") == [(0, 0), (1, 1), (2, 2)]
    assert [order.step for order in run.orders] == [0, 1, 2]
    assert [line["step"] for line in run.metrics] == [1, 2, 3]


def test_the_line_of_a_step_has_all_of_its_numbers(make_run):
    line = make_run(1, rollout={"pass_rate": 40.0}).ends().metrics[0]
    expected = {
        "reward": 0.5, "return": 0.0, "kl": 0.0, "logprobs_diff": 0.0, "score": 0.5, "response_length": 2.0,
        "truncated": 0.0, "total_length": 4.0, "policy_loss": 0.25, "entropy/mean": 0.5, "sampling/kept": 2.0,
        "rollout/reward_mean": 0.5, "rollout/response_length_mean": 2.0, "rollout/truncated_rate": 0.0,
        "rollout/num_samples": 8.0, "source/maths/samples": 8.0, "dynamic_filtering_pass_rate": 40.0,
        "timing/generation": 3.0,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    # Two of four rewards are 1: the deviation is sqrt(4 * 0.25 / 3), that of all eight sqrt(8 * 0.25 / 7).
    assert line["group_reward_std"] == pytest.approx((1 / 3) ** 0.5)
    assert line["rollout/reward_std"] == pytest.approx((2 / 7) ** 0.5)
    assert line["entropy/delta_theorem1"] == pytest.approx(-0.2 * 0.2)
    phases = {"generation", "make_experience", "ppo_train", "broadcast", "step_total"}
    assert {name for name in line if name.startswith("timing/")} == {f"timing/{phase}" for phase in phases}
    assert "dynamic_filtering_pass_rate" not in make_run(1).ends().metrics[0]


def test_numbers_of_the_ranks_come_before_those_of_the_samples(make_run):
    # With a KL loss the ranks measure the KL of the policy that they train.
    result = StepResult({**UPDATE.metrics, "kl": 0.75}, 0.5, 2, 0.1)
    assert make_run(1, policy={"update": result}).ends().metrics[0]["kl"] == 0.75


def test_the_time_of_a_step_begins_with_the_wait_for_its_rollout(make_run):
    run = make_run(1)
    run.changes_rollouts(lambda rollout: time.sleep(0.05) or rollout)
    # The rollout says that it took 3 seconds: with --train.async_enable it was made during earlier steps.
    assert 0.05 < run.ends().metrics[0]["timing/step_total"] < 3.0


def test_ranks_train_on_samples_that_are_numbered_by_prompt(make_run):
    run = make_run(1)
    run.changes_rollouts(lambda rollout: replace(rollout, samples=[*rollout.samples[4:], *rollout.samples[:4]]))
    ((_, _, share),) = run.ends().arguments("update")
    assert [each.sample_id for each in share.samples()] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert [int(each.tokens[0]) for each in share.samples()] == [50, 60, 70, 80, 10, 20, 30, 40]


def test_settings_and_the_kl_coefficient_of_a_step_go_with_its_order(make_run):
    run = make_run(cov_type="clip_cov", clip_cov_ratio=Schedule(2e-4, 4e-4, 2), algo__kl__init_coef=0.1)
    run.has_reference()
    run.ends()
    assert [order.config.clip_cov_ratio for order in run.orders] == pytest.approx([2e-4, 3e-4, 4e-4])
    assert [order.kl_coef for order in run.orders] == [0.1] * 3


def test_models_that_have_scored_a_rollout_ahead_are_not_asked_again(make_run):
    run = make_run(2, algo__kl__init_coef=0.1)
    run.has_reference()
    run.loop.sampler = ScoredAhead(run.sampler, run.loop.groups, pad_token_id=0)
    run.ends()
    assert [model for model, method, _ in run.calls if method == "score"] == ["policy", "reference"] * 2


def test_too_many_failed_rewards_end_the_run_before_a_model_scores(make_run):
    run = make_run()
    failed = [sample(i, 0.0, metrics={"reward/error_frac": 1.0}) for i in range(8)]
    run.changes_rollouts(lambda rollout: replace(rollout, samples=failed))
    with pytest.raises(RunStopped, match="the reward of 8 of 8 responses failed"):
        run.ends()
    assert run.names() == ["sample"]
    assert run.metrics == []
    run.tracker.close.assert_called_once_with()  # trackers end with the run, whatever ended it


def test_without_updates_of_the_policy_a_step_has_the_numbers_of_the_critic(make_run):
    run = make_run(
        2, critic=StepResult({"critic_loss": 2.0}), critic__freezing_steps=0, algo__advantage__estimator="gae",
        algo__kl__target=None,
    ).ends()  # fmt: skip
    first, second = run.metrics
    assert first["critic_loss"] == second["critic_loss"] == 2.0
    assert "policy_loss" not in first
    assert "law/ceiling" not in first
    assert second["policy_loss"] == 0.25
    assert "law/ceiling" in second


# Weights.


def test_engines_of_another_run_get_the_weights_first(make_run):
    run = make_run(1)
    run.engine_answers(needs_weights=True)
    assert run.ends().names() == ["send_weights", "sample", "score", "update", "send_weights"]


def test_a_weight_check_begins_with_the_samples_of_a_step_before_its_updates(make_run):
    run = make_run(1)

    def of_policy(texts):
        run.calls.append(("policy", "score_texts", texts))
        return torch.zeros(1)

    run.loop.weight_check = WeightCheck("first", of_policy, lambda texts: [torch.zeros(1)] * 2)
    # twice, as a program that does not repeat its bits is not compared by them; after the transfer nothing has changed
    scored = ["score_texts"] * 2
    assert run.ends().names("sample", "score") == [*scored, "update", "send_weights", "score_texts"]
    # the first of each two samples of the step, whole
    assert run.arguments("score_texts")[0] == [[10 * number + place for place in range(4)] for number in (1, 3, 5, 7)]


# Checkpoints.


def test_a_checkpoint_follows_the_line_of_its_step(make_run):
    run = make_run(4, **{"ckpt.save_steps": 2}).ends()
    assert run.names() == [
        *["sample", "score", "update", "send_weights"] * 2, "save_checkpoint", "lines",
        *["sample", "score", "update", "send_weights"] * 2, "save_checkpoint", "lines",
    ]  # fmt: skip
    assert run.arguments("lines") == [2, 4]
    first, second = run.arguments("save_checkpoint")
    assert first["tag"] == "global_step2"
    assert first["client_states"]["global_step"] == 2
    assert first["client_states"][ROLLOUTS] == {"step": 2, "is_over": False}
    assert second["client_states"][ROLLOUTS] == {"step": 4, "is_over": True}


def test_a_checkpoint_has_the_best_value_but_no_metric_of_other_weights(make_run):
    run = make_run(3, [0.25], **{"ckpt.save_steps": 3, "eval.steps": 2}).ends()
    (saved,) = run.arguments("save_checkpoint")
    assert saved["client_states"]["best_eval_metric_value"] == 0.25
    assert run.arguments("record_metric") == []


def test_a_resumed_run_continues_with_the_following_step(make_run):
    run = make_run(5).resumes(3, kl_coef=0.5).ends()
    assert run.sampler.restored == {"step": 3, "is_over": False}
    # Engines start with the weights of the model's files.
    assert run.names("get_restored", "get_checkpoint_states")[:2] == ["send_weights", "sample"]
    assert run.arguments("sample") == [(3, 3), (4, 4)]
    # The coefficient of the checkpoint is that of an adaptive controller; a fixed one is that of the flags.
    assert [(order.step, order.kl_coef) for order in run.orders] == [(3, 0.0), (4, 0.0)]
    assert [line["step"] for line in run.metrics] == [4, 5]


# Evaluations.


def best(value, step):
    """Return what is exported with the model of an evaluation."""
    return {"record": {"global_step": step, "metric": "eval_pass1", "value": value}}


def test_an_evaluation_follows_the_checkpoint_of_its_step(make_run):
    run = make_run(4, [0.25, 0.75], **{"eval.steps": 2, "ckpt.save_steps": 2}).ends()
    assert run.names("sample", "score", "update", "lines") == [
        *["send_weights"] * 2, "save_checkpoint", "evaluate", "record_metric", "export_best",
        *["send_weights"] * 2, "save_checkpoint", "evaluate", "record_metric", "export_best",
    ]  # fmt: skip
    # Checkpoints are kept by the metric of their own weights.
    assert run.arguments("record_metric") == [
        {"tag": "global_step2", "metric_value": 0.25, "metric_key": "eval_pass1"},
        {"tag": "global_step4", "metric_value": 0.75, "metric_key": "eval_pass1"},
    ]
    assert run.evaluations == [(2, 0.25), (4, 0.75)]


def test_a_better_model_is_exported(make_run, log):
    log.set_level(logging.INFO)
    run = make_run(3, [0.25, 0.125, 0.5], **{"eval.steps": 1}).ends()
    assert run.arguments("export_best") == [best(0.25, 1), best(0.5, 3)]
    assert missing(log.text, "best model", "eval_pass1 0.5000", "global step 3", f"{run.folder}/state/best") == []


def test_an_evaluation_of_nothing_has_no_line(make_run):
    run = make_run(1, [None], **{"eval.steps": 1}).ends()
    assert run.evaluations == []
    assert run.arguments("export_best") == []


@pytest.mark.parametrize("steps", [3, NEVER])
def test_a_fresh_start_evaluates_its_policy_where_a_flag_asks_for_it(make_run, steps):
    run = make_run(0, [0.75], eval_at_start=True, **{"eval.steps": steps}).ends()
    assert run.names() == ["evaluate", "export_best"]
    assert run.evaluations == [(0, 0.75)]
    assert run.arguments("export_best") == [best(0.75, 0)]


def test_a_start_that_is_repeated_evaluates_again(make_run, tmp_path):
    # The former attempt left no checkpoint, so nothing tells whether it had the same model and settings.
    (tmp_path / "eval.jsonl").write_text('{"step": 0, "eval_pass1": 0.25}\n')
    assert make_run(0, [0.75], eval_at_start=True).ends().evaluations == [(0, 0.75)]
    (former,) = read_metrics(tmp_path / "eval.jsonl.bak")
    assert former["eval_pass1"] == 0.25


def test_a_resumed_run_makes_the_evaluation_that_was_due(make_run):
    run = make_run(3, [0.75], **{"eval.steps": 3}).resumes(3).ends()
    assert run.names("get_restored", "get_checkpoint_states") == ["send_weights", "evaluate", "export_best"]
    assert run.evaluations == [(3, 0.75)]


def test_an_evaluation_that_was_made_is_not_made_again_but_may_be_the_best(make_run, tmp_path):
    (tmp_path / "eval.jsonl").write_text('{"step": 3, "eval_pass1": 0.25, "eval_pass4": null}\n')
    run = make_run(3, **{"eval.steps": 3}).resumes(3).ends()
    assert run.names("get_restored", "get_checkpoint_states") == ["send_weights", "export_best"]
    assert run.arguments("export_best") == [best(0.25, 3)]
    assert run.evaluations == [(3, 0.25)]


def test_an_evaluation_with_other_settings_is_neither_repeated_nor_compared_with(make_run, tmp_path):
    (tmp_path / "eval.jsonl").write_text('{"step": 3, "eval_pass1": 0.9}\n')
    former = {"best_eval_metric_key": "eval_pass1", "best_eval_metric_value": 0.9}
    run = make_run(4, [0.25], **{"eval.steps": 1})
    run.resumes(3, best_eval_settings={"eval.temperature": 0.125}, **former).ends()
    assert run.arguments("export_best") == [best(0.25, 4)]
    assert run.evaluations == [(3, 0.9), (4, 0.25)]


def test_without_a_data_set_nothing_is_evaluated(make_run):
    run = make_run(2, eval_at_start=True, **{"eval.steps": 1})
    run.loop.evaluation = None
    assert "evaluate" not in run.ends().names()


# The end of a run.


@pytest.mark.parametrize(
    ("save_steps", "on_signal", "disable_ds", "saved", "advice"),
    [
        (NEVER, "checkpoint", False, ["global_step1"], "continue with --ckpt.load_enable from"),
        (NEVER, "stop", False, [], "no checkpoint was asked for"),
        (1, "checkpoint", False, ["global_step1"], "continue with --ckpt.load_enable from"),  # saved anyway
        (NEVER, "checkpoint", True, [], "no checkpoint was asked for"),
        (1, "checkpoint", True, ["global_step1"], "no checkpoint was asked for"),  # an exported model alone
    ],
)
@pytest.mark.parametrize(
    ("signum", "dead", "error", "cause"),
    [(15, [], StoppedBySignal, "SIGTERM"), (None, [1], RunStopped, "vLLM engine 1 died")],
)
def test_a_signal_and_a_dead_engine_end_the_run_after_the_step(
    make_run, log, signum, dead, error, cause, save_steps, on_signal, disable_ds, saved, advice
):
    settings = {"ckpt.save_steps": save_steps, "ckpt.disable_ds": disable_ds, "eval.steps": 1}
    run = make_run(on_signal=on_signal, **settings)
    run.signal = signum
    if dead:
        run.engine_answers(check_health=ActorDiedError())
    with pytest.raises(error, match=f"^{cause}: stopped after global step 1; {advice}") as stopped:
        run.ends()
    assert type(stopped.value) is error
    assert [call["tag"] for call in run.arguments("save_checkpoint")] == saved
    assert len(run.metrics) == 1
    run.tracker.close.assert_called_once_with()
    # The evaluation of the step is owed by the run that continues.
    assert "evaluate" not in run.names()
    assert ("send_weights" in run.names()) is not bool(dead)
    if dead:
        assert "vLLM engine 1 died; " in log.text


def test_a_signal_in_the_last_step_changes_nothing(make_run):
    run = make_run(1, **{"eval.steps": 1})
    run.signal = 15
    run.ends()
    assert run.evaluations == [(1, 0.5)]
    assert run.arguments("save_checkpoint") == []
    run.tracker.close.assert_called_once_with()


# Rollouts that are sampled ahead (--train.async_enable).


@pytest.mark.parametrize("staleness", [1, 2])
def test_rollouts_are_sampled_at_most_so_many_versions_ahead(make_run, staleness):
    run = make_run(5, **{"train.async_enable": True, "train.async_queue_size": staleness, "eval.steps": 2}).ends()
    sampled = run.arguments("sample")
    assert [step for step, _ in sampled] == [0, 1, 2, 3, 4]
    assert all(step - staleness <= version <= step for step, version in sampled)
    assert [order.step for order in run.orders] == [0, 1, 2, 3, 4]
    assert run.evaluations == [(2, 0.5), (4, 0.5)]
    assert run.loop.stream._thread is not None
    assert not run.loop.stream._thread.is_alive()


def test_an_evaluation_waits_for_the_rollout_that_is_sampled(make_run):
    run = make_run(3, **{"train.async_enable": True, "eval.steps": 1})
    is_sampling = []

    def slow(rollout):
        is_sampling.append(True)
        time.sleep(0.02)
        is_sampling.pop()
        return rollout

    run.changes_rollouts(slow)

    class Alone:
        @staticmethod
        def run(engines):
            assert not is_sampling
            time.sleep(0.02)
            assert not is_sampling
            return run.evaluate(engines)

    run.loop.evaluation = Alone()
    assert [step for step, _ in run.ends().evaluations] == [1, 2, 3]
