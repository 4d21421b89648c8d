"""What ``--cov_log_probs current`` costs, and how often it picks other tokens than ``old``.

One policy rank without Ray: a DeepSpeed engine and the updates of our trainer on the embedded task. Prints Markdown.

    python benchmarks/selection.py --steps 12
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from openrlhf_cov.trainer import cpu_host

PROMPTS, SAMPLES, MAX_NEW_TOKENS = 32, 8, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="global steps; each setting trains every second one")
    steps = parser.parse_args().steps
    cpu_host.install()
    with tempfile.TemporaryDirectory() as folder:
        problems, rank = build(Path(folder))
        seconds: dict[str, list[float]] = {"current": [], "old": []}
        overlaps: list[tuple[int, float]] = []
        fill(rank, problems, 2 * steps)
        train(rank, 2 * steps, cov_log_probs="current")  # warm-up, not counted
        for step in range(steps):
            setting = ("current", "old")[step % 2]
            fill(rank, problems, step)
            started = time.perf_counter()
            train(rank, step, cov_log_probs=setting)
            seconds[setting].append(time.perf_counter() - started)
            fill(rank, problems, steps + step)
            overlaps += overlap_by_update(rank, step)
    sys.stdout.write(report(seconds, overlaps))


@dataclass
class Rank:
    """The policy of one rank, and the samples that it trains on next."""

    policy: Any
    samples: list


def build(folder: Path, training_steps: int | None = None, update: int = 32) -> tuple[list, Rank]:
    """Return the problems and a rank with a new base policy, a trained one by default.

    ``update`` is the number of samples in an update.
    """
    from openrlhf_cov.cli import train_ppo_ray
    from openrlhf_cov.tiny_task.base_policy import BasePolicyConfig, make_base_policy
    from openrlhf_cov.tiny_task.problems import split_problems

    problems = split_problems(seed=0, held_out=256).train
    config = BasePolicyConfig() if training_steps is None else BasePolicyConfig(steps=training_steps)
    model, tokenizer = make_base_policy(problems, config, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    flags = f"""
        --actor.model_name_or_path {folder} --reward.remote_url reward_func.py --vllm.num_engines 1
        --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --rollout.n_samples_per_prompt {SAMPLES}
        --rollout.batch_size {PROMPTS} --rollout.micro_batch_size 64 --actor.num_gpus_per_node 1
        --train.batch_size {update} --train.micro_batch_size 16 --cov_type kl_cov --kl_cov_ratio 2e-2
        --actor.adam.lr 3e-5 --actor.lr_scheduler constant --ckpt.output_dir {folder}/run
    """.split()
    sys.argv = ["train_ppo_ray", *flags]
    return problems, Rank(make_policy(train_ppo_ray.parse_args(), folder), [])


def make_policy(args, folder: Path):
    """Return the policy in ``folder`` in DeepSpeed, in torchrun's process group or in a group of one."""
    from openrlhf_cov.trainer.loading import load_policy
    from openrlhf_cov.trainer.policy import Policy
    from openrlhf_cov.trainer.strategy import make_strategy

    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= alone | os.environ
    cpu_host.adapt_deepspeed()
    cpu_host.accept_fp32()
    strategy = make_strategy(args)
    strategy.setup_distributed()
    loaded = load_policy(strategy, str(folder), 1000)
    return Policy.of(strategy, loaded.actor, loaded.scheduler, loaded.ema_model, loaded.tokenizer)


