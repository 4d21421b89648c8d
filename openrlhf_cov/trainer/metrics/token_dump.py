"""The tokens of highest covariance, with their text: ``<ckpt.output_dir>/cov_tokens/step_<n>.jsonl``."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics
from openrlhf_cov.trainer.records import TrainSample
from openrlhf_cov.utils.json_lines import json_number, write_lines
from openrlhf_cov.utils.metrics_log import TOKENS_FOLDER

# Tokens of text before and after a token.
CONTEXT = 20

Record = dict[str, Any]


def dump_tokens(
    diagnostics: StepDiagnostics,
    samples: Sequence[TrainSample],
    tokenizer: Any,
    config: CovConfig,
    strategy: Any,
    step: int,
) -> None:
    """Write the file of a global step. Every rank must call this; rank 0 writes.

    Args:
        diagnostics: Covariances and selection of the step.
        samples: Samples of the diagnostics, in their order.
        tokenizer: Tokenizer of the policy.
        config: Settings of the loss, which say how many tokens a file holds.
        strategy: The strategy of this rank.
        step: Global step, from 0. The name of the file has the number of its line in ``metrics.jsonl``, from 1.
    """
    records = token_records(
        diagnostics.rollout,
        diagnostics.rollout.token_covariance(diagnostics.sums),
        diagnostics.selected,
        [(sample.tokens.tolist(), len(sample.action_mask)) for sample in samples],
        diagnostics.samples_per_prompt,
        config.cov_dump_tokens,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )
    group = strategy.ds_device_mesh["dp"].get_group()
    # Each rank sends its own highest tokens, of which the highest of all ranks are chosen.
    parts: list[list[Record]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(parts, records, group=group)
    if strategy.is_rank_0():
        path = Path(strategy.args.ckpt.output_dir, TOKENS_FOLDER, f"step_{step + 1}.jsonl")
        write_records(path, merge_records(parts, config.cov_dump_tokens))


def top_tokens(cov: Tensor, action_mask: Tensor, count: int) -> Tensor:
    """Return the places of the largest finite values among action tokens.

    Args:
        cov: Values (B, A).
        action_mask: Mask (B, A) of the action tokens.
        count: Number of places, fewer where there are fewer tokens.

    Returns:
        Rows and columns, int64 (n, 2), largest value first; equal values in order of position.
    """
    flat = cov.masked_fill(~action_mask.bool() | ~cov.isfinite(), -math.inf).flatten()
    order = flat.argsort(descending=True, stable=True)[:count]
    order = order[flat[order] > -math.inf]
    return torch.stack([order // cov.shape[1], order % cov.shape[1]], dim=1)


def token_records(
    rollout: RolloutTokens,
    cov: Tensor,
    selected: Tensor,
    sequences: Sequence[tuple[list[int], int]],
    samples_per_prompt: int,
    count: int,
    decode: Callable[[list[int]], str],
) -> list[Record]:
    """Return the tokens of highest covariance on this rank, with their context.

    Args:
        rollout: Tokens of the rank, B rows of at most A action tokens.
        cov: Covariance (B, A) of each token.
        selected: True (B, A) for tokens that the method selects.
        sequences: For each row the ids of prompt and response without padding, and how many of them, from the end, are
            columns of the tensors.
        samples_per_prompt: Responses to a prompt.
        count: Number of records, fewer where there are fewer tokens.
        decode: Returns the text of token ids.

    Returns:
        One record per token, highest covariance first.
    """
    records = []
    for row, column in top_tokens(cov, rollout.action_mask, count).tolist():
        ids, columns = sequences[row]
        # The A columns of the tensors are the last A of the T tokens: the first token of a sample is never predicted.
        position = len(ids) - columns + column
        sample_id = int(rollout.sample_ids[row])
        records.append(
            {
                "token": decode([ids[position]]),
                "token_id": ids[position],
                "position": position,
                "sample_id": sample_id,
                "prompt_id": sample_id // samples_per_prompt,
                "log_prob": json_number(rollout.log_probs[row, column].item()),
                "entropy": json_number(rollout.entropy[row, column].item()),
                "advantage": json_number(rollout.advantages[row, column].item()),
                "cov": cov[row, column].item(),
                "selected": bool(selected[row, column]),
                "before": decode(ids[max(0, position - CONTEXT) : position]),
                "after": decode(ids[position + 1 : position + 1 + CONTEXT]),
            }
        )
    return records


def merge_records(parts: Iterable[list[Record]], count: int) -> list[Record]:
    """Return the records of highest covariance of all ranks, in an order that does not depend on the ranks.

    Args:
        parts: The records of each rank.
        count: Number of records, fewer where all ranks together have fewer.
    """
    records = [record for part in parts for record in part]
    return sorted(records, key=lambda record: (-record["cov"], record["sample_id"], record["position"]))[:count]


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write one JSON object per line; the file appears when it is complete.

    Args:
        path: The file; its folder is made if it does not exist.
        records: Objects without NaN and infinities, which JSON does not have.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, [json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records])
