"""The process reward model trains on a step, and then rewards each of its tokens."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.models.method import PromptTokens, fills
from openrlhf_cov.models.process_rewards import ordered_pairs, response_log_ratios
from openrlhf_cov.models.responses import right
from openrlhf_cov.models.slots import ProcessEstimator
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import Sample, Scores, StepSettings, TrainSample
from openrlhf_cov.trainer.scoring import ScoringBatch, process_log_probs


def reward_tokens(
    samples: Sequence[Sample],
    scores: Sequence[Scores],
    batches: Sequence[ScoringBatch],
    groups: ModelGroups,
    settings: StepSettings,
) -> tuple[Sequence[Scores], dict[str, float]]:
    """Train the process reward model on the samples of a step, and let it reward their tokens.

    A run without such a model keeps its scores.

    Args:
        samples: The samples of the step; the K responses to a prompt lie together.
        scores: What the other models say of each of them, the reference included.
        batches: The samples, as the models score them.
        groups: The models.
        settings: The settings of the step.

    Returns:
        The scores with ``token_rewards``, and the ``prm/*`` metrics.
    """
    config = settings.config
    if config.estimator is None or not fills(config.estimator, ProcessEstimator):
        return scores, {}
    estimator = config.estimator.slot

    # The model is updated before it scores, so that it knows how the policy of this step solves its prompts.
    result = groups.update_process_reward(settings, labelled_samples(samples, scores))
    log_probs = process_log_probs(samples, batches, groups)

    count = groups.args.rollout.n_samples_per_prompt
    prompts = [
        prompt_tokens(samples[first : first + count], scores[first : first + count], log_probs[first : first + count])
        for first in range(0, len(samples), count)
    ]
    rewards = estimator.token_rewards(config, prompts)
    # Each row is as wide as the longest response to its prompt.
    rows = [row for of_prompt in rewards for row in of_prompt]
    found = [
        replace(each, token_rewards=row[: len(sample.action_mask)])
        for sample, each, row in zip(samples, scores, rows, strict=True)
    ]
    correct = correctness(samples).view(-1, count)
    return found, {**result.metrics, **agreement(prompts, correct, estimator.process_reward(config).beta)}


def correctness(samples: Sequence[Sample]) -> Tensor:
    """Return 1 for each correct response and 0 for each other one, also without a reward, (N,)."""
    rewards = [math.nan if sample.reward is None else sample.reward for sample in samples]
    return right(torch.tensor(rewards, dtype=torch.float64)).float()


def labelled_samples(samples: Sequence[Sample], scores: Sequence[Scores]) -> list[TrainSample]:
    """Return the samples as the process reward model trains on them.

    Samples whose reward function abstained have no action token, so that they do not count. Advantages and other
    numbers of the policy are zeros.

    Args:
        samples: The samples of a step.
        scores: The outputs of the models for each of them, with the log-probs of the reference.

    Returns:
        The samples in the same order. Their ``score`` is 1 for a correct response and 0 for any other one.
    """
    labelled = []
    for sample, each, correct in zip(samples, scores, correctness(samples).tolist(), strict=True):
        zeros = torch.zeros_like(each.log_probs)
        labelled.append(
            TrainSample(
                sample_id=sample.sample_id,
                score=correct,
                abstained=sample.abstained,
                tokens=sample.tokens,
                action_mask=sample.action_mask & (not sample.abstained),
                log_probs=zeros,
                entropy=zeros,
                advantages=zeros,
                returns=zeros,
                base_log_probs=each.base_log_probs,
            )
        )
    return labelled


def prompt_tokens(samples: Sequence[Sample], scores: Sequence[Scores], log_probs: Sequence[Tensor]) -> PromptTokens:
    """Return the log ratios of the responses to one prompt, padded to the longest of them: tensors (K, A).

    Args:
        samples: The K responses.
        scores: The outputs of the other models for each response, with the log-probs of the reference.
        log_probs: Log-probs of the process reward model, one tensor (A,) of its own length for each response.
    """
    ratios = []
    for found, each in zip(log_probs, scores, strict=True):
        assert each.base_log_probs is not None  # a run with a process reward model has a reference
        ratios.append(found - each.base_log_probs)
    return PromptTokens(
        log_ratios=pad_sequence(ratios, batch_first=True),
        action_mask=pad_sequence([sample.action_mask for sample in samples], batch_first=True),
        graded=torch.tensor([not sample.abstained for sample in samples]),
    )


def agreement(prompts: Sequence[PromptTokens], correct: Tensor, beta: float) -> dict[str, float]:
    """Return how the process reward model, after its update, judges the responses of a step.

    Args:
        prompts: The responses to each of G prompts.
        correct: 1 for correct responses and 0 for others, (G, K).
        beta: Scale of the log ratios.

    Returns:
        ``prm/reward_mean``, the mean over graded responses of beta times the sum of their log ratios, and
        ``prm/accuracy``, the share of pairs of a correct and an incorrect response to one prompt of which the correct
        one has the higher sum; NaN where a step has nothing of the kind.
    """
    judged: list[Tensor] = []
    ordered = 0.0
    pairs = 0
    for each, labels in zip(prompts, correct, strict=True):
        totals = response_log_ratios(each.log_ratios, each.action_mask)[each.graded]
        found, count = ordered_pairs(totals, labels[each.graded])
        ordered += found
        pairs += count
        judged.append(totals)
    return {
        "prm/reward_mean": beta * float(torch.cat(judged).double().mean()),
        "prm/accuracy": ordered / pairs if pairs else math.nan,
    }
