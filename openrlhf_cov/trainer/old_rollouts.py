"""What is done with the samples of a step before they train: metrics made complete, failed rewards counted."""

from collections.abc import Callable
from typing import Any

import torch

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.reward_executor import ERROR_METRIC
from openrlhf_cov.trainer.sample_info import abstentions


def complete_logs(samples: list) -> None:
    """Give every sample every metric that some sample has, 0 where it has none.

    Upstream joins metrics by name over a batch; one that a sample lacks (its reward failed) would shift the others.
    """
    zeros = {name: torch.zeros_like(value) for sample in samples for name, value in sample.info.items()}
    for sample in samples:
        sample.info = {name: sample.info.get(name, zero) for name, zero in zeros.items()}


def failed_rewards(samples: list) -> int:
    """How many of the samples have a reward that failed."""
    return round(sum(float(sample.info[ERROR_METRIC][0]) for sample in samples if ERROR_METRIC in sample.info))


def has_abstained(sample: Any) -> bool:
    """Return True if the reward function abstained from this sample."""
    return bool(abstentions(sample.info, 1)[0])


def fill_abstained(samples: list) -> None:
    """Give samples with an abstention the mean reward and score of the other samples, 0 if there are none.

    Upstream averages rewards and scores over all samples of a step: with these values the averages are those of the
    graded samples. The score itself stays NaN, and the experience maker gives these samples no advantage.
    """
    abstained = [sample for sample in samples if has_abstained(sample)]
    if not abstained:
        return
    graded = [sample for sample in samples if not has_abstained(sample)]
    for name in ("reward", "score"):
        values = [float(sample.info[name][0]) for sample in graded if name in sample.info]
        mean = sum(values) / len(values) if values else 0.0
        for sample in abstained:
            if name in sample.info:
                sample.info[name] = torch.full_like(sample.info[name], mean)
            if name == "reward":
                sample.rewards = torch.full_like(sample.rewards, mean)


def scores_of(samples: list) -> list[float]:
    """Return the scores of one group, without those of samples with an abstention.

    Raises RunStopped where a sample has none, as agents and their rewards may leave it.
    """
    if any(sample.scores is None for sample in samples):
        raise RunStopped(
            "--algo.dynamic_filtering_enable: a response came without a score, by which groups are kept; have the "
            f"agent or reward return scores, or drop the flag (prompt {samples[0].prompts[0][:200]!r})"
        )
    return [float(sample.scores[0]) for sample in samples if not has_abstained(sample)]


def check_reward_errors(failed: int, responses: int, limit: float) -> None:
    """Raises RunStopped if the rewards of more than the share ``limit`` of the responses failed."""
    if failed > limit * responses:
        raise RunStopped(
            f"the reward of {failed} of {responses} responses failed in this step, more than "
            f"--reward_max_error_frac {limit:g}; the first cases are in the log above"
        )


def check_rollout_log_probs(samples: list, setting: str) -> None:
    """Raises RunStopped where a sample has no log-probs of the engine, as agents may leave them out."""
    if any(sample.rollout_log_probs is None for sample in samples):
        raise RunStopped(
            f"--{setting} rollout: a response came without the log-probs of the engine; have the agent return "
            f"rollout_log_probs, or give --{setting} old"
        )


def of_scores(compute_eval_metrics: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Upstream's ``compute_eval_metrics`` on scores instead of rewards, which may be shaped."""

    def compute(eval_dataloader, samples_list: list, n_samples_per_prompt: int) -> dict[str, Any]:
        for sample in samples_list:
            if sample.scores is not None:
                sample.rewards = sample.scores.nan_to_num(0.0)  # an abstention counts as not solved
        return compute_eval_metrics(eval_dataloader, samples_list, n_samples_per_prompt)

    return compute
