"""What we rely on inside of the functions of upstream that we call, beyond their parameters."""

import ast
import inspect
import re

import pytest
import ray
from transformers import dynamic_module_utils
from transformers.models.auto import auto_factory, configuration_auto, processing_auto, tokenization_auto
from upstream_uses import methods_of

LAUNCHER = "trainer/ray/launcher.py"
ACTOR = "trainer/ray/ppo_actor.py"
STRATEGY = "utils/deepspeed/deepspeed.py"


def local_imports(node):
    """Return [(name, module.original)] of the import statements below a node."""
    found = (child for child in ast.walk(node) if isinstance(child, ast.ImportFrom))
    return [(alias.asname or alias.name, f"{child.module}.{alias.name}") for child in found for alias in child.names]


def arguments(call):
    """Return (positional arguments, keyword names) as written; ``**x`` is the keyword None."""
    return [ast.unparse(arg) for arg in call.args], [keyword.arg for keyword in call.keywords]


# -- Groups of ranks: trainer/build.py, trainer/model_groups.py, trainer/ray/roles.py


def test_a_group_makes_its_ranks_with_the_arguments_of_our_roles(upstream, ours):
    made = [
        node
        for node in ast.walk(upstream.find(LAUNCHER, "RayActorGroup._initiate_actors"))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "remote" and len(node.args) == 4
    ]
    assert [arguments(call)[0][0] for call in made] == ["world_size"] * 4
    assert ours.parameters("trainer/ray/roles.py", "ModelRole.__init__") == [
        *("self", "world_size", "rank", "master_addr", "master_port")
    ]
    code = ast.unparse(upstream.find(LAUNCHER, "RayActorGroup._initiate_actors"))
    assert "self.ray_actor_type.options(num_cpus=num_gpus_per_actor, num_gpus=num_gpus_per_actor" in code
    # Rank 0 comes first in the list, the others follow by rank: the first answer of a call is that of rank 0.
    assert "self._actor_handlers = [master_actor]" in code
    assert code.count("self._actor_handlers.append(worker_actor)") == 1


def test_batches_of_a_group_are_dealt_and_answered_in_order(upstream):
    # ``ModelGroups._results`` takes the answers of every ``duplicate_actors``-th rank, one list after another.
    dealt = ast.unparse(upstream.find(LAUNCHER, "RayActorGroup.async_run_method_batch"))
    for line in (
        "chunk_data = {key: value[start_idx:end_idx] for key, value in kwargs.items()}",
        "actor_idx = chunk_idx * self.duplicate_actors + j",
        "refs.append(actor.execute_batch.remote(method_name, chunk_ref, 0, end_idx - start_idx))",
    ):
        assert line in dealt
    answered = ast.unparse(upstream.find(LAUNCHER, "BaseModelActor.execute_batch"))
    assert "func = getattr(self, method_name)" in answered
    assert "for i in tqdm(range(list_length)" in answered
    assert "sample_kwargs = {param_name: param_value[i] for param_name, param_value in kwargs.items()}" in answered
    assert answered.endswith("results.append(result)\n    return results")


def test_a_rank_joins_its_process_group_through_the_strategy(upstream):
    code = ast.unparse(upstream.find(LAUNCHER, "BaseModelActor._setup_distributed"))
    assert code.splitlines()[1:] == ["    self.strategy = strategy", "    strategy.setup_distributed()"]


def test_the_class_under_rays_decorator_can_be_read(upstream):
    # ``plain_class`` reads it off the metadata, because Ray refuses to subclass the decorated class.
    (decorator,) = upstream.find("trainer/ray/vllm_engine.py", "RolloutRayActor").decorator_list
    assert ast.unparse(decorator) == "ray.remote"

    class Plain:
        pass

    assert ray.remote(Plain).__ray_metadata__.modified_class.__ray_actor_class__ is Plain


# -- The strategy: trainer/model_loading.py, trainer/policy.py, trainer/critic_update.py


