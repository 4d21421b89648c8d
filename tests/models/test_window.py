import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planned import select_given, select_step, window_of
from simulated_ranks import Simulated

import openrlhf_cov.models.window as window_module
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.covariance import token_covariance
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.ranking import NOT_A_CANDIDATE, token_keys
from openrlhf_cov.models.window import Window, WindowItem, kth_largest, plan_step

UNCLIPPED = (math.inf, math.inf)


def batch(log_probs, advantages, mask=None, old=None):
    log_probs, advantages = torch.tensor(log_probs), torch.tensor(advantages)
    mask = torch.ones_like(log_probs) if mask is None else torch.tensor(mask)
    return TokenBatch(log_probs, log_probs if old is None else torch.tensor(old), advantages, mask)


def keys_like(batches, values=None):
    """Keys of the micro-batches, samples numbered in order; or ``values`` in reading order, in the upper bits."""
    keys, first = [], 0
    for tokens in batches:
        rows, columns = tokens.log_probs.shape
        keys.append(token_keys(42, 0, torch.arange(first, first + rows), columns))
        if values is not None:
            keys[-1] = torch.tensor([values.pop(0) << 31 for _ in range(rows * columns)]).view(rows, columns)
        first += rows
    return keys


# Two micro-batches of 4 and 2 action tokens. Means over all six: log_probs (-1 - 2 - 3 - 6 - 4 - 2) / 6 = -3,
# advantages (3 - 1 + 0 + 3 + 1 + 0) / 6 = 1; covariances (-1 + 3)(3 - 1) = 4, -2, 0, -6 | -1 * 0 = 0, 1 * -1 = -1.
# Alone, the first would have means -3 and 5/4, the second -3 and 1/2.
WINDOW = [
    batch([[-1.0, -2.0, 9.0], [-3.0, -6.0, 9.0]], [[3.0, -1.0, 9.0], [0.0, 3.0, 9.0]], [[1, 1, 0], [1, 1, 0]]),
    batch([[-4.0, -2.0, math.nan]], [[1.0, 0.0, 9.0]], [[1, 1, 0]]),
]


@pytest.mark.parametrize(
    ("ratio", "keys", "expected"),
    [
        (1e-6, range(9), [[[1, 0, 0], [0, 0, 0]], [[0, 0, 0]]]),  # at least one: the 4
        (0.2, range(9), [[[1, 0, 0], [0, 0, 0]], [[0, 0, 0]]]),  # floor(1.2) = 1
        (0.34, range(9), [[[1, 0, 0], [0, 0, 0]], [[1, 0, 0]]]),  # floor(2.04) = 2: of the two zeros the higher key
        (0.34, range(9, 0, -1), [[[1, 0, 0], [1, 0, 0]], [[0, 0, 0]]]),  # keys falling: the other one
        (0.5, range(9), [[[1, 0, 0], [1, 0, 0]], [[1, 0, 0]]]),
        (0.7, range(9), [[[1, 0, 0], [1, 0, 0]], [[1, 1, 0]]]),  # floor(4.2) = 4: the -1
        (1.0, range(9), [[[1, 1, 0], [1, 1, 0]], [[1, 1, 0]]]),  # never a masked one
    ],
)
def test_kl_cov_by_hand(cov_config, ratio, keys, expected):
    masks = select_step(WINDOW, keys_like(WINDOW, list(keys)), cov_config("kl_cov", ratio), UNCLIPPED)
    assert [mask.int().tolist() for mask in masks] == expected
    assert {mask.dtype for mask in masks} == {torch.bool}


@pytest.mark.parametrize(
    ("settings", "keys", "expected"),
    [
        ((1.0, -1.5, 4.5), range(9), [[[1, 0, 0], [1, 0, 0]], [[1, 1, 0]]]),  # 4, 0, 0 and -1: all go
        ((1.0, -1.0, 4.0), range(9), [[[0, 0, 0], [1, 0, 0]], [[1, 0, 0]]]),  # edges are outside
        ((0.34, -1.5, 4.5), range(9), [[[0, 0, 0], [0, 0, 0]], [[1, 1, 0]]]),  # 2 of 6: the highest keys
        ((0.34, -1.5, 4.5), range(9, 0, -1), [[[1, 0, 0], [1, 0, 0]], [[0, 0, 0]]]),
        ((1.0, 5.0, 6.0), range(9), [[[0, 0, 0], [0, 0, 0]], [[0, 0, 0]]]),  # no candidate
    ],
)
def test_clip_cov_by_hand(cov_config, settings, keys, expected):
    config = cov_config("clip_cov", *settings)
    masks = select_step(WINDOW, keys_like(WINDOW, list(keys)), config, UNCLIPPED)
    assert [mask.int().tolist() for mask in masks] == expected


