"""Give each method all tokens of one optimizer step, on all ranks, before the update.

Results do not depend on the micro-batch size, the number of ranks or the order of the samples. Methods use three
primitives: counts and exact sums, the k largest values, and the maximum. Each of them makes collective calls, which
all ranks make in the same order. Nothing here carries gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.covariance import TokenMeans, select_largest, token_covariance
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.ranking import NOT_A_CANDIDATE, fixed_point_sum, random_scores, value_scores
from openrlhf_cov.utils.ordering import quota
from openrlhf_cov.utils.shares import ceil_share

BINS = 2**16
# An exact sum runs over integers: each value in this many parts of the power of two above the largest value. Those of
# 1.3e8 tokens fit into 64 bits.
PARTS = 2.0**36
# For a k-th largest value each rank sends its k largest scores, as long as no more than this many come together on a
# rank; beyond, it sends counts of ``BINS`` bins, in four rounds of a radix search.
GATHERED = 4 * BINS


@dataclass(frozen=True)
class Ranks:
    """The two collectives of the data-parallel ranks."""

    all_reduce_sum: Callable[[Tensor], Tensor]
    # A 1-d tensor, of equal length on every rank -> all of them, one after another.
    all_gather: Callable[[Tensor], Tensor]
    # How many there are.
    size: int = 1


# One rank.
ALONE = Ranks(all_reduce_sum=lambda tensor: tensor, all_gather=lambda tensor: tensor)


class WindowItem:
    """One micro-batch of an optimizer step, as the methods see it; tensors (B, A), without gradient.

    Values that no method of the run asks for may be missing. Reading a missing value raises RuntimeError.

    Args:
        batch: The tokens, with the log-probs of the policy that the methods ask for.
        keys: int64 numbers of the tokens (``token_keys``), which break ties and order uniform samples.
        random_keys: Numbers that order uniform samples in place of ``keys``.
        entropy: Entropies in nats of the policy that the methods ask for.
        old_entropy: Entropies of the policy that sampled.
        proxy: The log-probs that a method asks for by ``proxy_min_p``.
        discriminator_mean: Expectation of the entropy discriminator of the policy that sampled at each token.
    """

    def __init__(
        self,
        batch: TokenBatch,
        keys: Tensor,
        *,
        entropy: Tensor | None = None,
        old_entropy: Tensor | None = None,
        proxy: Tensor | None = None,
        discriminator_mean: Tensor | None = None,
        random_keys: Tensor | None = None,
    ) -> None:
        self.batch = batch
        self.keys = keys
        self.random_keys = keys if random_keys is None else random_keys
        # The action tokens, bool.
        self.mask = batch.action_mask.bool()
        self._entropy = entropy
        self._old_entropy = old_entropy
        self._proxy = proxy
        self._discriminator_mean = discriminator_mean

    @property
    def entropy(self) -> Tensor:
        """Entropies (B, A), in nats, of the policy that the methods ask for."""
        return _given(self._entropy, "entropies")

    @property
    def old_entropy(self) -> Tensor:
        """Entropies (B, A), in nats, of the policy that sampled."""
        return _given(self._old_entropy, "entropies of the policy that sampled")

    @property
    def proxy(self) -> Tensor:
        """Log-probs (B, A) among the probable tokens of the policy that sampled."""
        return _given(self._proxy, "log-probs among the probable tokens")

    @property
    def discriminator_mean(self) -> Tensor:
        """Expectations (B, A) of the entropy discriminator."""
        return _given(self._discriminator_mean, "expectations of the entropy discriminator")


def _given(values: Tensor | None, what: str) -> Tensor:
    if values is None:
        raise RuntimeError(f"a method needs {what}, and the window was given none")
    return values


class Window:
    """The tokens of one optimizer step: micro-batches of this rank, together with those of all others.

    Every rank must ask for the same things in the same order.

    Args:
        items: The micro-batches of this rank.
        ppo_clip: The range (low, high) of the PPO clip in force.
        ranks: The collectives of the data-parallel ranks.
        rollout_entropy: Mean entropy of the policy that sampled over all tokens of the rollout, 0-d.
        positive_prompts: Share of the prompts of the rollout with a response of positive advantage, 0-d; None where
            the caller does not know it.
    """

    def __init__(
        self,
        items: Sequence[WindowItem],
        ppo_clip: tuple[float, float],
        ranks: Ranks = ALONE,
        rollout_entropy: Tensor | None = None,
        positive_prompts: Tensor | None = None,
    ) -> None:
        self.items = items
        self.rollout_entropy = rollout_entropy
        self.positive_prompts = positive_prompts
        self._ppo_clip = ppo_clip
        self._ranks = ranks
        # The number of action tokens, 0-d int64.
        self.count = self.total(self._masks)

    @property
    def _masks(self) -> list[Tensor]:
        return [item.mask for item in self.items]

    def covariance(self) -> list[Tensor]:
        """Return the covariance (B, A) of log-prob and advantage about the means of the window (paper eq. 10)."""
        batches = [item.batch for item in self.items]
        means = TokenMeans(*self.means([b.log_probs for b in batches], [b.advantages for b in batches]))
        return [token_covariance(b.log_probs, b.advantages, b.action_mask, means) for b in batches]

    def ppo_clipped(self) -> list[Tensor]:
        """Return the masks (B, A) of the tokens whose gradient the PPO clip removes."""
        return [ppo_clipped(item.batch, *self._ppo_clip) for item in self.items]

    def total(self, masks: Sequence[Tensor]) -> Tensor:
        """Return the number of tokens in the masks (B, A) of all ranks, 0-d int64."""
        return self._ranks.all_reduce_sum(torch.stack([mask.sum() for mask in masks]).sum(0, keepdim=True))[0]

    def constant_length_factor(self, length: float) -> Tensor:
        """Return N / (B L), 0-d float64, which turns the mean over the N action tokens into a sum over B L.

        B is the number of responses with a token in the optimizer step, over all micro-batches and ranks.

        Args:
            length: The constant L, in tokens.
        """
        responses = self.total([item.mask.any(1, keepdim=True) for item in self.items])
        return self.count.double() / (responses.clamp(min=1).double() * length)

    def means(self, *series: Sequence[Tensor]) -> Tensor:
        """Return the means (S,), float64, of S series of values (B, A) over all action tokens, equal for any grouping.

        Integers add up exactly. They count parts of the power of two above the largest value, so that values of any
        size have the same relative precision. What is not finite counts as 0. 16 bytes of each rank for each series.
        """
        finite = [
            [v.double().masked_fill(~(mask & v.isfinite()), 0.0) for v, mask in zip(values, self._masks, strict=True)]
            for values in series
        ]
        tops = torch.stack([torch.stack([v.abs().max() for v in values]).max() for values in finite])
        largest = self._ranks.all_gather(tops).view(-1, len(series)).amax(0)
        # The power of two above the largest value of each series, (S,).
        units = (largest / largest.frexp().mantissa).nan_to_num(nan=1.0)  # exact: powers of two
        parts = [
            torch.stack([fixed_point_sum(v / unit, mask, PARTS) for v, mask in zip(values, self._masks, strict=True)])
            for values, unit in zip(finite, units, strict=True)
        ]
        totals = self._ranks.all_reduce_sum(torch.stack(parts).sum(1))
        return totals.double() / PARTS * units.double() / self.count.clamp(min=1)

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """Return the mean of the values (B, A) over all action tokens, 0-d float64; see ``means``."""
        return self.means(values)[0]

    def mean_and_deviation(self, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return mean and population standard deviation of the values (B, A) over all action tokens, 0-d float64.

        The mean of what a first mean leaves over corrects that mean: equal values then deviate by 0 to rounding of
        float64.
        """
        mean = self.mean(values)
        mean = mean + self.mean([v.double() - mean for v in values])
        return mean, self.mean([(v.double() - mean).square() for v in values]).sqrt()

    def maximum(self, values: Sequence[Tensor]) -> Tensor:
        """Return the largest value (B, A) of an action token, 0-d; -inf without one."""
        tops = [v.masked_fill(~mask, -torch.inf).max().view(1) for v, mask in zip(values, self._masks, strict=True)]
        return self._ranks.all_gather(torch.cat(tops).max().view(1)).max()

    def largest(self, values: Sequence[Tensor], fraction: float) -> list[Tensor]:
        """Select the share of all action tokens of the step with the largest values; keys order equal values.

        Args:
            values: Values (B, A) of each micro-batch; NaN is never selected.
            fraction: Share of the action tokens to select: max(1, floor(fraction * count)) tokens.

        Returns:
            Masks (B, A) of each micro-batch.
        """
        scores = [value_scores(v, item.mask, item.keys) for v, item in zip(values, self.items, strict=True)]
        return self._best(scores, int(quota(self.count, fraction)))

    def largest_among(
        self,
        values: Sequence[Tensor],
        among: Sequence[Tensor],
        fraction: float,
        share: Callable[[int, float], int] = ceil_share,
    ) -> list[Tensor]:
        """Select the tokens of largest value among some tokens of the step.

        Args:
            values: Values (B, A) of each micro-batch.
            among: Masks (B, A) of each micro-batch: the tokens that may be selected.
            fraction: Share of these tokens to select.
            share: ``share(count, fraction)`` returns the number to select; at least one token is selected.

        Returns:
            Booleans (B, A) of each micro-batch.
        """
        masks = [some & item.mask for some, item in zip(among, self.items, strict=True)]
        scores = [value_scores(v, m, item.keys) for v, m, item in zip(values, masks, self.items, strict=True)]
        return self._best(scores, max(1, share(int(self.total(masks)), fraction)))

    def sample_uniformly(self, candidates: Sequence[Tensor], fraction: float) -> list[Tensor]:
        """Sample as many tokens as ``largest`` selects, uniformly; all candidates if there are fewer.

        Args:
            candidates: Masks (B, A) of each micro-batch: the tokens that may be sampled.
            fraction: Share of all action tokens of the step.

        Returns:
            Masks (B, A) of each micro-batch.
        """
        scores = [
            random_scores(each & item.mask, item.random_keys)
            for each, item in zip(candidates, self.items, strict=True)
        ]
        return self._best(scores, int(quota(self.count, fraction)))

    def _best(self, scores: Sequence[Tensor], count: int) -> list[Tensor]:
        threshold = kth_largest(torch.cat([score.flatten() for score in scores]), count, self._ranks)
        return [(score >= threshold) & (score > NOT_A_CANDIDATE) for score in scores]