def test_a_model_for_training_is_prepared_with_every_setting_that_upstream_reads(upstream, ours):
    code = ast.unparse(upstream.find(STRATEGY, "DeepspeedStrategy._ds_init_train_model"))
    read = set(re.findall(r"cfg\['(\w+)'\]", code)) | set(re.findall(r"cfg\.get\('(\w+)'", code))
    settings = ours.find("trainer/model_loading.py", "_optimizer_settings")
    (written,) = (node.value for node in ast.walk(settings) if isinstance(node, ast.Return))
    assert {key.value for key in written.keys} == read
    prepared = ast.unparse(upstream.find(STRATEGY, "DeepspeedStrategy.prepare"))
    assert "model, cfg = arg" in prepared
    assert prepared.endswith("return ret[0] if len(ret) == 1 else ret")
    # A model that is never trained says itself whether its weights wait on the host.
    scored = ast.unparse(upstream.find(STRATEGY, "DeepspeedStrategy._ds_init_eval_model"))
    assert "getattr(model, '_offload', False)" in scored


def test_backward_and_step_need_no_optimizer(upstream):
    for method, last in (("backward", "model.backward(loss)"), ("optimizer_step", "model.step()")):
        function = upstream.find(STRATEGY, f"DeepspeedStrategy.{method}")
        assert ast.unparse(function.body[-1]) == last
        loaded = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        assert not loaded & {"_optimizer", "_scheduler"}


def test_the_moving_average_counts_micro_batches_unless_batches_are_dynamic(upstream):
    code = ast.unparse(upstream.find(STRATEGY, "DeepspeedStrategy.moving_average"))
    assert "if self.time_steps['ema'] % self.accumulated_gradient == 0 or self.use_dynamic_batch:" in code


# -- Models and losses: trainer/policy.py, trainer/losses.py, models/loss.py


def test_the_actor_returns_log_probs_and_an_output_with_entropy(upstream):
    forward = upstream.find("models/actor.py", "Actor.forward")
    assert "setattr(output, 'entropy', entropy[:, :-1])" in ast.unparse(forward)
    assert ast.unparse(forward.body[-1]) == "return (action_log_probs, output) if return_output else action_log_probs"


def test_the_policy_is_called_with_what_upstreams_update_passes(upstream, ours):
    (theirs,) = upstream.calls(ACTOR, "ActorPPOTrainer.training_step", "self.actor")
    for method in ("Policy.forward", "Policy.score"):
        (call,) = ours.calls("trainer/policy.py", method, "self.actor")
        assert len(arguments(call)[0]) == len(arguments(theirs)[0]) == 2
        assert set(arguments(call)[1]) <= set(arguments(theirs)[1])


def test_the_policy_loss_returns_five_numbers(upstream):
    (returned,) = (
        node.value
        for node in ast.walk(upstream.find("models/loss.py", "PolicyLoss.forward"))
        if isinstance(node, ast.Return)
    )
    assert len(returned.elts) == 5


def test_penalties_need_no_more_of_a_batch_than_we_give(upstream, ours):
    module = upstream.tree("trainer/ppo_utils/length_penalty.py")
    read = {
        node.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "experience"
    }
    (given,) = ours.calls("trainer/advantages.py", "penalised_rewards", "SimpleNamespace")
    assert read <= set(arguments(given)[1])


# -- Weights: trainer/ray/upstream_sender.py


def test_upstreams_actor_sends_weights_as_ours_does(upstream, ours):
    # It makes the trainer once, when it loads the policy, and calls this method for every transfer.
    send = upstream.find(ACTOR, "PolicyModelActor.broadcast_to_vllm")
    assert ast.unparse(send.body[-1]) == "self.trainer.broadcast_to_vllm()"
    (made,) = upstream.calls(ACTOR, "PolicyModelActor.init_model_from_pretrained", "ActorPPOTrainer")
    (our_call,) = ours.calls("trainer/ray/upstream_sender.py", "make_upstream_sender", "ActorPPOTrainer")
    assert sorted(arguments(our_call)[1]) == sorted(arguments(made)[1])


def test_upstreams_sender_needs_what_it_is_made_with_and_the_flags(upstream):
    code = ast.unparse(upstream.find(ACTOR, "ActorPPOTrainer.broadcast_to_vllm"))
    used = set(re.findall(r"self\.(\w+)", code))
    assert used == {"strategy", "vllm_engines", "actor", "_model_update_group", "use_cuda_ipc"}


def test_upstreams_sender_calls_methods_that_our_engine_actor_inherits(upstream):
    trainer = upstream.find(ACTOR, "ActorPPOTrainer")
    called = set(re.findall(r"engine\.(\w+)\.remote", ast.unparse(trainer)))
    assert called == {"init_process_group", "reset_prefix_cache", "update_weight", "update_weight_cuda_ipc"}
    assert called <= methods_of(upstream.find("trainer/ray/vllm_engine.py", "RolloutRayActor")).keys()


