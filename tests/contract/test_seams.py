"""Every name of upstream that we subclass or call is still there, with the parameters that we use."""

import ast

import pytest

# module -> class, method or function -> the parameters that we pass, override or are called with, in their order
SEAMS = {
    "cli/train_ppo_ray.py": {
        "train": "args",
    },
    "datasets/prompts_dataset.py": {
        "preprocess_data": "data input_template input_key label_key apply_chat_template",
        "PromptDataset": None,
        "PromptDataset.__init__": "self dataset tokenizer strategy input_template",
    },
    "datasets/utils.py": {
        "blending_datasets": "datasets probabilities strategy seed max_count dataset_split",
    },
    "models/actor.py": {
        "Actor.forward": "self sequences action_mask attention_mask return_output allgather_logits return_logprobs "
        "ring_attn_group packed_seq_lens return_entropy **mm_inputs",
    },
    "models/ring_attn_utils.py": {
        "unpad_and_slice_tensor": "sequences attention_mask ring_attn_group",
    },
    "models/utils.py": {
        "compute_approx_kl": "log_probs log_probs_base log_probs_old kl_estimator unbiased_gradient",
        "compute_reward": "r kl_coef kl action_mask reward_clip_range",
    },
    "models/loss.py": {
        "aggregate_loss": "loss loss_mask token_level_loss dp_size batch_num_tokens global_batch_size",
        "PolicyLoss.__init__": "self clip_eps_low clip_eps_high dual_clip token_level_loss policy_loss_type",
        "PolicyLoss.forward": "self log_probs old_log_probs advantages action_mask rollout_log_probs dp_size "
        "batch_num_tokens global_batch_size",
    },
    "trainer/ppo_trainer.py": {
        "PPOTrainer": None,
        "BasePPOTrainer.init_checkpoint_states": "self",
        "BasePPOTrainer.train_step": "self rollout_samples global_step",
        "BasePPOTrainer.ppo_train": "self global_steps",
        "BasePPOTrainer.broadcast_to_vllm": "self",
        "BasePPOTrainer.save_logs_and_checkpoints": "self global_step logs_dict client_states",
        "BasePPOTrainer.save_best_checkpoint": "self eval_metrics global_step client_states",
        "PPOTrainer.evaluate": "self global_step **generate_kwargs",
        "compute_eval_metrics": "eval_dataloader samples_list n_samples_per_prompt",
        "prepare_datasets": "strategy tokenizer",
    },
    "trainer/ppo_trainer_async.py": {
        "TrainingActor": None,
        "GenerateSamplesActor": None,
    },
    "trainer/ppo_utils/experience.py": {
        "Experience": None,
        "Experience.to_device": "self device",
        "balance_experiences": "experiences args",
        "split_experience_batch": "experience",
        "remove_padding_in_sequences": "items",
        "make_experience_batch": "items",
    },
    "trainer/ppo_utils/experience_maker.py": {
        "RemoteExperienceMaker": None,
        "RemoteExperienceMaker.make_experience_batch": "self rollout_samples",
        "RemoteExperienceMaker.make_experience": "self samples_list",
        "RemoteExperienceMaker._dispatch_forward": "self group sync_condition **kwargs",
        "RemoteExperienceMaker._flatten_results": "self refs duplicate_factor",
        "RemoteExperienceMaker.compute_advantages_and_returns": "self experiences",
        "RemoteExperienceMaker.get_cumulative_returns": "self rewards action_mask gamma",
        "RemoteExperienceMaker.get_advantages_and_returns": "self values rewards action_mask gamma lambd",
    },
    "trainer/ppo_utils/length_penalty.py": {
        "apply_length_penalties": "experiences args",
    },
    "trainer/ppo_utils/samples_generator.py": {
        "SamplesGenerator": None,
        "SamplesGenerator.__init__": "self strategy prompts_dataloader eval_dataloader tokenizer vllm_engines",
        "SamplesGenerator.generate_samples": "self **generate_kwargs",
        "SamplesGenerator._generate_vllm": "self dataloader_iter num_prompts dynamic_filtering **generate_kwargs",
        "SamplesGenerator._dispatch_prompts_to_vllm": "self prompts labels images **generate_kwargs",
        "SamplesGenerator._process_response_into_experience": "self response **generate_kwargs",
    },
    "trainer/ray/launcher.py": {
        "BaseModelActor": None,
        "BaseModelActor._setup_distributed": "self strategy",
        "ReferenceModelActor": None,
        "RewardModelActor": None,
        "RayActorGroup.async_run_method": "self method_name *args **kwargs",
    },
    "trainer/ray/ppo_actor.py": {
        "ActorPPOTrainer": None,
        "ActorPPOTrainer.__init__": "self strategy actor",
        "ActorPPOTrainer.ppo_train": "self kl_ctl",
        "ActorPPOTrainer.training_step": "self experience kl_ctl step loss_batch_info",
        "ActorPPOTrainer._init_vllm_sync_group": "self backend",
        "ActorPPOTrainer.broadcast_to_vllm": "self",
        "PolicyModelActor": None,
        "PolicyModelActor.init_model_from_pretrained": "self strategy pretrain max_steps vllm_engines",
        "PolicyModelActor.forward": "self sequences action_mask attention_mask packed_seq_lens mm_train_inputs_list",
        "PolicyModelActor.fit": "self kl_ctl",
        "PolicyModelActor.append": "self experience",
        "PolicyModelActor.get_checkpoint_states": "self",
        "PolicyModelActor.save_checkpoint": "self tag client_states metric_value metric_key",
    },
    "trainer/ray/ppo_critic.py": {
        "CriticPPOTrainer": None,
        "CriticPPOTrainer.training_step": "self experience step loss_batch_info",
        "CriticModelActor": None,
        "CriticModelActor.init_model_from_pretrained": "self strategy pretrain max_steps",
        "CriticModelActor.save_checkpoint": "self tag metric_value metric_key",
    },
    "trainer/ray/vllm_engine.py": {
        "batch_vllm_engine_call": "engines method_name *args **kwargs",
        "RolloutRayActor": None,
        "RolloutRayActor.generate_responses": "self prompt label sampling_params max_length hf_tokenizer num_samples "
        "images",
        "RolloutRayActor.generate": "self prompt_token_ids sampling_params",
        "create_vllm_engines": "num_engines tensor_parallel_size pretrain seed full_determinism "
        "enable_prefix_caching enforce_eager max_model_len gpu_memory_utilization",
    },
    "utils/agent.py": {
        "AgentExecutorBase": None,
        "MultiTurnAgentExecutor.execute": "self prompt label sampling_params max_length hf_tokenizer llm_engine "
        "images",
        "SingleTurnAgentExecutor": None,
        "SingleTurnAgentExecutor.__init__": "self remote_rm_url",
        "SingleTurnAgentExecutor.execute": "self prompt label sampling_params max_length hf_tokenizer llm_engine "
        "images",
        "SingleTurnAgentExecutor._fetch_rewards_via_http": "self queries_list prompts_list labels_list",
    },
    "utils/config.py": {
        "hierarchize": "args",
    },
    "utils/deepspeed/deepspeed.py": {
        "DeepspeedStrategy.all_reduce": "self data op",
        "DeepspeedStrategy.get_rank": "self",
        "DeepspeedStrategy.is_rank_0": "self",
        "DeepspeedStrategy.load_ckpt": "self model load_dir tag",
        "DeepspeedStrategy.save_ckpt": "self model save_dir tag max_num max_mem client_state save_latest metric_value "
        "metric_key",
        "DeepspeedStrategy._read_ckpt_metric": "ckpt_dir",
        "DeepspeedStrategy.ring_attn_group": "self",
    },
    "utils/logging_utils.py": {
        "TensorboardLogger": None,
        "TensorboardLogger.log_eval": "self global_step logs_dict",
        "WandbLogger": None,
        "WandbLogger.__init__": "self args",
        "WandbLogger.log_eval": "self global_step logs_dict",
        "init_logger": "name",
    },
    "utils/seqlen_balancing.py": {
        "get_seqlen_balanced_partitions": "seqlen_list k_partitions equal_size",
    },
    "utils/utils.py": {
        "convert_to_torch_dtype": "param_dtype",
        "get_strategy": "args",
        "get_tokenizer": "pretrain model",
    },
    "utils/vlm_utils.py": {
        "merge_mm_train_inputs": "mm_train_inputs_list device",
    },
}

