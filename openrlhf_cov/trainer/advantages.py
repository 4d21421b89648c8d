"""Compute advantages from rewards for all samples of a step.

1. Rewards: those of the rollout or of a reward model, with upstream's length penalties.
2. Responses: the estimator of the run compares each reward with those of the other responses to its prompt.
3. Tokens: KL penalty and process rewards join the reward; an advantage is the sum of the rewards that follow, or GAE.
4. Whitening over all tokens of the step, where the estimator is defined so.

An abstained sample takes no part in the statistics of rewards and advantages; its advantages are 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from torch import Tensor

from openrlhf_cov.models.responses import group_deviations, mean_log_probs, response_advantages
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.records import Sample, Scores, StepSettings, TrainSample
from openrlhf_cov.trainer.token_values import TokenValues, mean_entropy, token_values, whitened

# Samples that are padded to one width while their returns are computed.
CHUNK = 64


@dataclass(frozen=True)
class TrainBatch:
    """The samples of a step with their advantages, and the numbers of each sample to be logged."""

    samples: Sequence[TrainSample]
    # Name -> (N,), in the order of the samples.
    numbers: Mapping[str, Tensor]


@torch.no_grad()
def estimate_advantages(
    samples: Sequence[Sample],
    scores: Sequence[Scores],
    settings: AdvantageSettings,
    step: StepSettings,
    args: SimpleNamespace,
) -> TrainBatch:
    """Estimate the advantages of all tokens of a step.

    Args:
        samples: The samples of the step; the K responses to a prompt lie together.
        scores: What the models say of each of them.
        settings: How the run estimates advantages.
        step: The settings of the step. A method may bring its own estimator. The KL coefficient is that of the penalty
            in the reward.
        args: The flags of the run, for upstream's length penalties.

    Raises:
        RunStopped: An estimator for correct and incorrect responses meets other rewards.
    """
    config = step.config

    # 1. Rewards (N,), and by prompt (G, K).
    rewards = penalised_rewards(samples, scores, args)
    groups = rewards.view(-1, settings.samples_per_prompt)
    graded = torch.tensor([not sample.abstained for sample in samples]).view_as(groups)

    # 2. Responses (N,); NaN is left out. Of the estimators, only Entrocraft uses the entropy.
    entropy = mean_entropy([each.entropy for each in scores], [sample.graded_mask for sample in samples])
    log_probs = None
    if config.estimator is not None:  # upstream's estimators take the rewards alone
        found = [
            mean_log_probs(each.log_probs[None], s.action_mask[None]) for s, each in zip(samples, scores, strict=True)
        ]
        log_probs = torch.cat(found).view_as(groups)
    responses = response_advantages(groups, graded, settings.estimator, config, entropy, log_probs).flatten()

    # 3. Tokens.
    values: list[TokenValues] = []
    # In chunks, because all samples padded to the longest one would take many times the memory of their tokens.
    for first in range(0, len(samples), CHUNK):
        chunk = slice(first, first + CHUNK)
        values += token_values(samples[chunk], scores[chunk], responses[chunk], settings, step)

    # 4. Whitening.
    if settings.whitens(config):
        values = whitened(values, settings.by_deviation)

    numbers = {
        "reward": rewards,
        "return": torch.stack([each.total_reward for each in values]),
        "kl": torch.stack([each.kl for each in values]),
        "logprobs_diff": torch.stack([each.log_ratio for each in values]),
    }
    if settings.samples_per_prompt > 1:
        numbers["group_reward_std"] = group_deviations(groups, graded).flatten()
    trained = [train_sample(*each, settings.has_kl_loss) for each in zip(samples, scores, values, strict=True)]
    return TrainBatch(trained, numbers)


def penalised_rewards(samples: Sequence[Sample], scores: Sequence[Scores], args: SimpleNamespace) -> Tensor:
    """Return the rewards (N,) with upstream's penalties for long and for truncated responses.

    An abstained sample has the mean of the others after their penalties, so that the mean of all is that of the graded
    samples.
    """
    rewards = [
        each.reward if sample.reward is None else sample.reward for sample, each in zip(samples, scores, strict=True)
    ]
    # What upstream's function reads and writes of a batch.
    batch = SimpleNamespace(
        rewards=torch.tensor(rewards, dtype=torch.float32),
        # --rollout.max_new_tokens, which upstream compares this with, is the limit of a turn.
        response_length=torch.tensor([sample.longest_turn for sample in samples]),
        truncated=torch.tensor([sample.truncated for sample in samples]),
        info={},
    )
    apply_length_penalties([batch], args)
    graded = torch.tensor([not sample.abstained for sample in samples])
    if not graded.any():
        return torch.tensor(rewards, dtype=torch.float32)
    return batch.rewards.where(graded, batch.rewards[graded].mean())


def train_sample(sample: Sample, scores: Scores, values: TokenValues, has_kl_loss: bool) -> TrainSample:
    """Join what is known of one sample. Ranks need the log-probs of the reference for a KL loss alone."""
    return TrainSample(
        sample_id=sample.sample_id,
        score=torch.nan if sample.score is None else sample.score,
        abstained=sample.abstained,
        tokens=sample.tokens,
        action_mask=sample.action_mask,
        log_probs=scores.log_probs,
        entropy=scores.entropy,
        advantages=values.advantages,
        returns=values.returns,
        proxy=scores.proxy,
        discriminator_mean=scores.discriminator_mean,
        base_log_probs=scores.base_log_probs if has_kl_loss else None,
        values=scores.values,
        rollout_log_probs=sample.rollout_log_probs,
        image_inputs=sample.image_inputs,
    )
