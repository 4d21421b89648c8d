"""Groups of a run's models without processes: what they answer follows from the tokens alone."""

from typing import Any

import torch
from played_ray import Now

from openrlhf_cov.trainer.records import PendingScores
from openrlhf_cov.trainer.scoring import padded_batches, score

# What a call of a group returns: one entry per rank, each the answers for the batches of that rank.
Answers = list[list[Any]]


def scores_by(samples, groups, pad_token_id=0):
    """What the models say of the samples of a step."""
    return score(samples, padded_batches(samples, groups, pad_token_id), groups, PendingScores())


def log_probs_of(tokens, mask, shift=0.0):
    """Return log-probs (B, A) between -1 and 0, 0 where no token is an action."""
    return -((tokens[:, 1:] * 0.37 + shift) % 1.0) * mask


def entropies_of(tokens, mask):
    """Return entropies (B, A) between 0 and 2."""
    return 2.0 * ((tokens[:, 1:] * 0.61) % 1.0) * mask


def values_of(tokens, mask):
    """Return values (B, A) between -1/2 and 1/2."""
    return ((tokens[:, 1:] * 0.83) % 1.0 - 0.5) * mask


def rewards_of(tokens, attention_mask):
    """Return rewards (B,), which depend on the number of tokens that are no padding and on the first one."""
    return attention_mask.sum(1) * 0.1 + (tokens[:, 0] % 7) * 0.25


class PlayedGroup:
    """Stands in for upstream's ``RayActorGroup`` of one model.

    It answers the methods ``forward`` of upstream's roles and ``score`` of ours, which have other names of arguments.

    Args:
        model: policy, reference, critic, reward or prm.
        ranks: The number of data-parallel ranks.
        copies: Ranks that get the same batches.
        calls: Every call is noted here as (model, method, arguments).
        results: Name of a method -> what a rank answers, or a function of the number of the rank.
    """

    def __init__(self, model: str, ranks: int = 1, copies: int = 1, calls: list | None = None, **results: Any) -> None:
        self.model, self.ranks, self.duplicate_actors = model, ranks, copies
        self.results = results
        self.calls = [] if calls is None else calls
        self._actor_handlers = [PlayedRank(self, number) for number in range(ranks * copies)]

    def async_run_method(self, method_name: str, *args: Any, **kwargs: Any) -> list:
        self.calls.append((self.model, method_name, args or kwargs))
        return [self.answer(method_name, rank) for rank in range(len(self._actor_handlers))]

    def async_run_method_batch(self, method_name: str, **batches: list) -> Answers:
        self.calls.append((self.model, method_name, batches))
        texts = batches.get("tokens", batches.get("sequences"))
        assert texts is not None
        masks = batches.get("action_mask", batches["attention_mask"])
        answers = [self.scored(method_name, *each) for each in zip(texts, masks, strict=True)]
        # As upstream deals batches out: equally many, one after the other, and to all copies alike.
        size = -(-len(answers) // self.ranks)
        parts = [answers[first : first + size] for first in range(0, size * self.ranks, size)]
        return [part for part in parts for _ in range(self.duplicate_actors)]

    def scored(self, method: str, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
        if self.model == "reward":
            return rewards_of(tokens, mask)
        if self.model == "critic":
            return values_of(tokens, mask)
        if self.model == "reference":
            return log_probs_of(tokens, mask, shift=0.21)
        if method == "score" and self.model != "prm":
            return log_probs_of(tokens, mask), entropies_of(tokens, mask), None
        return log_probs_of(tokens, mask)

    def answer(self, method: str, rank: int) -> Any:
        result = self.results.get(method)
        return result(rank) if callable(result) else result


class PlayedRank:
    """One actor of a group; methods are called as those of a Ray actor."""

    def __init__(self, group: PlayedGroup, number: int) -> None:
        self.group, self.number = group, number

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Any:
            self.group.calls.append((self.group.model, method, (self.number, *args, *kwargs.values())))
            return self.group.answer(method, self.number)

        return Now(remote)
