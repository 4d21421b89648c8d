"""One run of stock OpenRLHF 0.11.2 on a host without a GPU, with upstream's flags; a contestant of ``race.py``.

Engines and OpenMP are as vLLM and OpenRLHF leave them, with ``RACE_TUNED=1`` as our CPU host module has them.
"""

import argparse
import ast
import os
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.utils.cores import cores

# Variables of the host module without which a run does not start or its threads compete for cores.
NEEDED = ("DS_ACCELERATOR", "OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")


def prepare() -> None:
    """Ray runs this first in every worker; upstream knows no fp32."""
    cpu_host.install()
    cpu_host.accept_fp32()


def parse_args() -> SimpleNamespace:
    """Parse and check the flags with OpenRLHF's own main block, and train in fp32, which it has no flag for."""
    path = Path(find_spec("openrlhf.cli").origin).with_name("train_ppo_ray.py")
    module = ast.parse(path.read_text(encoding="utf-8"))
    (main,) = [node for node in module.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    main_block = compile(ast.Module(body=main.body, type_ignores=[]), str(path), "exec")
    parsed: list[SimpleNamespace] = []
    exec(main_block, {"__name__": "__main__", "argparse": argparse, "datetime": datetime, "train": parsed.append})
    parsed[0].ds.param_dtype = "fp32"
    return parsed[0]


def main() -> None:
    """Train."""
    args = parse_args()
    tuned = os.environ.get("RACE_TUNED") == "1"
    cpu_host.install()
    import ray

    variables = cpu_host.environment()
    variables = variables if tuned else {name: variables[name] for name in NEEDED}
    # GiB; vLLM would take a fifth of the memory for the cache of keys and values.
    variables.setdefault(cpu_host.KV_VARIABLE, "1")
    runtime_env = {"env_vars": variables, "worker_process_setup_hook": "stock.prepare"}
    # One for the training, and one for each engine.
    gpus = 1 + args.vllm.num_engines
    cpus = max(8, cores())
    ray.init(address="local", include_dashboard=False, num_gpus=gpus, num_cpus=cpus, runtime_env=runtime_env)

    import openrlhf.trainer.ray.ppo_actor as ppo_actor
    import openrlhf.trainer.ray.vllm_engine as vllm_engine
    import stock_parts

    from openrlhf_cov.trainer.weights import weight_transfer

    ppo_actor.ActorPPOTrainer = stock_parts.StockTrainer
    settings = {
        "dtype": "float32",
        "worker_extension_cls": weight_transfer.WORKER_EXTENSION,
        "weight_transfer_config": {"backend": weight_transfer.BACKEND},
    }
    make = ray.remote(stock_parts.StockEngine)

    def options(**actor_options) -> SimpleNamespace:
        bound = make.options(**actor_options)
        change = cpu_host.engine_arguments if tuned else dict
        return SimpleNamespace(remote=lambda **kwargs: bound.remote(**change(kwargs | settings)))

    vllm_engine.RolloutRayActor = SimpleNamespace(options=options)
    from openrlhf.cli.train_ppo_ray import train

    train(args)


if __name__ == "__main__":
    main()
