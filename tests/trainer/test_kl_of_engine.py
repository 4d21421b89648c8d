"""``vllm_kl`` of every run: what vLLM sampled with against what training computes."""

from dataclasses import replace

import pytest
import torch
from rank_models import make_samples

from openrlhf_cov.trainer.losses import kl_of_engine
from openrlhf_cov.trainer.records import MicroBatch


@pytest.mark.parametrize("padding", [float("nan"), float("-inf")])
def test_what_is_masked_may_be_anything(padding):
    (sample,) = make_samples(1)
    mask = torch.tensor([True, False])
    engine = torch.where(mask, sample.log_probs + 1.0, padding)
    batch = MicroBatch.of([replace(sample, action_mask=mask, rollout_log_probs=engine)])
    assert kl_of_engine(batch).item() == pytest.approx(1.0)
