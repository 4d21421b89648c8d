"""What upstream's code does around our seams: the names it looks up late, and how it calls what we put in place."""

import ast

import pytest

TRAIN = ("cli/train_ppo_ray.py", "train")
ENGINES = ("trainer/ray/vllm_engine.py", "create_vllm_engines")
ACTOR = "trainer/ray/ppo_actor.py"


def names(node, context=ast.Load):
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, context)}


def local_imports(node):
    """{name: module.original} of the import statements below a node."""
    found = (child for child in ast.walk(node) if isinstance(child, ast.ImportFrom))
    return [(alias.asname or alias.name, f"{child.module}.{alias.name}") for child in found for alias in child.names]


def arguments(call):
    """(positional arguments, keyword names) as written; ``**x`` is the keyword None."""
    return [ast.unparse(arg) for arg in call.args], [keyword.arg for keyword in call.keywords]


MODEL_ACTORS = {
    "PolicyModelActor": ACTOR,
    "CriticModelActor": "trainer/ray/ppo_critic.py",
    "ReferenceModelActor": "trainer/ray/launcher.py",
    "RewardModelActor": "trainer/ray/launcher.py",
}


def test_train_looks_our_classes_up_late(upstream):
    train = upstream.find(*TRAIN)
    assert {*MODEL_ACTORS, "create_vllm_engines"} <= names(train)
    assert not {*MODEL_ACTORS, "create_vllm_engines", "PPOTrainer"} & names(train, ast.Store)
    assert sorted(local_imports(train)) == [
        ("PPOTrainer", "openrlhf.trainer.ppo_trainer.PPOTrainer"),
        ("PPOTrainer", "openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync"),
    ]
    assert len(upstream.calls(*TRAIN, "PPOTrainer.remote")) == 1


def test_the_module_of_train_binds_the_names_we_rebind(upstream):
    assert (
        dict(local_imports(upstream.tree(TRAIN[0]))).items()
        >= {
            **{
                name: f"openrlhf.{path.removesuffix('.py').replace('/', '.')}.{name}"
                for name, path in MODEL_ACTORS.items()
            },
            "create_vllm_engines": "openrlhf.trainer.ray.create_vllm_engines",
        }.items()
    )


def test_train_keeps_a_ray_that_runs_already(upstream):
    (init,) = upstream.calls(*TRAIN, "ray.init")
    guards = [node for node in ast.walk(upstream.find(*TRAIN)) if isinstance(node, ast.If) and init in ast.walk(node)]
    assert ast.unparse(guards[0].test) == "not ray.is_initialized()"


def test_the_asynchronous_controller_looks_up_the_training_actor(upstream):
    calls = upstream.calls("trainer/ppo_trainer_async.py", "PPOTrainerAsync.__init__", "TrainingActor.remote")
    assert len(calls) == 1


def test_engines_are_made_by_options_and_remote_keywords_only(upstream):
    function = upstream.find(*ENGINES)
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == "RolloutRayActor"]
    assert len(uses) == 1
    (options,) = upstream.calls(*ENGINES, "RolloutRayActor.options")
    assert not options.args
    made = [
        node for node in ast.walk(function) if isinstance(node, ast.Call) and getattr(node.func, "value", 0) is options
    ]
    assert [(call.func.attr, *arguments(call)) for call in made] == [("remote", [], [None])]


def test_our_engine_settings_are_arguments_that_upstream_fixes(upstream):
    (kwargs,) = (
        node.value
        for node in ast.walk(upstream.find(*ENGINES))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "actor_kwargs"
    )
    fixed = {key.value: ast.unparse(value) for key, value in zip(kwargs.keys, kwargs.values, strict=True)}
    assert fixed["dtype"] == "'bfloat16'"
    assert fixed["worker_extension_cls"] == "'openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap'"
    assert "weight_transfer_config" not in fixed


