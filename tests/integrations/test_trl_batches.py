"""TRL's batches as the methods and their metrics take them."""

import math

import torch

from openrlhf_cov.integrations.trl_batches import response_metrics


def test_a_truncated_completion_that_trl_masks_has_its_length():
    # Completions of 300 tokens with the end token 2, and of 1,100 tokens without it: 700 tokens, one of two truncated.
    completions = [[5] * 299 + [2], [5] * 1100]
    scores = torch.tensor([1.0, math.nan])
    found = {each.name: float(each.total) / float(each.weight) for each in response_metrics(completions, scores, [2])}
    assert found == {"reward": 1.0, "response_length": 700.0, "truncated": 0.5}
