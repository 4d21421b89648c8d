"""Supply what upstream assumes of a GPU host on a CPU host. The only module that knows about devices.

It is also the only module that assigns to attributes of upstream and of the libraries below it.

A CPU host is one whose vLLM is the CPU build. That is read from the installed packages, not from ``torch.cuda``: it
is the same in every process of a run, costs no import, and does not depend on CUDA_VISIBLE_DEVICES, which Ray empties
for actors without a GPU.
"""

import ctypes
import importlib.machinery
import importlib.util
import json
import logging
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf_cov.cluster.freed_memory import keep_freed_memory
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.cores import cores
from openrlhf_cov.utils.engine_limits import VLLM_LIMITS

if TYPE_CHECKING:  # ``doctor`` reads this module on hosts without any package
    from openrlhf_cov.cluster.sizing.model_shape import ModelShape

logger = logging.getLogger(__name__)

# Defaults of upstream flags that differ on a CPU host, where upstream's own cannot work.
FLAG_DEFAULTS = {
    "ds.param_dtype": "fp32",
    "ds.attn_implementation": "sdpa",
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "vllm.gpu_memory_utilization": 0.2,
}

# vLLM's executor of an engine that computes in the process of its scheduler.
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

# The largest part of PyTorch's compiler, and the modules that import it only to register their operators.
COMPILER = "torch._inductor.lowering"
WITHOUT_COMPILER = ("vllm.env_override", "deepspeed.compile.inductor")

# Tokens of a block of an engine's KV cache: vLLM's number on the CPU, and ours for an engine that keeps prefixes.
# vLLM's attention on the CPU wants multiples of the latter.
BLOCK = 128
PREFIX_BLOCK = 32

# The most bytes of the KV cache of an engine, and the environment variable that sets the size instead, in GiB.
KV_SPACE = 2**30
KV_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"

# A model with fewer bytes of weights is small. Its operations are too short to be shared by many threads, so its
# engine gets at most ``THREADS_OF_SMALL_MODEL``, and its weights are received by one.
SMALL_MODEL = 2**26
THREADS_OF_SMALL_MODEL = 2

# The first family of AMD's processors that computes 512 bits at once. Zen 4 splits such an operation in two.
ZEN_5 = 26

# Gradients that DeepSpeed reduces at a time with ZeRO-1 and 2: 16 MiB in fp32. ``keep_freed_memory`` keeps a buffer of
# this size for the next backward pass. One of DeepSpeed's default size, 2 GB, comes from the kernel page by page.
REDUCE_BUCKET = 2**22

# Collectives of DeepSpeed's backend with which ZeRO-3 makes whole parameters of their parts.
GATHERS = ("all_gather", "all_gather_into_tensor")

# The name by which transformers knows ``_packed_attention`` in a process where ``install`` has run.
PACKED_ATTENTION = "packed_sdpa"

# Set to 1 in every process of a run with ``--trust_remote_code``.
TRUST_VARIABLE = "OPENRLHF_COV_TRUST_REMOTE_CODE"


@cache
def is_cpu_host() -> bool:
    """Return True if vLLM is the CPU build, so that nothing here trains or generates on an accelerator."""
    with suppress(PackageNotFoundError):
        return bool(version("vllm-cpu"))
    with suppress(PackageNotFoundError):
        return "+cpu" in version("vllm")
    return False