def test_the_policy_actor_makes_its_trainer_by_a_global_name(upstream):
    (call,) = upstream.calls(ACTOR, "PolicyModelActor.init_model_from_pretrained", "ActorPPOTrainer")
    method = upstream.find(ACTOR, "PolicyModelActor.init_model_from_pretrained")
    assert "ActorPPOTrainer" not in names(method, ast.Store)
    assert "vllm_engines" in arguments(call)[1]
    (made,) = (node for node in ast.walk(method) if isinstance(node, ast.Assign) and node.value is call)
    assert ast.unparse(made.targets[0]) == "self.trainer"


def test_training_walks_one_loader_once_per_epoch(upstream):
    where = (ACTOR, "ActorPPOTrainer.ppo_train")
    (made,) = upstream.calls(*where, "DataLoader")
    assert arguments(made)[0] == ["self.replay_buffer"]
    assert "DataLoader" not in names(upstream.find(*where), ast.Store)
    assert ast.unparse(upstream.tree(ACTOR)).count("DataLoader(") == 1
    epochs = next(node for node in upstream.find(*where).body if isinstance(node, ast.For))
    assert ast.unparse(epochs.iter) == "range(self.max_epochs)"
    (bar,) = upstream.calls(*where, "tqdm")
    uses = [node for node in ast.walk(upstream.find(*where)) if getattr(node, "id", None) == "dataloader"]
    assert [type(node.ctx) for node in uses] == [ast.Store, ast.Load]
    assert uses[1] in bar.args
    assert bar in ast.walk(epochs)


def test_micro_batches_reach_the_step_in_the_order_of_the_loader(upstream):
    where = (ACTOR, "ActorPPOTrainer.ppo_train")
    code = ast.unparse(upstream.find(*where))
    assert "micro_batches = ((exp, None) for exp in pbar)" in code
    (windows,) = upstream.calls(*where, "iter_grad_accum_global_norm")
    assert arguments(windows)[0][:3] == ["pbar", "self.strategy", "self.strategy.accumulated_gradient"]
    assert "for step, (experience, loss_batch_info) in enumerate(micro_batches):" in code
    (call,) = upstream.calls(*where, "self.training_step")
    assert arguments(call) == (["experience", "kl_ctl", "step", "loss_batch_info"], [])
    assert upstream.parameters(ACTOR, "ActorPPOTrainer.training_step")[3] == "step"


def test_optimizer_steps_end_where_we_end_them(upstream):
    step = ast.unparse(upstream.find(ACTOR, "ActorPPOTrainer.training_step"))
    assert step.count("if self.replay_buffer.dynamic_optimizer_step[step]:") == 2  # the update and the moving average
    windows = ast.unparse(upstream.find("utils/loss_utils.py", "iter_grad_accum_global_norm"))
    assert "gas = max(int(accumulated_gradient), 1)" in windows
    assert "if len(window) == gas:" in windows


def test_we_ask_the_policy_as_its_update_does(upstream, ours):
    (update,) = upstream.calls(ACTOR, "ActorPPOTrainer.training_step", "self.actor")
    (call,) = ours.calls("trainer/actor_trainer.py", "CovActorTrainer.score", "self.actor")
    assert arguments(call)[0] == arguments(update)[0]
    assert set(arguments(call)[1]) <= set(arguments(update)[1])


