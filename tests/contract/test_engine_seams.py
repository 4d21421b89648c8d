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


@pytest.mark.parametrize(
    ("path", "qualname", "needed"), [(path, *row) for path, names in VLLM.items() for row in names.items()]
)
def test_vllm_still_takes_the_parameters_we_use(vllm, path, qualname, needed):
    vllm.check(path, qualname, needed)


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


def test_the_reload_package_gives_out_both_ends_of_a_reload(vllm):
    (source,) = (
        node
        for node in vllm.tree(f"{RELOAD}/__init__.py").body
        if isinstance(node, ast.ImportFrom) and node.module == "layerwise"
    )
    assert {"initialize_layerwise_reload", "finalize_layerwise_reload"} <= {alias.name for alias in source.names}
    end = vllm.find(f"{RELOAD}/layerwise.py", "finalize_layerwise_reload")
    assert ast.unparse(end.body[-1]) == "finalize_layerwise_processing(*args, **kwargs)"


def test_the_factory_takes_a_class_and_makes_it_by_its_name(vllm):
    register = ast.unparse(vllm.find(f"{TRANSFER}/factory.py", "WeightTransferEngineFactory.register_engine"))
    assert "cls._registry[name] = lambda: engine_cls" in register
    create = ast.unparse(vllm.find(f"{TRANSFER}/factory.py", "WeightTransferEngineFactory.create_engine"))
    assert "backend = config.backend" in create
    assert "cls._registry[backend]" in create


def test_an_engine_has_what_our_engine_reads(vllm):
    engine = vllm.find(f"{TRANSFER}/base.py", "WeightTransferEngine.__init__")
    assert {"parallel_config", "model_config", "model"} <= stored(engine)


def test_the_output_head_keeps_the_method_that_packs_its_weight(vllm):
    head = vllm.find(EMBEDDING, "ParallelLMHead")
    assert [ast.unparse(base) for base in head.bases] == ["VocabParallelEmbedding"]
    assert "quant_method" in stored(vllm.find(EMBEDDING, "VocabParallelEmbedding.__init__"))


def test_vllm_makes_another_process_on_the_cpu_for_the_short_name_alone(vllm):
    module, name = cpu_host.ONE_PROCESS.removeprefix("vllm.").rsplit(".", 1)
    assert vllm.find(f"{module.replace('.', '/')}.py", name)
    platform = ast.unparse(vllm.find("platforms/cpu.py", "CpuPlatform.check_and_update_config"))
    assert "and parallel_config.distributed_executor_backend == 'uni'" in platform
    assert platform.count("distributed_executor_backend") == 2  # asked for there, and set to mp
    chosen = ast.unparse(vllm.find("v1/executor/abstract.py", "Executor.get_class"))
    assert "executor_class = resolve_obj_by_qualname(distributed_executor_backend)" in chosen


ENGINE = "runtime/engine.py"


def test_deepspeed_takes_the_boundary_we_set(deepspeed):
    method = (ENGINE, "DeepSpeedEngine.set_gradient_accumulation_boundary")
    assert deepspeed.parameters(*method) == ["self", "is_boundary"]
    assert "self._is_gradient_accumulation_boundary = is_boundary" in ast.unparse(deepspeed.find(*method))


def test_deepspeed_counts_micro_batches_where_no_boundary_was_set(deepspeed):
    counted = ast.unparse(deepspeed.find(ENGINE, "DeepSpeedEngine.is_gradient_accumulation_boundary"))
    assert "return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0" in counted
    assert "self.micro_steps += 1" in ast.unparse(deepspeed.find(ENGINE, "DeepSpeedEngine.step"))


def test_zero_3_asks_for_an_overflow_after_it_moved_its_scale_and_keeps_its_gradients_in_one_buffer(deepspeed):
    stage3 = ("runtime/zero/stage3.py", "DeepSpeedZeroOptimizer_Stage3")
    check = ast.unparse(deepspeed.find(stage3[0], f"{stage3[1]}._overflow_check_and_loss_scale_update"))
    assert 0 < check.find("self._update_scale(self.overflow)") < check.find("if self.overflow:")
    assert "grad_partitions_flat_buffer" in stored(deepspeed.find(*stage3))
    looks = ast.unparse(deepspeed.find(stage3[0], f"{stage3[1]}.has_overflow"))
    assert "torch.isnan(self.grad_partitions_flat_buffer)" in looks  # what DeepSpeed itself looks at, at fp16


def test_deepspeed_keeps_the_optimizer_under_its_own(deepspeed):
    assert "self.basic_optimizer = basic_optimizer" in ast.unparse(
        deepspeed.find(ENGINE, "DeepSpeedEngine._configure_optimizer")
    )