def test_tokens_that_ppo_clips_are_no_candidates_of_clip_cov(cov_config):
    # mean log-prob -2, mean advantage 0: covariances 1, 0, 1; ratios e^0.5, 1, e^-0.5 clipped at 1.2 and 0.8
    tokens = batch([[-1.0, -2.0, -3.0]], [[1.0, 0.0, -1.0]], old=[[-1.5, -2.0, -2.5]])
    for ppo_clip, expected in (((0.2, 0.2), [0, 1, 0]), ((0.5, 0.2), [0, 1, 1]), ((0.2, 0.7), [1, 1, 0])):
        (mask,) = select_step([tokens], keys_like([tokens]), cov_config("clip_cov", 1.0), ppo_clip)
        assert mask.int().tolist() == [expected]


def test_a_step_of_masked_tokens_selects_nothing(cov_config):
    nothing = [batch([[-1.0, -2.0]], [[1.0, 2.0]], [[0, 0]]), batch([[math.nan]], [[math.inf]], [[0]])]
    for config in (cov_config("kl_cov", 1.0), cov_config("clip_cov", 1.0)):
        assert not any(mask.any() for mask in select_step(nothing, keys_like(nothing), config, UNCLIPPED))


def test_selection_ignores_and_keeps_the_gradient(cov_config):
    tokens = TokenBatch(*(torch.randn(2, 3, requires_grad=i == 0) for i in range(3)), torch.ones(2, 3))
    (mask,) = select_step([tokens], keys_like([tokens]), cov_config("kl_cov", 0.5), UNCLIPPED)
    assert not mask.requires_grad
    assert tokens.log_probs.requires_grad


def verl_step():
    """verl issue 7829: 8,192 tokens in 8 micro-batches; 2e-4 is 1.6 tokens of the step, 0.2 of a micro-batch."""
    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(8, 8, 128, generator=generator) * 4
    advantages = torch.rand(8, 8, 1, generator=generator).expand_as(log_probs) * 4 - 2
    return [
        TokenBatch(lp, lp, advantage, torch.ones_like(lp)) for lp, advantage in zip(log_probs, advantages, strict=True)
    ]


STEP = verl_step()


def joined(batches, size):
    """The micro-batches put together, ``size`` at a time."""
    groups = [batches[i : i + size] for i in range(0, len(batches), size)]
    names = ("log_probs", "old_log_probs", "advantages", "action_mask")
    return [TokenBatch(*(torch.cat([getattr(part, name) for part in group]) for name in names)) for group in groups]


@pytest.mark.parametrize("cov_type", ["kl_cov", "clip_cov"])
def test_the_quota_is_a_fraction_of_the_whole_step(cov_config, cov_type):
    config, tokens = cov_config(cov_type, 2e-4), []
    for size in (1, 2, 4, 8):
        window = joined(STEP, size)
        masks = select_step(window, keys_like(window), config, UNCLIPPED)
        tokens.append(torch.cat(masks).flatten().nonzero().tolist())
    keys = keys_like(STEP)
    halves = Simulated(2).run(
        lambda window, keys, ranks: select_step(window, keys, config, UNCLIPPED, ranks),
        [STEP[:4], STEP[4:]],
        [keys[:4], keys[4:]],
    )
    tokens.append(torch.cat([mask for masks in halves for mask in masks]).flatten().nonzero().tolist())
    assert len(tokens[0]) == 1  # floor(1.6)
    assert all(chosen == tokens[0] for chosen in tokens)


