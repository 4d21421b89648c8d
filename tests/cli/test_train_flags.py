"""The flags of the trainer: which are refused, and which settings they become. No file is read."""

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.settings import Schedule
from openrlhf_cov.trainer.flags.ranges import INTERVALS, ORDERED, POSITIVE, RANGES, lies_in, range_faults

CLIP, KL = "--cov_type clip_cov", "--cov_type kl_cov"
EIGHT = "--rollout.n_samples_per_prompt 8"
GROUPS = f"--algo.advantage.estimator group_norm {EIGHT}"
QAE = f"--method qae {EIGHT}"
BF16 = "--ds.param_dtype bf16 --ds.grad_accum_dtype fp32"
SERVER = "--reward.remote_url http://127.0.0.1:1/?token=t0ken"
OF_SERVER = "with a server in --reward.remote_url, which grades by settings of its own"
REWARD_MODEL = "--reward.remote_url= --reward.model_name_or_path m"
OUR_REWARD = "--reward.remote_url openrlhf_cov/rewards/reward_func.py"
BENCH = "--eval.dataset bench:aime24 --eval.steps 5"
EVALUATES = "--eval.dataset problems.jsonl --eval.steps 5"
BY_RESPONSE = "--actor.loss_agg_mode seq-mean-token-mean"
CORRECTION = "--algo.advantage.is_correction_"
CORRECTED = f"{CORRECTION}level token"
GSPO_CLIP = "--actor.policy_loss_type gspo --actor.eps_clip_low_high 3e-4 4e-4"
CONSTANT = "--actor.lr_scheduler constant"
NOT_PERCENT = "fractions, not percent (0.2 % is 2e-3)"

