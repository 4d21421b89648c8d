"""The engines of a run: their arguments and their places. Upstream's ``create_vllm_engines`` is the oracle."""

import inspect
import sys
from types import SimpleNamespace

import pytest
import ray
from openrlhf.trainer.ray import vllm_engine
from run_flags import run_flags

from openrlhf_cov.cluster import connection
from openrlhf_cov.cluster.connection import Needs
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer.ray import engines
from openrlhf_cov.trainer.ray.engines import training_arguments
from openrlhf_cov.trainer.weights import weight_receiver, weight_transfer


def flags(limits=(), **changes):
    return run_flags({"actor.model_name_or_path": "model", "data.max_len": 10_240, "train.seed": 7,
                      "vllm.gpu_memory_utilization": 0.9} | dict(limits) | changes)  # fmt: skip


@pytest.fixture
def on_gpus(monkeypatch):
    monkeypatch.setattr(engines.cpu_host, "is_cpu_host", lambda: False)


class RecordingRay:
    """Stands in for Ray's placement groups and for the actor class of the engines.

    ``started`` has (options of the actor, its arguments) of every engine; ``reserved`` the bundles of every group.
    """

    def __init__(self, monkeypatch):
        self.started, self.reserved, self.slept = [], [], []
        monkeypatch.setattr(ray, "get", lambda value: value)
        for module in (vllm_engine, connection):
            monkeypatch.setattr(module, "placement_group", self.reserve)
        for module in (vllm_engine, engines):
            monkeypatch.setattr(module, "PlacementGroupSchedulingStrategy", lambda **strategy: strategy)
            # bundles are on two nodes in turn, and those of a node in no order
            monkeypatch.setattr(module, "get_bundle_indices", self.bundles)
        monkeypatch.setattr(vllm_engine, "RolloutRayActor", self)
        monkeypatch.setattr(engines.ray, "remote", lambda actor_class: self)

    def reserve(self, bundles, strategy):
        assert strategy == "PACK"
        self.reserved.append(bundles)
        return SimpleNamespace(ready=lambda: "ready", number=len(self.reserved))

    @staticmethod
    def bundles(group, index, length):
        return [4, 6, 0, 2, 1, 3, 5, 7][index * length : (index + 1) * length]

    def options(self, **options):
        def remote(**arguments):
            options["scheduling_strategy"]["placement_group"] = options["scheduling_strategy"][
                "placement_group"
            ].number
            self.started.append((options, arguments))
            number = len(self.started)
            return SimpleNamespace(sleep=SimpleNamespace(remote=lambda: self.slept.append(number)))

        return SimpleNamespace(remote=remote)


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


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(("number", "parallel"), [(1, 1), (3, 1), (2, 4)])
def test_engines_are_placed_with_upstreams_arguments_and_ours(monkeypatch, number, parallel, is_shared):
    args = flags(**{
        "ds.param_dtype": "fp32", "vllm.num_engines": number, "vllm.tensor_parallel_size": parallel,
        "vllm.enforce_eager": "eager", "vllm.enable_prefix_caching": "prefixes", "vllm.enable_sleep": is_shared,
        "train.full_determinism_enable": "deterministic", "train.agent_func_path": "agent.py",
    })  # fmt: skip
    shared = SimpleNamespace(number="shared") if is_shared else None
    theirs, ours = RecordingRay(monkeypatch), RecordingRay(monkeypatch)
    monkeypatch.setattr(vllm_engine, "RolloutRayActor", theirs)
    monkeypatch.setattr(vllm_engine, "placement_group", theirs.reserve)
    vllm_engine.create_vllm_engines(
        number, parallel, "model", 7, "deterministic", "prefixes", "eager", 10_240, shared, 0.9, is_shared,
        "processed_logprobs", agent_func_path="agent.py", remote_rm_url=["reward.py"],
    )  # fmt: skip
    handles = engines.start_engines(args, shared)
    assert ours.started == [(options, arguments | OURS) for options, arguments in theirs.started]
    assert len(handles) == number
    assert ours.reserved == theirs.reserved == ([] if is_shared else [[{"GPU": 1, "CPU": 1}] * number * parallel])
    assert ours.slept == theirs.slept == (list(range(1, number + 1)) if is_shared else [])


