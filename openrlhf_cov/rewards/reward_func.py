"""Rule-based rewards for ``--reward.remote_url openrlhf_cov/rewards/reward_func.py``.

Upstream loads this file by its path, so it imports by absolute names only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards import sources
from openrlhf_cov.rewards.grades import Grade

# Status of a grade -> metric that is 1 for a response with this status.
STATUS_METRICS = {
    "no_answer": "reward/no_answer_frac",
    "unparsable": "reward/unparsable_frac",
    "timeout": "reward/timeout_frac",
}

# Verdict about a program -> metric; those about no program, syntax and time are in ``STATUS_METRICS``.
CODE_METRICS = {
    "wrong": "reward/code_wrong_frac",
    "error": "reward/code_error_frac",
    "memory": "reward/code_memory_frac",
    "output": "reward/code_output_frac",
}


def make_reward_func(config: RewardConfig) -> Callable[..., dict[str, Any]]:
    """Return the reward function of these settings, with upstream's signature."""

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **kwargs: Any
    ) -> dict[str, Any]:
        """Return scores and rewards of responses against their labels. No response raises.

        Args:
            queries: Prompt + response, B of them.
            prompts: The prompts (B).
            labels: The labels (B), as the rule of each row reads them.
            kwargs: Not used; upstream may pass more.

        Returns:
            Tensors of fp32 (B,): ``scores`` are 1 for a correct answer, else 0. ``rewards`` are 1 or
            ``reward_incorrect``, plus ``reward_format_bonus`` where the final part has an answer at all; with
            ``code_reward`` "share" an incorrect program gets more for each test that it passes. ``truncated_rewards``
            are the rewards of the same responses if they were cut off. ``extra_logs`` holds the metrics of
            ``STATUS_METRICS``, and those of programs where there are any.

        Raises:
            ValueError: A label cannot be graded, or a query does not contain its prompt.
            WorkerDied: This machine cannot keep a grading process alive.
            SandboxError: The sandbox service for programs does not work.
        """
        rows = zip(queries, prompts, labels, strict=True)
        grades = [
            sources.grade_label(response_of(query, prompt), label, config, prompt=prompt)
            for query, prompt, label in rows
        ]
        scores = torch.tensor([grade.correct for grade in grades], dtype=torch.float32)
        answered = torch.tensor([grade.answer is not None for grade in grades], dtype=torch.float32)
        wrong = config.reward_incorrect + config.reward_format_bonus * answered
        if config.code_reward == "share":
            shares = torch.tensor([grade.share for grade in grades], dtype=torch.float32)
            # The reward goes from ``reward_incorrect`` with no test passed to almost 1.
            wrong = wrong + shares * (1.0 - config.reward_incorrect)
        has_programs = config.reward_source == "code" or any(grade.verdict for grade in grades)
        return {
            "rewards": torch.where(scores > 0, 1.0 + config.reward_format_bonus, wrong),
            "scores": scores,
            "truncated_rewards": torch.full_like(scores, config.reward_incorrect),
            "extra_logs": {
                metric: torch.tensor([grade.status == status for grade in grades], dtype=torch.float32)
                for status, metric in STATUS_METRICS.items()
            }
            | (_code_logs(grades) if has_programs else {}),
        }

    return reward_func


def _code_logs(grades: Sequence[Grade]) -> dict[str, torch.Tensor]:
    """Return the metrics of programs, each (B,)."""
    logs = {
        # The right words on other lines are a wrong output; they have no metric of their own.
        metric: [(grade.verdict or "").replace("presentation", "wrong") == verdict for grade in grades]
        for verdict, metric in CODE_METRICS.items()
    }
    logs |= {
        "reward/code_test_share": [grade.share for grade in grades],
        "reward/code_cached_frac": [grade.cached for grade in grades],
        "reward/code_seconds": [grade.seconds for grade in grades],
    }
    return {metric: torch.tensor(values, dtype=torch.float32) for metric, values in logs.items()}


def response_of(query: str, prompt: str) -> str:
    """Return the response in a query, which is what follows the prompt.

    Args:
        query: Prompt and response. It may have lost the beginning of its prompt.
        prompt: The prompt.

    Raises:
        ValueError: The query does not contain the end of the prompt.
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    tail = prompt[-200:]
    place = query.find(tail)
    if not tail or place < 0:
        raise ValueError(f"the query does not contain the end of its prompt, {tail[-60:]!r}")
    return query[place + len(tail) :]


reward_func = make_reward_func(RewardConfig())
make_check_label = sources.checker
check_label = make_check_label(RewardConfig())
