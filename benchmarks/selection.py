"""Measure what ``--cov_log_probs current`` costs, and how often it selects other tokens than ``old``.

One policy rank without Ray: upstream's DeepSpeed strategy and our trainer on the embedded task. Prints Markdown.

    python benchmarks/selection.py --steps 12
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from openrlhf_cov.cluster import cpu_host

PROMPTS = 32
SAMPLES = 8
MAX_NEW_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="global steps; each setting trains every second one")
    steps = parser.parse_args().steps
    cpu_host.install()
    with tempfile.TemporaryDirectory() as folder:
        problems, policy = build(Path(folder))
        seconds = {"current": [], "old": []}
        overlaps = []
        train(policy, roll_out(policy, problems, 2 * steps), cov_log_probs="current")  # warm-up, not counted
        for step in range(steps):
            setting = ("current", "old")[step % 2]
            samples = roll_out(policy, problems, step)
            started = time.perf_counter()
            train(policy, samples, cov_log_probs=setting)
            seconds[setting].append(time.perf_counter() - started)
            overlaps += overlap_by_update(policy, roll_out(policy, problems, steps + step))
    sys.stdout.write(report(seconds, overlaps))


def build(folder: Path, training_steps: int | None = None, update: int = 32, own_rows: bool = False):
    """Make a base policy and load it for training.

    Args:
        folder: Where the model is written.
        training_steps: Supervised steps of the base policy; None for as many as the embedded task has.
        update: Samples in an update.
        own_rows: True if every sample is read in a row of its own, so that no prompt is read once for several samples.

    Returns:
        The problems of the task, and the policy.
    """
    from openrlhf_cov.cli import train_ppo_ray
    from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, make_base_policy
    from openrlhf_cov.experiments.tiny_task.problems import split_problems

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
    """.split()
    sys.argv = ["train_ppo_ray", *flags]
    args = train_ppo_ray.parse_args()
    return problems, make_policy(args, folder, tokenizer, own_rows)


def make_policy(args, folder: Path, tokenizer, own_rows: bool = False):
    """The policy in ``folder`` in DeepSpeed, in torchrun's process group or in a group of one."""
    from openrlhf_cov.cluster.extension_locks import remove_stale_locks
    from openrlhf_cov.trainer.model.actor_model import CovActor
    from openrlhf_cov.trainer.model.policy import Policy
    from openrlhf_cov.trainer.model.strategy import make_strategy

    cpu_host.adapt_deepspeed()
    cpu_host.accept_fp32()
    remove_stale_locks()
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= alone | os.environ
    strategy = make_strategy(args)
    strategy.setup_distributed()
    actor = CovActor(
        str(folder), attn_implementation="sdpa", param_dtype="fp32", ds_config=strategy.get_ds_train_config()
    )
    if own_rows:
        vars(actor)["_sharing"] = None  # as for a model that cannot share prompts
    settings = dict(
        optim="adam",
        adam=dict(lr=3e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0),
        lr_scheduler="constant",
        scheduler_steps=1000,
    )
    actor, _, scheduler = strategy.prepare((actor, settings))
    return Policy.of(strategy, actor, scheduler, None, tokenizer)


@torch.no_grad()
def roll_out(policy, problems, step: int) -> list:
    """One rollout of the current policy, as its rank trains on it."""
    from openrlhf_cov.experiments.tiny_task.tiny_reward_func import reward_func
    from openrlhf_cov.trainer.records import TrainSample

    tokenizer = policy.tokenizer
    model = policy.engine.module
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
    advantages = (scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-9)
    log_probs = policy.score(sequences, action_mask, attention, None, with_entropy=False).log_probs
    samples = []
    for number, length in enumerate(attention.sum(1).tolist()):
        mask = action_mask[number, : length - 1]
        advantage = advantages.view(-1)[number] * mask
        samples.append(
            TrainSample(
                sample_id=number,
                score=float(scores.view(-1)[number]),
                abstained=False,
                tokens=sequences[number, :length],
                action_mask=mask,
                log_probs=log_probs[number, : length - 1],
                entropy=torch.zeros(length - 1),  # for the diagnostics
                advantages=advantage,
                returns=advantage,
            )
        )
    return samples


def train(policy, samples: Sequence, cov_log_probs: str, step: int = 1) -> None:
    """All updates of one global step; in step 0 the selections are compared, too."""
    from openrlhf_cov.trainer.records import StepSettings
    from openrlhf_cov.trainer.update import update_policy

    config = replace(policy.config.at(step), cov_log_probs=cov_log_probs)
    update_policy(policy, StepSettings(step, config, kl_coef=0.0), samples)


def overlap_by_update(policy, samples: Sequence) -> list[tuple[int, float]]:
    """(number of the update, share of the ``current`` selection that ``old`` makes too); trains with ``current``."""
    from openrlhf_cov.trainer.metrics.observation import StepDiagnostics

    overlaps = [(0, 1.0)]  # the policy is the one that sampled
    compare = StepDiagnostics.compare

    def noting(diagnostics, current, old) -> None:
        compare(diagnostics, current, old)
        both = sum(int((one & other).sum()) for one, other in zip(current, old, strict=True))
        overlaps.append((len(overlaps), both / sum(int(one.sum()) for one in current)))

    StepDiagnostics.compare = noting
    try:
        train(policy, samples, cov_log_probs="current", step=0)
    finally:
        StepDiagnostics.compare = compare
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
