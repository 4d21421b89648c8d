"""The table of what we use of upstream is complete, and upstream still takes what we pass.

Upstream's source is read as syntax trees, and so is ours.
"""

import ast

import pytest
from upstream_uses import bound, imported_names, is_open, methods_of, signature

# Module of upstream -> function or class that we import -> the parameters that we pass, in upstream's order. None: it
# is not called. It is then subclassed, handed on, or only named.
IMPORTS = {
    "datasets/prompts_dataset.py": {
        "preprocess_data": "data input_template input_key label_key apply_chat_template",
    },
    "datasets/utils.py": {
        "blending_datasets": "datasets probabilities strategy seed max_count dataset_split",
    },
    "models/actor.py": {
        "Actor": None,
    },
    "models/loss.py": {
        "PolicyLoss": "clip_eps_low clip_eps_high dual_clip token_level_loss policy_loss_type is_correction_level "
        "is_correction_mode is_correction_gating is_correction_threshold",
        "ValueLoss": "clip_eps",
        "aggregate_loss": "loss loss_mask dp_size batch_num_tokens global_batch_size",
    },
    "models/model.py": {
        "get_llm_for_sequence_regression": "model_name_or_path model_type param_dtype load_in_4bit lora_rank "
        "lora_alpha target_modules lora_dropout normalize_reward attn_implementation ds_config init_value_head "
        "value_head_prefix packing_samples experts_implementation",
    },
    "models/ring_attn_utils.py": {
        "unpad_and_slice_tensor": "sequences attention_mask ring_attn_group",
    },
    "models/utils.py": {
        "compute_approx_kl": "log_probs log_probs_base log_probs_old kl_estimator unbiased_gradient",
        "compute_reward": "r kl_coef kl action_mask reward_clip_range",
        "masked_mean": "tensor mask",
    },
    "trainer/ppo_utils/kl_controller.py": {
        "AdaptiveKLController": "init_kl_coef target horizon",
        "FixedKLController": "kl_coef",
    },
    "trainer/ppo_utils/length_penalty.py": {
        "apply_length_penalties": "experiences args",
    },
    "trainer/ray/launcher.py": {
        "BaseModelActor": None,
        "RayActorGroup": "num_nodes num_gpus_per_node ray_actor_type pg num_gpus_per_actor duplicate_actors",
    },
    "trainer/ray/ppo_actor.py": {
        "ActorPPOTrainer": "strategy actor ema_model actor_optim actor_scheduler ema_beta micro_train_batch_size "
        "eps_clip tokenizer vllm_engines",
    },
    "trainer/ray/utils.py": {
        "get_bundle_indices": "placement_group index length",
    },
    "trainer/ray/vllm_engine.py": {
        "RolloutRayActor": None,
        "batch_vllm_engine_call": "engines method_name *args **kwargs",
    },
    "trainer/ray/vllm_worker_wrap.py": {
        "WorkerWrap": None,
    },
    "utils/agent.py": {
        "AgentExecutorBase": None,
        "MultiTurnAgentExecutor": None,
        "SingleTurnAgentExecutor": "remote_rm_url",
    },
    "utils/config.py": {
        "hierarchize": "args",
    },
    "utils/deepspeed/deepspeed.py": {
        "DeepspeedStrategy": None,
    },
    "utils/deepspeed/deepspeed_utils.py": {
        "offload_deepspeed_states": "model",
        "reload_deepspeed_states": "model",
    },
    "utils/distributed_util.py": {
        "torch_dist_barrier_and_cuda_sync": "",
    },
    "utils/logging_utils.py": {
        "TensorboardLogger": "args",
        "WandbLogger": None,
        "init_logger": "name",
    },
    "utils/seqlen_balancing.py": {
        "get_minimum_num_micro_batch_size": "total_lengths max_tokens_per_gpu ring_attn_size ds_tensor_parallel_size",
    },
    "utils/utils.py": {
        # The function that cpu_host.accept_fp32 wraps.
        "convert_to_torch_dtype": "param_dtype",
        "get_strategy": "args",
        "get_tokenizer": "pretrain model padding_side strategy use_fast",
    },
    "utils/vlm_utils.py": {
        "merge_mm_train_inputs": "mm_train_inputs_list device",
    },
}

