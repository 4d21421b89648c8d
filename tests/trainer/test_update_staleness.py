"""Which log-probs a ratio compares, where the rollouts come from a policy that is 0, 1 or 2 updates old.

A step knows three policies: the one that is trained (lp), the one before the first update of the step, which scored
the samples (old), and the one that sampled, by the log-probs of the engine (roll). In synchronous training old and
roll agree to rounding. In asynchronous training roll is older. The published definitions compare lp with old,
except for the rollout correction (old with roll), upstream's GSPO beside it (lp with roll) and DPPO (lp with roll).

Each test trains by ``update_policy`` for two updates and compares the weights with those of a few lines that write the
gradient of a method down: d loss / d lp = -k A / N, with the coefficient k of the method.
"""

from dataclasses import replace

import pytest
import torch
from active import active
from rank_models import LEARNING_RATE, flags, make_policy, make_samples, order_of

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.trainer.update import update_policy

pytestmark = pytest.mark.usefixtures("one_process")

UPDATES = 2  # of the step that is compared: in the first one lp is old, in the second one it is not
LOW, HIGH = 0.1, 0.15
STALENESS = [0, 1, 2]


def stale_rollouts(folder, age, config=None):
    """Return (a policy, samples that its forerunner ``age`` updates ago sampled and that it has scored now).

    ``config`` says what else a method asks of the scores.
    """
    args = flags(folder, max_epochs=1, micro_batch_size=8)
    asked = make_policy(flags(folder, config))
    policy = make_policy(args)
    with torch.no_grad():
        sampled = policy.actor.logits.log_softmax(0)
    for step in range(age):
        before = policy.actor.logits.detach().clone()
        update_policy(policy, order_of(args, step), make_samples(log_probs=before.log_softmax(0)))
        # An eighth of the step: ratios of old samples are then around 1, some clipped and some not.
        with torch.no_grad():
            policy.actor.logits.copy_(before + (policy.actor.logits - before) / 8)
    with torch.no_grad():
        asked.actor.logits.copy_(policy.actor.logits)
    samples = []
    for sample in make_samples():
        ones = torch.ones(1, len(sample.tokens))
        scores = asked.score(
            sample.tokens[None], ones[:, 1:], ones, None, with_entropy=True, with_vocabulary_scores=True
        )
        found = {
            name: getattr(scores, name)[0]
            for name in ("log_probs", "entropy", "proxy", "discriminator_mean")
            if getattr(scores, name) is not None
        }
        samples.append(replace(sample, rollout_log_probs=sampled[sample.tokens[1:]], **found))
    return policy.actor.logits.detach().clone(), samples


def train(folder, logits, samples, config, **changes):
    """Return the weights after the updates of a step."""
    policy = make_policy(flags(folder, config, max_epochs=UPDATES, **changes))
    with torch.no_grad():
        policy.actor.logits.copy_(logits)
    result = update_policy(policy, order_of(policy.args), samples)
    return policy.actor.logits.detach(), result.metrics


def ppo(lp, old, roll, advantage):
    ratio = (lp - old).exp()
    clipped = ((advantage > 0) & (ratio > 1 + HIGH)) | ((advantage < 0) & (ratio < 1 - LOW))
    return ratio.masked_fill(clipped, 0.0)


def corrected(lp, old, roll, advantage):
    return ppo(lp, old, roll, advantage) * (old - roll).exp().clamp(0.95, 1.05)


def masked(lp, old, roll, advantage):
    weight = (old - roll).exp()
    return ppo(lp, old, roll, advantage) * weight.masked_fill((weight < 0.75) | (weight > 1.25), 0.0)


def gspo_by(anchor):
    def coefficient(lp, old, roll, advantage):
        gap = lp - (old if anchor == "old" else roll)
        ratio = gap.mean().expand_as(gap).exp()
        clipped = ((advantage > 0) & (ratio > 1 + HIGH)) | ((advantage < 0) & (ratio < 1 - LOW))
        return ratio.masked_fill(clipped, 0.0)

    return coefficient


def dppo_by(anchor):
    def coefficient(lp, old, roll, advantage):
        q = old if anchor == "old" else roll
        far = (lp.exp() - q.exp()).abs() > 0.02
        dropped = far & (((advantage > 0) & (lp > q)) | ((advantage < 0) & (lp < q)))
        return (lp - q).exp().masked_fill(dropped, 0.0)

    return coefficient