def environment() -> dict[str, str]:
    """Return the environment variables for every process of a run on a CPU host; {} elsewhere.

    Variables that are already set keep their values. OMP_NUM_THREADS is the number of threads that processes which
    compute at the same time share (``share_of_threads``, ``prepare_engine``): more threads than cores spin against
    each other. ``torch.compile`` does nothing: vLLM's sampler, OpenRLHF's entropies and DeepSpeed's Muon would compile
    small functions at each start, which needs g++ and makes a step no faster.
    """
    if not is_cpu_host():
        return {}
    compile_disabled = os.environ.get("TORCH_COMPILE_DISABLE", "1")
    defaults = {
        "DS_ACCELERATOR": "cpu",
        "TORCH_COMPILE_DISABLE": compile_disabled,
        "TORCHDYNAMO_DISABLE": compile_disabled,  # imports no part of the compiler for functions that are decorated
        "OMP_NUM_THREADS": str(cores()),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",  # an engine takes a second of a core to collect them
    }
    if KV_VARIABLE in os.environ:
        defaults[KV_VARIABLE] = os.environ[KV_VARIABLE]
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def engine_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a vLLM engine with the changes that a CPU host needs; unchanged on other hosts.

    A seeded request whose prompt vLLM reads in chunks rewinds its generator by an offset, which generators on the CPU
    do not have: vLLM 0.29 then loses the whole engine. Without chunks every prompt is read at once.

    An engine of one rank computes in the process of its scheduler, which is the actor's (``prepare_engine``). For
    ``uni`` vLLM starts another process on the CPU, which imports everything again and for which the scheduler spins on
    a core that computes; by the class's full name it does not. (vLLM wants that process to bind OpenMP's threads,
    which ``environment`` leaves to the system.)

    vLLM keeps prefixes in whole blocks of the cache, by default of 128 tokens on the CPU. An engine that keeps
    prefixes gets blocks of ``PREFIX_BLOCK`` tokens instead. For models that have states beside those of attention,
    vLLM needs chunks to keep prefixes, so their engines keep none.

    vLLM would take a fifth of the memory for the KV cache. It gets ``kv_cache_bytes``.
    """
    if not is_cpu_host():
        return arguments
    config = _config(arguments["model"])
    changed: dict[str, Any] = {"enable_chunked_prefill": False}
    if arguments.get("distributed_executor_backend") == "uni":
        changed["distributed_executor_backend"] = ONE_PROCESS
    keeps_prefixes = bool(arguments.get("enable_prefix_caching")) and not _has_states(config)
    if keeps_prefixes:
        changed["block_size"] = PREFIX_BLOCK
    changed["enable_prefix_caching"] = keeps_prefixes
    changed["kv_cache_memory_bytes"] = kv_cache_bytes(
        _shape(config),
        sequences=arguments.get("max_num_seqs", VLLM_LIMITS.sequences),
        longest=arguments["max_model_len"],
        element=2 if arguments["dtype"] in ("bfloat16", "float16") else 4,
        keeps_prefixes=keeps_prefixes,
    )
    return arguments | changed


def kv_cache_bytes(
    shape: "ModelShape | None", *, sequences: int, longest: int, element: int, keeps_prefixes: bool
) -> int:
    """Return the bytes of the KV cache of an engine on a CPU host, at most ``KV_SPACE``.

    They hold all sequences that are generated at once, and as many again where prefixes of earlier ones are kept. An
    engine uses the blocks of its cache in turns, so that even a small model comes to fill a large one.

    Args:
        shape: The shape of the model; None if it is not known, for ``KV_SPACE`` bytes.
        sequences: Number of sequences that are generated at once.
        longest: Most tokens of a sequence.
        element: Bytes of a number.
        keeps_prefixes: ``--vllm.enable_prefix_caching``.
    """
    if shape is None:
        return KV_SPACE
    block = PREFIX_BLOCK if keeps_prefixes else BLOCK
    # A sliding window needs one more block for a sequence, and vLLM keeps one for itself.
    blocks = sequences * (math.ceil(longest / block) + 1) * (2 if keeps_prefixes else 1)
    of_block = block * 2 * shape.layers * shape.kv_width * element
    return min(KV_SPACE, (blocks + 1) * of_block)


def trains_with_torch_adam(args: SimpleNamespace) -> bool:
    """Return True if Adam is PyTorch's: on a CPU host, unless DeepSpeed moves its states.

    DeepSpeed moves those of its own Adam only (``--ds.adam_offload``, ``--ds.enable_sleep``).

    Args:
        args: The flags of the run.
    """
    return is_cpu_host() and not (args.ds.adam_offload or args.ds.enable_sleep)


def training_config(config: dict[str, Any], args: SimpleNamespace) -> dict[str, Any]:
    """Return DeepSpeed's configuration of a trained model with what a CPU host changes; unchanged on other hosts.

    The optimizer is PyTorch's fused Adam. DeepSpeed's own is no faster, and is compiled at the first start, which
    takes a minute and needs g++. With Muon, the Adam of the other parameters is PyTorch's too, but not fused.

    Args:
        config: The configuration that upstream makes of the flags.
        args: The flags of the run.
    """
    if not is_cpu_host():
        return config
    changed = dict(config)
    zero = config["zero_optimization"]
    if zero["stage"] < 3:
        changed["zero_optimization"] = zero | {"reduce_bucket_size": REDUCE_BUCKET}
    optimizer = config.get("optimizer")
    if optimizer and trains_with_torch_adam(args):
        fused = {"fused": True} if optimizer["type"] == "AdamW" else {}
        changed["optimizer"] = optimizer | {"params": optimizer["params"] | {"torch_adam": True} | fused}
    return changed


def _config(model: str) -> dict[str, Any] | None:
    """Return the content of a model's config.json; None if this host has none, which the engine will say.

    A run reads the model's tokenizer before, so a model of the hub is in the cache, and the hub is not asked again.
    """
    from transformers import PretrainedConfig

    try:
        return PretrainedConfig.get_config_dict(model, local_files_only=True)[0]
    except OSError:
        return None


def _has_states(config: dict[str, Any] | None) -> bool:
    """Return True if a model carries a state from token to token, by the names in its config, or has no config."""
    return config is None or (
        re.search("mamba|ssm|conv|linear_|recurrent|rwkv|delta", json.dumps(config).lower()) is not None
    )


def _shape(config: dict[str, Any] | None) -> "ModelShape | None":
    """Return the shape of a model; None if it is not known."""
    from openrlhf_cov.cluster.sizing.model_shape import shape_of_config

    try:
        return None if config is None else shape_of_config(config)
    except ValueError:
        return None


def prepare_engine(arguments: dict[str, Any], computing: int) -> None:
    """Prepare this process for the engine that it is about to start; does nothing on other hosts.

    An engine of one rank computes in this process, see ``engine_in_process``, in the thread that calls this function.
    It gets its part of the threads; the processes of a larger engine take all threads each. If its model, in a local
    folder, is small, it gets at most ``THREADS_OF_SMALL_MODEL``, and other calls of the engine, such as those that
    receive weights, compute in one.

    Args:
        arguments: The arguments of the engine, as ``engine_arguments`` returns them.
        computing: Number of processes that compute while this engine generates, this one included.
    """
    if not is_cpu_host() or arguments["distributed_executor_backend"] != ONE_PROCESS:
        return
    import torch
    from vllm.v1.engine.core_client import EngineCoreClient

    from openrlhf_cov.cluster.engine_in_process import InProcessClient

    weights = sum(path.stat().st_size for path in Path(arguments["model"]).glob("*.safetensors"))
    is_small = 0 < weights < SMALL_MODEL

    def client(vllm_config: Any, executor_class: Any, log_stats: bool, *args: Any, **kwargs: Any) -> InProcessClient:
        return InProcessClient(vllm_config, executor_class, log_stats, calls_in_one_thread=is_small)

    EngineCoreClient.make_async_mp_client = staticmethod(client)
    threads = max(1, torch.get_num_threads() // computing)
    if is_small:
        threads = min(threads, THREADS_OF_SMALL_MODEL)
    torch.set_num_threads(threads)


@contextmanager
def share_of_threads(computing: int) -> Iterator[None]:
    """Limit this process to its part of the threads while the body runs.

    Nothing changes on a GPU host.

    Args:
        computing: Number of processes that compute at the same time, this one included.
    """
    if not is_cpu_host():
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // computing))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compute_in_one_thread() -> None:
    """Make PyTorch use a single thread for what the calling thread computes. Other threads keep their number.

    libgomp starts helpers for each thread that computes with several, and they spin while they wait for work. If a
    process has more of these threads than the host has cores, they sleep instead, and to wake them takes longer than
    many operations.
    """
    import torch

    torch.get_num_threads()  # the first call in a thread sets its number
    with suppress(OSError):  # a PyTorch without libgomp
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(1)


def adapt_deepspeed() -> None:
    """Adapt DeepSpeed to a CPU host. Call this function before DeepSpeed's process groups are made.

    It neither compiles nor loads its all-reduce over shared memory: only tensor parallelism in inference uses it, and
    takes torch's without it. To compile it takes 70 CPU seconds.

    A gather that it starts is complete before it starts the next one. ZeRO-3 starts one for each parameter and waits
    for the last one only, which is enough with NCCL, whose collectives are carried out in order. The threads of gloo
    carry them out side by side, and parameters were read before all of their ranks' parts were there.
    """
    if not is_cpu_host():
        return
    import deepspeed
    from deepspeed.comm.torch import TorchBackend

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    for name in GATHERS:
        setattr(TorchBackend, name, _finished(getattr(TorchBackend, name)))


def _finished(collective: Callable) -> Callable:
    """Return a collective that is complete when it returns. A caller may still wait for its handle."""
    if getattr(collective, "finished", False):
        return collective

    @wraps(collective)
    def finish(*args: Any, **kwargs: Any) -> Any:
        work = collective(*args, **kwargs)
        if work is not None:
            work.wait()
        return work

    finish.finished = True  # type: ignore[attr-defined]
    return finish


def adapt(args: SimpleNamespace) -> None:
    """Adapt the flags of a run to a CPU host. ``args`` is changed.

    Packed samples get an attention that works on a CPU host: upstream packs with ``--ds.packing_samples`` and with
    dynamic batches, and then insists on flash attention. Engines keep the prompts that they have read, with two
    exceptions: where rollouts must repeat, because kept prompts change what is computed together, and where weights
    change while responses are generated.

    Raises:
        UsageError: Ring attention is set, which has no stand-in on a CPU host.
    """
    if not is_cpu_host():
        return
    if args.ds.ring_attn_size > 1:
        raise UsageError(
            f"--ds.ring_attn_size {args.ds.ring_attn_size} needs flash attention, which this host does not have; "
            "drop it"
        )
    if args.ds.packing_samples:
        args.ds.attn_implementation = PACKED_ATTENTION
    repeats = args.rollout_seeded or args.train.full_determinism_enable
    if not repeats and not args.train.async_enable:
        args.vllm.enable_prefix_caching = True


def install() -> None:
    """Make upstream run in this process on a CPU host; does nothing on other hosts or the second time."""
    if not is_cpu_host():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch

    if getattr(torch.cuda.current_device, "stands_in", False):
        return
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":  # ``environment`` sets it
        sys.meta_path.insert(0, _NoCompiler)
    _stand_in_for_cuda(torch)
    _stand_in_for_flash_attn()
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, _packed_attention)


class _NoCompiler:
    """Hide the largest part of PyTorch's compiler from the modules that do without it where it is missing.

    They import it to register their operators. That takes a tenth of the start of a process in which nothing is
    compiled. All other modules find it.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError for the compiler if one of these modules imports it; see ``sys.meta_path``."""
        if name != COMPILER:
            return
        frame: types.FrameType | None = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame and frame.f_globals.get("__name__") in WITHOUT_COMPILER:
            raise ModuleNotFoundError(f"{name} is left out: nothing is compiled", name=name)


def compute_faster() -> None:
    """Make the models of this process compute faster on a CPU host; does nothing on other hosts.

    The laboratory does without ``onednn_linear``: oneDNN makes code for each shape, which takes longer than the
    laboratory's small products. With ``--ds.zero_stage 3`` DeepSpeed puts a function of its own in this place.
    """
    if not is_cpu_host():
        return
    import torch

    from openrlhf_cov.cluster import onednn_linear

    keep_freed_memory()
    if onednn_is_faster():
        torch.nn.functional.linear = onednn_linear.linear


def onednn_is_faster(processor: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if PyTorch has MKL and oneDNN, and the processor is one of AMD's that computes 512 bits at once.

    Args:
        processor: Linux's description of the processor. Another system has no such file, and gets False.
    """
    import torch

    has_both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not has_both or torch.backends.cpu.get_cpu_capability() != "AVX512" or not processor.exists():
        return False
    text = processor.read_text()
    family = re.search(r"^cpu family\s*:\s*(\d+)", text, re.MULTILINE)
    return "AuthenticAMD" in text and family is not None and int(family[1]) >= ZEN_5


