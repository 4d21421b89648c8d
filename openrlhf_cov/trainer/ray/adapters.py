"""What our classes and workers need of upstream before ``seams`` puts them in its place."""

import sys
from typing import Any

from openrlhf_cov.trainer import cpu_host

VLLM_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""--ds.param_dtype -> dtype of the vLLM engine. Upstream always generates in bfloat16."""


def plain_class(actor_class: Any) -> type:
    """The class underneath an ``@ray.remote`` actor; Ray refuses to subclass the decorated one.

    It also gets a name of its own in its module. The decorated class hides it there, so pickle would ship a copy, and
    ``super()`` in upstream's methods would then refuse our instances.
    """
    plain = actor_class.__ray_metadata__.modified_class.__ray_actor_class__
    plain.__qualname__ = f"Plain{plain.__name__}"
    setattr(sys.modules[plain.__module__], plain.__qualname__, plain)
    return plain


def accept_fp32() -> None:
    """Let upstream load models with ``--ds.param_dtype fp32`` in this process."""
    import torch
    from openrlhf.utils import utils

    upstream = utils.convert_to_torch_dtype
    if getattr(upstream, "accepts_fp32", False):
        return

    def convert_to_torch_dtype(param_dtype: str) -> torch.dtype:
        return torch.float32 if param_dtype == "fp32" else upstream(param_dtype)

    convert_to_torch_dtype.accepts_fp32 = True
    utils.convert_to_torch_dtype = convert_to_torch_dtype


def prepare_worker() -> None:
    """Ray runs this first in every worker of a run (``worker_process_setup_hook``)."""
    cpu_host.install()
    accept_fp32()
