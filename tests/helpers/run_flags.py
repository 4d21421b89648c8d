"""The flags of a run as the command line makes them, for tests of what reads them."""

import copy
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from openrlhf_cov.cluster import cpu_host

# One rank, two engines, groups of four; no critic, no reference, a reward function.
WORDS = """
    --actor.model_name_or_path policy --data.prompt_dataset data.jsonl --data.input_key input --data.label_key label
    --reward.remote_url reward.py --vllm.num_engines 2 --vllm.sync_backend nccl --ds.param_dtype bf16
    --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --rollout.n_samples_per_prompt 4
    --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --critic.num_gpus_per_node 1 --reward.num_gpus_per_node 1
    --train.batch_size 8 --train.micro_batch_size 2 --rollout.batch_size 2 --rollout.micro_batch_size 2
    --data.max_len 64 --vllm.no_progress_timeout 0 --rollout.max_tokens_per_gpu 16 --ckpt.output_dir out
"""


@cache
def _parsed() -> SimpleNamespace:
    from openrlhf.utils.config import hierarchize

    from openrlhf_cov.trainer.flags.normalise import normalise
    from openrlhf_cov.trainer.flags.parser import CovArgumentParser

    # The defaults of a host with GPUs, whatever this one is.
    with patch.object(cpu_host, "is_cpu_host", lambda: False):
        args = hierarchize(CovArgumentParser().parse_args(WORDS.split()))
    normalise(args)
    return args


def run_flags(changes: dict[str, Any] | None = None, **named: Any) -> SimpleNamespace:
    """Return the parsed flags of a run, with some values replaced after parsing.

    Args:
        changes: Flag -> value, such as ``{"train.batch_size": 4}``.
        named: The same, with two underscores for each dot: ``train__batch_size=4``.

    Raises:
        AttributeError: There is no such flag.
    """
    args = copy.deepcopy(_parsed())
    for flag, value in ((changes or {}) | {name.replace("__", "."): value for name, value in named.items()}).items():
        *path, last = flag.split(".")
        section = args
        for part in path:
            section = getattr(section, part)
        getattr(section, last)  # a flag that does not exist is a mistake of the test
        setattr(section, last, value)
    return args
