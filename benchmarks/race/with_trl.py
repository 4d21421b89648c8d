"""One run of TRL's ``GRPOTrainer`` on the task of a race, in TRL's own environment; a contestant of ``race.py``.

Prints what OpenRLHF prints at the end of a global step, a dict of the step's metrics, for ``race.py`` to read.
"""

import argparse
import json
import time
from pathlib import Path

from datasets import Dataset
from race_reward import score
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class TimedTrainer(GRPOTrainer):
    """TRL's, whose generation and scoring are timed."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.seconds = {"timing/generation": 0.0, "timing/make_experience": 0.0}

    def _generate(self, *args, **kwargs):
        print("Generate samples", flush=True)  # what race.py waits for
        started = time.monotonic()
        try:
            return super()._generate(*args, **kwargs)
        finally:
            self.seconds["timing/generation"] += time.monotonic() - started

    def _generate_and_score_completions(self, *args, **kwargs):
        started = time.monotonic()
        before = self.seconds["timing/generation"]
        try:
            return super()._generate_and_score_completions(*args, **kwargs)
        finally:
            generating = self.seconds["timing/generation"] - before
            self.seconds["timing/make_experience"] += time.monotonic() - started - generating


class StepLines(TrainerCallback):
    """A line for every rollout and its updates."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.step = 0
        self.started = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """The clock of the first step."""
        self.started = time.monotonic()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """TRL logs once per rollout."""
        if "reward" not in (logs or {}):
            return
        self.step += 1
        seconds = self.trainer.seconds
        now = time.monotonic()
        total = now - self.started
        line = seconds | {
            "timing/ppo_train": total - sum(seconds.values()),
            "timing/step_total": total,
            "rollout/reward_mean": logs["reward"],
            "rollout/response_length_mean": logs["completions/mean_length"],
            "rollout/num_samples": float(self.samples),
        }
        print(f"Global step {self.step}: {line}", flush=True)
        self.trainer.seconds = dict.fromkeys(seconds, 0.0)
        self.started = now


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "data", "prompt_key", "label_key", "output"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("steps", "prompts", "samples", "train_batch", "micro_batch", "new_tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--kl_coef", type=float, required=True)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--reward", choices=("addition", "word"), required=True)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    rows = [json.loads(line) for line in Path(args.data).read_bytes().splitlines()][: args.steps * args.prompts]
    prompts = [row[args.prompt_key] for row in rows]
    if args.reward == "word":
        prompts = [[{"role": "user", "content": text}] if isinstance(text, str) else text for text in prompts]
    data = Dataset.from_list(
        [{"prompt": p, "label": row[args.label_key]} for p, row in zip(prompts, rows, strict=True)]
    )
    rollout = args.prompts * args.samples
    updates = rollout // args.train_batch
    config = GRPOConfig(
        output_dir=args.output,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.train_batch // args.micro_batch,
        steps_per_generation=rollout // args.micro_batch,
        num_generations=args.samples,
        max_completion_length=args.new_tokens,
        max_steps=args.steps * updates,
        logging_steps=updates,
        beta=args.kl_coef,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        gradient_checkpointing=args.checkpointing,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=42,
    )
    reward = addition(tokenizer) if args.reward == "addition" else word
    lines = StepLines(rollout)
    trainer = TimedTrainer(args.model, reward, config, data, processing_class=tokenizer, callbacks=[lines])
    lines.trainer = trainer
    trainer.train()


def addition(tokenizer):
    """The reward of the embedded task, of which the end of a response is a part."""
    from openrlhf_cov.rewards.addition import EOS_TOKEN, is_right

    def addition_reward(prompts, completions, completion_ids, label, **kwargs) -> list[float]:
        texts = [tokenizer.decode(ids) for ids in completion_ids]
        texts = [text[: text.find(EOS_TOKEN) + len(EOS_TOKEN)] if EOS_TOKEN in text else text for text in texts]
        return [float(is_right(text, each)) for text, each in zip(texts, label, strict=True)]

    return addition_reward


def word(completions, label, **kwargs) -> list[float]:
    """The reward of ``race_reward.py``."""
    return [score(text[-1]["content"], each) for text, each in zip(completions, label, strict=True)]


if __name__ == "__main__":
    main()
