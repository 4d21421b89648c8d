"""Returns and advantages of ``CovExperienceMaker`` against the loops of upstream's ``RemoteExperienceMaker``."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_cov.trainer.experience_maker import CovExperienceMaker

OURS, UPSTREAM = object.__new__(CovExperienceMaker), object.__new__(RemoteExperienceMaker)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
MASKS = [torch.bool, torch.int64, torch.float32]


@st.composite
def tensors(draw, dtypes):
    """Two tensors (B, A) of values of very different size, maybe integers, and a mask with holes and empty rows."""
    shape = draw(st.integers(0, 4)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spread, share = draw(st.sampled_from([0.0, 1.0, 4.0])), draw(st.sampled_from([0.05, 0.5, 1.0]))
    sizes = torch.exp(spread * torch.randn(shape, generator=generator))
    mask = torch.rand(shape, generator=generator) < share
    rewards, values = (
        (sizes * torch.randn(shape, generator=generator) * mask).to(draw(st.sampled_from(dtypes))) for _ in range(2)
    )
    action_mask = draw(st.none() | st.sampled_from(MASKS).map(mask.to))
    return rewards, values, action_mask


def same(ours, upstream):
    assert ours.dtype == upstream.dtype
    torch.testing.assert_close(ours, upstream, rtol=0, atol=0, equal_nan=True)


@given(tensors([*FLOATS, torch.int64, torch.int32]), st.sampled_from([1.0, 1, 0.99, 0.0]))
def test_returns_are_those_of_upstream_bit_for_bit(tensors, gamma):
    rewards, _, action_mask = tensors
    same(
        OURS.get_cumulative_returns(rewards, action_mask, gamma),
        UPSTREAM.get_cumulative_returns(rewards, action_mask, gamma),
    )


@given(tensors(FLOATS), st.sampled_from([1.0, 0.99]), st.sampled_from([1.0, 0.95]))
def test_advantages_of_gae_are_those_of_upstream_bit_for_bit(tensors, gamma, lambd):
    rewards, values, action_mask = tensors
    ours = OURS.get_advantages_and_returns(values, rewards, action_mask, gamma, lambd)
    for mine, other in zip(
        ours, UPSTREAM.get_advantages_and_returns(values, rewards, action_mask, gamma, lambd), strict=True
    ):
        same(mine, other)


@pytest.fixture
def no_loops(monkeypatch):
    """Upstream's loops are not entered."""
    for name in ("get_cumulative_returns", "get_advantages_and_returns"):
        monkeypatch.setattr(RemoteExperienceMaker, name, lambda *args: pytest.fail("upstream's loop"))


def test_the_columns_are_not_walked_one_by_one(no_loops):
    rewards, mask = torch.rand(2, 3), torch.ones(2, 3)
    OURS.get_cumulative_returns(rewards, mask, 1.0)
    OURS.get_advantages_and_returns(rewards.bfloat16(), rewards, mask, 1.0, 1.0)
