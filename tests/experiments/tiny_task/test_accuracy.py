import math
from functools import partial

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from openrlhf_cov.experiments.tiny_task import accuracy
from openrlhf_cov.experiments.tiny_task.tiny_reward_func import reward_func
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer

evaluate_policy = partial(accuracy.evaluate_policy, reward=reward_func)
# Entropy of the distribution (3/4, 1/4): 0.5623 nats.
HALF_NAT = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
ROWS = [
    {"input": "34+57=", "label": "91"},
    {"input": "4+5=", "label": "9"},
    {"input": "45+46=", "label": "91"},
    {"input": "10+10=", "label": "20"},
]


@pytest.fixture(scope="module")
def markov_policy(tmp_path_factory):
    """HF folder of a policy that reads the last character only: = -> 9, 9 -> 1 (3/4) or 2 (1/4), 1 and 2 -> <eos>.

    Attention and MLP write nothing, so the last hidden state is the embedding of the last character: a one-hot vector,
    which the final norm scales to length sqrt(D). The rows of the output layer are log-probabilities over sqrt(D).
    """
    tokenizer = build_tokenizer(max_length=96)
    size = len(tokenizer) + 1  # an even hidden size for rotary positions
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    log_probs = torch.full((len(tokenizer), size), -1e4)  # (next token, last token)
    ids = {character: tokenizer.encode(character)[0] for character in "=912"}
    log_probs[ids["9"], ids["="]] = 0.0
    log_probs[ids["1"], ids["9"]] = math.log(3 / 4)
    log_probs[ids["2"], ids["9"]] = math.log(1 / 4)
    log_probs[tokenizer.eos_token_id, [ids["1"], ids["2"]]] = 0.0
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(1e3 * torch.eye(len(tokenizer), size))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(log_probs / math.sqrt(size))
    folder = tmp_path_factory.mktemp("markov")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_greedy_score_by_hand(markov_policy, batch_size):
    # every response is 91<eos>: right for two of four rows; the 9 -> 1 token alone has an entropy
    score = evaluate_policy(markov_policy, ROWS, temperature=0.0, seed=0, batch_size=batch_size, max_new_tokens=8)
    assert score.responses == 4
    assert score.accuracy == 0.5
    assert score.entropy == pytest.approx(HALF_NAT / 3, rel=1e-5)
    assert score.mean_length == 3.0


def test_responses_that_reach_the_bound_are_unfinished(markov_policy):
    # 91 without <eos>: two tokens, none correct
    score = evaluate_policy(markov_policy, ROWS, temperature=0.0, seed=0, batch_size=4, max_new_tokens=2)
    assert score.accuracy == 0.0
    assert score.entropy == pytest.approx(HALF_NAT / 2, rel=1e-5)
    assert score.mean_length == 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "accuracy"),
    [
        (1.0, 3 / 4),
        (0.5, 9 / 10),  # probabilities squared: (9/16) / (9/16 + 1/16)
    ],
)
def test_sampled_accuracy_follows_the_temperature_and_entropy_does_not(markov_policy, temperature, accuracy):
    score = evaluate_policy(
        markov_policy, ROWS[:1] * 1000, temperature=temperature, seed=0, batch_size=500, max_new_tokens=8
    )
    # four standard deviations of a share of 1,000 draws: 4 * sqrt(0.75 * 0.25 / 1000) = 0.055
    assert score.accuracy == pytest.approx(accuracy, abs=0.055)
    assert score.entropy == pytest.approx(HALF_NAT / 3, rel=1e-5)


@pytest.mark.slow
def test_seed_determines_the_responses_and_the_global_random_state_is_left(markov_policy):
    state = torch.get_rng_state()
    first, second, other = (
        evaluate_policy(markov_policy, ROWS[:1] * 200, temperature=1.0, seed=seed, batch_size=64, max_new_tokens=8)
        for seed in (0, 0, 1)
    )
    assert first == second
    assert first.accuracy != other.accuracy
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("rows", "temperature", "message"),
    [([], 0.0, "at least one row"), (ROWS, -0.5, "0 \\(greedy\\) or above, got -0.5")],
)
def test_refusals(tmp_path, rows, temperature, message):
    with pytest.raises(ValueError, match=message):
        evaluate_policy(tmp_path, rows, temperature=temperature, seed=0, batch_size=4, max_new_tokens=8)