CLIP = dict(eps_clip_low_high=(LOW, HIGH))
OPEN = dict(eps_clip_low_high=(float("inf"), float("inf")))
TOKENS = dict(loss_agg_mode="token-mean")
SEQUENCES = dict(loss_agg_mode="seq-mean-token-mean")
CORRECTION = dict(is_correction_level="token", is_correction_threshold=(0.95, 1.05))
# Name -> (coefficient k, settings of the method, flags). Without k the definition is that of tests/models/methods.
RATIOS = {
    "PPO": (ppo, {}, CLIP),
    "PPO by sequence": (ppo, {}, CLIP | SEQUENCES),
    "PPO, correction cuts": (corrected, {}, CLIP | CORRECTION | dict(is_correction_mode="clip")),
    "PPO, correction masks": (masked, {}, CLIP | CORRECTION | dict(is_correction_threshold=(0.75, 1.25))),
    "GSPO": (gspo_by("old"), {}, CLIP | SEQUENCES | dict(policy_loss_type="gspo")),
    "GSPO, corrected": (gspo_by("roll"), {}, CLIP | SEQUENCES | dict(policy_loss_type="gspo") | CORRECTION),
    "CISPO": (None, {"method": "cispo", "cispo_cap": 1.1, "cispo_floor": 0.9}, OPEN),
    "SAPO": (None, {"method": "sapo"}, OPEN | SEQUENCES),
    "CE-GPPO": (None, {"method": "cegppo"}, OPEN),
    "DPPO, rollout": (dppo_by("roll"), {"method": "dppo", "dppo_delta": 0.02}, OPEN),
    "DPPO, old": (dppo_by("old"), {"method": "dppo", "dppo_delta": 0.02, "dppo_anchor": "old"}, OPEN),
    "GMPO": (None, {"method": "gmpo", "gmpo_clip": 0.1}, OPEN | SEQUENCES),
    "GSPO-token": (None, {"method": "gspo_token", "gspo_token_clip": (LOW, HIGH)}, OPEN | SEQUENCES),
}


def expected_weights(logits, samples, coefficient, by_sequence=False, penalty=None, updates=UPDATES):
    """Return the weights after gradient descent with d loss / d lp = -k A / N, or the mean of the sequences' means."""
    logits = logits.clone().requires_grad_()
    tokens = sum(sample.action_tokens for sample in samples)
    for _ in range(updates):
        log_probs, loss = logits.log_softmax(0), torch.zeros(())
        for sample in samples:
            lp = log_probs[sample.tokens[1:]]
            k = coefficient(lp.detach(), sample.log_probs, sample.rollout_log_probs, sample.advantages)
            values = -k * sample.advantages * lp
            if penalty:
                values = values + penalty(lp, sample.log_probs)
            loss = loss + (values.mean() / len(samples) if by_sequence else values.sum() / tokens)
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - LEARNING_RATE * gradient).detach().requires_grad_()
    return logits.detach()


@pytest.mark.parametrize("age", STALENESS)
@pytest.mark.parametrize("name", [name for name, (coefficient, *_) in RATIOS.items() if coefficient])
def test_ratios_are_those_of_the_definition(tmp_path, name, age):
    coefficient, settings, changes = RATIOS[name]
    logits, samples = stale_rollouts(tmp_path, age)
    found, _ = train(tmp_path, logits, samples, CovConfig(**settings), **(TOKENS | changes))
    by_sequence = changes.get("loss_agg_mode", "token-mean") != "token-mean"
    expected = expected_weights(logits, samples, coefficient, by_sequence)
    assert not torch.equal(found, logits)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RATIOS)
def test_the_log_probs_of_the_engine_matter_where_a_definition_has_them(tmp_path, name):
    """The samples are 2 updates old. With equal log-probs of trainer and engine instead, these methods differ."""
    _, settings, changes = RATIOS[name]
    logits, samples = stale_rollouts(tmp_path, 2)
    fresh = [replace(sample, rollout_log_probs=sample.log_probs) for sample in samples]
    stale, equal = (
        train(tmp_path, logits, each, CovConfig(**settings), **(TOKENS | changes))[0] for each in (samples, fresh)
    )
    by_engine = name in ("PPO, correction cuts", "PPO, correction masks", "GSPO, corrected", "DPPO, rollout")
    assert torch.equal(stale, equal) is not by_engine


