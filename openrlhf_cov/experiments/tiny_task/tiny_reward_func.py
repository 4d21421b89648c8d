"""Rule-based reward of the embedded tasks. Give this file to ``--reward.remote_url``.

Upstream loads this file by its path, so it imports by absolute names only.
"""

from collections.abc import Sequence
from typing import Any

import torch

from openrlhf_cov.experiments.tiny_task import commands
from openrlhf_cov.rewards import addition
from openrlhf_cov.rewards.addition import EOS_TOKEN


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str], **kwargs: Any
) -> dict[str, Any]:
    """Return the reward 1 for every response that ends with ``<eos>`` and whose answer equals the label, else 0.

    The label says which task it is: a sum such as "91" wants a final number, a command such as "a704" that and nothing
    else. No response text raises an error.

    Args:
        queries: Prompts with their responses, B of them, with special tokens kept.
        prompts: The prompts.
        labels: The expected answers.
        kwargs: Other arguments of upstream's reward functions, which are not used.

    Returns:
        ``rewards`` and ``scores`` (equal here) and, under ``extra_logs``, ``reward/no_answer_frac`` and
        ``reward/unfinished_frac``, which are 1 for a response without an answer or without ``<eos>``; all are fp32
        tensors (B,).

    Raises:
        ValueError: A label is of no task, a query does not start with its prompt, or the lists have different lengths.
    """
    rows = list(zip(queries, prompts, labels, strict=True))
    for label in labels:
        check_label(label)
    responses = []
    for query, prompt, _ in rows:
        if not query.startswith(prompt):
            raise ValueError(
                f"the query {query!r} does not start with its prompt {prompt!r}; was the prompt truncated?"
            )
        responses.append(query[len(prompt) :])
    tasks = [commands if commands.is_answer(label) else addition for label in labels]
    answers = [task.extract_answer(response) for task, response in zip(tasks, responses, strict=True)]
    finished = [response.endswith(EOS_TOKEN) for response in responses]
    correct = [task.is_right(*pair) for task, *pair in zip(tasks, responses, labels, strict=True)]
    return {
        "rewards": _indicator(correct),
        "scores": _indicator(correct),
        "extra_logs": {
            "reward/no_answer_frac": _indicator([answer is None for answer in answers]),
            "reward/unfinished_frac": _indicator([not end for end in finished]),
        },
    }


def check_label(label: Any) -> None:
    """Raise ValueError unless ``label`` is a string of digits 0-9 or the answer to a command."""
    if not isinstance(label, str):
        raise ValueError(f"a label is a string of digits such as '91', got {label!r} of type {type(label).__name__}")
    if not (addition.is_number(label) or commands.is_answer(label)):
        raise ValueError(
            "a label is a non-negative integer written with the digits 0-9, such as '91', or the answer to a hidden "
            f"command, such as 'a704', got {label!r}"
        )


def _indicator(outcomes: Sequence[bool]) -> torch.Tensor:
    return torch.tensor(outcomes, dtype=torch.float32)
