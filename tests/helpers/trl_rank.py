"""One of two ranks that train with TRL; ``tests/integrations/test_trl.py`` starts them."""

import json
import os

from rank_group import serve

from openrlhf_cov.cluster import cpu_host

os.environ["ACCELERATE_USE_CPU"] = "true"
cpu_host.install()
import torch  # noqa: E402
from trl_runs import AgainstLaboratory, options, run  # noqa: E402

from openrlhf_cov.integrations.trl import CovGRPOTrainer  # noqa: E402


def main(name: str, folder: str, loss_type: str, settings: dict) -> None:
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(main)
