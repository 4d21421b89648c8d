"""The reward of the race on a real language model, the same for every contestant: is the answer among the words?"""

from collections.abc import Sequence

import torch


def score(response: str, label: object) -> float:
    """1 if the response has the label as a word, with or without a full stop or signs of money around it, else 0."""
    return float(str(label) in {word.strip("$.,*()") for word in response.split()})


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str], **kwargs) -> dict:
    """Return rewards in the form that upstream expects of a reward file."""
    rows = zip(queries, prompts, labels, strict=True)
    scores = torch.tensor([score(query.removeprefix(prompt), label) for query, prompt, label in rows])
    return {"rewards": scores, "scores": scores, "extra_logs": {}}
