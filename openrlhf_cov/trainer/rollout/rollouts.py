"""Turn the responses of the engines into the samples of a step: made, checked, completed and numbered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.records import Sample
from openrlhf_cov.trainer.rollout.prompts import Prompt, source_name
from openrlhf_cov.trainer.rollout.reward_executor import ABSTAINED, ERROR_METRIC

logger = init_logger(__name__)

# Metric: 1 for a sample that fills the context of --data.max_len.
CLIP_METRIC = "response_clip_ratio"


def sample_of(response: Mapping[str, Any], prompt: Prompt, max_len: int) -> Sample:
    """Return the sample that an engine's response becomes.

    A reward or score that is NaN or infinite, which an agent may return, is a failed reward: both become 0 where
    they are there, and ``reward/error_frac`` of the sample 1.

    Args:
        response: One element of what ``generate_responses`` of an engine actor returns.
        prompt: What the engine was asked.
        max_len: ``--data.max_len``; tokens beyond are cut off.
    """
    tokens = torch.tensor(response["observation_tokens"][:max_len], dtype=torch.long)
    # Entry t of the mask is about token t + 1.
    is_action = torch.zeros(len(response["observation_tokens"]), dtype=torch.bool)
    for start, end in response["action_ranges"]:
        is_action[start:end] = True
    log_probs = response["rollout_log_probs"]
    metrics = {CLIP_METRIC: float(len(tokens) >= max_len)}
    metrics |= {name: _number(value) for name, value in (response.get("extra_logs") or {}).items()}
    reward = _number(response.get("reward"))
    score = _number(response.get("scores"))
    abstained = metrics.get(ABSTAINED, 0.0) > 0.0
    if not abstained and not all(value is None or math.isfinite(value) for value in (reward, score)):
        logger.warning(f"a reward failed: it is {reward}, its score {score}; prompt {response['prompt'][:200]!r}")
        # A reward that is missing comes from a reward model.
        reward = None if reward is None else 0.0
        score = None if score is None else 0.0
        metrics[ERROR_METRIC] = 1.0
    return Sample(
        tokens=tokens,
        action_mask=is_action[1:max_len],
        prompt=response["prompt"],
        label=response["label"],
        prompt_number=prompt.number,
        source=source_name(prompt),
        reward=reward,
        score=score,
        abstained=abstained,
        truncated=bool(response.get("truncated", False)),
        rollout_log_probs=None if log_probs is None else torch.tensor(log_probs[1:max_len], dtype=torch.float32),
        metrics=metrics,
        images=response.get("images"),
        image_inputs=response.get("mm_train_inputs"),
    )


def checked_samples(samples: Sequence[Sample], config: CovConfig, max_error_share: float) -> list[Sample]:
    """Return the samples of a step as the models score them, in the same order.

    All samples have the metrics that count failures and abstentions if one has them, the rewards of abstentions are
    filled, and every sample has its number.

    Args:
        samples: Samples of a rollout; the responses to one prompt lie together.
        config: Settings of the step.
        max_error_share: ``--reward_max_error_frac``.

    Raises:
        RunStopped: Too many rewards failed, log-probs of the engine are missing that the settings need, or an agent
            returned a field for some responses only.
    """
    check_reward_errors(failed_rewards(samples), len(samples), max_error_share)
    if config.rollout_anchor:
        check_rollout_log_probs(samples, config.rollout_anchor)
    check_same_fields(samples)
    return number_samples(fill_abstained(complete_counts(samples)))


def complete_counts(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with 0 for failures and abstentions where a sample lacks the metric that another one has.

    These are shares of all samples. Other metrics stay missing: a reward function may give one for some rows only,
    such as the share of passed tests for programs, and their means are over the samples that have them.
    """
    zeros = {name: 0.0 for sample in samples for name in sample.metrics if name in (ABSTAINED, ERROR_METRIC)}
    return [replace(sample, metrics=zeros | dict(sample.metrics)) for sample in samples]


