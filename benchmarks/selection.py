"""What ``--cov_log_probs current`` costs, and how often it picks other tokens than ``old``.

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
from pathlib import Path

import torch

from openrlhf_cov.trainer import cpu_host

PROMPTS, SAMPLES, MAX_NEW_TOKENS = 32, 8, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="global steps; each setting trains every second one")
    steps = parser.parse_args().steps
    cpu_host.install()
    with tempfile.TemporaryDirectory() as folder:
        problems, trainer = build(Path(folder))
        seconds, overlaps = {"current": [], "old": []}, []
        fill(trainer, problems, 2 * steps)
        train(trainer, 2 * steps, cov_log_probs="current")  # warm-up, not counted
        for step in range(steps):
            setting = ("current", "old")[step % 2]
            fill(trainer, problems, step)
            started = time.perf_counter()
            train(trainer, step, cov_log_probs=setting)
            seconds[setting].append(time.perf_counter() - started)
            fill(trainer, problems, steps + step)
            overlaps += overlap_by_update(trainer, step)
    sys.stdout.write(report(seconds, overlaps))


def build(folder: Path, training_steps: int | None = None, update: int = 32):
    """(problems, trainer) around a new base policy, a trained one by default; ``update`` samples in an update."""
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
    """.split()
    sys.argv = ["train_ppo_ray", *flags]
    args = train_ppo_ray.parse_args()
    return problems, make_trainer(args, folder, tokenizer)


def make_trainer(args, folder: Path, tokenizer):
    """The policy in ``folder`` in DeepSpeed inside our trainer, in torchrun's process group or in a group of one."""
    from openrlhf.utils import get_strategy

    from openrlhf_cov.trainer.actor_model import CovActor
    from openrlhf_cov.trainer.actor_trainer import CovActorTrainer
    from openrlhf_cov.trainer.ray.seams import install_actor

    install_actor()

    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= alone | os.environ
    strategy = get_strategy(args)
    strategy.setup_distributed()
    actor = CovActor(
        str(folder), attn_implementation="sdpa", param_dtype="fp32", ds_config=strategy.get_ds_train_config()
    )
    settings = dict(
        optim="adam",
        adam=dict(lr=3e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0),
        lr_scheduler="constant",
        scheduler_steps=1000,
    )
    actor, optimizer, scheduler = strategy.prepare((actor, settings))
    return CovActorTrainer(
        strategy, actor, None, optimizer, scheduler, micro_train_batch_size=16, tokenizer=tokenizer, vllm_engines=None
    )


@torch.no_grad()
def fill(trainer, problems, step: int) -> None:
    """Put one rollout of the current policy into the replay buffer."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    from openrlhf_cov.tiny_task.reward_func import reward_func

    trainer.replay_buffer.clear()
    tokenizer, model = trainer.tokenizer, trainer.actor.model.module
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
    action_mask = torch.cat([torch.zeros_like(prompt_ids[:, 1:]), response_mask], 1)
    texts = [
        tokenizer.decode(ids[mask.bool()], skip_special_tokens=False)
        for ids, mask in zip(sequences, attention, strict=True)
    ]
    scores = reward_func(texts, [p.prompt for p in chosen], [p.label for p in chosen])["scores"].view(PROMPTS, SAMPLES)
    advantages = (scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-9)
    log_probs = trainer.actor(sequences, action_mask, attention_mask=attention)
    trainer.replay_buffer.append(
        Experience(
            sequences=sequences,
            attention_mask=attention,
            action_mask=action_mask,
            action_log_probs=log_probs,
            advantages=advantages.view(-1, 1) * action_mask,
            returns=advantages.view(-1, 1) * action_mask,
            total_length=attention.sum(1),
            info={"reward": scores.view(-1), "sample_id": torch.arange(len(chosen))},
        )
    )
    for sample in trainer.replay_buffer.items:
        sample.entropy = torch.zeros_like(sample.action_log_probs)  # for the diagnostics


def train(trainer, step: int, cov_log_probs: str) -> None:
    """All updates of one global step."""
    from dataclasses import replace

    loss = trainer.actor_loss_fn
    loss.start_step(replace(loss.config, cov_log_probs=cov_log_probs), seed=0, global_step=step, rank=0)
    trainer.global_step = step
    trainer.ppo_train(0.0)


def overlap_by_update(trainer, step: int) -> list[tuple[int, float]]:
    """(number of the update, share of the ``current`` selection that ``old`` makes too); trains with ``current``."""
    from dataclasses import replace

    loss, plan, overlaps = trainer.actor_loss_fn, trainer._planned, []

    def plan_both(window) -> list:
        current_config = loss.config
        loss.config = replace(current_config, cov_log_probs="old")
        old = plan(window)
        loss.config = current_config
        plans = plan(window)
        both = sum(int((a.tokens & b.tokens).sum()) for (a,), (b,) in zip(old, plans, strict=True))
        overlaps.append((len(overlaps), both / sum(int(each.tokens.sum()) for (each,) in plans)))
        return plans

    trainer._planned = plan_both
    try:
        train(trainer, step, cov_log_probs="current")
    finally:
        trainer._planned = plan
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