# Flags, and what the one line contains: the flag, the value, and what to do.
REFUSED = [
    ("--clip_cov_rattio 1e-3", ["--clip_cov_rattio", "did you mean --clip_cov_ratio?"]),
    ("--cov_type klcov", ["--cov_type klcov: must be one of none, clip_cov, kl_cov; did you mean kl_cov?"]),
    (f"{KL} --kl_cov_ratio 2", ["--kl_cov_ratio 2.0: must be a fraction of tokens in (0, 1]", NOT_PERCENT]),
    (f"{KL} --kl_cov_ratio 0", ["--kl_cov_ratio 0.0: must be a fraction of tokens in (0, 1]"]),
    (f"{KL} --kl_cov_ratio 0.2", ["--kl_cov_ratio 0.2", "20.0% of the tokens", "--allow_large_cov_ratio"]),
    (f"{KL} --kl_cov_ratio 0.2%", ["--kl_cov_ratio", "'0.2%'", NOT_PERCENT]),
    (f"{KL} --kl_cov_ratio 2e-3:2e-4", ["--kl_cov_ratio", "'2e-3:2e-4'", "START:END:STEPS"]),
    (
        f"{KL} --ppo_kl_coef 1:0:0",
        ["--ppo_kl_coef", "'1:0:0' is a schedule of 0 global steps", "at least 1", "FROM-TO"],
    ),
    (f"{KL} --ppo_kl_coef 1:0:9-9", ["--ppo_kl_coef", "'1:0:9-9' is a schedule of 9-9 global steps", "FROM-TO"]),
    (f"{KL} --method none", ["--cov_type kl_cov", "--method none", "drop one"]),
    (f"{KL} --cov_scope batch", ["--cov_scope batch: must be one of global, micro_batch"]),
    (f"{KL} --cov_scope micro_batch --cov_log_probs current", ["got --cov_scope micro_batch", "drop it"]),
    (f"{KL} --actor.policy_loss_type gspo", ["--actor.policy_loss_type ppo", "got gspo"]),
    (f"{KL} --actor.eps_clip 0.2", ["--actor.eps_clip", "--method kl_cov", "--kl_cov_keep_ppo_clip"]),
    (f"{KL} --method cispo", ["--method kl_cov", "--method cispo", "--allow_no_trust_region"]),
    ("--allow_no_trust_region", ["--allow_no_trust_region", "surrogate"]),
    (f"--method dppo {KL} --allow_no_trust_region", ["--allow_no_trust_region", "surrogate"]),
    # Shortened flags are those that they stand for.
    (f"{KL} --clip_cov_rat 1e-3", ["--clip_cov_ratio", "got --method kl_cov"]),
    (f"{KL} --actor.dual 10", ["--actor.dual_clip", "--kl_cov_keep_ppo_clip"]),
    ("--sampling_max_stale 2", ["--sampling_max_staleness", "--algo.dynamic_filtering_enable"]),
    (f"{OUR_REWARD} --code_timeout 9", ["--code_timeout", "got math"]),
    (f"{OUR_REWARD} --reward_source gsm8k --reward_grader published", ["--reward_grader only", "got gsm8k"]),
    (f"{OUR_REWARD} --reward_source code --reward_format any", ["--reward_format only applies to", "got code"]),
    # Settings of the package's grader that a server does not get, even if they have the default value.
    (f"{SERVER} --reward_format boxed", ["--reward_format has no effect", OF_SERVER, "openrlhf-cov serve-reward"]),
    (f"{SERVER} --reward_grader published", ["--reward_grader has no effect", OF_SERVER]),
    (f"{SERVER} --reward_format_bonus 0.1", ["--reward_format_bonus has no effect", OF_SERVER]),
    (f"{SERVER} --reward_source gsm8k", ["--reward_source has no effect", OF_SERVER]),
    (f"{SERVER} --reward_skip_bad_labels", ["--reward_skip_bad_labels has no effect", OF_SERVER]),
    (f"{SERVER} --code_timeout 9", ["--code_timeout has no effect", OF_SERVER]),
    # An evaluation on benchmarks grades by strict, and reads no rewards.
    (f"{SERVER} {BENCH} --reward_grader published", ["--reward_grader has no effect", OF_SERVER]),
    (f"{SERVER} {BENCH} --code_reward share", ["--code_reward has no effect", OF_SERVER]),
    (f"{REWARD_MODEL} --reward_incorrect -1", ["--reward_incorrect has no effect with --reward.model_name_or_path"]),
    # Methods, and flags of OpenRLHF that do not go with them.
    ("--method top_entropy --actor.loss_agg_mode seq-mean-token-mean", ["token-mean", "--top_entropy_mean all"]),
    ("--method top_entropy --actor.policy_loss_type gspo", ["--actor.policy_loss_type", "gspo"]),
    ("--method sapo,top_entropy", ["--top_entropy_mean kept", "seq-mean-token-mean", "--top_entropy_mean all"]),
    ("--method adaptive_entropy", ["--method adaptive_entropy", "--entropy_target"]),
    (
        "--method adaptive_entropy --entropy_target 0.2 --actor.entropy_coef 0.01",
        ["--actor.entropy_coef 0.01", "--method adaptive_entropy"],
    ),
    ("--method adaptive_clip --actor.eps_clip 0.3", ["--actor.eps_clip", "--method adaptive_clip"]),
    ("--method positive_weight", ["--positive_weight 1"]),
    ("--method positive_weight --positive_weight 1:1:9", ["--positive_weight 1"]),
    ("--method positive_weight,nsr --positive_weight 0.5", ["--method positive_weight", "nsr"]),
    ("--method qae", ["--method qae", "--rollout.n_samples_per_prompt is 1"]),
    ("--method qae,positive_weight --positive_weight 0", ["--positive_weight 0", "--method qae"]),
    ("--method qae --code_reward share", ["--method qae", "--code_reward share"]),
    (f"{QAE} --algo.advantage.estimator gae", ["--method qae", "group_norm", "got gae"]),
    (f"{QAE} --algo.advantage.gamma 0.9", ["--algo.advantage.gamma", "--method qae", "drop it"]),
    (f"{QAE} --reward.model_name_or_path m", ["--method qae", "--reward.model_name_or_path m"]),
    ("--method steer --actor.policy_loss_type gspo", ["--method steer", "gspo"]),
    ("--method steer --steer_max 1.1", ["--steer_max", "--steer_form linear", "got --steer_form expon"]),
    ("--entropy_target 0.3", ["--entropy_target", "--entropy_control"]),
    (f"--entropy_target 0.3 --entropy_control repo_zeta {KL}", ["--entropy_control repo_zeta", "ppo_kl_coef"]),
    ("--method stare --entropy_target 0.3 --stare_gate 0.3", ["--stare_gate", "--entropy_target 0.3"]),
    ("--method cispo --actor.eps_clip 0.3", ["--actor.eps_clip 0.3", "--method cispo", "no PPO clip"]),
    ("--method sapo --actor.eps_clip_low_high 0.2 0.28", ["--actor.eps_clip_low_high", "--method sapo"]),
    ("--actor.policy_loss_type gspo", ["--actor.policy_loss_type gspo", "--actor.eps_clip 0.2", "3e-4 4e-4"]),
    ("--method gspo_token --actor.policy_loss_type gspo", ["--method gspo_token", "gspo"]),
    ("--method gspo_token --actor.eps_clip 0.2", ["--actor.eps_clip 0.2", "--method gspo_token"]),
    ("--method gspo_token --gspo_token_clip 0.2", ["--gspo_token_clip"]),
    ("--method dppo --actor.dual_clip 3", ["--actor.dual_clip 3.0", "--method dppo"]),
    ("--method dppo --algo.advantage.is_correction_level token", ["is_correction_level token", "twice"]),
    ("--method gmpo", ["--method gmpo", "--algo.advantage.estimator gae"]),
    (f"--method gmpo {GROUPS}", ["--method gmpo", "--algo.kl.init_coef 0.01 in the reward", "use_loss"]),
    (
        "--method gmpo --algo.advantage.estimator reinforce --algo.advantage.gamma 0.9",
        ["--method gmpo", "--algo.advantage.gamma 0.9"],
    ),
    (f"--method prime {EIGHT} --actor.policy_loss_type gspo", ["--method prime", "--actor.policy_loss_type", "gspo"]),
    (
        f"--method lp_reg,wapo {GROUPS} --algo.kl.use_loss --wapo_anchor old",
        ["--method lp_reg changes nothing beside --method wapo", "no negative advantages"],
    ),
    ("--method stare,nsr", ["--method stare changes nothing beside --method nsr", "--stare_on both"]),
    (
        f"--method entropic --entropic_alpha 0.1 --entropic_form penalty {BY_RESPONSE}",
        ["--entropic_form penalty", "token-mean"],
    ),
    (
        f"--method entropic,sapo --entropic_alpha 0.1 --entropic_form penalty {GROUPS}",
        ["--entropic_form penalty", "token-mean"],
    ),
    (
        "--method entropic,psr --entropic_alpha 0.1 --entropic_form penalty",
        ["--entropic_form penalty", "--method psr leaves responses out"],
    ),
    ("--method lp_reg --ds.ring_attn_size 2", ["--method lp_reg", "--ds.ring_attn_size 2"]),
    ("--method lp_reg --ds.tensor_parallel_size 2", ["--method lp_reg", "--ds.tensor_parallel_size 2"]),
    ("--method lp_reg --actor.eps_clip_low_high 0.99 9", ["--actor.eps_clip_low_high 0.99 9", "--method lp_reg"]),
    ("--method clip_v --ds.tensor_parallel_size 2", ["--method clip_v", "--ds.tensor_parallel_size 2"]),
    (f"--method clip_v --clip_v_mean kept {BY_RESPONSE}", ["--clip_v_mean kept", "token-mean"]),
    (f"--method clip_b --clip_b_mean kept {BY_RESPONSE}", ["--clip_b_mean kept", "token-mean"]),
    (f"--method dr_grpo --dr_grpo_length 4 {EIGHT} {BY_RESPONSE}", ["--dr_grpo_length 4", "token-mean"]),
    (f"--method prime {EIGHT} --data.max_images_per_prompt 2", ["--data.max_images_per_prompt 2", "--method prime"]),
    (f"--method prime {EIGHT} --prime_model other", ["--algo.kl.init_coef 0.01", "--prime_model"]),
    ("--method lp_reg --actor.dual_clip 3", ["--actor.dual_clip 3", "--method lp_reg"]),
    (f"--method lp_reg {CLIP}", ["--method lp_reg", "--method clip_cov", "clip of its own"]),
    ("--method nsr --reward.clip_range 0 1", ["--reward.clip_range has no effect", "--method nsr"]),
    ("--method nsr --actor.loss_agg_mode seq-mean-token-mean", ["--method nsr", "token-mean"]),
    ("--method nsr --actor.policy_loss_type gspo", ["--method nsr", "--actor.policy_loss_type", "gspo"]),
    ("--method psr --reward_incorrect 0.9", ["--reward_incorrect 0.9", "--method psr"]),
    ("--method psr --algo.advantage.estimator group_norm", ["--method psr", "reinforce", "got group_norm"]),
    (f"--method entrocraft,adaptive_entropy --entropy_target 0.2 {GROUPS}", ["entrocraft", "--entrocraft_low"]),
    (f"--method entrocraft,positive_weight --positive_weight 0 {GROUPS}", ["--positive_weight 0", "entrocraft"]),
    (f"--method wapo {GROUPS}", ["--algo.kl.init_coef 0.01", "--method wapo", "--algo.kl.use_loss"]),
    (f"--method wapo --algo.advantage.is_correction_level token {GROUPS}", ["--wapo_anchor rollout", "twice"]),
    (f"--method wapo --wapo_length 4 {GROUPS} {BY_RESPONSE}", ["--wapo_length 4", "token-mean"]),
    (
        f"--method wapo --algo.kl.init_coef 0 --actor.eps_clip_low_high 0.2 0 {GROUPS}",
        ["--actor.eps_clip_low_high 0.2 0", "--method wapo"],
    ),
    (f"--method wapo,cispo --allow_no_trust_region {GROUPS}", ["--method cispo", "--wapo_anchor old"]),
    (f"--method clip_b,wapo --algo.kl.init_coef 0 {GROUPS}", ["--method clip_b", "wapo", "negative advantages"]),
    (f"--method clip_v,wapo --algo.kl.init_coef 0 {GROUPS}", ["--method clip_v", "wapo", "negative advantages"]),
    ("--method entropic", ["--entropic_alpha 0", "--method entropic"]),
    ("--method entropic --actor.policy_loss_type gspo", ["--method entropic", "gspo"]),
    ("--method maxrl", ["--rollout.n_samples_per_prompt 1", "--method maxrl"]),
    (f"--method maxrl --reward_incorrect -1 {GROUPS}", ["--reward_incorrect -1", "--method maxrl", "give 0"]),
    ("--method passk --rollout.n_samples_per_prompt 4", ["--passk_k 4: must be below --rollout.n_samples_per_pro"]),
    # Flags of OpenRLHF alone.
    ("--ds.param_dtype fp8", ["--ds.param_dtype fp8: must be one of ", "fp32"]),
    (f"{BF16} --ds.zero_stage 0", ["--ds.grad_accum_dtype fp32: DeepSpeed refuses another type"]),
    (f"{BF16} --ds.zero_stage 2", ["--ds.grad_accum_dtype fp32: DeepSpeed ignores it"]),
    ("--ds.lora.target_modules all-linear lm_head", ["give it alone, or name layers"]),
    ("--ds.lora.target_modules", ["--ds.lora.target_modules is empty"]),
    ("--train.agent_func_path a.py", ["--reward.remote_url has no effect with --train.agent_func_path"]),
    (
        "--algo.dynamic_filtering_enable --rollout.batch_size 8 --rollout.vllm_generate_batch_size 16",
        ["--algo.dynamic_filtering_enable", "drop it"],
    ),
    ("--ckpt.best_metric_key auto", ["no evaluation chooses the best model"]),
    ("--ckpt.best_metric_key auto --eval.dataset problems.jsonl", ["no evaluation chooses the best model"]),
    ("--eval.at_start", ["there is nothing to evaluate"]),
    ("--data.chat_template_kwargs {}", ["--data.chat_template_kwargs only applies with --data.apply_chat_template"]),
    # Rewards come from one file, or from addresses.
    ("--reward.remote_url a.py,b.py", ["--reward.remote_url a.py,b.py: a file gives all rewards", "alone"]),
    ("--reward.remote_url a.py,http://h:1", ["--reward.remote_url a.py,http://h:1: a file gives all rewards"]),
    ("--reward.remote_url reward.txt", ["--reward.remote_url reward.txt: must be a file that ends in .py, or"]),
    ("--reward.remote_url http://", ["--reward.remote_url http://: must be a file that ends in .py, or addresses"]),
    ("--reward.remote_url http://h:1,", ["--reward.remote_url http://h:1,: must be a file that ends in .py, or"]),
    ("--reward.remote_url http://[h:1", ["--reward.remote_url http://[h:1: must be a file that ends in .py, or"]),
    # Flags of OpenRLHF that a run would ignore because of its other flags.
    (f"--preset grpo --algo.kl.use_loss {EIGHT}", ["--algo.kl.use_loss has no effect", "--algo.kl.init_coef 0"]),
    ("--preset grpo --algo.kl.estimator k3", ["--algo.kl.estimator k3 has no effect", "give a coefficient above 0"]),
    ("--algo.kl.init_coef 0 --algo.kl.target 6", ["--algo.kl.target 6 has no effect", "--algo.kl.init_coef 0"]),
    ("--algo.kl.horizon 9", ["--algo.kl.horizon 9 only applies with --algo.kl.target"]),
    ("--algo.kl.unbiased_gradient", ["--algo.kl.unbiased_gradient only applies with --algo.kl.use_loss"]),
    (f"{GROUPS} --algo.advantage.gamma 0.9", ["--algo.advantage.gamma 0.9 has no effect", "group_norm", "drop it"]),
    (f"{GROUPS} --algo.advantage.lambd 0.9", ["--algo.advantage.lambd 0.9 has no effect", "group_norm", "drop it"]),
    (f"{GROUPS} --algo.advantage.no_std_norm", ["--algo.advantage.no_std_norm has no effect", "choose dr_grpo"]),
    (f"{GROUPS} --critic.adam.lr 1e-5", ["--critic.adam.lr 1e-05 has no effect", "group_norm, which has no critic"]),
    (f"{GROUPS} --critic.model_name_or_path m", ["--critic.model_name_or_path m has no effect", "no critic"]),
    (f"{QAE} --critic.freezing_steps 9", ["--critic.freezing_steps 9 has no effect", "group_norm"]),
    (f"{CORRECTION}mode clip", [f"{CORRECTION}mode clip only applies with {CORRECTION}level token or seq"]),
    (f"{CORRECTION}threshold 0.5 2", [f"{CORRECTION}threshold 0.5 2 only applies with {CORRECTION}level"]),
    (f"{CORRECTED} {GSPO_CLIP} {CORRECTION}gating tv", [f"{CORRECTION}gating tv has no effect", "gspo"]),
    (f"{GSPO_CLIP} --actor.loss_agg_mode token-mean", ["--actor.loss_agg_mode token-mean has no effect", "gspo"]),
    ("--actor.eps_clip 0.3 --actor.eps_clip_low_high 0.2 0.28", ["--actor.eps_clip 0.3 has no effect", "drop one"]),
    ("--algo.dynamic_filtering_range 0.2 0.8", ["range 0.2 0.8 only applies with --algo.dynamic_filtering_enable"]),
    ("--reward.overlong_penalty_factor 2", ["factor 2 only applies with --reward.overlong_buffer_len"]),
    ("--train.ema_beta 0.9", ["--train.ema_beta 0.9 only applies with --train.enable_ema"]),
    ("--train.async_queue_size 2", ["--train.async_queue_size 2 only applies with --train.async_enable"]),
    (
        f"{KL} --cov_scope micro_batch --train.dynamic_batch_enable --train.micro_batch_size 4",
        ["--train.micro_batch_size 4 has no effect", "--train.dynamic_batch_enable", "--cov_scope micro_batch"],
    ),
    (f"{CONSTANT} --actor.lr_warmup_ratio 0.1", ["--actor.lr_warmup_ratio 0.1 has no effect", "constant_with_warmup"]),
    ("--preset grpo --actor.lr_warmup_ratio 0.1", ["--actor.lr_warmup_ratio 0.1 has no effect with", "constant"]),
    ("--actor.lr_scheduler linear --actor.min_lr_ratio 0.5", ["--actor.min_lr_ratio 0.5 has no effect", "linear"]),
    ("--critic.lr_scheduler constant --critic.min_lr_ratio 0.5", ["--critic.min_lr_ratio 0.5 has no effect"]),
    ("--actor.muon.lr 0.1", ["--actor.muon.lr 0.1 only applies with --actor.optim muon"]),
    ("--data.apply_chat_template --data.input_template Q:{}", ["--data.input_template Q:{} has no effect"]),
    ("--eval.steps 5", ["--eval.steps 5 only applies with --eval.dataset"]),
    (f"{BENCH} --eval.split test", ["--eval.split test has no effect with --eval.dataset bench:"]),
    ("--eval.dataset problems.jsonl", ["--eval.dataset problems.jsonl is never evaluated; add --eval.steps"]),
    ("--logger.wandb.project p", ["--logger.wandb.project p only applies with --logger.wandb.key"]),
    # Values that would end a run after its engines have started.
    ("--actor.lr_scheduler cosin", ["--actor.lr_scheduler cosin: must be one of ", "cosine"]),
    # It takes a metric with every step, which DeepSpeed does not give.
    ("--critic.lr_scheduler reduce_lr_on_plateau", ["--critic.lr_scheduler reduce_lr_on_plateau: must be one of "]),
    ("--vllm.sync_backend mpi", ["--vllm.sync_backend mpi: must be nccl or gloo"]),
    ("--reward.overlong_buffer_len 30 --rollout.max_new_tokens 24", ["buffer_len 30 is more", "new_tokens 24"]),
    ("--reward.overlong_buffer_len 4096", ["--reward.overlong_buffer_len 4096 is more than --data.max_len 2048"]),
    (f"{CORRECTION}level seq {CORRECTION}mode clip", [f"{CORRECTION}mode clip", f"give {CORRECTION}level token"]),
    # A divergence has an upper bound alone, and the default of the flag is a range.
    (f"{CORRECTED} {CORRECTION}gating tv", [f"{CORRECTION}gating tv", f"{CORRECTION}threshold 0.5 5", "one number"]),
    ("--data.input_template Q:", ["--data.input_template 'Q:': it has no {} for the prompt"]),
    # LaTeX has braces of its own, and a second place would end the run.
    ("--data.input_template {}\\boxed{}", ["--data.input_template '{}", "\\boxed{{}}"]),
    ("--data.input_template {}{x}", ["--data.input_template '{}{x}'"]),
    ("--ds.lora.rank 99999999999", ["--ds.lora.rank 1e+11: must lie in [0, 65536]"]),
]