@torch.no_grad()
def fill(rank: Rank, problems, step: int) -> None:
    """Give the rank one rollout of its current policy."""
    from openrlhf_cov.tiny_task.reward_func import reward_func
    from openrlhf_cov.trainer.records import TrainSample

    tokenizer, model = rank.policy.tokenizer, rank.policy.engine.module
    chosen = [problem for problem in random.Random(step).sample(problems, PROMPTS) for _ in range(SAMPLES)]
    prompt_ids = torch.tensor([tokenizer.encode(problem.prompt) for problem in chosen])  # all prompts have 6 tokens
    torch.manual_seed(step)
    sequences = model.generate(
        prompt_ids, do_sample=True, top_k=0, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0, eos_token_id=1
    )
    response = sequences[:, prompt_ids.shape[1] :]
    is_eos = (response == tokenizer.eos_token_id).long()
    response_mask = (is_eos.cumsum(1) - is_eos == 0).long()
    attention = torch.cat([torch.ones_like(prompt_ids), response_mask], 1)
    action_mask = torch.cat([torch.zeros_like(prompt_ids[:, 1:]), response_mask], 1).bool()
    texts = [
        tokenizer.decode(ids[mask.bool()], skip_special_tokens=False)
        for ids, mask in zip(sequences, attention, strict=True)
    ]
    scores = reward_func(texts, [p.prompt for p in chosen], [p.label for p in chosen])["scores"].view(PROMPTS, SAMPLES)
    advantages = ((scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-9)).view(-1, 1)
    seen = rank.policy.score(sequences, action_mask, attention, None, with_entropy=True)
    rank.samples = []
    for number, length in enumerate(attention.sum(1).tolist()):
        mask = action_mask[number, : length - 1]
        rank.samples.append(
            TrainSample(
                sample_id=number,
                score=float(scores.view(-1)[number]),
                abstained=False,
                tokens=sequences[number, :length],
                action_mask=mask,
                log_probs=seen.log_probs[number, : length - 1],
                entropy=seen.entropy[number, : length - 1],
                advantages=advantages[number] * mask,
                returns=advantages[number] * mask,
            )
        )


def train(rank: Rank, step: int, cov_log_probs: str) -> None:
    """Make all updates of one global step."""
    from openrlhf_cov.trainer.records import StepOrder
    from openrlhf_cov.trainer.update import update_policy

    config = replace(rank.policy.config, cov_log_probs=cov_log_probs).at(step)
    update_policy(rank.policy, StepOrder(step, config, kl_coef=0.0), rank.samples)


def overlap_by_update(rank: Rank, step: int) -> list[tuple[int, float]]:
    """Train with ``current``; return the share of its selection that ``old`` makes too, by number of the update."""
    from openrlhf_cov.trainer import update

    plan = update.plan_with_policy
    overlaps: list[tuple[int, float]] = []

    def plan_both(policy, planning, *others) -> list:
        old = plan(policy, replace(planning, config=replace(planning.config, cov_log_probs="old")), *others)
        plans = plan(policy, planning, *others)
        both = sum(int((a.tokens & b.tokens).sum()) for (a,), (b,) in zip(old, plans, strict=True))
        overlaps.append((len(overlaps), both / sum(int(each.tokens.sum()) for (each,) in plans)))
        return plans

    with mock.patch.object(update, "plan_with_policy", plan_both):
        train(rank, step, cov_log_probs="current")
    return overlaps


def report(seconds: dict[str, list[float]], overlaps: list[tuple[int, float]]) -> str:
    """Markdown: time of each setting and their ratio, overlap by number of the update within its global step."""
    ratios = [current / old for current, old in zip(seconds["current"], seconds["old"], strict=False)]
    rows = [f"| `{name}` | {statistics.median(times):.2f} |" for name, times in seconds.items()]
    lines = ["| `--cov_log_probs` | training, s per global step (median) |", "|---|---|", *rows]
    lines.append(f"\nratio current / old, pair by pair: median {statistics.median(ratios):.3f}")
    lines += [f"(min {min(ratios):.3f}, max {max(ratios):.3f}, {len(ratios)} pairs)\n"]
    numbers = sorted({number for number, _ in overlaps})
    means = [statistics.mean(share for n, share in overlaps if n == number) for number in numbers]
    lines.append("| update within the global step | " + " | ".join(str(number + 1) for number in numbers) + " |")
    lines.append("|---" * (len(numbers) + 1) + "|")
    lines.append("| overlap of the two selections | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