def plan_step(config: CovConfig, window: Window) -> list[list[Plan]]:
    """Return the plans of each micro-batch of the window, one for each slot of ``config.token_slots``.

    Args:
        config: The settings of the step.
        window: The tokens of the optimizer step. Every rank must call this function with its own micro-batches.
    """
    of_slots = [slot.plan(config, window) for slot in config.token_slots]
    if not of_slots:
        return [[] for _ in window.items]
    return [list(plans) for plans in zip(*of_slots, strict=True)]


class LocalWindow:
    """A window of one micro-batch of one rank, as in the published code, for methods that select by covariance.

    It has the means of this micro-batch. Ties are broken as in that code, by ``torch.topk``, and uniform samples come
    from ``generator``.

    Args:
        batch: The micro-batch.
        ppo_clip: The range (low, high) of the PPO clip in force.
        generator: Source of the random numbers of ``sample_uniformly``, on the device of the batch.
        tokens: Number of action tokens, where the host knows it; None to count them, which waits for the device.
    """

    def __init__(
        self, batch: TokenBatch, ppo_clip: tuple[float, float], generator: torch.Generator, tokens: int | None = None
    ) -> None:
        self._batch = batch
        self._ppo_clip = ppo_clip
        self._generator = generator
        mask = batch.action_mask.bool()
        self._tokens = int(mask.sum()) if tokens is None else tokens
        # Places (n,) of the action tokens, of a size that the host knows.
        self._places = (~mask).flatten().byte().argsort(stable=True)[: self._tokens]

    def covariance(self) -> list[Tensor]:
        """Return the covariance (B, A) about the means of this micro-batch; see ``Window.covariance``."""
        return [token_covariance(self._batch.log_probs, self._batch.advantages, self._batch.action_mask)]

    def ppo_clipped(self) -> list[Tensor]:
        """Return the mask (B, A) of ``Window.ppo_clipped`` for this micro-batch."""
        return [ppo_clipped(self._batch, *self._ppo_clip)]

    def largest(self, values: Sequence[Tensor], fraction: float) -> list[Tensor]:
        """Return the mask (B, A) of ``Window.largest`` for this micro-batch; ``torch.topk`` breaks ties."""
        return [select_largest(values[0], self._places, max(1, int(self._tokens * fraction)))]

    def sample_uniformly(self, candidates: Sequence[Tensor], fraction: float) -> list[Tensor]:
        """Return the mask of ``Window.sample_uniformly`` for this micro-batch, by random numbers of its generator."""
        drawn = torch.rand(candidates[0].shape, generator=self._generator, device=candidates[0].device)
        return self.largest([drawn.masked_fill(~candidates[0], -torch.inf)], fraction)