@contextmanager
def flash_attention_stand_in() -> Iterator[None]:
    """Let the body import upstream's losses on a host without flash_attn, with any vLLM or none.

    Upstream's ``models`` package imports flash_attn, which its losses do not use. The stand-in is removed after the
    body, because transformers would take it for the real package. Nothing changes where flash_attn is installed, or
    where ``install`` has put its own stand-in.
    """
    names = _stand_in_for_flash_attn()
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def training_device() -> Any:
    """Return the device on which the models of this process compute."""
    import torch

    return torch.cuda.current_device()


def accept_fp32() -> None:
    """Make upstream's model loaders accept ``--ds.param_dtype fp32`` in this process, on every kind of host.

    Upstream's ``convert_to_torch_dtype`` refuses fp32, and its loaders import the function when they are called, so no
    argument or subclass can change the type. A CPU host needs fp32: it is the default there.
    """
    import torch
    from openrlhf.utils import utils

    upstream = utils.convert_to_torch_dtype
    if getattr(upstream, "accepts_fp32", False):
        return

    @wraps(upstream)
    def convert_to_torch_dtype(param_dtype: str) -> torch.dtype:
        return torch.float32 if param_dtype == "fp32" else upstream(param_dtype)

    convert_to_torch_dtype.accepts_fp32 = True  # type: ignore[attr-defined]
    utils.convert_to_torch_dtype = convert_to_torch_dtype