@pytest.mark.parametrize(("flags", "named"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_a_wrong_flag_is_one_line_with_flag_and_value(parse, refused, flags, named):
    line = refused(parse, *flags.split())
    assert [text for text in named if text not in line] == [], line


# A run needs a reward and an engine. Flags of a dry run need one, and go together.
RUN = "--reward.remote_url r.py --vllm.num_engines 1"
REFUSED_RUNS = [
    ("--vllm.num_engines 1", "--reward.remote_url is missing: a run needs a reward; "),
    ("--vllm.num_engines 1 --train.agent_func_path a.py --reward_incorrect 0", "--reward_incorrect has no effect"),
    ("--reward.remote_url r.py", "--vllm.num_engines is missing: "),
    ("--reward.remote_url r.py --ds.packing_samples", "--vllm.num_engines is missing: "),
    (f"{RUN} --dry_run_nodes 4", "--dry_run_nodes 4 only applies with --dry_run; add --dry_run or drop it"),
    (f"{RUN} --dry_run --dry_run_gpus 4", "--dry_run_nodes and --dry_run_gpus go together, got 0 and 4"),
    (f"{RUN} --dry_run --dry_run_gpu_memory nan", "--dry_run_gpu_memory nan: must be a finite number of at least 0"),
    (f"{RUN} --dry_run --dry_run_nodes 100000 --dry_run_gpus 8", "--dry_run_nodes 100000 of --dry_run_gpus 8 are 80"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED_RUNS)
def test_a_run_that_cannot_be_is_refused(parse_nested, refused, flags, message):
    assert refused(parse_nested, *flags.split()).startswith(message)


@pytest.mark.parametrize("flag", ["--reward.remote_url", "--reward.model_name_or_path", "--train.agent_func_path"])
def test_a_reward_comes_from_one_of_three_flags(parse_nested, flag):
    assert parse_nested("--vllm.num_engines", "1", flag, "reward.py").vllm.num_engines == 1


def flag_of(setting):
    """Return the flag of a setting with a value that it takes: its default, or a number where that is None."""
    if isinstance(setting.default, bool):
        return [f"--{setting.name}"]
    default = 9.0 if setting.default is None else setting.default
    values = default if isinstance(default, tuple) else [default]
    return [f"--{setting.name}", *(str(value) for value in values)]


OF_METHODS = [(setting, method) for method in METHODS.values() for setting in fields(method.settings)]


@pytest.mark.parametrize(("setting", "method"), OF_METHODS, ids=[setting.name for setting, _ in OF_METHODS])
def test_a_setting_that_nothing_reads_is_refused(parse, refused, setting, method):
    others = [each for each in METHODS.values() if each is not method and setting not in fields(each.settings)]
    line = refused(parse, *others[0].flag.split(), *flag_of(setting))
    assert f"--{setting.name} only applies to {method.flag}" in line


# Flags, and values of the parsed flags.
GSPO = "--actor.policy_loss_type gspo"
KEEPS_CLIP = f"{KL} --kl_cov_keep_ppo_clip"
TAKEN = [
    ("", {"actor.eps_clip_low_high": None}),  # upstream's own default
    ("--actor.eps_clip_low_high 0.2 0.28", {"actor.eps_clip_low_high": [0.2, 0.28]}),
    # Methods open the PPO clip as published, unless a flag sets it.
    (CLIP, {"actor.eps_clip_low_high": (1.0, 1.0)}),
    (f"{CLIP} --actor.dual_clip 10", {"actor.eps_clip_low_high": (1.0, 1.0)}),
    (f"{CLIP} --actor.eps_clip 0.3", {"actor.eps_clip_low_high": None}),
    (KEEPS_CLIP, {"actor.eps_clip_low_high": None}),
    (f"{KEEPS_CLIP} --actor.eps_clip_low_high 0.2 0.28", {"actor.eps_clip_low_high": [0.2, 0.28]}),
    ("--method kl_cov", {"actor.eps_clip_low_high": (math.inf, math.inf)}),
    ("--method cispo", {"actor.eps_clip_low_high": (math.inf, math.inf)}),
    (
        "--method adaptive_clip --adaptive_clip_eps 0.2 --adaptive_clip_high 0.1",
        {"actor.eps_clip_low_high": pytest.approx((0.2, 0.35))},
    ),
    (f"--method top_entropy {KL}", {"actor.eps_clip_low_high": (math.inf, math.inf)}),
    # Aggregation and estimator are the published ones unless a flag sets them.
    ("--method sapo", {"actor.loss_agg_mode": "seq-mean-token-mean", "algo.advantage.estimator": "gae"}),
    ("--method gspo_token --actor.loss_agg_mode token-mean", {"actor.loss_agg_mode": "token-mean"}),
    ("--method psr", {"actor.loss_agg_mode": "token-mean", "algo.advantage.estimator": "reinforce"}),
    (f"{QAE} {GSPO} --actor.eps_clip 0.2", {"actor.loss_agg_mode": "token-mean"}),
    # Upstream computes the entropy only with a coefficient.
    (
        f"--method adaptive_entropy --entropy_target 0.2 {GSPO} --actor.eps_clip_low_high 3e-4 4e-4",
        {"entropy_target": 0.2, "actor.entropy_coef": 0.0},
    ),
    ("--method repo_r", {"actor.entropy_coef": None}),
    # A clip on the command line takes the place of the range of a preset.
    ("--preset dapo --actor.eps_clip 0.3", {"actor.eps_clip": 0.3, "actor.eps_clip_low_high": None}),
    ("--preset dapo", {"actor.eps_clip_low_high": [0.2, 0.28]}),
    # KL-Cov was published without a PPO clip.
    ("--preset dapo --method kl_cov", {"actor.eps_clip_low_high": (math.inf, math.inf)}),
    ("--preset paper-7b", {"actor.dual_clip": 10, "train.batch_size": 256}),
    ("--preset paper-7b --method clip_cov", {"actor.dual_clip": None}),
    ("--actor.adam.lr 3e-6 --preset paper-7b --train.batch_size 64", {"actor.adam.lr": 3e-6, "train.batch_size": 64}),
    ("--preset grpo --algo.advantage.estimator rloo", {"algo.advantage.estimator": "rloo"}),
    # A group that waits for the next step would be of an older policy.
    ("--preset on-policy --algo.dynamic_filtering_enable", {"sampling_max_staleness": 0}),
    # What some flags refuse, others allow.
    ("--algo.kl.init_coef 0 --algo.kl.use_loss", {"algo.kl.use_loss": True}),  # 0 is said beside it
    ("--preset grpo --algo.kl.init_coef 1e-3 --algo.kl.use_loss", {"algo.kl.init_coef": 1e-3}),
    (f"{GROUPS} --algo.advantage.gamma 1 --algo.advantage.lambd 1", {"algo.advantage.gamma": 1.0}),  # as it is
    ("--algo.advantage.estimator reinforce_baseline --algo.advantage.no_std_norm", {"algo.advantage.lambd": 1}),
    (f"{GROUPS} --critic.num_gpus_per_node 2", {"critic.num_gpus_per_node": 2}),  # places what a run may lack
    (f"{CORRECTED} {CORRECTION}gating tv {CORRECTION}threshold 0.1", {f"{CORRECTION[2:]}threshold": [0.1]}),
    (f"{CONSTANT} --actor.lr_warmup_ratio 0", {"actor.lr_warmup_ratio": 0.0}),
    ("--actor.lr_scheduler constant_with_warmup --actor.lr_warmup_ratio 0.1", {"actor.lr_warmup_ratio": 0.1}),
    ("--data.input_template {}\\boxed{{}}", {"data.input_template": "{}\\boxed{{}}"}),
    ("--eval.dataset problems.jsonl --eval.at_start", {"eval.steps": -1}),
    (f"{KL} --cov_scope micro_batch --train.micro_batch_size 4", {"train.micro_batch_size": 4}),
    ("--reward.overlong_buffer_len 24 --rollout.max_new_tokens 24", {"reward.overlong_penalty_factor": 1}),
    ("--method adaptive_entropy --entropy_bonus 0.01", {"entropy_bonus": 0.01}),
    (f"--method clip_b {BY_RESPONSE}", {"method": "clip_b"}),
    (f"--method clip_b,maxrl {GROUPS}", {"method": "clip_b,maxrl"}),
    ("--method dppo --dppo_anchor old --algo.advantage.is_correction_level seq", {"dppo_anchor": "old"}),
    (f"--method dr_grpo {EIGHT} {BY_RESPONSE}", {"dr_grpo_length": None}),
    ("--method entropic --entropic_alpha 0.5", {"entropic_alpha": 0.5}),
    ("--method entropic --entropy_target 0.1", {"entropic_alpha": 0.0}),
    ("--method lp_reg", {"actor.eps_clip_low_high": (1.0, 9.0)}),
    ("--method lp_reg --actor.eps_clip_low_high 1 0.2", {"actor.eps_clip_low_high": [1.0, 0.2]}),
    ("--method passk --rollout.n_samples_per_prompt 5", {"passk_k": 4}),
    ("--method positive_weight --positive_weight 0:1:9", {"positive_weight": Schedule(0.0, 1.0, 9)}),
    ("--method positive_weight --entropy_target 0.3", {"positive_weight": 1.0}),
    (f"--method prime {EIGHT} --prime_model other --algo.kl.init_coef 0", {"prime_model": "other"}),
    (f"--method wapo --wapo_length 4 --algo.kl.use_loss {GROUPS}", {"wapo_length": 4.0}),
    (
        f"--method wapo --wapo_anchor old --algo.advantage.is_correction_level token --algo.kl.init_coef 0 {GROUPS} "
        "--actor.eps_clip_low_high 1 0.28",
        {"wapo_anchor": "old"},
    ),
    # With a KL in the loss, or without one, gmpo has one advantage per response.
    (f"--method gmpo {GROUPS} --algo.kl.init_coef 0", {"method": "gmpo"}),
    (f"--method gmpo {GROUPS} --algo.kl.use_loss", {"method": "gmpo"}),
    (
        f"{KL} --entropy_target 0.6:0.4:100-500 --entropy_control ppo_kl_coef --entropy_high 9",
        {"entropy_target": Schedule(0.6, 0.4, 500, begin=100), "entropy_high": 9.0, "entropy_low": None},
    ),
    # Upstream would choose a metric, and write a whole checkpoint at every better evaluation.
    (EVALUATES, {"ckpt.best_metric_key": "none"}),
    (f"{EVALUATES} --ckpt.best_metric_key=", {"ckpt.best_metric_key": "none"}),
    (f"{EVALUATES} --ckpt.best_metric_key auto", {"ckpt.best_metric_key": ""}),  # with which upstream chooses
    (f"{EVALUATES} --ckpt.best_metric_key eval_task_pass1", {"ckpt.best_metric_key": "eval_task_pass1"}),
    # Limits of programs apply where programs run.
    (f"{OUR_REWARD} --code_timeout 9 --reward_source row", {"code_timeout": 9.0}),
    (f"{OUR_REWARD} --code_timeout 9 --eval.dataset bench:code_basics --eval.at_start", {"code_timeout": 9.0}),
    ("--reward.remote_url mine/reward_func.py --code_timeout 9", {"code_timeout": 9.0}),
    # The trainer reads these for any server: of failed and of truncated responses, and the labels of rows.
    (
        f"{SERVER} --reward_incorrect -1 --reward_keep_truncated --reward_max_error_frac 0.1 --reward_source row",
        {"reward_incorrect": -1.0, "reward_keep_truncated": True, "reward_source": "row"},
    ),
    # Evaluations on benchmarks grade here.
    (f"{SERVER} {BENCH} --reward_format any --code_timeout 9", {"reward_format": "any", "code_timeout": 9.0}),
    # DeepSpeed accumulates gradients in this type.
    (f"{BF16} --ds.zero_stage 3", {"ds.grad_accum_dtype": "fp32"}),
    (f"{BF16} --ds.zero_stage 1", {"ds.grad_accum_dtype": "fp32"}),
    (f"{BF16} --ds.param_dtype fp32 --ds.zero_stage 2", {"ds.grad_accum_dtype": "fp32"}),
    # PEFT's word for all linear layers, alone or in a list.
    ("--ds.lora.rank 8", {"ds.lora.target_modules": "all-linear"}),
    ("--ds.lora.rank 8 --ds.lora.target_modules all-linear", {"ds.lora.target_modules": "all-linear"}),
    ("--rollout.batch_size 8 --rollout.vllm_generate_batch_size 16", {"rollout.vllm_generate_batch_size": 16}),
    (
        "--rollout.batch_size 8 --algo.dynamic_filtering_enable --rollout.vllm_generate_batch_size 8",
        {"rollout.vllm_generate_batch_size": 8},
    ),
]


@pytest.mark.parametrize(("flags", "values"), TAKEN, ids=[flags or "none" for flags, _ in TAKEN])
def test_flags_become_these_values(parse, flags, values):
    args = vars(parse(*flags.split()))
    assert {name: args[name] for name in values} == values


# Flags, and the settings of the loss that differ from the defaults.
RATIOS = {"kl_cov_ratio": Schedule(2e-3, 2e-4, 100), "ppo_kl_coef": Schedule(1.0, 0.0, 50, "cosine")}
CONFIGS = [
    ("", {}),
    (
        f"{CLIP} --clip_cov_ratio 0.5 --clip_cov_lb -1 --clip_cov_ub=2 --allow_large_cov_ratio",
        {"clip_cov_ratio": 0.5, "clip_cov_lb": -1.0, "clip_cov_ub": 2.0, "allow_large_cov_ratio": True},
    ),
    (f"{KL} --kl_cov_ratio 2e-3:2e-4:100 --ppo_kl_coef=1:0:50:cosine", RATIOS),
    (f"{CLIP} --clip_cov_ratio 2e-4:2e-3:7:linear", {"clip_cov_ratio": Schedule(2e-4, 2e-3, 7)}),
    (f"{KL} --kl_cov_ratio 1e-3 --cov_log_probs old", {"kl_cov_ratio": 1e-3, "cov_log_probs": "old"}),
    (f"{KL} --cov_scope micro_batch", {"cov_scope": "micro_batch"}),
]


@pytest.mark.parametrize(("flags", "settings"), CONFIGS)
def test_flags_become_the_settings_of_the_loss(parse, flags, settings):
    words = flags.split()
    chosen = {"cov_type": words[1]} if words else {}
    assert CovConfig.from_args(parse(*words)) == CovConfig(**chosen, **settings)


def test_arguments_of_a_chat_template_have_one_spelling(parse_nested):
    flags = ["--data.chat_template_kwargs", '{"b":1, "a" : 2}']
    for more in ("--data.apply_chat_template", f"{BENCH} --eval.template chat"):
        # Spaces and order make no other run.
        assert parse_nested(*RUN.split(), *flags, *more.split()).chat_template_kwargs == '{"a": 2, "b": 1}'


UNSET = dict.fromkeys((*POSITIVE, *INTERVALS, *RANGES))


def faults(name, value):
    return list(range_faults(UNSET | {name: value}))


@pytest.mark.parametrize("name", [*POSITIVE, *INTERVALS])
def test_counts_are_at_least_one(name):
    assert faults(name, None) == faults(name, 1) == faults(name, 3) == []
    assert bool(faults(name, -1)) == (name in POSITIVE)  # never, of an interval of steps
    for value in (0, -2):
        (line,) = faults(name, value)
        assert line.startswith(f"--{name} {value}: must be at least 1")


@pytest.mark.parametrize("name", RANGES)
def test_nan_lies_in_no_range(name):
    (line,) = faults(name, math.nan)
    assert line.startswith(f"--{name} nan: must lie in {RANGES[name]}")


@pytest.mark.parametrize(
    ("name", "fitting", "others"),
    [
        ("actor.adam.lr", (0.0, 1e-6, 1.0), (-1e-9, 1.1, math.inf)),
        ("critic.adam.betas", ([0.0, 0.999],), ([0.9, 1.0], [-0.1, 0.9], [math.nan, 0.9])),
        ("actor.entropy_coef", (-1.0, 0.0, 1.0), (math.inf, -math.inf)),
        ("actor.eps_clip_low_high", ((0.0, math.inf),), ((0.2, -0.2),)),
        ("rollout.temperature", (0.01, 1.0), (0.0, -1.0, 0.009, math.inf)),
        ("rollout.top_p", (0.1, 1.0), (0.0, -0.5, 1.5)),
        ("train.seed", (0, 2**32 - 1), (-1, 2**32)),
        ("ds.zero_stage", (0, 3), (-1, 4)),
    ],
)
def test_a_number_outside_of_its_range_is_one_line(name, fitting, others):
    for value in fitting:
        assert faults(name, value) == []
    for value in others:
        (line,) = faults(name, value)
        assert line.startswith(f"--{name} ")
        assert ": must lie in " in line


@pytest.mark.parametrize("name", ORDERED)
def test_a_lower_bound_comes_first(name):
    assert faults(name, [0.25, 0.75]) == faults(name, [0.75]) == []
    assert len(faults(name, [0.75, 0.25])) == 1


@given(st.floats(allow_nan=True), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_ends_belong_to_closed_intervals_alone(value, low, high):
    closed = lies_in(f"[{low!r}, {high!r}]", value)
    assert closed == (low <= value <= high)
    assert lies_in(f"({low!r}, {high!r})", value) == (low < value < high)
    assert lies_in(f"({low!r}, {high!r}]", value) == (closed and value != low)