# module -> class -> attributes that we read or set on its instances
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
    "trainer/ppo_trainer.py": {
        "BasePPOTrainer": {"args", "actor_model_group", "critic_model_group", "vllm_engines"},
        "PPOTrainer": {"eval_dataloader", "generate_kwargs"},
    },
    "trainer/ppo_utils/replay_buffer.py": {
        "NaiveReplayBuffer": {"items", "dynamic_indices", "dynamic_optimizer_step", "sample_batch_size"}
    },
    "trainer/ray/launcher.py": {"BaseModelActor": {"strategy"}},
    "trainer/ray/ppo_actor.py": {
        "ActorPPOTrainer": {
            "args",
            "strategy",
            "actor",
            "actor_loss_fn",
            "replay_buffer",
            "tokenizer",
            "vllm_engines",
        },
        "PolicyModelActor": {"actor", "trainer", "checkpoint_states", "disable_ds_ckpt"},
    },
    "trainer/ray/ppo_critic.py": {
        "CriticPPOTrainer": {"args", "strategy", "critic", "replay_buffer"},
        "CriticModelActor": {"critic", "disable_ds_ckpt"},
    },
    "trainer/ray/vllm_engine.py": {"RolloutRayActor": {"llm"}},
    "utils/deepspeed/deepspeed.py": {
        "DeepspeedStrategy": {"args", "seed", "ds_device_mesh", "accumulated_gradient"},
    },
}