@pytest.mark.parametrize("cov_type", ["kl_cov", "clip_cov"])
def test_the_quota_of_a_micro_batch_is_at_least_one(cov_config, cov_type):
    config, chosen = cov_config(cov_type, 2e-4), 0
    for part in STEP:
        cov = token_covariance(part.log_probs, part.advantages, part.action_mask)
        chosen += select_given(config, cov, part.action_mask.bool()).sum().item()
    assert chosen == 8  # max(1, floor(0.2)) eight times


DIGITS = st.sampled_from([0, 15, 16, 31, 32, 47, 48, 60])
SPREAD = st.builds(lambda n, shift, sign: sign * (n << shift), st.integers(0, 3), DIGITS, st.sampled_from([-1, 1]))
EXTREMES = st.sampled_from([NOT_A_CANDIDATE, 2**63 - 1])
SCORES = st.lists(st.one_of(st.integers(-3, 3), EXTREMES, SPREAD), min_size=1, max_size=6)


@pytest.mark.parametrize("gathered", [window_module.GATHERED, 0])
@given(parts=st.lists(SCORES, min_size=1, max_size=3), k=st.integers(1, 20))
def test_the_kth_largest_is_that_of_the_sorted_list(gathered, parts, k):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "GATHERED", gathered)  # 0: digit by digit
        found = Simulated(len(parts)).run(
            lambda scores, ranks: kth_largest(torch.tensor(scores), k, ranks).item(), parts
        )
    ranked = sorted((score for part in parts for score in part), reverse=True) + [NOT_A_CANDIDATE] * k
    assert found == [ranked[k - 1]] * len(parts)


def test_where_many_scores_would_come_together_counts_are_sent(monkeypatch):
    monkeypatch.setattr(window_module, "GATHERED", 10)
    group = Simulated(2)
    parts = [torch.arange(0, 40, 2), torch.arange(1, 41, 2)]
    found = group.run(
        lambda scores, ranks: kth_largest(scores, 6, replace(ranks, size=2)).item(), parts
    )  # 12 would come together
    assert found == [34, 34]  # of 39, 38, 37, 36, 35, 34
    assert group.moved == [4 * 65536 * 8] * 2


def test_the_maximum_and_the_count_of_all_ranks():
    # the largest of an action token is 3: the 9s are padding; the second rank has no token
    masks = [torch.tensor([[1, 1, 0]]), torch.tensor([[0, 0, 0]])]
    values = [torch.tensor([[-5.0, 3.0, 9.0]]), torch.tensor([[9.0, 9.0, 9.0]])]

    def ask(mask, value, ranks):
        tokens = TokenBatch(value, value, value, mask)
        window = window_of([tokens], [mask.long()], UNCLIPPED, ranks)
        return window.maximum([value]).item(), window.total([mask.bool()]).item(), window.count.item()

    assert Simulated(2).run(ask, masks, values) == [(3.0, 2, 2)] * 2
    assert Simulated(1).run(ask, masks[1:], values[1:]) == [(-math.inf, 0, 0)]


@pytest.mark.parametrize("cov_type", ["kl_cov", "clip_cov"])
@pytest.mark.parametrize("sizes", [[20, 20], [40, 1], [20, 10, 10]])
def test_a_rank_moves_the_sums_and_its_best_scores(cov_config, cov_type, sizes):
    config = cov_config(cov_type, 0.2)
    windows = [[batch([[-1.0] * size], [[1.0] * size])] for size in sizes]
    group = Simulated(len(sizes))
    group.run(lambda window, ranks: select_step(window, keys_like(window), config, UNCLIPPED, ranks), windows)
    # 8 bytes of a count, 16 of two largest values, 16 of two sums; the quota is floor(0.2 * 40) = 8 or floor(8.2) = 8
    # scores of 8 bytes, from the rank with one token as well, which pads
    assert group.moved == [8 + 16 + 16 + 8 * 8] * len(sizes)


def test_without_a_method_every_micro_batch_has_an_empty_list_of_plans():
    items = [WindowItem(batch([[0.0, 0.0]], [[1.0, 1.0]]), torch.arange(2).view(1, 2)) for _ in range(3)]
    window = Window(items, UNCLIPPED)
    assert plan_step(CovConfig(), window) == [[], [], []]
