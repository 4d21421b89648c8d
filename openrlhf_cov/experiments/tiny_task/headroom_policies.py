"""The base policies of the tasks with headroom: hidden skills, paths in a graph, and the two-peak bandit."""

import math
import random
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from openrlhf_cov.experiments.tiny_task import commands, graph_paths, hidden_skills, two_peaks
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, Example, make_policy
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer

Made = tuple[LlamaForCausalLM, PreTrainedTokenizerBase]

# Eight skills take a longer training than the four of hidden commands.
SKILLS_POLICY = BasePolicyConfig(
    layers=2, heads=4, hidden_size=64, intermediate_size=192, max_length=16, steps=600, rows_per_step=128, tied=False
)
# About nine times the parameters, to see what depends on the size of the model.
LARGE_SKILLS_POLICY = BasePolicyConfig(
    layers=4, heads=4, hidden_size=128, intermediate_size=384, max_length=16, steps=600, rows_per_step=128, tied=False
)
PATHS_POLICY = BasePolicyConfig(
    layers=2, heads=4, hidden_size=64, intermediate_size=192, max_length=16, steps=250, rows_per_step=128, tied=False
)
# Logit of everything that is not an arm. Its probability is exactly 0 in fp32, so that it never receives a gradient.
IMPOSSIBLE = -1e4


@dataclass(frozen=True)
class TablePolicyConfig:
    """The base policy of the bandit, a table of logits.

    Attributes:
        noise: Standard deviation of the normal noise on the logits, the same in all replicas. It makes policies of
            different seeds differ.
        uniform_part: Part of the policy that is uniform over all arms.
    """

    noise: float = 0.1
    uniform_part: float = 0.3


def make_skills_policy(task: hidden_skills.SkillTask, config: BasePolicyConfig, seed: int) -> Made:
    """Return a policy that was trained to carry out all skills of a task, and its tokenizer.

    The share of the shortcut has no influence on it.

    Args:
        task: The task, by whose habit the policy names skills.
        config: Architecture and supervised training.
        seed: Determines the weights.
    """
    train, *_ = commands.split_digits()

    def examples(rng: random.Random) -> list[Example]:
        # Half of the rows teach which skill to name, the other half how to carry out all skills alike.
        return [task.practice(train, rng, by_habit=row % 2 == 0) for row in range(config.rows_per_step)]

    return make_policy(examples, build_tokenizer(config.max_length, hidden_skills.CHARACTERS), config, seed)


def make_paths_policy(task: graph_paths.PathTask, config: BasePolicyConfig, seed: int) -> Made:
    """Return a policy that was trained on the supervised paths of a task, and its tokenizer.

    Args:
        task: The task, with its supervised paths.
        config: Architecture and supervised training.
        seed: Determines the weights.
    """

    def examples(rng: random.Random) -> list[Example]:
        return [task.practice(rng) for _ in range(config.rows_per_step)]

    return make_policy(examples, build_tokenizer(config.max_length, graph_paths.WORDS), config, seed)


@torch.no_grad()
def make_table_policy(config: TablePolicyConfig, seed: int) -> Made:
    """Return the base policy of the bandit and its tokenizer.

    The policy is a Llama without a layer. The embedding of a replica is one-hot and the norm leaves it as it is, so
    column r of the output matrix holds the logits of replica r. Only that matrix may be trained; see
    ``openrlhf_cov.experiments.lab.tasks.Task.trained``.

    Args:
        config: Noise and uniform part of the policy.
        seed: Determines the noise.
    """
    tokenizer = build_tokenizer(2, (*two_peaks.ARM_WORDS, *two_peaks.REPLICA_WORDS))
    size = two_peaks.REPLICAS
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=size,
            intermediate_size=1,
            num_hidden_layers=0,
            num_attention_heads=1,
            num_key_value_heads=1,
            max_position_embeddings=2,
            tie_word_embeddings=False,
            bos_token_id=None,
            # the ids that build_tokenizer gives to <eos> and <pad>
            eos_token_id=1,
            pad_token_id=0,
        )
    )
    # The root mean square of a row is 1, so that the norm divides by 1; its weight makes the row one-hot.
    embedding = torch.zeros(len(tokenizer), size)
    replicas = torch.tensor(tokenizer.convert_tokens_to_ids(list(two_peaks.REPLICA_WORDS)))
    embedding[replicas, torch.arange(size)] = math.sqrt(size)
    model.model.embed_tokens.weight.copy_(embedding)
    model.model.norm.weight.fill_(1 / math.sqrt(size))
    # Logits of the arms.
    logits = torch.tensor(two_peaks.initial_policy(config.uniform_part)).log()
    generator = torch.Generator().manual_seed(seed)
    logits += config.noise * torch.randn(len(logits), generator=generator)
    arms = torch.tensor(tokenizer.convert_tokens_to_ids(list(two_peaks.ARM_WORDS)))
    model.lm_head.weight.fill_(IMPOSSIBLE)
    model.lm_head.weight[arms] = logits[:, None].expand(-1, size)
    return model.eval(), tokenizer
