from types import SimpleNamespace

import pytest
import torch

from openrlhf_cov.trainer.step_seed import seed_step


def strategy(dp_rank, global_rank=0, seed=42):
    mesh = {"dp": SimpleNamespace(get_local_rank=lambda: dp_rank)}
    return SimpleNamespace(seed=seed, ds_device_mesh=mesh, get_rank=lambda: global_rank)


def draws(*of, step=7, **kwargs):
    assert seed_step(strategy(*of, **kwargs), step) == of[0]
    return torch.rand(4).tolist()


def test_a_step_of_a_rank_repeats():
    expected = draws(1)
    torch.rand(99)
    assert draws(1) == expected
    others = [draws(0), draws(1, step=8), draws(1, seed=43)]
    assert expected not in others


@pytest.mark.parametrize("global_ranks", [(0, 1), (4, 7)])
def test_ranks_that_hold_the_same_samples_draw_alike(global_ranks):
    """Of one ring or one tensor-parallel group: other processes, the same data-parallel rank."""
    first, second = (draws(1, rank) for rank in global_ranks)
    assert first == second
