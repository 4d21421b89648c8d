"""Score of a policy on an embedded task: one response per row, judged by the reward of the training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
)

from openrlhf_cov.data.templates import prompts_ids


@dataclass(frozen=True)
class PolicyScore:
    """Outcome of one evaluation; the accuracy is a fraction of the responses."""

    responses: int
    # Mean score of the training reward.
    accuracy: float
    # Nats per token: mean over all response tokens of the entropy of the policy at temperature 1.
    entropy: float
    # Tokens per response, ``<eos>`` included.
    mean_length: float


@dataclass(frozen=True)
class _Rollout:
    """Generated ids, token entropies (nats) and action mask of the rows generated together, each (B, A)."""

    ids: Tensor
    entropy: Tensor
    action_mask: Tensor


def evaluate_policy(
    model_dir: str | Path,
    rows: Sequence[Mapping[str, str]],
    *,
    temperature: float,
    seed: int,
    batch_size: int,
    max_new_tokens: int,
    reward: Callable[..., Mapping[str, Any]],
) -> PolicyScore:
    """Sample one response to every row in fp32 on the CPU, and score them.

    The global random state of torch remains unchanged.

    Args:
        model_dir: Folder of a Hugging Face model.
        rows: Problems with the keys ``input`` and ``label``.
        temperature: 0 takes the most probable token; above 0 samples from the full vocabulary.
        seed: Together with ``batch_size`` determines the sampled responses.
        batch_size: Responses generated at once.
        max_new_tokens: Longest response, in tokens.
        reward: Reward function with upstream's signature; its result has ``scores``.

    Returns:
        Accuracy, entropy in nats per token and mean length in tokens.

    Raises:
        ValueError: There are no rows, or the temperature is negative.
    """
    if not rows:
        raise ValueError("evaluate_policy needs at least one row")
    if temperature < 0:
        raise ValueError(f"temperature is 0 (greedy) or above, got {temperature}")
    # Generation continues at the right end of a row, so prompts of different lengths are padded on the left.
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    settings = _generation_config(tokenizer, temperature, max_new_tokens)
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rollouts = [_generate(model, tokenizer, [row["input"] for row in batch], settings) for batch in batches]
    responses: list[str] = []
    for rollout in rollouts:
        lengths = rollout.action_mask.sum(dim=1).tolist()
        ids = [row[:length] for row, length in zip(rollout.ids.tolist(), lengths, strict=True)]
        responses += tokenizer.batch_decode(ids, skip_special_tokens=False)
    prompts = [row["input"] for row in rows]
    queries = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    scores = reward(queries, prompts, [row["label"] for row in rows])["scores"]
    entropies = torch.cat([rollout.entropy[rollout.action_mask] for rollout in rollouts])  # one per response token
    return PolicyScore(
        responses=len(scores),
        accuracy=scores.mean().item(),
        entropy=entropies.double().mean().item(),
        mean_length=entropies.numel() / len(scores),
    )


def _generation_config(
    tokenizer: PreTrainedTokenizerBase, temperature: float, max_new_tokens: int
) -> GenerationConfig:
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        return_dict_in_generate=True,
        output_logits=True,
        **sampling,
    )


@torch.inference_mode()
def _generate(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: list[str], settings: GenerationConfig
) -> _Rollout:
    encoded = tokenizer.pad({"input_ids": prompts_ids(prompts, tokenizer)}, return_tensors="pt")
    output = model.generate(**encoded, generation_config=settings)
    ids = output.sequences[:, encoded["input_ids"].size(1) :]
    log_probs = torch.stack(output.logits, dim=1).float().log_softmax(dim=-1)  # (B, A, V), untouched by temperature
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    is_eos = (ids == tokenizer.eos_token_id).int()
    return _Rollout(ids=ids, entropy=entropy, action_mask=is_eos.cumsum(dim=1) - is_eos == 0)
