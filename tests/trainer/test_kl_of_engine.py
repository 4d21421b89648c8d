"""``vllm_kl`` of every run: what vLLM sampled with against what training computes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_cov.trainer import cpu_host

cpu_host.install()

from openrlhf_cov.trainer.actor_trainer import kl_of_engine  # noqa: E402


def experience(engine, trainer, mask):
    return Experience(
        rollout_log_probs=torch.tensor(engine), action_log_probs=torch.tensor(trainer), action_mask=torch.tensor(mask)
    )


def test_the_mean_is_over_action_tokens():
    # -1 - -1.5 = 0.5, -2 - -2.25 = 0.25, -3 - -3 = 0; masked tokens do not count: 0.75 / 3 = 0.25
    engine, trainer = [[-1.0, -2.0, 9.0], [-3.0, 9.0, 9.0]], [[-1.5, -2.25, 0.0], [-3.0, 0.0, 0.0]]
    assert kl_of_engine(experience(engine, trainer, [[1, 1, 0], [1, 0, 0]])).item() == pytest.approx(0.25)


@pytest.mark.parametrize("padding", [float("nan"), float("-inf")])
def test_what_is_masked_may_be_anything(padding):
    assert kl_of_engine(experience([[-1.0, padding]], [[-2.0, 0.0]], [[1, 0]])).item() == 1.0


def test_without_action_tokens_it_is_zero():
    assert kl_of_engine(experience([[-1.0]], [[-2.0]], [[0]])).item() == 0.0


@given(st.lists(st.floats(-20, 0, width=16), min_size=1, max_size=8))
def test_equal_programs_have_no_gap(log_probs):
    assert kl_of_engine(experience([log_probs], [log_probs], [[1] * len(log_probs)])).item() == 0.0