def distrust_model_code() -> None:
    """Make transformers refuse the code of a model in this process, unless ``TRUST_VARIABLE`` is 1.

    Upstream passes ``trust_remote_code=True`` wherever it loads a model, a configuration or a tokenizer. Transformers
    then takes its own code for the model or raises an error, as it does with ``trust_remote_code=False``.
    """
    import transformers.dynamic_module_utils as dynamic_module_utils

    upstream = dynamic_module_utils.resolve_trust_remote_code
    if getattr(upstream, "trusts_nobody", False):
        return

    @wraps(upstream)
    def resolve_trust_remote_code(trust_remote_code: bool | None, *args: Any, **kwargs: Any) -> Any:
        return upstream(False if os.environ.get(TRUST_VARIABLE) != "1" else trust_remote_code, *args, **kwargs)

    resolve_trust_remote_code.trusts_nobody = True  # type: ignore[attr-defined]
    for module in list(sys.modules.values()):  # modules that have imported the function by its name
        if vars(module).get("resolve_trust_remote_code") is upstream:
            module.resolve_trust_remote_code = resolve_trust_remote_code  # type: ignore[attr-defined]


class _CpuDevice(str):
    """The device "cpu" for ``tensor.to`` and the like. It formats as "0", as in upstream's ``f"cuda:{...}"``."""

    def __format__(self, spec: str) -> str:
        return "0"