def test_rollouts_are_single_samples_that_keep_their_info(upstream):
    maker, split = "trainer/ppo_utils/experience_maker.py", "RemoteExperienceMaker.split_rollout_samples"
    assert "sample.index = [i]" in ast.unparse(upstream.find(maker, split))
    nodes = list(ast.walk(upstream.tree(maker)))
    assert "Experience" not in {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    replaced = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    assert "info" not in {node.attr for node in replaced}
    append = upstream.find(ACTOR, "PolicyModelActor.append")
    assert ast.unparse(append.body[-1]) == "self.trainer.replay_buffer.append(experience)"


def test_micro_batches_of_a_rollout_need_no_equal_sizes(upstream):
    where = ("trainer/ppo_utils/experience_maker.py", "RemoteExperienceMaker.split_rollout_samples")
    (call,) = upstream.calls(*where, "get_seqlen_balanced_partitions")
    assert arguments(call) == (["total_lengths", "num_batch", "False"], [])


def test_the_loss_is_called_with_three_tensors_and_two_keywords(upstream):
    (call,) = upstream.calls(ACTOR, "ActorPPOTrainer.training_step", "self.actor_loss_fn")
    assert arguments(call) == (
        ["action_log_probs", "old_action_log_probs", "advantages"],
        ["action_mask", "rollout_log_probs", None],
    )
    assert ast.unparse(call.keywords[-1].value) == "loss_batch_info"
    (result,) = (
        node
        for node in ast.walk(upstream.find(ACTOR, "ActorPPOTrainer.training_step"))
        if isinstance(node, ast.Assign) and node.value is call
    )
    assert len(result.targets[0].elts) == 5


@pytest.mark.parametrize("function", ["get_loss_batch_info", "_optimizer_step_loss_norm"])
def test_the_normalizers_are_those_our_loss_passes_on(upstream, function):
    returned = [
        [key.value for key in node.value.keys]
        for node in ast.walk(upstream.find("utils/loss_utils.py", function))
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
    ]
    assert returned == [["dp_size", "batch_num_tokens", "global_batch_size"]]


def test_the_actor_returns_log_probs_and_an_output_with_entropy(upstream):
    forward = upstream.find("models/actor.py", "Actor.forward")
    code = ast.unparse(forward)
    assert "setattr(output, 'entropy', entropy[:, :-1])" in code
    assert ast.unparse(forward.body[-1]) == "return (action_log_probs, output) if return_output else action_log_probs"


@pytest.mark.parametrize(
    ("path", "name"), [(ACTOR, "PolicyModelActor"), ("trainer/ray/launcher.py", "ReferenceModelActor")]
)
def test_the_language_model_is_made_by_a_global_name(upstream, path, name):
    method = f"{name}.init_model_from_pretrained"
    assert upstream.calls(path, method, "Actor")
    assert "Actor" not in names(upstream.find(path, method), ast.Store)


def test_an_update_takes_the_entropies_of_the_last_columns(upstream):
    code = ast.unparse(upstream.find(ACTOR, "ActorPPOTrainer.training_step"))
    assert code.count("output.entropy") == code.count("output.entropy[:, -experience.action_mask.shape[1]:]") == 1
    assert "output.logits" not in code
    assert "output['logits']" not in code


def test_weights_are_synchronised_through_the_methods_we_override(upstream):
    assert len(upstream.calls(ACTOR, "PolicyModelActor.broadcast_to_vllm", "self.trainer.broadcast_to_vllm")) == 1
    (call,) = upstream.calls(ACTOR, "ActorPPOTrainer.__init__", "self._init_vllm_sync_group")
    assert arguments(call) == (["backend"], [])


@pytest.mark.parametrize(
    ("path", "caller", "callee", "positional"),
    [
        ("trainer/ppo_trainer.py", "BasePPOTrainer.train_step", "self.ppo_train", 1),
        ("trainer/ppo_trainer.py", "PPOTrainer.fit", "self.train_step", 2),
        ("trainer/ppo_trainer_async.py", "TrainingActor.fit", "self.train_step", 2),
        ("trainer/ppo_trainer.py", "PPOTrainer.fit", "self.init_checkpoint_states", 0),
        ("trainer/ppo_trainer.py", "PPOTrainer.fit", "self.save_logs_and_checkpoints", 3),
        ("trainer/ppo_trainer.py", "PPOTrainer.fit", "self.save_best_checkpoint", 3),
        ("trainer/ppo_trainer_async.py", "TrainingActor.fit", "self.save_logs_and_checkpoints", 3),
        ("trainer/ppo_trainer_async.py", "TrainingActor.fit", "self.save_best_checkpoint", 3),
        (
            "trainer/ppo_trainer_async.py",
            "PPOTrainerAsync.fit",
            "self.trainer_actor.init_checkpoint_states.remote",
            0,
        ),
    ],
)
def test_the_controller_calls_the_methods_we_extend(upstream, path, caller, callee, positional):
    (call,) = upstream.calls(path, caller, callee)
    assert (len(call.args), len(call.keywords)) == (positional, 0)


def test_checkpoint_states_name_the_restored_step(upstream):
    function = upstream.find("trainer/ppo_trainer.py", "BasePPOTrainer.init_checkpoint_states")
    fresh = next(
        node.value for node in ast.walk(function) if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
    )
    assert "'global_step': 0" in ast.unparse(fresh)


@pytest.mark.parametrize(("name", "path"), MODEL_ACTORS.items())
def test_a_model_actor_sets_up_before_it_loads_anything(upstream, name, path):
    code = ast.unparse(upstream.find(path, f"{name}.init_model_from_pretrained"))
    places = [code.find(part) for part in ("self._setup_distributed(strategy)", "ds_config=", "strategy.load_ckpt(")]
    assert 0 < places[0] < places[1]
    if name in ("PolicyModelActor", "CriticModelActor"):
        assert places[1] < places[2]
        (load,) = upstream.calls(path, f"{name}.init_model_from_pretrained", "strategy.load_ckpt")
        assert (len(load.args), len(load.keywords)) == (2, 0)
        assert "args.ckpt.load_enable and os.path.exists(ckpt_path)" in code


def test_the_controller_takes_the_states_of_the_first_rank_if_it_sees_the_folder(upstream):
    code = ast.unparse(upstream.find("trainer/ppo_trainer.py", "BasePPOTrainer.init_checkpoint_states"))
    assert "os.path.join(self.args.ckpt.path, '_actor')" in code
    assert "self.args.ckpt.load_enable and os.path.exists(ckpt_path)" in code
    assert "method_name='get_checkpoint_states'))[0]" in code


def test_the_dtype_is_looked_up_late(upstream):
    for path in upstream.paths():
        if path != "cli/lora_combiner.py":  # a tool of its own
            module = upstream.tree(path)
            early = [
                name for node in module.body if isinstance(node, ast.ImportFrom) for name, _ in local_imports(node)
            ]
            assert "convert_to_torch_dtype" not in early, path


STANDS_IN = {"current_device", "set_device", "synchronize", "current_stream"}
HARMLESS = {"empty_cache", "is_available"}
"""Do nothing, or say no, without an accelerator."""
GPU_ONLY = {"trainer/ray/utils.py": {"get_device_properties"}}
"""Reached through CUDA IPC alone."""


@pytest.mark.slow
def test_a_cpu_host_supplies_every_cuda_function_upstream_calls(upstream):
    for path in upstream.paths():
        attributes = [node for node in ast.walk(upstream.tree(path)) if isinstance(node, ast.Attribute)]
        used = {node.attr for node in attributes if ast.unparse(node.value) == "torch.cuda"}
        assert used <= STANDS_IN | HARMLESS | GPU_ONLY.get(path, set()), path


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


def test_the_device_mesh_is_made_by_the_name_we_rebind(upstream):
    strategy = "utils/deepspeed/deepspeed.py"
    assert ("init_device_mesh", "torch.distributed.device_mesh.init_device_mesh") in local_imports(
        upstream.tree(strategy)
    )
    assert len(upstream.calls(strategy, "DeepspeedStrategy.setup_distributed", "init_device_mesh")) == 1


def test_upstream_records_its_flags_in_wandb_and_logs_in_with_the_key_only_without_one(upstream):
    body = ast.unparse(upstream.find("utils/logging_utils.py", "WandbLogger.__init__"))
    assert "if not wandb.api.api_key:\n        wandb.login(key=args.logger.wandb.key)" in body
    assert "config=args.__dict__" in body
    assert "WandbLogger(self.args)" in ast.unparse(upstream.tree("trainer/ppo_trainer.py"))


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
    import inspect

    from transformers import dynamic_module_utils
    from transformers.models.auto import auto_factory, configuration_auto, processing_auto, tokenization_auto

    parameters = list(inspect.signature(dynamic_module_utils.resolve_trust_remote_code).parameters)
    assert parameters[0] == "trust_remote_code"
    for module in (auto_factory, configuration_auto, processing_auto, tokenization_auto):
        assert "= resolve_trust_remote_code(\n" in inspect.getsource(module) or (
            "= resolve_trust_remote_code(" in inspect.getsource(module)
        )
