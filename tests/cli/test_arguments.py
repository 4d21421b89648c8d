import math

import pytest

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.settings import Schedule

CLIP, KL = ("--cov_type", "clip_cov"), ("--cov_type", "kl_cov")
QAE = ("--method", "qae", "--rollout.n_samples_per_prompt", "8")
GROUP_NORM = ("--algo.advantage.estimator", "group_norm", "--rollout.n_samples_per_prompt", "8")
NOT_PERCENT = "fractions, not percent (0.2 % is 2e-3)"

OF_GROUPS = " ".join(GROUP_NORM)
OF_QAE = " ".join(QAE)

# flags -> what the one line names: the flag, the value, and the way out
REFUSED = [
    ("--clip_cov_rattio 1e-3", ["--clip_cov_rattio", "did you mean --clip_cov_ratio?"]),
    ("--actor.adam.lrr 1e-6", ["--actor.adam.lrr", "did you mean --actor.adam.lr?"]),
    ("--cov_type klcov", ["--cov_type klcov: must be one of none, clip_cov, kl_cov; did you mean kl_cov?"]),
    ("--cov_type kl_cov --clip_cov_ratio 1e-3", ["--clip_cov_ratio", "--method clip_cov", "got --method kl_cov"]),
    ("--cov_type kl_cov --kl_cov_ratio 0", ["--kl_cov_ratio 0.0: must be a fraction of tokens in (0, 1]"]),
    ("--cov_type kl_cov --kl_cov_ratio 0.2", ["--kl_cov_ratio 0.2", "20.0% of the tokens", "--allow_large_cov_ratio"]),
    ("--cov_type kl_cov --kl_cov_ratio many", ["--kl_cov_ratio", "'many'"]),
    (
        "--cov_type kl_cov --kl_cov_ratio 2",
        ["--kl_cov_ratio 2.0: must be a fraction of tokens in (0, 1]", NOT_PERCENT],
    ),
    ("--cov_type kl_cov --kl_cov_ratio 0.2%", ["--kl_cov_ratio", "'0.2%'", NOT_PERCENT]),
    ("--method cispo --cov_type kl_cov", ["--method kl_cov", "--method cispo", "--allow_no_trust_region"]),
    ("--allow_no_trust_region", ["--allow_no_trust_region", "surrogate"]),
    (
        "--method top_entropy --actor.loss_agg_mode seq-mean-token-mean",
        ["--actor.loss_agg_mode token-mean", "--top_entropy_mean all"],
    ),
    ("--method adaptive_entropy", ["--method adaptive_entropy", "--entropy_target"]),
    (
        "--method adaptive_entropy --entropy_target 0.2 --actor.entropy_coef 0.01",
        ["--actor.entropy_coef 0.01", "--method adaptive_entropy"],
    ),
    ("--method qae,positive_weight --positive_weight 0", ["--positive_weight 0", "--method qae"]),
    ("--method qae --code_reward share", ["--method qae", "--code_reward share"]),
    ("--method adaptive_clip --actor.eps_clip 0.3", ["--actor.eps_clip", "--method adaptive_clip"]),
    ("--method steer --actor.policy_loss_type gspo", ["--method steer", "gspo"]),
    ("--entropy_target 0.3", ["--entropy_target", "--entropy_control"]),
    (
        "--entropy_target 0.3 --entropy_control repo_zeta --cov_type kl_cov",
        ["--entropy_control repo_zeta", "ppo_kl_coef"],
    ),
    ("--method cispo --actor.eps_clip 0.3", ["--actor.eps_clip 0.3", "--method cispo", "no PPO clip"]),
    ("--method top_entropy --actor.policy_loss_type gspo", ["--actor.policy_loss_type", "gspo"]),
    ("--method gspo_token --actor.policy_loss_type gspo", ["--method gspo_token", "gspo"]),
    ("--method gspo_token --actor.eps_clip 0.2", ["--actor.eps_clip 0.2", "--method gspo_token"]),
    ("--method gspo_token --gspo_token_clip 0.2", ["--gspo_token_clip"]),
    ("--actor.policy_loss_type gspo", ["--actor.policy_loss_type gspo", "--actor.eps_clip 0.2", "3e-4 4e-4"]),
    ("--method lp_reg --ds.ring_attn_size 2", ["--method lp_reg", "--ds.ring_attn_size 2"]),
    ("--method sapo --actor.eps_clip_low_high 0.2 0.28", ["--actor.eps_clip_low_high", "--method sapo"]),
    ("--method dppo --actor.dual_clip 3", ["--actor.dual_clip 3.0", "--method dppo"]),
    ("--method dppo --algo.advantage.is_correction_level token", ["is_correction_level token", "twice"]),
    ("--method dppo --cov_type kl_cov --allow_no_trust_region", ["--allow_no_trust_region", "surrogate"]),
    ("--method gmpo", ["--method gmpo", "--algo.advantage.estimator gae"]),
    (f"--method gmpo {OF_GROUPS}", ["--method gmpo", "--algo.kl.init_coef 0.01 in the reward", "use_loss"]),
    (
        "--method gmpo --algo.advantage.estimator reinforce --algo.advantage.gamma 0.9",
        ["--method gmpo", "--algo.advantage.gamma 0.9"],
    ),
    ("--method stare --entropy_target 0.3 --stare_gate 0.3", ["--stare_gate", "--entropy_target 0.3"]),
    ("--method steer --steer_max 1.1", ["--steer_max", "--steer_form linear", "got --steer_form expon"]),
    ("--method lp_reg --actor.dual_clip 3", ["--actor.dual_clip 3", "--method lp_reg"]),
    ("--method lp_reg --cov_type clip_cov", ["--method lp_reg", "--method clip_cov", "clip of its own"]),
    ("--method nsr --reward.clip_range 0 1", ["--reward.clip_range has no effect", "--method nsr"]),
    ("--method psr --reward_incorrect 0.9", ["--reward_incorrect 0.9", "--method psr"]),
    (
        f"--method entrocraft,adaptive_entropy --entropy_target 0.2 {OF_GROUPS}",
        ["--method entrocraft", "--entrocraft_low"],
    ),
    (
        f"--method entrocraft,positive_weight --positive_weight 0 {OF_GROUPS}",
        ["--positive_weight 0", "--method entrocraft"],
    ),
    ("--method sapo,top_entropy", ["--top_entropy_mean kept", "seq-mean-token-mean", "--top_entropy_mean all"]),
    (f"{OF_QAE} --algo.advantage.estimator gae", ["--method qae", "group_norm", "got gae"]),
    ("--method psr --algo.advantage.estimator group_norm", ["--method psr", "reinforce", "got group_norm"]),
    (f"{OF_QAE} --algo.advantage.gamma 0.9", ["--algo.advantage.gamma", "--method qae", "drop it"]),
    (f"{OF_QAE} --reward.model_name_or_path m", ["--method qae", "--reward.model_name_or_path m"]),
    ("--method qae", ["--method qae", "--rollout.n_samples_per_prompt is 1"]),
    (f"--method wapo {OF_GROUPS}", ["--algo.kl.init_coef 0.01", "--method wapo", "--algo.kl.use_loss"]),
    (f"--method wapo --algo.advantage.is_correction_level token {OF_GROUPS}", ["--wapo_anchor rollout", "twice"]),
    (f"--method wapo,cispo --allow_no_trust_region {OF_GROUPS}", ["--method cispo", "--wapo_anchor old"]),
    (f"--method clip_b,wapo --algo.kl.init_coef 0 {OF_GROUPS}", ["--method clip_b", "wapo", "negative advantages"]),
    ("--method entropic --actor.policy_loss_type gspo", ["--method entropic", "gspo"]),
    ("--method maxrl", ["--rollout.n_samples_per_prompt 1", "--method maxrl"]),
    (f"--method maxrl --reward_incorrect -1 {OF_GROUPS}", ["--reward_incorrect -1", "--method maxrl", "give 0"]),
    (
        "--method passk --rollout.n_samples_per_prompt 4",
        ["--passk_k 4: must be below --rollout.n_samples_per_prompt, which is 4"],
    ),
    ("--method nsr --actor.loss_agg_mode seq-mean-token-mean", ["--method nsr", "token-mean"]),
    ("--method nsr --actor.policy_loss_type gspo", ["--method nsr", "--actor.policy_loss_type", "gspo"]),
    ("--cov_type kl_cov --cov_scope batch", ["--cov_scope batch: must be one of global, micro_batch"]),
    ("--cov_type kl_cov --cov_scope micro_batch --cov_log_probs current", ["got --cov_scope micro_batch", "drop it"]),
    ("--cov_type kl_cov --kl_cov_ratio 2e-3:2e-4", ["--kl_cov_ratio", "'2e-3:2e-4'"]),
    ("--cov_type kl_cov --actor.policy_loss_type gspo", ["--actor.policy_loss_type ppo", "got gspo"]),
    ("--cov_type kl_cov --actor.eps_clip 0.2", ["--actor.eps_clip", "--method kl_cov", "--kl_cov_keep_ppo_clip"]),
    ("--ds.param_dtype fp8", ["--ds.param_dtype fp8: must be one of ", "fp32"]),
    (
        "--algo.dynamic_filtering_enable --rollout.batch_size 8 --rollout.vllm_generate_batch_size 16",
        ["--algo.dynamic_filtering_enable", "drop it"],
    ),
]