def ppo_clipped(batch: TokenBatch, eps_low: float, eps_high: float, by_sequence: bool = False) -> Tensor:
    """Return the mask of tokens whose gradient the PPO clip removes: clip(ratio) * A < ratio * A.

    Args:
        batch: Log-probs and advantages (B, A).
        eps_low: Distance of the lower bound from 1.
        eps_high: Distance of the upper bound from 1.
        by_sequence: True for the ratio of GSPO, one per sequence.

    Returns:
        Booleans (B, A), False outside of the action mask.
    """
    ratio = batch.sequence_ratio if by_sequence else batch.ratio
    clipped = ratio.clamp(1 - eps_low, 1 + eps_high) * batch.advantages < ratio * batch.advantages
    return clipped & batch.action_mask.bool()


def kth_largest(scores: Tensor, k: int, ranks: Ranks = ALONE) -> Tensor:
    """Return the k-th largest of the scores of all ranks, 0-d int64; the smallest possible score if there are fewer.

    No rank can hold more than k of the k largest scores, so for a small k the k best of each rank are enough, 8 bytes
    each. If these are more than ``GATHERED`` on all ranks, the score is found digit by digit, from ``BINS`` counts.

    Args:
        scores: Scores of this rank, int64 (n,).
        k: Which score to return, from 1.
        ranks: The collectives of the data-parallel ranks.
    """
    if k * ranks.size > GATHERED:
        return _by_digits(scores, k, ranks)
    padding = scores.new_full((max(0, k - scores.numel()),), NOT_A_CANDIDATE)
    best = torch.cat([scores.topk(min(k, scores.numel())).values, padding])
    return ranks.all_gather(best).topk(k).values[-1]


