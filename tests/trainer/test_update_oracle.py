"""The same samples through upstream's trainers and through ours: the same weights and the same logged numbers.

The logged losses are the exception: ours do not depend on the micro-batches.

Upstream's ``ppo_train`` runs with its own replay buffer, loss and data loader. Only the model and the strategy are
stubs, and the same for both. Samples are not shuffled here: with ``--ds.tensor_parallel_size 2`` both sides keep their
order.
"""

from dataclasses import replace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer
from rank_models import (
    SCHEDULER,
    Strategy,
    Unigrams,
    Values,
    accumulation_of,
    flags,
    make_critic,
    make_policy,
    make_samples,
    order_of,
)

from openrlhf_cov.trainer.critic_update import update_critic
from openrlhf_cov.trainer.update import update_policy

pytestmark = pytest.mark.usefixtures("one_process")

KL_COEF = 0.3
DRIFT = 0.4


def experience_of(sample):
    """Return a sample as upstream's replay buffer takes it."""
    rows = {
        "sequences": sample.tokens,
        "attention_mask": torch.ones_like(sample.tokens),
        "action_mask": sample.action_mask.long(),
        "action_log_probs": sample.log_probs,
        "base_action_log_probs": sample.base_log_probs,
        "rollout_log_probs": sample.rollout_log_probs,
        "advantages": sample.advantages,
        "returns": sample.returns,
        "values": sample.values,
        "total_length": torch.tensor(len(sample.tokens)),
    }
    rows = {name: None if row is None else row[None].clone() for name, row in rows.items()}
    mm_train_inputs = [] if sample.image_inputs is None else [sample.image_inputs]
    return Experience(**rows, index=[sample.sample_id], mm_train_inputs=mm_train_inputs)


def filled(trainer, samples):
    for sample in samples:
        trainer.replay_buffer.append(experience_of(sample))
    return trainer


def upstream_policy(args, samples, kl_coef, with_ema=False):
    """Train by upstream's trainer; return the model, its moving average and the status."""
    accumulation = accumulation_of(args)
    actor, ema = Unigrams(accumulation), Unigrams() if with_ema else None
    trainer = ActorPPOTrainer(
        Strategy(args, accumulation), actor, ema, None, SCHEDULER, ema_beta=args.train.ema_beta,
        micro_train_batch_size=args.train.micro_batch_size, dataloader_pin_memory=False,
    )  # fmt: skip
    return actor, ema, filled(trainer, samples).ppo_train(kl_coef)