# Module of upstream -> method that we call or override -> the parameters that we pass or take, in upstream's order.
METHODS = {
    "models/actor.py": {
        "Actor.__init__": "self pretrain_or_model attn_implementation param_dtype load_in_4bit lora_rank lora_alpha "
        "lora_dropout target_modules ds_config packing_samples temperature use_liger_kernel freeze_visual_encoder "
        "experts_implementation",
        "Actor.forward": "self sequences action_mask attention_mask return_output allgather_logits return_logprobs "
        "ring_attn_group packed_seq_lens return_entropy **mm_inputs",
        "Actor.gradient_checkpointing_enable": "self gradient_checkpointing_kwargs",
    },
    "models/loss.py": {
        "PolicyLoss.forward": "self log_probs old_log_probs advantages action_mask rollout_log_probs dp_size "
        "batch_num_tokens global_batch_size",
        "ValueLoss.forward": "self values old_values returns action_mask dp_size batch_num_tokens global_batch_size",
    },
    "trainer/ppo_utils/kl_controller.py": {
        "AdaptiveKLController.update": "self current n_steps",
        "FixedKLController.update": "self current n_steps",
    },
    "trainer/ray/launcher.py": {
        "BaseDistributedActor.__init__": "self world_size rank master_addr master_port",
        "BaseModelActor._setup_distributed": "self strategy",
        "BaseModelActor.empty_cache": "self",
        "BaseModelActor.execute_batch": "self method_name all_data start_idx end_idx",
        "RayActorGroup.async_run_method": "self method_name *args **kwargs",
        "RayActorGroup.async_run_method_batch": "self method_name **kwargs",
    },
    "trainer/ray/ppo_actor.py": {
        "ActorPPOTrainer.broadcast_to_vllm": "self",
    },
    "trainer/ray/vllm_engine.py": {
        "RolloutRayActor.__init__": "self *args bundle_indices agent_func_path mm_pad_token_ids **kwargs",
        "RolloutRayActor.generate": "self prompt_token_ids sampling_params",
        "RolloutRayActor.generate_responses": "self prompt label sampling_params max_length hf_tokenizer num_samples "
        "images",
        "RolloutRayActor.get_num_unfinished_requests": "self",
        "RolloutRayActor.pause_generation": "self",
        "RolloutRayActor.resume_generation": "self",
        "RolloutRayActor.sleep": "self level",
        "RolloutRayActor.wake_up": "self tags",
    },
    "utils/agent.py": {
        "AgentExecutorBase.execute": "self prompt label sampling_params max_length hf_tokenizer llm_engine images",
        "MultiTurnAgentExecutor.execute": "self prompt label sampling_params max_length hf_tokenizer llm_engine "
        "images",
        "SingleTurnAgentExecutor.execute": "self prompt label sampling_params max_length hf_tokenizer llm_engine "
        "images",
        "SingleTurnAgentExecutor._fetch_rewards_via_http": "self queries_list prompts_list labels_list",
    },
    "utils/deepspeed/deepspeed.py": {
        "DeepspeedStrategy.__init__": "self seed full_determinism max_norm micro_train_batch_size train_batch_size "
        "zero_stage args",
        "DeepspeedStrategy._read_ckpt_metric": "self ckpt_dir",
        "DeepspeedStrategy._unwrap_model": "self model",
        "DeepspeedStrategy.all_reduce": "self data",
        "DeepspeedStrategy.backward": "self loss model _optimizer",
        "DeepspeedStrategy.get_ds_eval_config": "self offload",
        "DeepspeedStrategy.get_ds_train_config": "self",
        "DeepspeedStrategy.get_grad_norm": "self model",
        "DeepspeedStrategy.get_rank": "self",
        "DeepspeedStrategy.is_rank_0": "self",
        "DeepspeedStrategy.load_ckpt": "self model load_dir tag",
        "DeepspeedStrategy.moving_average": "self model model_ema beta device",
        "DeepspeedStrategy.optimizer_step": "self _optimizer model _scheduler name",
        "DeepspeedStrategy.prepare": "self *args",
        "DeepspeedStrategy.print": "self *msg",
        "DeepspeedStrategy.ring_attn_group": "self",
        "DeepspeedStrategy.save_ckpt": "self model save_dir tag max_num max_mem client_state save_latest metric_value "
        "metric_key",
        "DeepspeedStrategy.save_model": "self model tokenizer output_dir **kwargs",
    },
    "utils/logging_utils.py": {
        "TensorboardLogger.close": "self",
        "TensorboardLogger.log_eval": "self global_step logs_dict",
        "TensorboardLogger.log_train": "self global_step logs_dict",
        "WandbLogger.__init__": "self args",
        "WandbLogger.close": "self",
        "WandbLogger.log_eval": "self global_step logs_dict",
        "WandbLogger.log_train": "self global_step logs_dict",
    },
}

