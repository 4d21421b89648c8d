import pytest
import torch
from rank_models import Strategy, flags

from openrlhf_cov.trainer.step_seed import seed_step


def draws(dp_rank, *, global_rank=0, seed=42, step=7):
    """Return what a rank draws in a step."""
    strategy = Strategy(flags("out"), accumulation=1, data_rank=dp_rank)
    strategy.seed = seed
    strategy.get_rank = lambda: global_rank
    assert seed_step(strategy, step) == dp_rank
    return torch.rand(4).tolist()


def test_a_step_of_a_rank_repeats():
    expected = draws(1)
    torch.rand(99)
    assert draws(1) == expected
    assert expected not in [draws(0), draws(1, step=8), draws(1, seed=43)]


@pytest.mark.parametrize("global_ranks", [(0, 1), (4, 7)])
def test_ranks_that_hold_the_same_samples_draw_alike(global_ranks):
    """They are other processes of one ring or one tensor-parallel group: the same data-parallel rank."""
    first, second = (draws(1, global_rank=rank) for rank in global_ranks)
    assert first == second