def test_the_constructor_of_the_sender_joins_the_engines_and_waits_for_all_ranks(upstream):
    (call,) = upstream.calls(ACTOR, "ActorPPOTrainer.__init__", "self._init_vllm_sync_group")
    assert arguments(call) == (["backend"], [])
    constructor = upstream.find(ACTOR, "ActorPPOTrainer.__init__")
    assert ast.unparse(constructor.body[-1]) == "torch_dist_barrier_and_cuda_sync()"


# -- Hosts without a GPU, and the code of models: cluster/cpu_host.py


def test_the_dtype_is_looked_up_late(upstream):
    for path in upstream.paths():
        if path != "cli/lora_combiner.py":  # a tool of its own
            module = upstream.tree(path)
            early = [
                name for node in module.body if isinstance(node, ast.ImportFrom) for name, _ in local_imports(node)
            ]
            assert "convert_to_torch_dtype" not in early, path


# What cpu_host replaces; what does nothing or returns False without an accelerator; what CUDA IPC alone calls.
REPLACED = {"current_device", "set_device", "synchronize", "current_stream"}
HARMLESS = {"empty_cache", "is_available"}
GPU_ONLY = {"trainer/ray/utils.py": {"get_device_properties"}}


@pytest.mark.slow
def test_a_cpu_host_supplies_every_cuda_function_upstream_calls(upstream):
    for path in upstream.paths():
        attributes = [node for node in ast.walk(upstream.tree(path)) if isinstance(node, ast.Attribute)]
        used = {node.attr for node in attributes if ast.unparse(node.value) == "torch.cuda"}
        assert used <= REPLACED | HARMLESS | GPU_ONLY.get(path, set()), path


def test_a_cpu_host_supplies_every_flash_attn_name_upstream_imports(upstream):
    needed = [
        target
        for path in upstream.paths()
        for node in upstream.tree(path).body
        for _, target in (local_imports(node) if isinstance(node, ast.ImportFrom) else [])
        if target.startswith("flash_attn")
    ]
    assert sorted(needed) == [
        "flash_attn.bert_padding.index_first_axis",
        "flash_attn.bert_padding.pad_input",
        "flash_attn.bert_padding.rearrange",
        "flash_attn.bert_padding.unpad_input",
        "flash_attn.utils.distributed.all_gather",
    ]


def test_the_device_mesh_is_made_by_the_function_that_a_cpu_host_replaces(upstream):
    strategy = "utils/deepspeed/deepspeed.py"
    assert ("init_device_mesh", "torch.distributed.device_mesh.init_device_mesh") in local_imports(
        upstream.tree(strategy)
    )
    assert len(upstream.calls(strategy, "DeepspeedStrategy.setup_distributed", "init_device_mesh")) == 1


def test_upstream_records_its_flags_in_wandb_and_logs_in_with_the_key_only_without_one(upstream):
    body = ast.unparse(upstream.find("utils/logging_utils.py", "WandbLogger.__init__"))
    assert "if not wandb.api.api_key:\n        wandb.login(key=args.logger.wandb.key)" in body
    assert "config=args.__dict__" in body


def test_what_upstream_trusts_goes_through_transformers_or_the_engine(upstream):
    trusting = {
        (path, ast.unparse(node.func))
        for path in upstream.paths()
        for node in ast.walk(upstream.tree(path))
        if isinstance(node, ast.Call) and any(keyword.arg == "trust_remote_code" for keyword in node.keywords)
    }
    assert {call for _, call in trusting} <= {
        *("AutoConfig.from_pretrained", "AutoTokenizer.from_pretrained", "AutoProcessor.from_pretrained"),
        *("model_class.from_pretrained", "cls_class.from_pretrained"),
        "load_dataset",  # which has dropped it: datasets 4 runs no code of a dataset
    }


def test_transformers_asks_one_function_whether_to_trust():
    parameters = list(inspect.signature(dynamic_module_utils.resolve_trust_remote_code).parameters)
    assert parameters[0] == "trust_remote_code"
    for module in (auto_factory, configuration_auto, processing_auto, tokenization_auto):
        assert "= resolve_trust_remote_code(" in inspect.getsource(module)
