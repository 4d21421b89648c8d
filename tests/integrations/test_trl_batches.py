"""TRL's batches as the methods and their metrics take them."""

import math

import torch

from openrlhf_cov.integrations.trl_batches import response_metrics, token_batch, window_part


def test_a_truncated_completion_that_trl_masks_has_its_length():
    # Completions of 300 tokens with the end token 2, and of 1,100 tokens without it: 700 tokens, one of two truncated.
    completions = [[5] * 299 + [2], [5] * 1100]
    scores = torch.tensor([1.0, math.nan])
    found = {each.name: float(each.total) / float(each.weight) for each in response_metrics(completions, scores, [2])}
    assert found == {"reward": 1.0, "response_length": 700.0, "truncated": 0.5}


def test_completions_without_a_reward_have_no_token_for_the_methods():
    batch = {
        "sample_ids": torch.tensor([0, 1]),
        "graded": torch.tensor([True, False]),
        "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "advantages": torch.tensor([0.5, 0.0]),
        "policy_log_probs": torch.full((2, 3), -1.0),
        "policy_entropy": torch.ones(2, 3),
    }
    expected = [[True, True, False], [False, False, False]]
    assert window_part(batch).action_mask.tolist() == expected
    assert token_batch(batch, torch.full((2, 3), -1.5)).action_mask.tolist() == expected
