"""The base policy of hidden commands: it has practised all skills, and names them by habit."""

import copy
import random
from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from openrlhf_cov.experiments.tiny_task import commands
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, Example, make_policy
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer

COMMANDS_POLICY = BasePolicyConfig(
    layers=2, heads=4, hidden_size=64, intermediate_size=192, max_length=16, steps=500, rows_per_step=128, tied=False
)


def make_commands_policy(config: BasePolicyConfig, seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return a policy that was trained to carry out all skills of hidden commands, and its tokenizer.

    Args:
        config: Architecture and supervised training.
        seed: Determines the weights.
    """
    train, *_ = commands.split_digits()

    def examples(rng: random.Random) -> list[Example]:
        # Half of the rows teach which skill to name, the other half how to carry out all skills alike.
        return [commands.practice(train, rng, row % 2 == 0) for row in range(config.rows_per_step)]

    return make_policy(examples, build_tokenizer(config.max_length, commands.CHARACTERS), config, seed)


def make_wide_policy(
    problems: Sequence[commands.Command], config: BasePolicyConfig, seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return the policy of ``make_commands_policy`` with heads that vLLM supports on a CPU, and its tokenizer.

    Args:
        problems: Not used: the policy has seen all digits to train on, so that it is the same whatever they are.
        config: Architecture before the heads are widened, and supervised training.
        seed: Determines the weights.
    """
    model, tokenizer = make_commands_policy(config, seed)
    return in_vllm_heads(model), tokenizer


def in_vllm_heads(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a copy of ``model`` in heads of 32 numbers, the smallest that vLLM has for the CPU."""
    return in_wider_heads(model, 32)


@torch.no_grad()
def in_wider_heads(model: LlamaForCausalLM, size: int) -> LlamaForCausalLM:
    """Return a copy of a model with wider heads that computes the same.

    What is new is 0, and stays so in training: the gradient of a query is a key's number, that of a key a query's, and
    the same holds for values and the projection behind them. Rotations keep their frequencies, as with s times as
    many of them every s-th is an old one. Scores are divided by the root of the size, for which the queries make up;
    Adam moves them that much less.

    Args:
        model: A Llama in which each head has keys and values of its own.
        size: Numbers of a head of the copy.

    Raises:
        ValueError: ``size`` is no multiple of the numbers of a head of ``model``, or heads share keys and values.
    """
    config = copy.deepcopy(model.config)
    heads = config.num_attention_heads
    old = config.hidden_size // heads
    if size % old or config.num_key_value_heads != heads:
        raise ValueError(f"heads of {old} numbers, each with keys of its own, become heads of a multiple, not {size}")
    config.head_dim = size
    times = size // old
    first = torch.arange(old // 2)
    of_head = torch.cat([times * first, size // 2 + times * first])  # a number is turned with that half a head behind
    places = (torch.arange(heads)[:, None] * size + of_head).flatten()
    wide = LlamaForCausalLM(config).eval()
    values = model.state_dict()
    for name, target in wide.state_dict().items():
        if target.shape == values[name].shape:
            target.copy_(values[name])
        elif "o_proj" in name:
            target.zero_()[:, places] = values[name]
        else:
            target.zero_()[places] = values[name] * (times**0.5 if "q_proj" in name else 1)
    return wide