LAYOUTS = {
    "static, one micro-batch": dict(micro_batch_size=8, tensor_parallel_size=2),
    "static, four micro-batches": dict(micro_batch_size=2, tensor_parallel_size=2),
    "static, two updates of two": dict(micro_batch_size=2, train__batch_size=4, tensor_parallel_size=2),
    # Upstream repeats the updates of dynamic batches in every epoch, ours are shuffled anew, so there is one epoch.
    "dynamic, two updates": dict(dynamic_batch_enable=True, train__batch_size=4, max_epochs=1, max_tokens_per_gpu=7),
    "dynamic, one sample left out": dict(
        dynamic_batch_enable=True, train__batch_size=4, max_epochs=1, max_tokens_per_gpu=9
    ),
}
LOSSES = {
    "plain": {},
    "sequences": dict(loss_agg_mode="seq-mean-token-mean"),
    "KL k1": dict(use_loss=True, init_coef=KL_COEF),
    "KL k2": dict(use_loss=True, init_coef=KL_COEF, estimator="k2"),
    "KL k3": dict(use_loss=True, init_coef=KL_COEF, estimator="k3"),
    "KL k3, unbiased gradient": dict(use_loss=True, init_coef=KL_COEF, estimator="k3", unbiased_gradient=True),
    "KL loss without a reference": dict(use_loss=True),
    "entropy is logged": dict(entropy_coef=0.0),
    "entropy bonus": dict(entropy_coef=0.05),
    "dual clip": dict(dual_clip=1.1),
    "tokens masked": dict(is_correction_level="token", is_correction_threshold=(0.8, 1.2)),
    "tokens cut": dict(is_correction_level="token", is_correction_mode="clip", is_correction_threshold=(0.8, 1.2)),
    "sequences masked": dict(is_correction_level="seq", is_correction_threshold=(0.9, 1.1)),
    "binary KL": dict(
        is_correction_level="token", is_correction_gating="binary_kl", is_correction_threshold=(0.0, 0.01)
    ),
    "total variation": dict(is_correction_level="seq", is_correction_gating="tv", is_correction_threshold=(0.0, 0.05)),
    "GSPO": dict(policy_loss_type="gspo", eps_clip_low_high=(0.02, 0.03)),
    "GSPO with correction": dict(policy_loss_type="gspo", eps_clip_low_high=(0.02, 0.03), is_correction_level="token"),
    "experts": dict(aux_loss_coef=0.01),
    "everything": dict(
        use_loss=True, init_coef=KL_COEF, estimator="k2", entropy_coef=0.02, dual_clip=1.5, aux_loss_coef=0.01,
        is_correction_level="token", is_correction_threshold=(0.8, 1.2), loss_agg_mode="seq-mean-token-mean",
    ),
}  # fmt: skip
NUMBERS = ("policy_loss", "ppo_kl", "ppo_clip_ratio", "actor_lr", "actor_grad_norm")


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_policy_learns_what_upstreams_learns(tmp_path, layout, loss):
    args = flags(tmp_path, **layout, **loss)
    samples = make_samples(9 if layout.get("max_tokens_per_gpu") == 9 else 8, drift=DRIFT)
    expected, _, status = upstream_policy(args, samples, KL_COEF)
    policy = make_policy(args)
    result = update_policy(policy, order_of(args, kl_coef=KL_COEF), samples)

    assert not torch.equal(expected.logits, Unigrams().logits)
    torch.testing.assert_close(policy.actor.logits, expected.logits, rtol=1e-6, atol=1e-6)
    # Upstream has the gap to the engine with a rollout correction only, ours always.
    names = [name for name in (*NUMBERS, "entropy_loss", "kl", "logprobs_diff", "is_filter_ratio") if name in status]
    assert names == [
        *NUMBERS,
        *(["entropy_loss"] if "entropy_coef" in loss else []),
        *(["kl", "logprobs_diff"] if "use_loss" in loss else []),
        *(["is_filter_ratio"] if "is_correction_level" in loss and "policy_loss_type" not in loss else []),
    ]
    # Upstream weighs the losses of micro-batches by their tokens, and those of dynamic ones are shares of an update.
    # Ours are the losses of the updates, which are upstream's where an update is one micro-batch.
    differing = () if layout == LAYOUTS["static, one micro-batch"] else ("policy_loss", "entropy_loss", "kl")
    # Upstream weighs shares of sequences by tokens as well, ours weighs them by sequences.
    if layout != LAYOUTS["static, one micro-batch"] and loss.get("is_correction_level") == "seq":
        differing = (*differing, "is_filter_ratio")
    for name in [name for name in names if name not in differing]:
        assert result.metrics[name] == pytest.approx(status[name], rel=1e-5, abs=1e-6), name
    if "vllm_kl" in status:
        assert result.metrics["vllm_kl"] == pytest.approx(status["vllm_kl"], rel=1e-5, abs=1e-6)
    if loss.get("dual_clip") or "eps_clip_low_high" in loss:
        assert status["ppo_clip_ratio"] > 0
    assert result.updates == policy.engine.global_steps == expected.model.global_steps


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_moving_average_follows_as_upstreams(tmp_path, layout):
    args, samples = flags(tmp_path, **layout), make_samples()
    _, expected, _ = upstream_policy(args, samples, 0.0, with_ema=True)
    policy = make_policy(args, with_ema=True)
    update_policy(policy, order_of(args), samples)
    assert not torch.equal(expected.logits, Unigrams().logits)
    torch.testing.assert_close(policy.ema_model.logits, expected.logits, rtol=1e-6, atol=1e-6)


CRITICS = {"plain": {}, "no clip": dict(value_clip=None), "experts": dict(aux_loss_coef=0.01)}


@pytest.mark.parametrize("loss", CRITICS.values(), ids=CRITICS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_critic_learns_what_upstreams_learns(tmp_path, layout, loss):
    args, samples = flags(tmp_path, **layout, **loss), make_samples(drift=DRIFT)
    accumulation = accumulation_of(args)
    expected = Values(accumulation)
    trainer = CriticPPOTrainer(
        Strategy(args, accumulation), expected, None, SCHEDULER, micro_train_batch_size=args.train.micro_batch_size,
        value_clip=args.critic.value_clip, dataloader_pin_memory=False,
    )  # fmt: skip
    status = filled(trainer, samples).ppo_train()
    critic = make_critic(args)
    result = update_critic(critic, order_of(args), samples)

    assert expected.table.abs().max() > 0.1
    torch.testing.assert_close(critic.engine.table, expected.table, rtol=1e-5, atol=1e-6)
    assert result.metrics.pop("critic_skipped_updates") == 0.0
    assert result.metrics.keys() == status.keys()
    # Upstream averages over micro-batches what dynamic ones have shares of, what should weigh by tokens, and norms of
    # the gradient before it is complete.
    if layout != LAYOUTS["static, one micro-batch"]:
        status = {"critic_lr": status["critic_lr"]}
        result = replace(result, metrics={"critic_lr": result.metrics["critic_lr"]})
    assert result.metrics == pytest.approx(status, rel=1e-5, abs=1e-6)