@pytest.mark.parametrize("age", STALENESS)
def test_the_penalty_of_kl_cov_holds_the_policy_near_old(tmp_path, age):
    """Of all tokens here. The rollout correction weighs the policy gradient, never the penalty."""
    config = CovConfig(cov_type="kl_cov", kl_cov_ratio=1.0, ppo_kl_coef=0.3, allow_large_cov_ratio=True)
    logits, samples = stale_rollouts(tmp_path, age)
    found, _ = train(tmp_path, logits, samples, config, **OPEN | CORRECTION | dict(is_correction_mode="clip"))

    def coefficient(lp, old, roll, advantage):
        return (lp - old).exp() * (old - roll).exp().clamp(0.95, 1.05)

    def penalty(lp, old):
        return 0.3 * (lp - old).abs()

    expected = expected_weights(logits, samples, coefficient, penalty=penalty)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# By their definitions the anchor of these is the engine.
ANCHORED_TO_THE_ENGINE = ("dppo", "wapo")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ANCHORED_TO_THE_ENGINE])
def test_other_methods_ignore_the_log_probs_of_the_engine(tmp_path, name):
    config = active(name)
    logits, samples = stale_rollouts(tmp_path, max(STALENESS), config)
    without = [replace(sample, rollout_log_probs=None) for sample in samples]
    found, metrics = train(tmp_path, logits, samples, config)
    expected, others = train(tmp_path, logits, without, config)
    assert not torch.equal(found, logits)
    assert torch.equal(found, expected)
    assert metrics.pop("vllm_kl") == pytest.approx(gap_to_the_engine(samples), rel=1e-5, abs=1e-7)
    assert metrics == pytest.approx(others, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("age", STALENESS)
@pytest.mark.parametrize("name", ANCHORED_TO_THE_ENGINE)
def test_methods_with_the_engine_as_their_anchor_compare_with_it(tmp_path, name, age):
    """With the trainer as the anchor and the same log-probs in both places, the update is the same."""
    config = active(name)
    logits, samples = stale_rollouts(tmp_path, age, config)
    moved = [replace(sample, log_probs=sample.rollout_log_probs) for sample in samples]
    found, _ = train(tmp_path, logits, samples, config, **OPEN)
    expected, _ = train(tmp_path, logits, moved, replace(config, **{f"{name}_anchor": "old"}), **OPEN)
    other, _ = train(tmp_path, logits, samples, replace(config, **{f"{name}_anchor": "old"}), **OPEN)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(found, other, rtol=1e-4) is (age == 0)


@pytest.mark.parametrize("age", STALENESS)
def test_covariances_with_old_log_probs_ignore_the_engine(tmp_path, age):
    logits, samples = stale_rollouts(tmp_path, age)
    config = replace(active("kl_cov"), cov_log_probs="old")
    without = [replace(sample, rollout_log_probs=None) for sample in samples]
    assert torch.equal(train(tmp_path, logits, samples, config)[0], train(tmp_path, logits, without, config)[0])


def gap_to_the_engine(samples):
    return float(torch.cat([sample.rollout_log_probs - sample.log_probs for sample in samples]).mean())


@pytest.mark.parametrize("age", STALENESS)
def test_the_logged_ratios_and_divergences(tmp_path, age):
    logits, samples = stale_rollouts(tmp_path, age)
    _, metrics = train(tmp_path, logits, samples, CovConfig(), **CLIP)
    # vllm_kl: mean of roll - old; 0 for a rollout of the policy itself
    assert metrics["vllm_kl"] == pytest.approx(gap_to_the_engine(samples), rel=1e-5, abs=1e-7)
    assert (metrics["vllm_kl"] == 0) is (age == 0)
    # ppo_kl: mean of old - lp, over both updates; lp is old in the first one
    first = expected_weights(logits, samples, ppo, updates=1)
    drift = torch.cat([sample.log_probs - first.log_softmax(0)[sample.tokens[1:]] for sample in samples])
    assert metrics["ppo_kl"] == pytest.approx(float(drift.mean()) / 2, rel=1e-3, abs=1e-6)
    assert metrics["ppo/ratio_max"] == pytest.approx(float((-drift).max().exp()), rel=1e-4)