def test_deepspeed_counts_every_update_once(deepspeed):
    counted = [
        node
        for node in ast.walk(deepspeed.find(ENGINE, "DeepSpeedEngine"))
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "self.global_steps"
    ]
    assert [ast.unparse(node) for node in counted] == ["self.global_steps += 1"]
    assert counted[0] in ast.walk(deepspeed.find(ENGINE, "DeepSpeedEngine._take_model_step"))
    step = deepspeed.find(ENGINE, "DeepSpeedEngine.step")
    (at_the_boundary,) = (
        node
        for node in step.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "self.is_gradient_accumulation_boundary()"
    )
    calls = deepspeed.calls(ENGINE, "DeepSpeedEngine.step", "self._take_model_step")
    assert calls
    assert all(call in ast.walk(at_the_boundary) for call in calls)


def test_an_engine_says_that_its_core_died(vllm):
    asked = ast.unparse(vllm.find("v1/engine/async_llm.py", "AsyncLLM.check_health"))
    assert "if self.errored:\n        raise self.dead_error" in asked
    assert "EngineDeadError()" in ast.unparse(vllm.find("v1/engine/async_llm.py", "AsyncLLM.dead_error"))


def test_deepspeed_takes_an_optimizer_that_skipped_for_one_that_did(deepspeed):
    step = ast.unparse(deepspeed.find(ENGINE, "DeepSpeedEngine._take_model_step"))
    asked, cleared, read = (
        step.find(code) for code in ("self.optimizer.step()", "zero_grad()", "overflow = self.optimizer.overflow")
    )
    assert 0 < asked < cleared < read < step.find("self.skipped_steps += 1") < step.find("self.lr_scheduler.step")
    assert deepspeed.parameters(ENGINE, "DeepSpeedEngine.fp16_enabled") == ["self"]


@pytest.mark.parametrize(
    ("path", "optimizer"),
    [
        ("bf16_optimizer.py", "BF16_Optimizer"),
        ("fp16/fused_optimizer.py", "FP16_Optimizer"),
        ("fp16/unfused_optimizer.py", "FP16_UnfusedOptimizer"),
    ],
)
def test_optimizers_that_we_let_check_have_no_switch_for_it(deepspeed, path, optimizer):
    code = ast.unparse(deepspeed.find(f"runtime/{path}", optimizer))
    assert "check_grad_overflow" not in code
    assert "grad_partitions_flat_buffer" not in code


def test_deepspeed_writes_checkpoints_by_the_methods_that_we_watch(deepspeed):
    # between them and the end of a save there are collectives, which every rank has to reach
    for method in ("_save_checkpoint", "_save_zero_checkpoint", "_save_moe_checkpoint"):
        assert deepspeed.calls(ENGINE, f"DeepSpeedEngine.{method}", "self.checkpoint_engine.save")
    assert len(deepspeed.calls(ENGINE, "DeepSpeedEngine._save_zero_checkpoint", "self._copy_recovery_script")) == 1
    save = deepspeed.find(ENGINE, "DeepSpeedEngine.save_checkpoint")
    assert [ast.unparse(node) for node in save.body[-2:]] == ["dist.barrier()", "return True"]


def test_zero_3_gathers_by_the_functions_that_we_finish(deepspeed):
    # which also says that there is still a reason: it waits for the last of its gathers
    partition = deepspeed.find("runtime/zero/partition_parameters.py", "_dist_allgather_fn")
    assert "dist.allgather_fn" in ast.unparse(partition)
    assert "all_gather_into_tensor(" in ast.unparse(deepspeed.find("comm/comm.py", "allgather_fn"))
    for name in cpu_host.GATHERS:
        assert f"cdb.{name}(" in ast.unparse(deepspeed.find("comm/comm.py", name))
        assert deepspeed.find("comm/torch.py", f"TorchBackend.{name}")
    several = deepspeed.find("runtime/zero/partition_parameters.py", "Init._allgather_params_coalesced")
    assert "launch_handles[-1].wait()" in ast.unparse(several)


def test_deepspeed_asks_for_the_shared_memory_op_where_we_answer(deepspeed):
    build = ast.unparse(deepspeed.find("comm/torch.py", "build_shm_op"))
    assert "builder is None or not deepspeed.ops.__compatible_ops__.get(builder.NAME, False)" in build
    assert "NAME = 'deepspeed_shm_comm'" in ast.unparse(
        deepspeed.find("ops/op_builder/cpu/comm.py", "ShareMemCommBuilder")
    )
    instead = ast.unparse(deepspeed.find("comm/torch.py", "TorchBackend.inference_all_reduce"))
    assert "if not use_ds_op:" in instead
    assert "torch.distributed.all_reduce(tensor=tensor" in instead