@pytest.mark.usefixtures("on_gpus")
def test_images_get_a_limit_and_the_tokens_of_their_places(monkeypatch):
    arguments = training_arguments(flags())
    assert "limit_mm_per_prompt" not in arguments
    assert arguments["mm_pad_token_ids"] == set()
    processors = []

    def processor(model, trust_remote_code):
        processors.append((model, trust_remote_code))
        return SimpleNamespace(image_token_id=151655, video_token_id=None)

    monkeypatch.setattr(engines.AutoProcessor, "from_pretrained", processor)
    arguments = training_arguments(flags(**{"data.max_images_per_prompt": 3}))
    assert arguments["limit_mm_per_prompt"] == {"image": 3}
    assert arguments["mm_pad_token_ids"] == {151655}
    assert processors == [("model", False)]


@pytest.mark.parametrize("is_asked", [False, True])
def test_engines_of_the_run_before_are_taken_where_a_study_keeps_them(monkeypatch, is_asked):
    recording, taken = RecordingRay(monkeypatch), []
    monkeypatch.setattr(engines.warm_engines, "are_kept", lambda args: is_asked)
    monkeypatch.setattr(engines.warm_engines, "engine", lambda kind, arguments: taken.append(arguments) or "warm")
    handles = engines.start_engines(flags(), None)
    assert (handles == ["warm"] * 2) is is_asked
    assert len(recording.started) == (0 if is_asked else 2)
    assert [arguments["seed"] for arguments in taken] == ([7, 8] if is_asked else [])
    assert len(recording.reserved) == 1  # their GPUs are booked for the run in either case


@pytest.mark.usefixtures("on_gpus")
def test_engines_of_an_evaluation_get_no_reward_and_no_weights(monkeypatch):
    theirs, ours = RecordingRay(monkeypatch), RecordingRay(monkeypatch)
    monkeypatch.setattr(vllm_engine, "RolloutRayActor", theirs)
    monkeypatch.setattr(vllm_engine, "placement_group", theirs.reserve)
    vllm_engine.create_vllm_engines(2, 1, "model", 7, False, True, False, 512, gpu_memory_utilization=0.8)
    engines.start_evaluation_engines(
        "model", num_engines=2, tensor_parallel_size=1, max_model_len=512, dtype="fp32", gpu_memory_utilization=0.8,
        enforce_eager=False, seed=7, trust_remote_code=False, max_num_seqs=64,
    )  # fmt: skip
    settings = {name: OURS[name] for name in ("dtype", "trust_remote_code", "reward_config", "disable_log_stats")}
    settings |= {"worker_extension_cls": "", "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    assert ours.started == [(options, arguments | settings) for options, arguments in theirs.started]
    assert ours.reserved == theirs.reserved


@pytest.mark.parametrize(("gpus", "count", "parallel"), [(1, 1, 1), (3, 3, 1), (4, 1, 4), (8, 2, 4)])
def test_an_engine_needs_a_gpu_for_each_of_its_parts(gpus, count, parallel):
    needs = engines.needs_of_engines(count, parallel)
    assert needs == Needs(
        [{"GPU": 1.0, "CPU": 1.0}] * gpus,
        training_processes=1,
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
    monkeypatch.setattr(engines.cpu_host, "is_cpu_host", lambda: on_cpu)
    arguments = training_arguments(flags(limits))
    assert (arguments.get("max_num_seqs"), arguments.get("max_num_batched_tokens")) == (sequences, tokens)


@pytest.mark.parametrize(("memory", "name"), [(80, "nvidia h100"), (40, "nvidia a100"), (180, "nvidia b200")])
def test_vllm_has_no_defaults_for_engines_of_upstreams_kind(monkeypatch, memory, name):
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
    arguments = training_arguments(flags(**{"vllm.sync_backend": "gloo"}))
    module, name = arguments["worker_extension_cls"].rsplit(".", 1)
    assert getattr(sys.modules[module], name) is weight_receiver.GlooWorkerExtension
    assert arguments["weight_transfer_config"] == {"backend": weight_transfer.BACKEND}
    assert "weight_transfer_config" not in training_arguments(flags())