# Module of upstream -> class -> attributes of its objects that we read.
ATTRIBUTES = {
    "models/actor.py": {"Actor": {"is_vlm", "model", "packing_samples", "temperature"}},
    "models/loss.py": {
        "PolicyLoss": {
            "clip_eps_low",
            "clip_eps_high",
            "token_level_loss",
            "policy_loss_type",
            "is_correction_level",
        }
    },
    "trainer/ppo_utils/kl_controller.py": {"AdaptiveKLController": {"value"}, "FixedKLController": {"value"}},
    "trainer/ray/launcher.py": {
        "BaseModelActor": {"strategy"},
        "RayActorGroup": {"_actor_handlers", "duplicate_actors"},
    },
    "trainer/ray/vllm_engine.py": {"RolloutRayActor": {"executor", "llm"}},
    "utils/deepspeed/deepspeed.py": {
        "DeepspeedStrategy": {"accumulated_gradient", "args", "ds_device_mesh", "seed", "stage"},
    },
}

# Our class -> (its module, the module of upstream's class that it derives from, upstream's class).
SUBCLASSES = {
    "CovActor": ("trainer/actor_model.py", "models/actor.py", "Actor"),
    "CovRolloutActor": ("trainer/ray/rollout_actor.py", "trainer/ray/vllm_engine.py", "RolloutRayActor"),
    "CovStrategy": ("trainer/strategy.py", "utils/deepspeed/deepspeed.py", "DeepspeedStrategy"),
    "CovWandbLogger": ("trainer/logs.py", "utils/logging_utils.py", "WandbLogger"),
    "MultiTurnExecutor": ("trainer/rollout/reward_executor.py", "utils/agent.py", "AgentExecutorBase"),
    "RewardExecutor": ("trainer/rollout/reward_executor.py", "utils/agent.py", "AgentExecutorBase"),
    "ModelRole": ("trainer/ray/roles.py", "trainer/ray/launcher.py", "BaseModelActor"),
}


def rows(table):
    return [(path, name, value) for path, names in table.items() for name, value in names.items()]


@pytest.mark.parametrize(("path", "name", "passed"), rows(IMPORTS))
def test_upstream_still_takes_the_parameters_that_we_pass(upstream, path, name, passed):
    node = upstream.find(path, name)
    if passed is None:
        return
    names = [each.lstrip("*") for each in signature(upstream, path, name, node).names]
    assert [each for each in names if each in passed.replace("*", "").split()] == passed.replace("*", "").split()


@pytest.mark.parametrize(("path", "qualname", "needed"), rows(METHODS))
def test_upstream_still_has_the_methods_that_we_call_or_override(upstream, path, qualname, needed):
    upstream.check(path, qualname, needed)


