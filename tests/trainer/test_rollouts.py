from types import SimpleNamespace

import pytest
import torch

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollouts import check_reward_errors, complete_logs, failed_rewards, of_scores


def sample(**info) -> SimpleNamespace:
    return SimpleNamespace(info={name: torch.tensor([value]) for name, value in info.items()})


def test_every_sample_gets_every_metric():
    samples = [sample(**{"a": 1.0}), sample(**{"b": 2.0, "a": 3.0})]
    complete_logs(samples)
    assert [{name: value.tolist() for name, value in s.info.items()} for s in samples] == [
        {"a": [1.0], "b": [0.0]},
        {"a": [3.0], "b": [2.0]},
    ]


@pytest.mark.parametrize(("failed", "limit", "stops"), [(1, 0.05, False), (2, 0.05, True), (0, 0.0, False)])
def test_a_run_stops_above_the_share_of_failed_rewards(failed, limit, stops):
    # 5 % of 20 samples is one
    samples = [sample(**{"reward/error_frac": float(place < failed)}) for place in range(20)]
    assert failed_rewards(samples) == failed
    if not stops:
        check_reward_errors(failed, 20, limit)
        return
    with pytest.raises(RunStopped, match=r"reward of 2 of 20 responses failed .* --reward_max_error_frac 0.05"):
        check_reward_errors(failed, 20, limit)


def test_samples_without_a_rule_are_no_errors():
    assert failed_rewards([sample(length=1.0)]) == 0


def test_evaluation_counts_scores_not_shaped_rewards():
    samples = [SimpleNamespace(scores=torch.tensor([1.0]), rewards=torch.tensor([0.3])), SimpleNamespace(scores=None)]
    samples[1].rewards = torch.tensor([0.7])  # of a reward model

    def mean_reward(loader, samples_list, n):
        return {"mean": sum(float(s.rewards) for s in samples_list) / n}

    assert of_scores(mean_reward)(None, samples, 2) == {"mean": pytest.approx((1.0 + 0.7) / 2)}