def _stand_in_for_cuda(torch: types.ModuleType) -> None:
    def current_device() -> str:
        return _CpuDevice("cpu")

    current_device.stands_in = True  # type: ignore[attr-defined]
    torch.cuda.current_device = current_device
    for name in ("set_device", "synchronize", "current_stream"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)  # one each: torch._dynamo keeps a table of them

    import torch.distributed.device_mesh as device_mesh

    init_device_mesh = device_mesh.init_device_mesh

    @wraps(init_device_mesh)
    def on_cpu(device_type: str, *args, **kwargs):
        return init_device_mesh("cpu", *args, **kwargs)

    device_mesh.init_device_mesh = on_cpu


def _stand_in_for_flash_attn() -> list[str]:
    """Make the modules that upstream's ``models/ring_attn_utils.py`` imports from flash_attn, in plain PyTorch.

    Returns:
        Their names in ``sys.modules``; none if flash_attn is there already.
    """
    if importlib.util.find_spec("flash_attn") is not None:
        return []

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
    module("flash_attn.utils.distributed", all_gather=None)  # of ring attention, which ``adapt`` refuses
    return [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]


def _index_first_axis(values, indices):
    """Return the rows ``indices`` of the first axis."""
    return values[indices]


def _unpad_input(hidden, attention_mask, unused_mask=None):
    """Return the tokens without padding, and where they were.

    Returns:
        The kept tokens (N, ...), their flat indices (N,), cumulative lengths (B + 1,), the longest length, and the
        lengths (B,).
    """
    import torch

    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, cumulative, int(lengths.max()), lengths


def _pad_input(hidden, indices, batch, seqlen):
    """Undo ``_unpad_input``: return (batch, seqlen, ...) with zeros where a token was dropped."""
    padded = hidden.new_zeros((batch * seqlen, *hidden.shape[1:]))
    return padded.index_copy(0, indices, hidden).unflatten(0, (batch, seqlen))


def _packed_attention(module, query, key, value, attention_mask, position_ids=None, sliding_window=None, **kwargs):
    """Compute causal attention among the tokens of each sample, as flash attention's kernel for packed samples does.

    ``query``, ``key`` and ``value`` are (1, heads, N, size), all samples in one row. A sample begins where
    ``position_ids`` (1, N) is 0. The result is (1, N, heads, size), and None for the weights. One SDPA per sample
    costs the sum of squared lengths in time; a block-diagonal mask over the row costs N squared, in memory too.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if position_ids is None or query.shape[0] != 1:
        raise RuntimeError(
            f"--ds.packing_samples: {type(module).__name__} does not get one row of samples with their positions; "
            "train this model without --ds.packing_samples and --train.dynamic_batch_enable"
        )
    starts = (position_ids.flatten() == 0).nonzero().flatten().tolist()
    lengths = [end - start for start, end in pairwise([*starts, query.shape[2]])]
    outputs = []
    of_samples = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    for queries, keys, values in of_samples:
        mask = None
        length = queries.shape[2]
        if sliding_window and length > sliding_window:
            mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - sliding_window)
        outputs.append(sdpa_attention_forward(module, queries, keys, values, mask, **kwargs)[0])
    return torch.cat(outputs, dim=1), None
