"""The calls of a step on models and engines are those that the former controllers made, in the same order.

Sleep, offload and the transfer of weights over NCCL and CUDA IPC cannot run without GPUs. What can be checked is that
they are called as before.
"""

from types import SimpleNamespace

import pytest
import recorded_calls
from played_models import scores_by
from recorded_calls import translated
from recording import RecordedEngine, RecordedGroup, Recorder
from scored_samples import flags, sample

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.trainer import model_groups
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import StepResult, StepSettings
from openrlhf_cov.trainer.rollout import engine_health
from openrlhf_cov.trainer.rollout.batch_stream import BatchStream
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.weights.weight_delivery import deliver_weights

ASLEEP = {"train__colocate_all": True, "ds__enable_sleep": True, "vllm__enable_sleep": True}
BESIDE_REWARD = {"train__colocate_critic_reward": True, "train__colocate_actor_ref": True}

# Name of the layout -> (flags, with a critic, with a reward model).
LAYOUTS = {
    "PLAIN": ({}, False, False),
    "COLOCATED_WITH_SLEEP": (ASLEEP, False, True),
    "CRITIC": ({}, True, False),
    "CRITIC_BESIDE_REWARD_MODEL": (BESIDE_REWARD, True, True),
    "CRITIC_WITH_SLEEP": (ASLEEP, True, True),
    "CRITIC_ALONE": ({"critic__freezing_steps": 5}, True, False),
    "ASYNCHRONOUS": ({}, False, False),
    "PARTIAL_ROLLOUT": ({"train__partial_rollout_enable": True}, False, False),
}


@pytest.fixture
def recorder(monkeypatch):
    """Return the recorder, which stands in for Ray where models and engines are called; the host has GPUs."""
    made = Recorder()
    for module in (model_groups, engine_health):
        monkeypatch.setattr(module, "ray", made)
    monkeypatch.setattr("openrlhf.trainer.ray.vllm_engine.ray", made)
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    return made


def groups_of(args, recorder, has_critic, has_reward_model):
    status = StepResult({"entropy/mean": 0.5}, mean_entropy=0.5)
    policy, reference, critic, reward = (
        RecordedGroup(model, recorder, status) for model in ("policy", "reference", "critic", "reward")
    )
    return ModelGroups(args, policy, reference, critic if has_critic else None, reward if has_reward_model else None)


def run_step(recorder, settings, has_critic, has_reward_model):
    """Score, train and send weights, as ``TrainingLoop.train_step``."""
    args = flags("gae" if has_critic else "group_norm", algo__kl__init_coef=0.1, **settings)
    groups = groups_of(args, recorder, has_critic, has_reward_model)
    engines = [RecordedEngine(recorder), RecordedEngine(recorder)]
    stream = BatchStream(SimpleNamespace(engines=EngineGroup(engines)), 0)
    samples = [sample(i, None if has_reward_model else float(i % 2), 2, prompt=2) for i in range(8)]

    scores = scores_by(samples, groups)
    batch = estimate_advantages(samples, scores, AdvantageSettings.of(args), CovConfig(), 0.1, args)
    groups.update(StepSettings(0, CovConfig(), 0.1), batch.samples)
    assert deliver_weights(args, stream, groups.send_weights, version=1) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_makes_the_calls_that_it_made_before(recorder, layout):
    run_step(recorder, *LAYOUTS[layout])
    expected = translated(getattr(recorded_calls, layout))
    if layout == "PARTIAL_ROLLOUT":
        # Dead engines are looked for before the others pause: a call to a dead one would end the run inside of a step.
        health = ["engines.check_health", "wait engines.check_health"]
        pause = ["engines.pause_generation", "wait engines.pause_generation"]
        place = expected.index(pause[0])
        assert expected[place : place + 4] == pause + health
        expected[place : place + 4] = health + pause
    assert recorder.lines == expected


@pytest.mark.parametrize(("sleeps", "recorded"), [(False, "ROLLOUT"), (True, "ROLLOUT_WITH_SLEEP")])
def test_a_rollout_wakes_the_engines_and_puts_them_to_sleep_as_before(make_sampler, monkeypatch, sleeps, recorded):
    recorder = Recorder()
    monkeypatch.setattr(engine_health, "ray", recorder)
    sampler, engines = make_sampler(engines=2, filtering=False)
    sampler.args.vllm.enable_sleep = sleeps
    for engine in engines:
        recorded_engine = RecordedEngine(recorder)
        engine.wake_up, engine.sleep = recorded_engine.wake_up, recorded_engine.sleep
        generate = engine.generate_responses.remote

        def noted(generate=generate, **request):
            recorder.note("engines.generate_responses")
            return generate(**request)

        engine.generate_responses = SimpleNamespace(remote=noted)
    sampler.next_batch(0)
    assert recorder.lines == getattr(recorded_calls, recorded)


def test_on_a_cpu_host_models_score_side_by_side(recorder, monkeypatch):
    # There is no GPU memory that one model would have to free for the next one.
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)
    run_step(recorder, {"train__colocate_all": True}, False, False)
    assert recorder.lines[:4] == ["policy.score", "reference.score", "wait policy.score", "wait reference.score"]