@pytest.mark.parametrize(("path", "name", "needed"), rows(ATTRIBUTES))
def test_upstream_still_sets_the_attributes_that_we_read(upstream, path, name, needed):
    targets = [node for node in ast.walk(upstream.find(path, name)) if isinstance(node, ast.Attribute)]
    stored = {node.attr for node in targets if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"}
    assert needed <= stored


def test_our_calls_of_upstreams_functions_fit_their_signatures(upstream, ours):
    # A subclass without a constructor of its own takes what upstream's class takes.
    inherited = {
        ours_is: (their_path, theirs)
        for ours_is, (path, their_path, theirs) in SUBCLASSES.items()
        if "__init__" not in methods_of(ours.find(path, ours_is))
    }
    assert inherited.keys() == {"CovActor", "CovStrategy"}
    problems = {}
    for path in ours.paths():
        tree = ours.tree(path)
        names = inherited | imported_names(tree, upstream)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in names:
                module, name = names[call.func.id]
                of = signature(upstream, module, name, upstream.find(module, name))
                problem = None if of.function is None else bound(call, of.function, of.skip)[1]
                if problem:
                    problems[f"{path}:{call.lineno}"] = f"{name}: {problem}"
    assert problems == {}


def test_our_calls_of_the_strategy_fit_upstreams_methods(upstream, ours):
    """A variable or attribute with the name ``strategy`` is the ``CovStrategy`` of a run."""
    path = "utils/deepspeed/deepspeed.py"
    methods = methods_of(upstream.find(path, "DeepspeedStrategy"))
    problems, used = {}, set()
    for module in ours.paths():
        if not module.startswith(("trainer/", "trainer/preflight/check_data.py")):
            continue
        for node in ast.walk(ours.tree(module)):
            receiver = node.value if isinstance(node, ast.Attribute) else None
            if receiver is not None and ast.unparse(receiver).split(".")[-1] == "strategy":
                used.add(node.attr)
            call = node if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
            if call and ast.unparse(call.func.value).split(".")[-1] == "strategy" and call.func.attr in methods:
                problem = bound(call, methods[call.func.attr], skip=1)[1]
                if problem:
                    problems[f"{module}:{call.lineno}"] = f"{call.func.attr}: {problem}"
    assert problems == {}
    listed = {name.split(".")[1] for name in METHODS[path]} | ATTRIBUTES[path]["DeepspeedStrategy"]
    own = {"restored"}
    assert used - own <= listed
    # CovStrategy itself uses these three.
    assert listed - used <= {"__init__", "_unwrap_model", "stage"}


def test_the_table_of_subclasses_is_complete(upstream, ours):
    found = {}
    for path in ours.paths():
        names = imported_names(ours.tree(path), upstream)
        for node in (each for each in ast.walk(ours.tree(path)) if isinstance(each, ast.ClassDef)):
            for base in node.bases:
                known = [each.id for each in ast.walk(base) if isinstance(each, ast.Name) and each.id in names]
                if known:
                    found[node.name] = (path, *names[known[0]])
    assert found == SUBCLASSES


@pytest.mark.parametrize(("ours_is", "places"), SUBCLASSES.items())
def test_overridden_methods_take_what_upstream_passes(upstream, ours, ours_is, places):
    path, their_path, theirs = places
    own = methods_of(ours.find(path, ours_is))
    inherited = methods_of(upstream.find(their_path, theirs))
    listed = {name.split(".")[1] for name in METHODS.get(their_path, ()) if name.startswith(f"{theirs}.")}
    for name in own.keys() & inherited.keys():
        assert name in listed, f"{theirs}.{name} is overridden and not in METHODS"
        taken, needed = [[arg.arg for arg in function.args.args] for function in (own[name], inherited[name])]
        if is_open(own[name]):  # the rest is passed on
            assert taken == [each for each in needed if each in taken]
        else:
            assert taken == needed


def test_roles_have_every_method_that_a_group_is_told_to_run(ours, upstream):
    told = {}
    for path in ("trainer/build.py", "trainer/model_groups.py"):
        for call in (node for node in ast.walk(ours.tree(path)) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).endswith((".async_run_method", ".async_run_method_batch")):
                words = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "method_name")]
                assert len(words) == 1
                told[words[0].value] = path
    roles = ours.tree("trainer/ray/roles.py")
    classes = [node for node in roles.body if isinstance(node, ast.ClassDef)]
    classes.append(upstream.find("trainer/ray/launcher.py", "BaseModelActor"))
    assert {"load", "score", "send_weights", "empty_cache"} <= told.keys()
    assert told.keys() <= {name for each in classes for name in methods_of(each)}


def test_batch_calls_name_methods_of_the_engine_actor(ours, upstream):
    named = {
        call.args[1].value
        for path in ours.paths()
        for call in ast.walk(ours.tree(path))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "batch_vllm_engine_call"
    }
    methods = methods_of(upstream.find("trainer/ray/vllm_engine.py", "RolloutRayActor"))
    assert named == {"pause_generation", "resume_generation", "sleep", "wake_up"}
    assert named <= methods.keys()