def _by_digits(scores: Tensor, k: int, ranks: Ranks) -> Tensor:
    """Return what ``kth_largest`` returns, found in rounds of one digit of 16 bits.

    The digit of a round is the one at which the counts, added from the highest digit down, reach k.

    The host reads no value.
    """
    unsigned = scores ^ NOT_A_CANDIDATE  # the same order, as 64 bits without a sign
    among = torch.ones_like(scores, dtype=torch.bool)
    found = scores.new_zeros(())
    missing = scores.new_tensor(k)
    for shift in (48, 32, 16, 0):
        digits = (unsigned >> shift) & (BINS - 1)
        # How many of the scores that may still be the k-th have each digit, (BINS,).
        counts = scores.new_zeros(BINS).scatter_add_(0, digits, among.long())
        reached = ranks.all_reduce_sum(counts).flip(0).cumsum(0)  # [n]: those with one of the n + 1 highest digits
        place = (reached < missing).sum().clamp(max=BINS - 1)
        # Of the k largest, those with a higher digit are found already.
        missing = missing - torch.cat([reached.new_zeros(1), reached]).gather(0, place.view(1))[0]
        digit = BINS - 1 - place
        among = among & (digits == digit)
        found = found | (digit << shift)
    return found ^ NOT_A_CANDIDATE
