"""The base policies of the embedded tasks: a small Llama after a short supervised training, mediocre on purpose."""

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from openrlhf_cov.experiments.tiny_task import programs
from openrlhf_cov.experiments.tiny_task.problems import Addition, write_answer
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer
from openrlhf_cov.rewards.addition import EOS_TOKEN

logger = logging.getLogger(__name__)

# Target of the positions that do not enter the supervised loss.
IGNORED = -100

# Prompt, response without its end, and whether the first token of the response enters the loss.
Example = tuple[str, str, bool]


@dataclass(frozen=True, kw_only=True)
class BasePolicyConfig:
    """Architecture and supervised training of the base policy; raises ValueError for a count below 1."""

    layers: int = 4
    heads: int = 6
    hidden_size: int = 192
    intermediate_size: int = 512
    # Context in tokens.
    max_length: int = 96
    # Optimizer steps; more of them leave less to learn for reinforcement learning.
    steps: int = 300
    rows_per_step: int = 96
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    max_grad_norm: float = 1.0
    # Output and input embeddings are the same.
    tied: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int and getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} of the base policy is at least 1, got {getattr(self, field.name)}")


def make_base_policy(
    problems: Sequence[Addition], config: BasePolicyConfig, seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return a policy trained on additions, in fp32 on the CPU, and its tokenizer.

    The global random state of torch is left as it was.

    Args:
        problems: The additions to train on.
        config: Architecture and supervised training.
        seed: Determines the weights: the same call on the same machine with the same number of threads gives identical
            ones.
    """

    def examples(rng: random.Random) -> list[Example]:
        drawn = rng.choices(problems, k=config.rows_per_step)
        return [(problem.prompt, write_answer(problem, rng), True) for problem in drawn]

    return make_policy(examples, build_tokenizer(config.max_length), config, seed)


# That of the one-line programs. vLLM on a CPU wants heads of at least 32 numbers.
PROGRAMS_POLICY = BasePolicyConfig(
    layers=2,
    heads=4,
    hidden_size=128,
    intermediate_size=384,
    max_length=64,
    steps=160,
    rows_per_step=64,
    learning_rate=3e-3,
    warmup_steps=30,
)


def make_program_policy(
    exercises: Sequence[programs.Exercise], config: BasePolicyConfig, seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return a policy trained on the one-line programs of careless programmers, and its tokenizer.

    Args:
        exercises: The exercises to train on.
        config: Architecture and supervised training.
        seed: Determines the weights, as in ``make_base_policy``.
    """

    def examples(rng: random.Random) -> list[Example]:
        drawn = rng.choices(exercises, k=config.rows_per_step)
        return [(exercise.prompt, programs.write_program(exercise, rng), True) for exercise in drawn]

    return make_policy(examples, build_tokenizer(config.max_length, programs.WORDS), config, seed)


def make_policy(
    examples: Callable[[random.Random], Sequence[Example]],
    tokenizer: PreTrainedTokenizerBase,
    config: BasePolicyConfig,
    seed: int,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Make a base policy for a task by supervised training.

    Args:
        examples: Returns the examples of one optimizer step, drawn with the generator that it gets.
        tokenizer: Tokenizer of the task.
        config: Sizes, steps and learning rate.
        seed: Determines the weights and the examples.

    Returns:
        The model in evaluation mode, and the tokenizer.
    """
    # Initial weights come from torch's global random state, which the caller keeps as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(config, tokenizer)
        train_supervised(model, tokenizer, examples, config, random.Random(f"supervised:{seed}"))
    return model.eval(), tokenizer


def build_model(config: BasePolicyConfig, tokenizer: Any) -> LlamaForCausalLM:
    """Return an untrained Llama whose special tokens are those of ``tokenizer``.

    The initial weights come from torch's global random state.

    Args:
        config: Sizes of the model. Its settings of the supervised training are not used.
        tokenizer: Tokenizer of the task, which gives the size of the vocabulary and the special tokens.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.max_length,
            tie_word_embeddings=config.tied,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train_supervised(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    examples: Callable[[random.Random], Sequence[Example]],
    config: BasePolicyConfig,
    rng: random.Random,
) -> float:
    """Train a model in place on examples, with a progress bar.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        examples: Returns the examples of one optimizer step, drawn with ``rng``.
        config: Sizes, steps and learning rate.
        rng: Source of the examples.

    Returns:
        Loss of the last step, in nats per response token.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, config))
    model.train()
    logger.info("training a base policy: %d steps, a minute or more", config.steps)
    progress = tqdm(range(config.steps), desc="training the base policy", unit="step", disable=None)
    last_loss = math.nan
    for step in progress:
        input_ids, targets = supervised_batch(examples(rng), tokenizer)
        logits = model(input_ids).logits  # padding is on the right, behind every token that counts: no mask needed
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        schedule.step()
        last_loss = loss.item()
        progress.set_postfix(loss=f"{last_loss:.3f}")
        if progress.disable and (step + 1) % max(1, config.steps // 10) == 0:  # no terminal shows the bar
            logger.info("step %d of %d, loss %.3f nats per token", step + 1, config.steps, last_loss)
    logger.info("supervised training done: %d steps, last loss %.3f nats per token", config.steps, last_loss)
    return last_loss


def learning_rate_factor(step: int, config: BasePolicyConfig) -> float:
    """Return the factor on the learning rate: a linear warm-up times a cosine that ends at 0.

    Args:
        step: Optimizer step, from 0.
        config: Number of steps of the supervised training and of its warm-up.
    """
    warmup = min(1.0, (step + 1) / config.warmup_steps)
    return warmup * 0.5 * (1.0 + math.cos(math.pi * step / config.steps))


def supervised_batch(examples: Sequence[Example], tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Return the input ids and targets of examples, padded on the right.

    Args:
        examples: B examples. The first response token of an example whose last entry is False is not a target.
        tokenizer: Tokenizer of the task.

    Returns:
        Input ids and targets, both (B, T) int64. The target of a position is the next id if that is a response token,
        and ``IGNORED`` otherwise.
    """
    prompts = [tokenizer.encode(prompt) for prompt, _, _ in examples]
    responses = [tokenizer.encode(response + EOS_TOKEN) for _, response, _ in examples]
    length = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)) - 1
    input_ids = torch.full((len(prompts), length), tokenizer.pad_token_id)
    targets = torch.full((len(prompts), length), IGNORED)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        inputs = torch.tensor(prompt + response[:-1])
        input_ids[row, : len(inputs)] = inputs
        # The last token of the prompt predicts the first one of the response.
        targets[row, len(prompt) - 1 : len(inputs)] = torch.tensor(response)
        # The first token names a skill, and this example is not to teach which skill to name.
        if not examples[row][2]:
            targets[row, len(prompt) - 1] = IGNORED
    return input_ids, targets
