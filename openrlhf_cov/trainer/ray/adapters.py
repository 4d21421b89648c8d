"""What our classes and workers need of upstream before ``seams`` puts them in its place."""

import os
import sys
from functools import wraps
from typing import Any

from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.utils.terminal import clean_logs

TRUST_VARIABLE = "OPENRLHF_COV_TRUST_REMOTE_CODE"
"""Set in every process of a run with --trust_remote_code."""

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


def trust_remote_code(trusted: bool) -> None:
    """Say for this process and its workers whether code that comes with a model may run; without, transformers takes
    its own code or refuses the model, also where upstream asks it to trust."""
    os.environ.pop(TRUST_VARIABLE, None)
    if trusted:
        os.environ[TRUST_VARIABLE] = "1"
        return
    from transformers import dynamic_module_utils

    upstream = dynamic_module_utils.resolve_trust_remote_code
    if getattr(upstream, "trusts_nobody", False):
        return

    @wraps(upstream)
    def resolve_trust_remote_code(trust_remote_code: bool | None, *args: Any, **kwargs: Any) -> bool:
        return upstream(False if os.environ.get(TRUST_VARIABLE) != "1" else trust_remote_code, *args, **kwargs)

    resolve_trust_remote_code.trusts_nobody = True
    for module in list(sys.modules.values()):  # those that have imported it by name
        if vars(module).get("resolve_trust_remote_code") is upstream:
            module.resolve_trust_remote_code = resolve_trust_remote_code


def protect_worker() -> None:
    """Ray runs this first in every worker of a run (``worker_process_setup_hook``)."""
    clean_logs()
    trust_remote_code(os.environ.get(TRUST_VARIABLE) == "1")


def prepare_worker() -> None:
    """And this where there is no accelerator, or with fp32."""
    protect_worker()
    cpu_host.install()
    accept_fp32()
