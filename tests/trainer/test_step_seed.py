from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
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


def test_so_does_clip_cov_in_the_scope_of_a_micro_batch():
    log_probs = torch.tensor([[0.0], [-4.0]]).expand(2, 50)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 50)  # covariance (±2)(±1) = 2: all in the band
    config = CovConfig(cov_type="clip_cov", cov_scope="micro_batch", clip_cov_ratio=0.05)

    def selected(dp_rank, global_rank):
        loss = MethodLoss(config, policy_loss=PolicyLoss(1.0, 1.0), aggregate=aggregate_loss)
        loss.start_step(config, 42, 7, seed_step(strategy(dp_rank, global_rank), 7))
        loss(log_probs, log_probs, advantages, action_mask=torch.ones(2, 50))
        return loss.record.selected.tolist()

    assert selected(0, 0) == selected(0, 1)
    assert selected(0, 0) != selected(1, 2)
