"""``vllm_kl`` of every run, what vLLM sampled with against what training computes; and what a correction filters."""

from dataclasses import replace

import pytest
import torch
from rank_models import make_samples

from openrlhf_cov.trainer.losses import filter_share, kl_of_engine
from openrlhf_cov.trainer.records import MicroBatch


@pytest.mark.parametrize("padding", [float("nan"), float("-inf")])
def test_what_is_masked_may_be_anything(padding):
    (sample,) = make_samples(1)
    mask = torch.tensor([True, False])
    engine = torch.where(mask, sample.log_probs + 1.0, padding)
    batch = MicroBatch.of([replace(sample, action_mask=mask, rollout_log_probs=engine)])
    assert kl_of_engine(batch).item() == pytest.approx(1.0)


def test_a_sequence_without_tokens_is_not_filtered():
    # Of four sequences one has no tokens, and one of the other three is filtered; upstream's share is 2 of 4.
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 0]])
    (metric,) = filter_share(torch.tensor(0.5), mask, of_sequences=True)
    assert (float(metric.total), float(metric.weight)) == pytest.approx((1.0, 3.0))
    (none,) = filter_share(torch.tensor(1.0), torch.zeros(2, 3), of_sequences=True)
    assert (float(none.total), float(none.weight)) == (0.0, 0.0)
