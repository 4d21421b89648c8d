"""docs/upstream_flags.md names every flag of upstream once, and tests confirm what it says of the flag."""

import re
from functools import cache
from pathlib import Path

from flag_uses import flags_used_by
from upstream_flags import declared_by_upstream

PAGE = Path(__file__).parents[2] / "docs" / "upstream_flags.md"
SECTION = re.compile(r"^## (Tested|Refused|Untested) flags\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
# A row that begins with flags only. The combinations that are refused have words between their flags.
ROW = re.compile(r"\| (?:[A-Za-z ]+ \| )?((?:`--[^`]+`(?:, )?)+) \|(.*)")

# Test of a whole run -> flags that it uses, without their dashes. Each flag that the page calls tested is here once.
RUNS = {
    "tests/e2e/test_upstream_flags.py::test_muon_two_data_sets_and_shaped_rewards": (
        "actor.adam.betas actor.adam.weight_decay actor.gradient_checkpointing_enable "
        "actor.gradient_checkpointing_reentrant actor.max_norm actor.min_lr_ratio actor.muon.lr actor.muon.momentum "
        "actor.optim algo.kl.horizon algo.kl.target ckpt.save_hf data.dataloader_num_workers "
        "data.disable_fast_tokenizer data.prompt_probs ds.grad_accum_dtype ds.overlap_comm logger.tensorboard_dir "
        "reward.clip_range reward.overlong_buffer_len reward.overlong_penalty_factor "
        "reward.stop_properly_penalty_coef train.full_determinism_enable"
    ),
    "tests/e2e/test_invariance.py::test_a_global_step_does_not_depend_on_placement": (
        "actor.adam.eps ds.packing_samples ds.param_dtype ds.zero_stage train.dynamic_batch_enable train.max_epochs "
        "train.max_tokens_per_gpu"
    ),
    "tests/e2e/test_lora.py::test_lora_trains_exports_and_resumes": (
        "actor.adam.lr actor.lr_scheduler actor.model_name_or_path actor.num_gpus_per_node algo.advantage.estimator "
        "algo.advantage.is_correction_level algo.kl.estimator algo.kl.init_coef algo.kl.use_loss ckpt.load_enable "
        "ckpt.output_dir ckpt.path ckpt.save_steps data.input_key data.label_key data.max_len data.prompt_dataset "
        "ds.lora.alpha ds.lora.rank ds.lora.target_modules ref.num_gpus_per_node reward.remote_url rollout.batch_size "
        "rollout.max_new_tokens rollout.micro_batch_size rollout.n_samples_per_prompt train.batch_size "
        "train.colocate_actor_ref train.micro_batch_size vllm.num_engines"
    ),
    "tests/e2e/test_upstream_flags.py::test_gspo_with_a_corrected_mismatch_and_an_evaluation_on_a_file": (
        "actor.dual_clip actor.policy_loss_type algo.kl.unbiased_gradient "
        "ckpt.best_metric_key data.input_template data.prompt_split ds.attn_implementation eval.split "
        "eval.temperature logger.logging_steps rollout.temperature train.seed vllm.enable_prefix_caching "
        "vllm.enforce_eager vllm.sync_backend"
    ),
    "tests/e2e/test_invariance.py::test_the_laboratory_has_the_settings_beside_methods": "actor.entropy_coef",
    "tests/e2e/test_invariance.py::test_the_laboratory_makes_the_same_updates": (
        "actor.eps_clip_low_high actor.loss_agg_mode"
    ),
    "tests/e2e/test_upstream_flags.py::test_a_critic_that_muon_trains_under_another_name_of_its_head": (
        "actor.eps_clip actor.num_nodes algo.advantage.is_correction_gating algo.advantage.is_correction_mode "
        "algo.advantage.is_correction_threshold algo.advantage.no_std_norm critic.adam.betas critic.adam.eps "
        "critic.adam.weight_decay "
        "critic.lr_warmup_ratio critic.max_norm critic.min_lr_ratio critic.muon.lr critic.muon.momentum "
        "critic.num_nodes critic.optim ds.value_head_prefix ref.num_nodes reward.num_nodes vllm.tensor_parallel_size"
    ),
    "tests/e2e/test_invariance.py::test_an_only_update_is_the_first_of_several": "actor.lr_warmup_ratio",
    "tests/e2e/test_upstream_flags.py::test_partial_rollouts_with_a_critic_and_a_reward_model": (
        "algo.advantage.gamma algo.advantage.lambd critic.lr_scheduler critic.model_name_or_path "
        "critic.save_value_network critic.value_clip reward.model_name_or_path reward.num_gpus_per_node "
        "train.async_queue_size train.colocate_critic_reward train.partial_rollout_enable"
    ),
    "tests/e2e/test_resume.py::test_a_run_survives_what_clusters_do": (
        "algo.dynamic_filtering_enable eval.dataset eval.n_samples_per_prompt eval.steps vllm.gpu_memory_utilization"
    ),
    "tests/e2e/test_code.py::test_a_resumed_run_on_programs_is_the_straight_one": "ckpt.max_num",
    "tests/e2e/test_training.py::test_kl_cov_with_a_critic_that_learns_first": (
        "critic.adam.lr critic.freezing_steps critic.num_gpus_per_node"
    ),
    "tests/e2e/test_data_forms.py::test_rollouts_and_the_evaluation_of_a_run_have_the_arguments": (
        "data.apply_chat_template"
    ),
    "tests/e2e/test_methods.py::test_three_steps": "data.max_samples",
    "tests/e2e/test_lora.py::test_lora_on_two_ranks_with_zero_3_in_half_precision": "ds.lora.dropout",
    "tests/e2e/test_training.py::test_a_run_joins_no_ray_of_somebody_else_and_hides_its_key": ("logger.wandb.key"),
    "tests/e2e/test_placements.py::test_a_resumed_run_is_the_straight_one": (
        "rollout.max_tokens_per_gpu train.num_episodes"
    ),
    "tests/e2e/test_upstream_flags.py::test_an_agent_of_two_turns": "train.agent_func_path",
    "tests/e2e/test_training.py::test_a_run_with_an_estimator_and_a_surrogate": "train.async_enable",
}
REFUSING_TEST = "tests/cli/test_check_upstream.py::test_what_is_refused"


@cache
def rows() -> list[tuple[str, str, str]]:
    """Return (flag, section, rest of the row) for each flag with a status."""
    found = []
    for section, text in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        for line in text.splitlines():
            match = ROW.fullmatch(line)
            if match:
                found += [(flag, section, match[2]) for flag in re.findall(r"`(--[^`]+)`", match[1])]
    return found


def flags_of(section: str) -> list[str]:
    return sorted(flag for flag, found, _ in rows() if found == section)


def test_the_page_has_every_flag_of_upstream_once_and_no_other():
    options = {option for action in declared_by_upstream()._actions for option in action.option_strings}
    upstream = {option for option in options if option.startswith("--")} - {"--help"}
    assert sorted(flag for flag, _, _ in rows()) == sorted(upstream)


def test_a_whole_run_uses_each_flag_that_is_called_tested():
    used = [f"--{flag}" for flags in RUNS.values() for flag in flags.split()]
    assert sorted(used) == flags_of("Tested")
    for test, flags in RUNS.items():
        assert test.startswith("tests/e2e/"), f"{test}: no whole run"
        assert {f"--{flag}" for flag in flags.split()} <= flags_used_by(test), test


def test_a_test_uses_each_flag_that_is_called_refused():
    assert set(flags_of("Refused")) <= flags_used_by(REFUSING_TEST)
