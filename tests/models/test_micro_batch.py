"""Methods by covariance on a micro-batch of its own, as the published code selects."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planned import select_given

from openrlhf_cov.models.cov_config import CovConfig


def clip(cov, mask, ratio, lower, upper, generator=None, excluded=None):
    config = CovConfig(
        cov_type="clip_cov", clip_cov_ratio=ratio, clip_cov_lb=lower, clip_cov_ub=upper, allow_large_cov_ratio=True
    )
    return select_given(config, cov, mask, excluded, generator)


def test_candidates_by_hand():
    # inside (1, 5): 2 (clipped by PPO already), 3, 4 (masked); edges and NaN are outside
    cov = torch.tensor([[2.0, 3.0, 4.0, 1.0, 5.0, math.nan]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]])
    excluded = torch.tensor([[True, False, False, False, False, False]])
    assert clip(cov, mask, 1.0, 1.0, 5.0).int().tolist() == [[1, 1, 0, 0, 0, 0]]
    assert clip(cov, mask, 1.0, 1.0, 5.0, excluded=excluded).int().tolist() == [[0, 1, 0, 0, 0, 0]]


def test_a_seeded_generator_repeats_its_draws():
    cov, mask = torch.full((4, 25), 2.0), torch.ones(4, 25)

    def two_draws():
        generator = torch.Generator().manual_seed(7)
        return [clip(cov, mask, 0.1, 1.0, 5.0, generator) for _ in range(2)]

    first, second = two_draws()
    assert all(torch.equal(a, b) for a, b in zip((first, second), two_draws(), strict=True))
    assert not torch.equal(first, second)  # 10 of 100 tokens: the generator advances between micro-batches


@pytest.mark.slow
def test_every_candidate_is_equally_likely():
    # 1 of 4 candidates in each of 1000 draws: 250 each, standard deviation sqrt(1000 * 1/4 * 3/4) = 13.7
    cov, generator = torch.tensor([[1.1, 2.0, 9.0, 3.0, 4.9]]), torch.Generator().manual_seed(0)
    counts = sum(clip(cov, torch.ones(1, 5), 0.2, 1.0, 5.0, generator).int() for _ in range(1000))
    assert counts.tolist()[0][2] == 0
    assert (counts[0, [0, 1, 3, 4]] - 250).abs().max() < 5 * 13.7


@st.composite
def token_grids(draw):
    """Covariances with many ties and a mask, (B, A), from one token up; rows may be masked entirely."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 7))

    def grid(values):
        return torch.tensor(draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))).view(rows, -1)

    cov, mask, excluded = grid(st.integers(-2, 3)).float(), grid(st.booleans()), grid(st.booleans())
    mask[draw(st.lists(st.integers(0, rows - 1), max_size=rows))] = False
    return cov, mask, excluded


@given(grid=token_grids(), ratio=st.floats(1e-6, 1.0))
def test_select_kl_cov_against_sorting(grid, ratio):
    cov, mask, _ = grid
    values, kept = cov.flatten().tolist(), mask.flatten().tolist()
    ranked = sorted((value for value, keep in zip(values, kept, strict=True) if keep), reverse=True)
    config = CovConfig(cov_type="kl_cov", kl_cov_ratio=ratio, allow_large_cov_ratio=True)
    selected = select_given(config, cov, mask)
    assert not (selected & ~mask).any()
    # Of equal values any may be taken.
    assert sorted(cov[selected].tolist(), reverse=True) == ranked[: max(1, int(sum(kept) * ratio))]


@given(grid=token_grids(), ratio=st.floats(1e-6, 1.0), band=st.sampled_from([(-1, 2), (0, 1), (-9, 9), (0, 3)]))
def test_select_clip_cov_against_listing_the_candidates(grid, ratio, band):
    cov, mask, excluded = grid
    tokens = zip(cov.flatten().tolist(), mask.flatten().tolist(), excluded.flatten().tolist(), strict=True)
    candidates = [keep and not out and band[0] < value < band[1] for value, keep, out in tokens]
    selected = clip(cov, mask, ratio, *band, excluded=excluded).flatten().tolist()
    assert all(candidate for candidate, chosen in zip(candidates, selected, strict=True) if chosen)
    assert sum(selected) == min(max(1, int(mask.sum().item() * ratio)), sum(candidates))
