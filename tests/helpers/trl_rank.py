"""One of two ranks that train with TRL; the tests of ``tests/integrations`` start them."""

import json
import os
import sys

from rank_group import serve

from openrlhf_cov.cluster import cpu_host

os.environ["ACCELERATE_USE_CPU"] = "true"
sys.modules["vllm"] = None  # TRL would import it, which takes seconds, and nothing here generates with it
cpu_host.install()
import torch  # noqa: E402
from trl_runs import AgainstLaboratory, options, run  # noqa: E402

from openrlhf_cov.integrations.trl import CovGRPOTrainer  # noqa: E402


def compare_gradients(name: str, folder: str, loss_type: str, settings: dict) -> None:
    """Print how far the gradients of two updates are from the laboratory's; a rank has two micro-batches of each."""
    args = options(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        loss_type=loss_type,
    )
    compared = AgainstLaboratory()
    run(CovGRPOTrainer, args, [compared], method=name, method_settings=settings)
    if os.environ["RANK"] == "0":
        print(json.dumps(compared.differences))


def record_and_replay(folder: str) -> None:
    """Print the weights after a run that records its rollouts, and after one that trains on them."""
    rollouts = f"{folder}/rollouts"
    sums = []
    for name in ("dump_dir", "replay_dir"):
        changes = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 4}
        trainer = run(CovGRPOTrainer, options(f"{folder}/{name}", **changes), **{name: rollouts})
        sums.append([parameter.double().sum().item() for parameter in trainer.model.parameters()])
    if os.environ["RANK"] == "0":
        print(json.dumps(sums))


def main(task: str, *arguments: str | dict) -> None:
    """Do a task by its name."""
    {"gradients": compare_gradients, "replay": record_and_replay}[task](*arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(main)
