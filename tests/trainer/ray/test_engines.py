"""The engines of a run: their arguments and their places. Upstream's ``create_vllm_engines`` is the oracle."""

import inspect
import sys

import pytest
from openrlhf.trainer.ray import vllm_engine
from played_cluster import Group, PlayedCluster
from run_flags import run_flags
from vllm.config import SchedulerConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.connection import Needs
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer.ray import engines
from openrlhf_cov.trainer.ray.engines import training_arguments
from openrlhf_cov.trainer.weights import weight_receiver, weight_transfer
from openrlhf_cov.utils.engine_limits import VLLM_LIMITS, EngineLimits


def flags(limits=(), **changes):
    return run_flags({"actor.model_name_or_path": "model", "data.max_len": 10_240, "train.seed": 7,
                      "vllm.gpu_memory_utilization": 0.9} | dict(limits) | changes)  # fmt: skip


@pytest.fixture
def clusters(monkeypatch, gpu_host):
    """Function (start) -> what ``start`` did on a cluster: its engines, and the placement groups."""

    def run(start):
        cluster = PlayedCluster(monkeypatch)
        start()
        ((kind, started),) = cluster.started.items()
        slept = [number for *of, number, method, _ in cluster.calls if of == [kind] and method == "sleep"]
        return started, cluster.reserved, slept

    return run


OURS = {
    # upstream always generates in bfloat16, trusts every model, and asks for log-probs with its correction alone
    "dtype": "float32",
    "trust_remote_code": False,
    "log_probs": True,
    "reward_config": RewardConfig(),
    "disable_log_stats": True,
    "max_num_seqs": 1024,
    "max_num_batched_tokens": 8192,
}


@pytest.mark.parametrize("shared", [None, Group(9)])
@pytest.mark.parametrize(("number", "parallel"), [(1, 1), (3, 1), (2, 4)])
def test_engines_are_placed_with_upstreams_arguments_and_ours(clusters, number, parallel, shared):
    sleeps = shared is not None
    args = flags(**{
        "ds.param_dtype": "fp32", "vllm.num_engines": number, "vllm.tensor_parallel_size": parallel,
        "vllm.enforce_eager": "eager", "vllm.enable_prefix_caching": "prefixes", "vllm.enable_sleep": sleeps,
        "train.full_determinism_enable": "deterministic", "train.agent_func_path": "agent.py",
    })  # fmt: skip
    theirs, reserved, slept = clusters(
        lambda: vllm_engine.create_vllm_engines(
            number, parallel, "model", 7, "deterministic", "prefixes", "eager", 10_240, shared, 0.9, sleeps,
            "processed_logprobs", agent_func_path="agent.py", remote_rm_url=["reward.py"],
        )
    )  # fmt: skip
    expected = [each._replace(arguments=each.arguments | OURS | {"computing": number}) for each in theirs]
    assert clusters(lambda: engines.start_engines(args, shared)) == (expected, reserved, slept)
    assert len(theirs) == number
    assert [each.arguments["seed"] for each in theirs] == [7 + place for place in range(number)]


def test_engines_of_an_evaluation_get_no_reward_and_no_weights(clusters):
    theirs, reserved, _ = clusters(
        lambda: vllm_engine.create_vllm_engines(2, 1, "model", 7, False, True, False, 512, gpu_memory_utilization=0.8)
    )
    ours, our_reserved, _ = clusters(
        lambda: engines.start_evaluation_engines(
            "model", num_engines=2, tensor_parallel_size=1, max_model_len=512, dtype="fp32",
            gpu_memory_utilization=0.8, enforce_eager=False, seed=7, trust_remote_code=False, max_num_seqs=64,
        )
    )  # fmt: skip
    settings = {name: OURS[name] for name in ("dtype", "trust_remote_code", "reward_config", "disable_log_stats")}
    settings |= {"worker_extension_cls": "", "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    settings |= {"computing": 2}
    assert ours == [each._replace(arguments=each.arguments | settings) for each in theirs]
    assert our_reserved == reserved


class Processor:
    """The processor of a vision-language model that knows images and no videos."""

    image_token_id = 151655
    video_token_id = None

    @classmethod
    def from_pretrained(cls, model, trust_remote_code):
        assert (model, trust_remote_code) == ("model", False)
        return cls()


def test_images_get_a_limit_and_the_tokens_of_their_places(monkeypatch):
    arguments = training_arguments(flags())
    assert "limit_mm_per_prompt" not in arguments
    assert arguments["mm_pad_token_ids"] == set()
    monkeypatch.setattr(engines, "AutoProcessor", Processor)
    arguments = training_arguments(flags(**{"data.max_images_per_prompt": 3}))
    assert arguments["limit_mm_per_prompt"] == {"image": 3}
    assert arguments["mm_pad_token_ids"] == {151655}


@pytest.mark.parametrize(("gpus", "count", "parallel"), [(1, 1, 1), (3, 3, 1), (4, 1, 4), (8, 2, 4)])
def test_an_engine_needs_a_gpu_for_each_of_its_parts(gpus, count, parallel):
    assert engines.needs_of_engines(count, parallel) == Needs(
        [{"GPU": 1.0, "CPU": 1.0}] * gpus,
        way_out="lower --num_engines or --tensor_parallel_size",
    )


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
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: on_cpu)
    arguments = training_arguments(flags(limits))
    assert (arguments.get("max_num_seqs"), arguments.get("max_num_batched_tokens")) == (sequences, tokens)


# With two engines, both generate at once; in asynchronous training, the models train meanwhile.
@pytest.mark.parametrize(
    ("number", "is_async", "expected"), [(1, False, 1), (2, False, 2), (1, True, 2), (2, True, 4)]
)
def test_engines_know_how_many_processes_compute_at_once(number, is_async, expected):
    arguments = training_arguments(flags(**{"vllm.num_engines": number, "train.async_enable": is_async}))
    assert arguments["computing"] == expected


def test_vllm_has_no_other_defaults_for_engines_of_upstreams_kind():
    context = inspect.signature(AsyncLLM.from_engine_args).parameters["usage_context"].default
    tokens, sequences = EngineArgs.get_batch_defaults(1)
    assert context is UsageContext.ENGINE_CONTEXT
    assert context not in tokens.keys() | sequences.keys()
    defaults = SchedulerConfig.DEFAULT_MAX_NUM_SEQS, SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS
    assert EngineLimits(*defaults) == VLLM_LIMITS


def test_gloo_gives_the_engine_our_weight_transfer():
    arguments = training_arguments(flags(**{"vllm.sync_backend": "gloo"}))
    module, name = arguments["worker_extension_cls"].rsplit(".", 1)
    assert getattr(sys.modules[module], name) is weight_receiver.GlooWorkerExtension
    assert arguments["weight_transfer_config"] == {"backend": weight_transfer.BACKEND}
    assert "weight_transfer_config" not in training_arguments(flags())