@pytest.mark.parametrize(("flags", "named"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_a_wrong_flag_is_one_line_with_flag_and_value(parse, refused, flags, named):
    line = refused(parse, *flags.split())
    assert all(text in line for text in named), line


@pytest.mark.parametrize(
    "flags",
    [
        ["--rollout.vllm_generate_batch_size", "16"],
        ["--algo.dynamic_filtering_enable", "--rollout.vllm_generate_batch_size", "8"],
    ],
)
def test_a_number_of_prompts_that_is_used_or_changes_nothing_is_taken(parse, flags):
    assert parse("--rollout.batch_size", "8", *flags)


def test_a_bad_schedule_names_the_accepted_form(parse, refused):
    assert "START:END:STEPS" in refused(parse, *KL, "--kl_cov_ratio", "2e-3:2e-4")


PPO_CLIP = [
    ([], None),  # upstream's own default rule
    (["--actor.eps_clip_low_high", "0.2", "0.28"], [0.2, 0.28]),
    ([*CLIP], (1.0, 1.0)),
    ([*KL, "--kl_cov_keep_ppo_clip"], None),
    ([*KL, "--kl_cov_keep_ppo_clip", "--actor.eps_clip_low_high", "0.2", "0.28"], [0.2, 0.28]),
    ([*CLIP, "--actor.eps_clip", "0.3"], None),
    ([*CLIP, "--actor.dual_clip", "10"], (1.0, 1.0)),  # says nothing about the range
    (["--method", "kl_cov"], (math.inf, math.inf)),  # the same as --cov_type
    (["--method", "cispo"], (math.inf, math.inf)),
    (["--method", "top_entropy", *KL], (math.inf, math.inf)),
]


@pytest.mark.parametrize(("flags", "low_high"), PPO_CLIP, ids=lambda value: " ".join(map(str, value or [])) or "none")
def test_ppo_clip_range(parse, flags, low_high):
    assert getattr(parse(*flags), "actor.eps_clip_low_high") == low_high


PUBLISHED = [
    (["--method", "sapo"], "seq-mean-token-mean", "gae"),
    (["--method", "gspo_token", "--actor.loss_agg_mode", "token-mean"], "token-mean", "gae"),  # asked for
    (
        [
            *QAE,
            "--algo.advantage.estimator",
            "group_norm",
            "--actor.policy_loss_type",
            "gspo",
            "--actor.eps_clip",
            "0.2",
        ],
        "token-mean",
        "group_norm",
    ),
    (["--method", "psr"], "token-mean", "reinforce"),
]


@pytest.mark.parametrize(("flags", "aggregation", "estimator"), PUBLISHED, ids=lambda value: "".join(value))
def test_aggregation_and_estimator_are_the_published_ones_unless_given(parse, flags, aggregation, estimator):
    args = parse(*flags)
    assert getattr(args, "actor.loss_agg_mode") == aggregation
    assert getattr(args, "algo.advantage.estimator") == estimator


def test_flags_become_the_config(parse):
    assert CovConfig.from_args(parse()) == CovConfig()
    flags = [
        *CLIP, "--clip_cov_ratio", "0.5", "--clip_cov_lb", "-1", "--clip_cov_ub=2", "--allow_large_cov_ratio",
    ]  # fmt: skip
    assert CovConfig.from_args(parse(*flags)) == CovConfig(
        cov_type="clip_cov", clip_cov_ratio=0.5, clip_cov_lb=-1.0, clip_cov_ub=2.0, allow_large_cov_ratio=True
    )


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (
            [*KL, "--kl_cov_ratio", "2e-3:2e-4:100", "--ppo_kl_coef=1:0:50:cosine"],
            {"kl_cov_ratio": Schedule(2e-3, 2e-4, 100), "ppo_kl_coef": Schedule(1.0, 0.0, 50, "cosine")},
        ),
        ([*CLIP, "--clip_cov_ratio", "2e-4:2e-3:7:linear"], {"clip_cov_ratio": Schedule(2e-4, 2e-3, 7)}),
        ([*KL, "--kl_cov_ratio", "1e-3", "--cov_log_probs", "old"], {"kl_cov_ratio": 1e-3, "cov_log_probs": "old"}),
        ([*KL, "--cov_scope", "micro_batch"], {"cov_scope": "micro_batch"}),
    ],
)
def test_schedules_and_scopes_become_the_config(parse, flags, settings):
    assert CovConfig.from_args(parse(*flags)) == CovConfig(cov_type=flags[1], **settings)