def rows(table):
    return [(path, name, value) for path, names in table.items() for name, value in names.items()]


@pytest.mark.parametrize(("path", "qualname", "needed"), rows(SEAMS))
def test_upstream_still_takes_the_parameters_we_use(upstream, path, qualname, needed):
    upstream.check(path, qualname, needed)


@pytest.mark.parametrize(("path", "name", "needed"), rows(ATTRIBUTES))
def test_upstream_still_sets_the_attributes_we_use(upstream, path, name, needed):
    targets = [node for node in ast.walk(upstream.find(path, name)) if isinstance(node, ast.Attribute)]
    stored = {node.attr for node in targets if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"}
    assert needed <= stored


def upstream_names(tree, upstream):
    """(module path, name) of upstream that a module of ours imports, or reads or binds through an imported module."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname: alias.name for alias in node.names if alias.name.startswith("openrlhf.")}
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("openrlhf."):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if f"{module.removeprefix('openrlhf.').replace('.', '/')}.py" in upstream.paths():
                    modules[alias.asname or alias.name] = module
                else:
                    yield module_path(node.module, alias.name, upstream), alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in modules:
            module = modules[node.value.id]
            yield module_path(module, node.attr, upstream), node.attr


def module_path(module, name, upstream):
    """Path of the module that defines ``name``, through re-exports: ``openrlhf.models`` -> ``models/loss.py``."""
    path = module.removeprefix("openrlhf.").replace(".", "/")
    if f"{path}.py" not in upstream.paths():
        (source,) = (
            node.module
            for node in ast.walk(upstream.tree(f"{path}/__init__.py"))
            if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}
        )
        path = f"{path}/{source}"
    tree = upstream.tree(f"{path}.py")
    for node in tree.body:  # a name that the module itself imports from another one
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            foreign = node.level == 0 and not node.module.startswith("openrlhf.")
            return f"{path}.py" if foreign else module_path(node.module, name, upstream)
    return f"{path}.py"


@pytest.mark.slow
def test_the_table_lists_every_upstream_name_we_touch(upstream, ours):
    listed = {(path, name.split(".")[0]) for path, name, _ in rows(SEAMS)}
    touched = {pair for path in ours.paths() for pair in upstream_names(ours.tree(path), upstream)}
    assert {("models/loss.py", "aggregate_loss"), ("trainer/ray/ppo_actor.py", "PolicyModelActor")} <= touched
    assert touched <= listed
