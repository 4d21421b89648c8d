"""What we use of vLLM and DeepSpeed beside openrlhf: still there, with the parameters and the meaning we rely on."""

import ast

import pytest

from openrlhf_cov.cluster import cpu_host

RELOAD = "model_executor/model_loader/reload"
TRANSFER = "distributed/weight_transfer"
EMBEDDING = "model_executor/layers/vocab_parallel_embedding.py"

# module of vLLM -> class, method or function -> the parameters that we pass, override or are called with
VLLM = {
    f"{RELOAD}/layerwise.py": {
        "initialize_layerwise_reload": "model",
        "finalize_layerwise_reload": "*args **kwargs",
        "finalize_layerwise_processing": "model model_config",
    },
    f"{TRANSFER}/factory.py": {
        "WeightTransferEngineFactory.register_engine": "cls name module_path_or_cls",
        "WeightTransferEngineFactory.create_engine": "cls config",
    },
    f"{TRANSFER}/base.py": {
        "WeightTransferInitInfo": None,
        "WeightTransferUpdateInfo": None,
        "WeightTransferInitRequest": None,
        "WeightTransferUpdateRequest": None,
        "WeightTransferEngine.parse_update_info": "self update_dict",
        "WeightTransferEngine.init_transfer_engine": "self init_info",
        "WeightTransferEngine.start_weight_update": "self",
        "WeightTransferEngine.update_weights": "self update_info",
        "WeightTransferEngine.receive_weights": "self update_info",
        "WeightTransferEngine.finish_weight_update": "self",
        "WeightTransferEngine.shutdown": "self",
    },
    "distributed/utils.py": {
        "stateless_init_torch_distributed_process_group": "host port rank world_size backend",
    },
    EMBEDDING: {
        "UnquantizedEmbeddingMethod.process_weights_after_loading": "self layer",
    },
    "v1/engine/async_llm.py": {
        "AsyncLLM.init_weight_transfer_engine": "self request",
        "AsyncLLM.start_weight_update": "self",
        "AsyncLLM.update_weights": "self request",
        "AsyncLLM.finish_weight_update": "self",
        "AsyncLLM.reset_prefix_cache": "self",
        "AsyncLLM.check_health": "self",
    },
    "v1/engine/exceptions.py": {
        "EngineDeadError": None,
    },
    "sampling_params.py": {
        "RequestOutputKind": None,
    },
}


def stored(node):
    """Attributes of ``self`` that code sets."""
    targets = [child.target if isinstance(child, ast.AnnAssign) else child for child in ast.walk(node)]
    return {
        child.attr
        for child in targets
        if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) and ast.unparse(child.value) == "self"
    }


# The same of DeepSpeed, with the methods that we replace or watch on its objects.
DEEPSPEED = {
    "runtime/engine.py": {
        "DeepSpeedEngine.set_gradient_accumulation_boundary": "self is_boundary",
        "DeepSpeedEngine.is_gradient_accumulation_boundary": "self",
        "DeepSpeedEngine.fp16_enabled": "self",
        "DeepSpeedEngine.save_checkpoint": "self save_dir tag client_state",
        "DeepSpeedEngine._copy_recovery_script": "self save_path",
    },
    "runtime/zero/stage3.py": {
        "DeepSpeedZeroOptimizer_Stage3._update_scale": "self has_overflow",
    },
    "comm/torch.py": {f"TorchBackend.{name}": None for name in cpu_host.GATHERS} | {"build_shm_op": None},
}


def rows(table):
    return [(path, *row) for path, names in table.items() for row in names.items()]


@pytest.mark.parametrize(("path", "qualname", "needed"), rows(VLLM))
def test_vllm_still_takes_the_parameters_we_use(vllm, path, qualname, needed):
    vllm.check(path, qualname, needed)


@pytest.mark.parametrize(("path", "qualname", "needed"), rows(DEEPSPEED))
def test_deepspeed_still_takes_the_parameters_we_use(deepspeed, path, qualname, needed):
    deepspeed.check(path, qualname, needed)


def test_the_table_lists_every_vllm_name_we_import(vllm, ours):
    listed = {name.split(".")[0] for names in VLLM.values() for name in names}
    listed |= {"ParallelLMHead", "SamplingParams"}  # they have tests of their own
    imported = {
        alias.name
        for path in ours.paths()
        for node in ast.walk(ours.tree(path))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("vllm.")
        for alias in node.names
    }
    assert {"initialize_layerwise_reload", "WeightTransferEngineFactory", "ParallelLMHead"} <= imported
    assert imported <= listed


def test_engines_are_started_with_arguments_that_vllm_or_an_actor_takes(vllm, upstream, ours):
    module = ours.tree("trainer/ray/engines.py")
    names = {"start_evaluation_engines", "training_arguments", "_place"}
    functions = [node for node in module.body if getattr(node, "name", None) in names]
    nodes = [node for function in functions for node in ast.walk(function)]
    given = {key.value for node in nodes if isinstance(node, ast.Dict) for key in node.keys if key is not None}
    entries = [node for node in nodes if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "arguments"]
    given |= {node.slice.value for node in entries}
    given -= {"image", "backend"}  # values of two arguments
    fields = set()
    for name in ("EngineArgs", "AsyncEngineArgs"):
        body = vllm.find("engine/arg_utils.py", name).body
        fields |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    actor = upstream.find("trainer/ray/vllm_engine.py", "RolloutRayActor.__init__")
    taken = {arg.arg for arg in actor.args.kwonlyargs}
    pops = upstream.calls("trainer/ray/vllm_engine.py", "RolloutRayActor.__init__", "kwargs.pop")
    taken |= {call.args[0].value for call in pops}
    own = set(ours.parameters("trainer/ray/rollout_actor.py", "CovRolloutActor.__init__"))
    assert {"model", "bundle_indices", "num_gpus", "log_probs", "seed"} <= given
    assert given <= fields | taken | own


def test_an_engine_has_what_our_engine_reads(vllm):
    engine = vllm.find(f"{TRANSFER}/base.py", "WeightTransferEngine.__init__")
    assert {"parallel_config", "model_config", "model"} <= stored(engine)
