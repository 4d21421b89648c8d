"""Train on the embedded task "hidden commands" with TRL and KL-Cov, in a minute on a CPU.

pip install ".[trl]"
python examples/trl_commands.py
openrlhf-cov watch --once runs/trl_commands
"""

import argparse
import random

from datasets import Dataset
from trl import GRPOConfig

from openrlhf_cov.experiments.tiny_task import commands
from openrlhf_cov.experiments.tiny_task.commands_policy import COMMANDS_POLICY
from openrlhf_cov.experiments.tiny_task.shipped_policies import shipped_policy
from openrlhf_cov.integrations.trl import CovGRPOTrainer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=200, help="optimizer steps, eight for each rollout")
parser.add_argument("--method", default="kl_cov")
parser.add_argument("--output", default="runs/trl_commands")
flags = parser.parse_args()

model, tokenizer = shipped_policy("commands", seed=0, config=COMMANDS_POLICY)
train_digits, *_ = commands.split_digits()
draws = random.Random(0)
problems = [commands.draw(train_digits, draws) for _ in range(4096)]


def correct(completion_ids: list[list[int]], label: list[str], **columns) -> list[float]:
    responses = ["".join(tokenizer.convert_ids_to_tokens(ids)) for ids in completion_ids]
    return [float(commands.is_right(*each)) for each in zip(responses, label, strict=True)]


args = GRPOConfig(
    output_dir=flags.output,
    use_cpu=True,
    bf16=False,
    per_device_train_batch_size=64,
    steps_per_generation=8,  # a rollout of 512 completions and eight updates
    num_generations=8,
    max_completion_length=commands.RESPONSE_TOKENS,
    max_steps=flags.steps,
    learning_rate=1e-4,
    lr_scheduler_type="constant",
    gradient_checkpointing=False,
    logging_steps=8,
    save_strategy="no",
    report_to="none",
)
dataset = Dataset.from_list([{"prompt": problem.prompt, "label": problem.label} for problem in problems])
trainer = CovGRPOTrainer(model, correct, args, train_dataset=dataset, processing_class=tokenizer, method=flags.method)
trainer.train()
