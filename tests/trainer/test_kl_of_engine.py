"""``vllm_kl`` of every run: what vLLM sampled with against what training computes."""

import pytest
import torch

from openrlhf_cov.trainer.losses import kl_of_engine
from openrlhf_cov.trainer.records import MicroBatch


def micro_batch(engine, trainer, mask):
    log_probs = torch.tensor(trainer)
    return MicroBatch(
        sample_ids=torch.arange(len(log_probs)),
        tokens=torch.zeros(0),
        attention_mask=torch.zeros(0),
        action_mask=torch.tensor(mask).bool(),
        log_probs=log_probs,
        advantages=torch.zeros_like(log_probs),
        returns=torch.zeros_like(log_probs),
        rollout_log_probs=None if engine is None else torch.tensor(engine),
    )


def test_the_mean_is_over_action_tokens():
    # -1 - -1.5 = 0.5, -2 - -2.25 = 0.25, -3 - -3 = 0; masked tokens do not count: 0.75 / 3 = 0.25
    engine, trainer = [[-1.0, -2.0, 9.0], [-3.0, 9.0, 9.0]], [[-1.5, -2.25, 0.0], [-3.0, 0.0, 0.0]]
    assert kl_of_engine(micro_batch(engine, trainer, [[1, 1, 0], [1, 0, 0]])).item() == pytest.approx(0.25)


@pytest.mark.parametrize("padding", [float("nan"), float("-inf")])
def test_what_is_masked_may_be_anything(padding):
    assert kl_of_engine(micro_batch([[-1.0, padding]], [[-2.0, 0.0]], [[1, 0]])).item() == 1.0