@pytest.mark.parametrize("more", [["--algo.kl.init_coef", "0"], ["--algo.kl.use_loss"]])
def test_a_kl_beside_the_reward_leaves_gmpo_one_advantage_per_response(parse, more):
    assert parse("--method", "gmpo", *GROUP_NORM, *more).method == "gmpo"


WITHOUT = [
    (["--vllm.num_engines", "1"], "--reward.remote_url is missing: a run needs a reward; "),
    (["--reward.remote_url", "reward.py"], "--vllm.num_engines is missing: "),
    (["--reward.remote_url", "reward.py", "--ds.packing_samples"], "--vllm.num_engines is missing: "),
]


@pytest.mark.parametrize(("flags", "message"), WITHOUT)
def test_what_a_run_cannot_do_without_is_named(parse_nested, refused, flags, message):
    assert refused(parse_nested, *flags).startswith(f"openrlhf-cov train: error: {message}")


@pytest.mark.parametrize("flag", ["--reward.remote_url", "--reward.model_name_or_path", "--train.agent_func_path"])
def test_a_reward_comes_from_one_of_three_flags(parse_nested, flag):
    assert parse_nested("--vllm.num_engines", "1", flag, "reward.py").vllm.num_engines == 1


def test_upstream_computes_the_entropy_that_a_method_weighs(parse):
    gspo = "--actor.policy_loss_type", "gspo", "--actor.eps_clip_low_high", "3e-4", "4e-4"
    args = parse("--method", "adaptive_entropy", "--entropy_target", "0.2", *gspo)
    assert (args.entropy_target, getattr(args, "actor.entropy_coef")) == (0.2, 0.0)
    assert getattr(parse("--method", "repo_r"), "actor.entropy_coef") is None


