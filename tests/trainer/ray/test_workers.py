import json
import os
import pickle
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import ray
import torch

from openrlhf_cov.config import EngineConfig, RewardConfig
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.trainer import weight_transfer
from openrlhf_cov.trainer.ray import seams


def args(param_dtype, sync_backend, limits=(), **methods):
    return SimpleNamespace(
        **vars(RewardConfig()),
        **vars(CovConfig(**methods)),
        **vars(EngineConfig(**dict(limits))),
        data=SimpleNamespace(max_len=10_240),
        trust_remote_code=False,
        ds=SimpleNamespace(param_dtype=param_dtype),
        vllm=SimpleNamespace(sync_backend=sync_backend),
    )


LOG_PROBS = {"log_probs": True, "logprobs_mode": "processed_logprobs", "max_logprobs": 1}


@pytest.mark.parametrize(("flag", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_the_engine_generates_in_the_dtype_of_the_flag(flag, dtype):
    assert seams.engine_settings(args(flag, "nccl")) == {
        **LOG_PROBS,
        "dtype": dtype,
        "trust_remote_code": False,
        "reward_config": RewardConfig(),
    }


@pytest.mark.parametrize("settings", [{}, {"method": "dppo"}, {"method": "dppo", "dppo_anchor": "old"}])
def test_engines_give_log_probs_in_every_run(settings):
    # vllm_kl compares them with those of training; upstream asks for them where it corrects for the engine
    found = seams.engine_settings(args("fp32", "nccl", **settings))
    assert LOG_PROBS.items() <= found.items()


@pytest.mark.parametrize(
    ("on_cpu", "limits", "sequences", "tokens"),
    [
        (False, {}, 1024, 8192),
        (False, {"vllm_max_num_seqs": 64}, 64, 8192),
        (False, {"vllm_max_num_seqs": 64, "vllm_max_num_batched_tokens": 512}, 64, 512),
        # vLLM refuses fewer tokens than sequences: the default gives way to what is given
        (False, {"vllm_max_num_batched_tokens": 512}, 512, 512),
        (False, {"vllm_max_num_seqs": 20_000}, 20_000, 20_000),
        # an engine on a CPU host reads prompts whole, for which it needs tokens for --data.max_len
        (True, {"vllm_max_num_seqs": 16}, 16, 10_240),
        (True, {"vllm_max_num_batched_tokens": 20_480}, 128, 20_480),
        (True, {}, None, None),
    ],
)
def test_engines_get_their_limits(monkeypatch, on_cpu, limits, sequences, tokens):
    monkeypatch.setattr(seams.cpu_host, "is_cpu_host", lambda: on_cpu)
    settings = seams.engine_settings(args("bf16", "nccl", limits))
    assert (settings.get("max_num_seqs"), settings.get("max_num_batched_tokens")) == (sequences, tokens)


@pytest.mark.parametrize(("memory", "name"), [(80, "nvidia h100"), (40, "nvidia a100"), (180, "nvidia b200")])
def test_vllm_has_no_defaults_for_engines_of_upstreams_kind(monkeypatch, memory, name):
    import inspect

    import vllm.engine.arg_utils as arg_utils
    from vllm.config import SchedulerConfig
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    from openrlhf_cov.utils.engine_limits import VLLM_LIMITS, EngineLimits

    platform = SimpleNamespace(
        get_device_total_memory=lambda: memory * 2**30,
        get_device_name=lambda: name,
        is_tpu=lambda: False,
        is_cpu=lambda: False,
    )
    monkeypatch.setattr(arg_utils, "current_platform", platform)
    context = inspect.signature(AsyncLLM.from_engine_args).parameters["usage_context"].default
    tokens, sequences = arg_utils.EngineArgs.get_batch_defaults(1)
    assert context is UsageContext.ENGINE_CONTEXT
    assert context not in tokens.keys() | sequences.keys()
    defaults = SchedulerConfig.DEFAULT_MAX_NUM_SEQS, SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS
    assert EngineLimits(*defaults) == VLLM_LIMITS


def test_gloo_gives_the_engine_our_weight_transfer():
    settings = seams.engine_settings(args("fp32", "gloo"))
    module, name = settings.pop("worker_extension_cls").rsplit(".", 1)
    assert getattr(sys.modules[module], name) is weight_transfer.GlooWorkerExtension
    assert settings == {
        **LOG_PROBS,
        "dtype": "float32",
        "trust_remote_code": False,
        "reward_config": RewardConfig(),
        "weight_transfer_config": {"backend": weight_transfer.BACKEND},
    }


def test_the_gloo_engine_is_registered_with_vllm():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    registered = WeightTransferEngineFactory._registry[weight_transfer.BACKEND]()
    assert registered is weight_transfer.GlooWeightTransferEngine


def test_our_engine_settings_win_over_upstreams_and_the_host_over_both(monkeypatch):
    monkeypatch.setattr(seams.cpu_host, "engine_arguments", lambda arguments: arguments | {"of_host": True})
    calls = []
    options = lambda **given: SimpleNamespace(remote=lambda **kwargs: calls.append((given, kwargs)))  # noqa: E731
    actor = seams._with_engine_settings(SimpleNamespace(options=options), {"dtype": "float32"}, warm=False)
    actor.options(num_gpus=1).remote(model="m", dtype="bfloat16")
    assert calls == [({"num_gpus": 1}, {"model": "m", "dtype": "float32", "of_host": True})]


def test_fp32_is_a_dtype_of_a_run_and_others_stay_upstreams():
    from openrlhf_cov.trainer.strategy import convert_to_torch_dtype

    assert [convert_to_torch_dtype(name) for name in ("fp32", "bf16")] == [torch.float32, torch.bfloat16]
    with pytest.raises(ValueError, match="fp8"):
        convert_to_torch_dtype("fp8")


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, amount):
        self.value += amount
        return self.value


Plain = seams.plain_class(ray.remote(Counter))


class Doubling(Plain):
    def add(self, amount):
        return super().add(2 * amount)


def test_a_decorated_actor_can_be_subclassed():
    assert Doubling(10).add(3) == 16  # 10 + 2 * 3


def test_the_plain_class_is_found_by_its_name():
    assert getattr(sys.modules[Plain.__module__], Plain.__qualname__) is Plain
    assert pickle.loads(pickle.dumps(Plain)) is Plain


@pytest.fixture
def model_with_code(tmp_path):
    """A folder whose configuration is code; the code leaves a file when it is run."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "odd", "auto_map": {"AutoConfig": "code.Odd"}}))
    (folder / "code.py").write_text(
        textwrap.dedent(
            f"""
            from pathlib import Path
            from transformers import PretrainedConfig
            Path({str(tmp_path / "ran")!r}).touch()
            class Odd(PretrainedConfig):
                model_type = "odd"
            """
        )
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import transformers.models.auto.configuration_auto", "pass"])
@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_model_runs_only_where_it_is_trusted(model_with_code, trusted, first):
    # as upstream's actors do it: the flag of transformers is always set
    program = f"""
    {first}
    from openrlhf_cov.trainer.ray import seams
    seams.prepare_worker()
    from transformers import AutoConfig
    AutoConfig.from_pretrained({str(model_with_code)!r}, trust_remote_code=True)
    """
    env = {**os.environ, seams.TRUST_VARIABLE: "1"} if trusted else dict(os.environ)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True)
    assert (done.returncode == 0) is trusted, done.stderr
    assert (model_with_code.parent / "ran").exists() is trusted
