"""Train Qwen2.5-0.5B-Instruct on GSM8K with TRL and KL-Cov, on one GPU.

pip install ".[trl]"
python examples/trl_gsm8k.py
openrlhf-cov watch runs/trl_gsm8k
"""

from datasets import load_dataset
from trl import GRPOConfig

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.integrations.trl import CovGRPOTrainer
from openrlhf_cov.rewards.sources import grade_gsm8k


def to_chat(row: dict) -> dict:
    question = row["question"] + "\nReason step by step, and write the final answer in \\boxed{}."
    return {"prompt": [{"role": "user", "content": question}]}


def correct(completions: list, answer: list[str], **columns) -> list[float]:
    rows = zip(completions, answer, strict=True)
    return [float(grade_gsm8k(chat[-1]["content"], label, RewardConfig()).correct) for chat, label in rows]


args = GRPOConfig(
    output_dir="runs/trl_gsm8k",
    per_device_train_batch_size=16,
    gradient_accumulation_steps=4,
    steps_per_generation=16,  # a rollout of 256 completions and four updates: KL-Cov needs more than one
    num_generations=8,
    max_completion_length=512,
    learning_rate=1e-6,
    logging_steps=4,  # once per rollout
)
train_dataset = load_dataset("openai/gsm8k", "main", split="train").map(to_chat)
settings = {"kl_cov_ratio": 2e-3}
model = "Qwen/Qwen2.5-0.5B-Instruct"
CovGRPOTrainer(model, correct, args, train_dataset=train_dataset, method="kl_cov", method_settings=settings).train()
