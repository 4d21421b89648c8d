"""Rule-based reward of the embedded task, for ``--reward.remote_url openrlhf_cov/tiny_task/reward_func.py``.

Upstream loads this file by its path, so it imports by absolute names only.
"""

from collections.abc import Sequence
from typing import Any

import torch

from openrlhf_cov.rewards.addition import EOS_TOKEN, extract_answer, is_number, is_right


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str], **kwargs: Any
) -> dict[str, Any]:
    """Reward 1 for every response that ends with ``<eos>`` and whose final number equals the label, else 0.

    ``queries`` are prompt + response with special tokens kept. The result has ``rewards`` and ``scores`` (equal here)
    and, under ``extra_logs``, ``reward/no_answer_frac`` and ``reward/unfinished_frac``, which are 1 for a response
    without a final number or without ``<eos>``; all are fp32 tensors (B,). No response text raises. Raises ValueError
    for a label that is not a number, for a query that does not start with its prompt, and for lists of unequal length.
    """
    rows = list(zip(queries, prompts, labels, strict=True))
    for label in labels:
        check_label(label)
    responses = [_response_of(query, prompt) for query, prompt, _ in rows]
    answers = [extract_answer(response) for response in responses]
    finished = [response.endswith(EOS_TOKEN) for response in responses]
    correct = [is_right(response, label) for response, label in zip(responses, labels, strict=True)]
    return {
        "rewards": _indicator(correct),
        "scores": _indicator(correct),
        "extra_logs": {
            "reward/no_answer_frac": _indicator([answer is None for answer in answers]),
            "reward/unfinished_frac": _indicator([not end for end in finished]),
        },
    }


def check_label(label: Any) -> None:
    """None if ``label`` is a non-negative integer as a string of digits 0-9; raises ValueError otherwise."""
    if not isinstance(label, str):
        raise ValueError(f"a label is a string of digits such as '91', got {label!r} of type {type(label).__name__}")
    if not is_number(label):
        raise ValueError(f"a label is a non-negative integer written with the digits 0-9, such as '91', got {label!r}")


def _response_of(query: str, prompt: str) -> str:
    if not query.startswith(prompt):
        raise ValueError(f"the query {query!r} does not start with its prompt {prompt!r}; was the prompt truncated?")
    return query[len(prompt) :]


def _indicator(outcomes: Sequence[bool]) -> torch.Tensor:
    return torch.tensor(outcomes, dtype=torch.float32)