def fill_abstained(samples: Sequence[Sample]) -> list[Sample]:
    """Give abstained samples the mean reward of the others, or 0 if all abstained.

    The mean reward of a step is then that of its graded samples. The score of an abstention stays NaN, and the
    advantages leave these samples out.
    """
    rewards = [sample.reward for sample in samples if not sample.abstained and sample.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return [replace(sample, reward=mean) if sample.abstained else sample for sample in samples]


def number_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples in the same order, each with its number.

    Numbers follow the text and the label of the prompts. The order in which groups were kept may differ from run to
    run, and selection breaks ties by these numbers. Responses to one prompt have consecutive numbers, in the order in
    which they were asked for, even if an agent gave them prompts of different texts: the first response of a group
    stands for it. Equal prompts with equal labels keep their order.

    Samples of a recorded rollout keep the numbers that they have, because their labels were not recorded.
    """
    if all(sample.sample_id >= 0 for sample in samples):
        return list(samples)

    def text_and_label(place: int) -> tuple[str, str]:
        return samples[place].prompt, repr(samples[place].label)

    groups: list[list[int]] = []
    for place, sample in enumerate(samples):
        if groups and _is_same_prompt(samples[groups[-1][0]], sample):
            groups[-1].append(place)
        else:
            groups.append([place])
    groups.sort(key=lambda group: text_and_label(group[0]))
    numbered = list(samples)
    for number, place in enumerate(place for group in groups for place in group):
        numbered[place] = replace(samples[place], sample_id=number)
    return numbered


def _is_same_prompt(one: Sample, other: Sample) -> bool:
    """Return True if two samples that lie together are responses to one prompt."""
    if one.prompt_number >= 0:
        return one.prompt_number == other.prompt_number
    return (one.prompt, repr(one.label)) == (other.prompt, repr(other.label))


def scores_of(samples: Sequence[Sample]) -> list[float]:
    """Return the scores of one group, without those of samples with an abstention.

    Raises:
        RunStopped: A sample has no score, which agents may leave out.
    """
    if any(sample.score is None for sample in samples):
        raise RunStopped(
            "--algo.dynamic_filtering_enable: a response came without a score, by which groups are kept; have the "
            f"agent or reward return scores, or drop the flag (prompt {samples[0].prompt[:200]!r})"
        )
    return [sample.score for sample in samples if sample.score is not None and not sample.abstained]


def failed_rewards(samples: Sequence[Sample]) -> int:
    """Return the number of samples whose reward failed."""
    return round(sum(sample.metrics.get(ERROR_METRIC, 0.0) for sample in samples))


def check_reward_errors(failed: int, responses: int, limit: float) -> None:
    """Check that not too many rewards of a step failed.

    Args:
        failed: Number of responses whose reward failed.
        responses: Number of all responses.
        limit: ``--reward_max_error_frac``, the largest share of failures that a run accepts.

    Raises:
        RunStopped: More failed.
    """
    if failed > limit * responses:
        raise RunStopped(
            f"the reward of {failed} of {responses} responses failed in this step, more than "
            f"--reward_max_error_frac {limit:g}; the first cases are in the log above"
        )


def check_same_fields(samples: Sequence[Sample]) -> None:
    """Check that an agent returned a reward, and log-probs of the engine, for all responses or for none.

    A sample whose reward function abstained needs no reward.

    Raises:
        RunStopped: Some responses have a field and others lack it.
    """
    for field, needs in (
        ("reward", [sample for sample in samples if not sample.abstained]),
        ("rollout_log_probs", samples),
    ):
        missing = [sample for sample in needs if getattr(sample, field) is None]
        if 0 < len(missing) < len(needs):
            raise RunStopped(
                f"{len(missing)} of {len(needs)} responses came without {field}, the others with it; have the agent "
                f"return {field} always or never (prompt {missing[0].prompt[:200]!r})"
            )


def check_rollout_log_probs(samples: Sequence[Sample], setting: str) -> None:
    """Check that every sample has log-probs of the engine, which agents may leave out.

    Args:
        samples: The samples of a step.
        setting: The setting by which the loss needs them, for the message.

    Raises:
        RunStopped: A sample has none.
    """
    if any(sample.rollout_log_probs is None for sample in samples):
        raise RunStopped(
            f"--{setting} rollout: a response came without the log-probs of the engine; have the agent return "
            f"rollout_log_probs, or give --{setting} old"
        )


def _number(value: Any) -> Any:
    """Return a number, or the first one of a tensor, as a float; None stays None."""
    if isinstance(value, torch.Tensor):
        value = value.flatten()[0].item()
    return None if value is None else float(value)