def test_an_adaptive_clip_begins_where_it_says(parse):
    args = parse("--method", "adaptive_clip", "--adaptive_clip_eps", "0.2", "--adaptive_clip_high", "0.1")
    assert getattr(args, "actor.eps_clip_low_high") == pytest.approx((0.2, 0.35))


def test_a_target_may_have_a_schedule(parse):
    args = parse(*KL, "--entropy_target", "0.6:0.4:100-500", "--entropy_control", "ppo_kl_coef", "--entropy_high", "9")
    assert args.entropy_target == Schedule(0.6, 0.4, 500, begin=100)
    assert (args.entropy_high, args.entropy_low) == (9.0, None)


EVALUATES = ["--eval.dataset", "problems.jsonl", "--eval.steps", "5"]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ([], "none"),  # upstream would choose a metric, and write a whole checkpoint at every better evaluation
        (["--ckpt.best_metric_key", ""], "none"),
        (["--ckpt.best_metric_key", "none"], "none"),
        (["--ckpt.best_metric_key", "auto"], ""),  # with which upstream chooses
        (["--ckpt.best_metric_key", "eval_task_pass1"], "eval_task_pass1"),
    ],
)
def test_no_best_model_unless_asked(parse, given, key):
    assert getattr(parse(*EVALUATES, *given), "ckpt.best_metric_key") == key


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ckpt.best_metric_key", "auto"], "no evaluation chooses the best model"),
        (["--ckpt.best_metric_key", "auto", *EVALUATES[:2]], "no evaluation chooses the best model"),
        (["--eval.at_start"], "there is nothing to evaluate"),
    ],
)
def test_an_evaluation_that_a_flag_needs_is_asked_for(parse, refused, flags, said):
    assert said in refused(parse, *flags)


GIVEN_FOR_CHAT = ("--data.chat_template_kwargs", '{"b":1, "a" : 2}')


def test_arguments_of_a_chat_template_need_one(parse_nested, refused):
    flags = ("--vllm.num_engines", "1", "--reward.remote_url", "r.py", *GIVEN_FOR_CHAT)
    line = refused(parse_nested, *flags)
    assert "--data.chat_template_kwargs only applies with --data.apply_chat_template or --eval.template chat" in line
    benchmarks = ("--eval.dataset", "bench:aime24", "--eval.template", "chat")
    for more in (("--data.apply_chat_template",), benchmarks):
        # one spelling, so that spaces and order make no other run
        assert parse_nested(*flags, *more).chat_template_kwargs == '{"a": 2, "b": 1}'


@pytest.mark.parametrize(("stage", "fault"), [("0", "DeepSpeed refuses another type"), ("2", "DeepSpeed ignores it")])
def test_gradients_in_a_type_that_deepspeed_does_not_heed(parse, refused, stage, fault):
    flags = ["--ds.param_dtype", "bf16", "--ds.zero_stage", stage, "--ds.grad_accum_dtype", "fp32"]
    assert f"--ds.grad_accum_dtype fp32: {fault}" in refused(parse, *flags)


@pytest.mark.parametrize(("weights", "stage"), [("bf16", "3"), ("bf16", "1"), ("fp32", "2"), ("fp32", "0")])
def test_gradients_in_a_type_that_deepspeed_heeds(parse, weights, stage):
    flags = ["--ds.param_dtype", weights, "--ds.zero_stage", stage, "--ds.grad_accum_dtype", "fp32"]
    assert getattr(parse(*flags), "ds.grad_accum_dtype") == "fp32"
