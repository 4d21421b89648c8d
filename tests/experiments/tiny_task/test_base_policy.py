import math
import random
from dataclasses import replace

import pytest
import torch

from openrlhf_cov.experiments.tiny_task.base_policy import (
    BasePolicyConfig,
    build_model,
    learning_rate_factor,
    make_base_policy,
    supervised_batch,
    train_supervised,
)
from openrlhf_cov.experiments.tiny_task.problems import Addition
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer

SMALL = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, steps=3, rows_per_step=8)
PROBLEMS = [Addition(34, 57), Addition(99, 89), Addition(10, 10)]


def test_default_model_by_hand():
    # embedding 21 * 192 = 4,032, shared with the output; a layer has attention 4 * 192^2 = 147,456, MLP
    # 3 * 192 * 512 = 294,912 and two norms 384, i.e. 442,752; four layers, the embedding and the last norm 192
    config = BasePolicyConfig()
    model = build_model(config, build_tokenizer(config.max_length))
    assert sum(parameter.numel() for parameter in model.parameters()) == 4 * 442_752 + 4_032 + 192
    assert model.config.max_position_embeddings == 96
    for holder in (model.config, model.generation_config):
        assert (holder.pad_token_id, holder.eos_token_id, holder.bos_token_id) == (0, 1, None)


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (0, 0.1),  # first of ten warm-up steps, cosine part (1 + cos 0) / 2 = 1
        (50, 0.5),  # halfway: (1 + cos(pi / 2)) / 2
        (75, 0.5 * (1 - math.sqrt(0.5))),  # cos(3 pi / 4) = -sqrt(1 / 2)
        (100, 0.0),
    ],
)
def test_learning_rate_factor_by_hand(step, factor):
    config = BasePolicyConfig(steps=100, warmup_steps=10)
    assert learning_rate_factor(step, config) == pytest.approx(factor, abs=1e-12)


def test_supervised_batch_by_hand():
    examples = [("34+57=", "91", True), ("99+89=", "188", False)]
    input_ids, targets = supervised_batch(examples, build_tokenizer(96))
    # 34+57=91 and 99+89=188: every id but the final <eos> is an input, padded on the right
    assert input_ids.tolist() == [[5, 6, 12, 7, 9, 13, 11, 3, 0], [11, 11, 12, 10, 11, 13, 3, 10, 10]]
    # the = predicts the first digit, which the second example does not learn; the last digit predicts <eos>
    assert targets.tolist() == [
        [-100, -100, -100, -100, -100, 11, 3, 1, -100],
        [-100, -100, -100, -100, -100, -100, 10, 10, 1],
    ]


def test_seed_alone_determines_the_weights_and_the_global_random_state_is_left():
    policies = []
    for seed, global_seed in [(0, 10), (0, 11), (1, 10)]:
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        policies.append(make_base_policy(PROBLEMS, SMALL, seed)[0])
        assert torch.equal(torch.get_rng_state(), state)
    first, second, other = policies
    for name, weight in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], weight), name
    assert not torch.equal(other.lm_head.weight, first.lm_head.weight)


@pytest.mark.slow
def test_training_lowers_the_loss():
    config = replace(SMALL, steps=40, rows_per_step=16, learning_rate=1e-2, warmup_steps=5)
    tokenizer = build_tokenizer(config.max_length)
    torch.manual_seed(0)
    model = build_model(config, tokenizer)
    rows = [(problem.prompt, problem.label, True) for problem in PROBLEMS]
    loss = train_supervised(model, tokenizer, lambda rng: rng.choices(rows, k=16), config, random.Random(0))
    assert loss < 0.75 * math.log(21)  # an untrained model is near the uniform ln 21 = 3.04


@pytest.mark.parametrize("name", ["steps", "rows_per_step", "warmup_steps", "max_length"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} of the base policy is at least 1, got 0"):
        BasePolicyConfig(**{name: 0})
