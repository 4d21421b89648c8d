"""Which calls a step makes on models and engines, in which order, and where it waits for them.

Sleep, offload and the transfer of weights over NCCL and CUDA IPC cannot run without GPUs, and a wrong order runs out
of GPU memory there. OpenRLHF 0.11.2's controllers made the same calls in the same order, but for one: the engines are
looked at before they pause, because a call to a dead engine would end the run inside of a step.
"""

import pytest
from character_tokenizer import character_tokenizer
from played_models import scores_by
from played_ray import Now, install
from recording import RecordedEngine, RecordedGroup, Recorder
from scored_samples import flags, sample

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import StepResult, StepSettings
from openrlhf_cov.trainer.rollout.batch_stream import BatchStream
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.rollout.recorded import RecordedSampler
from openrlhf_cov.trainer.weights.weight_delivery import deliver_weights

ASLEEP = {"train__colocate_all": True, "ds__enable_sleep": True, "vllm__enable_sleep": True}
BESIDE_REWARD = {"train__colocate_critic_reward": True, "train__colocate_actor_ref": True}

# Name of the layout -> (flags, with a critic, with a reward model, calls). "x!" is a call and the wait for its result,
# "x" a call alone, "~x" the wait alone.
LAYOUTS = {
    "apart": (
        {}, False, False,
        "policy.score reference.score ~policy.score ~reference.score policy.update! engines.check_health! "
        "policy.send_weights!",
    ),
    "with a critic": (
        {}, True, False,
        "policy.score critic.score reference.score ~policy.score ~reference.score ~critic.score critic.update "
        "policy.update ~critic.update ~policy.update engines.check_health! policy.send_weights!",
    ),
    "critic alone": (
        {"critic__freezing_steps": 5}, True, False,
        "policy.score critic.score reference.score ~policy.score ~reference.score ~critic.score critic.update! "
        "engines.check_health! policy.send_weights!",
    ),
    "critic beside the reward model": (
        BESIDE_REWARD, True, True,
        "reward.score policy.score! policy.empty_cache! ~reward.score reward.empty_cache! critic.score! "
        "critic.empty_cache! reference.score! reference.empty_cache! critic.update policy.update ~critic.update "
        "~policy.update engines.check_health! policy.send_weights!",
    ),
    "all on the same GPUs, asleep in turn": (
        ASLEEP, True, True,
        "reward.score! reward.empty_cache! policy.score! policy.empty_cache! critic.score! critic.empty_cache! "
        "reference.score! reference.empty_cache! critic.reload_states! critic.update! critic.offload_states! "
        "policy.reload_states! policy.update! policy.offload_states! engines.check_health! engines.wake_up:weights! "
        "policy.send_weights!",
    ),
    "partial rollouts": (
        {"train__partial_rollout_enable": True}, False, False,
        "policy.score reference.score ~policy.score ~reference.score policy.update! engines.check_health! "
        "engines.pause_generation! policy.send_weights! engines.resume_generation!",
    ),
}  # fmt: skip


def calls_of(text):
    """Return the lines of a ``Recorder`` that a text of ``LAYOUTS`` stands for."""
    lines = []
    for word in text.split():
        call = word.strip("~!").replace(":weights", " {'tags': ['weights']}")
        if not word.startswith("~"):
            lines.append(call)
        if word.startswith("~") or word.endswith("!"):
            lines.append(f"wait {call}")
    return lines


@pytest.fixture
def recorder(monkeypatch, gpu_host):
    """Return the recorder, which stands in for Ray where models and engines are called; the host has GPUs."""
    made = Recorder()
    install(monkeypatch, made)
    return made


def run_step(recorder, settings, has_critic, has_reward_model):
    """Score, train and send weights, as ``TrainingLoop.train_step``."""
    args = flags("gae" if has_critic else "group_norm", algo__kl__init_coef=0.1, **settings)
    status = StepResult({"entropy/mean": 0.5}, mean_entropy=0.5)
    names = ["policy", "reference", *["critic"] * has_critic, *["reward"] * has_reward_model]
    groups = ModelGroups(args, **{name: RecordedGroup(name, recorder, status) for name in names})
    engines = [RecordedEngine(recorder), RecordedEngine(recorder)]
    stream = BatchStream(RecordedSampler(args, EngineGroup(engines), character_tokenizer(), vocabulary=100), 0)
    samples = [sample(i, None if has_reward_model else float(i % 2), 2, prompt=2) for i in range(8)]

    scores = scores_by(samples, groups)
    batch = estimate_advantages(samples, scores, AdvantageSettings.of(args), StepSettings(0, CovConfig(), 0.1), args)
    groups.update(StepSettings(0, CovConfig(), 0.1), batch.samples)
    assert deliver_weights(args, stream, groups.send_weights, version=1) == []


@pytest.mark.parametrize(("settings", "has_critic", "has_reward_model", "calls"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_step_calls_models_and_engines_in_this_order(recorder, settings, has_critic, has_reward_model, calls):
    run_step(recorder, settings, has_critic, has_reward_model)
    assert recorder.lines == calls_of(calls)


@pytest.mark.parametrize(
    ("sleeps", "calls"),
    [(False, "engines.generate_responses"), (True, "engines.wake_up! engines.generate_responses engines.sleep!")],
)
def test_a_rollout_wakes_the_engines_and_puts_them_to_sleep(make_sampler, recorder, sleeps, calls):
    sampler, engines = make_sampler(engines=2, filtering=False)
    sampler.args.vllm.enable_sleep = sleeps
    for engine in engines:
        recorded_engine = RecordedEngine(recorder)
        engine.wake_up, engine.sleep = recorded_engine.wake_up, recorded_engine.sleep
        generate = engine.generate_responses.remote

        def noted(generate=generate, **request):
            recorder.note("engines.generate_responses")
            return generate(**request)

        engine.generate_responses = Now(noted)
    sampler.next_batch(0)
    assert recorder.lines == calls_of(calls)


def test_on_a_cpu_host_models_score_side_by_side(recorder, monkeypatch):
    # There is no GPU memory that one model would have to free for the next one.
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)
    run_step(recorder, {"train__colocate_all": True}, False, False)
    assert recorder.lines[:4] == ["policy.score", "reference.score", "wait policy.score", "wait reference.score"]
