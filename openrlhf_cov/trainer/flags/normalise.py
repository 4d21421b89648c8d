"""Complete the flags of a run and refuse combinations that OpenRLHF cannot train with.

OpenRLHF does the same at the end of its main block. Here each rule says which flag is at fault and what to do.
"""

import json
from types import SimpleNamespace

from openrlhf_cov.config import template_arguments
from openrlhf_cov.errors import UsageError

# Estimators whose baseline comes from the other responses to the same prompt.
GROUP_ESTIMATORS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


def normalise(args: SimpleNamespace) -> list[str]:
    """Set the values that follow from other flags, in place.

    Args:
        args: Flags as ``hierarchize`` nests them: ``args.actor.adam.lr``.

    Returns:
        Warnings for the user, each one line.

    Raises:
        UsageError: A combination of flags cannot train.
    """
    warnings: list[str] = []
    _complete_loss(args)
    _choose_rewards_and_critic(args)
    _check_samples_per_prompt(args)
    _check_images(args)
    _check_template(args, warnings)
    _choose_packing(args, warnings)
    _check_asynchronous(args, warnings)
    _check_evaluation(args)
    _check_kl_estimator(args, warnings)
    _check_batches(args)
    return warnings


def _complete_loss(args: SimpleNamespace) -> None:
    if args.actor.eps_clip_low_high is None:
        args.actor.eps_clip_low_high = (args.actor.eps_clip, args.actor.eps_clip)
    bounds = args.algo.advantage.is_correction_threshold
    if len(bounds) == 1:  # an upper bound alone
        bounds = [0.0, *bounds]
    if len(bounds) != 2:
        shown = " ".join(f"{bound:g}" for bound in bounds)
        raise UsageError(f"--algo.advantage.is_correction_threshold {shown}: give LOW HIGH, or HIGH alone")
    args.algo.advantage.is_correction_threshold = bounds


def _choose_rewards_and_critic(args: SimpleNamespace) -> None:
    """Set the source of rewards and the model from which the critic starts."""
    if args.train.agent_func_path:
        args.reward.remote_url = "agent"
    if args.algo.advantage.estimator != "gae":
        args.critic.model_name_or_path = None  # only gae has a critic
    elif args.critic.model_name_or_path is None:
        if args.reward.remote_url:
            args.critic.model_name_or_path = args.actor.model_name_or_path
        else:
            args.critic.model_name_or_path = args.reward.model_name_or_path.split(",")[0]
    if args.reward.remote_url:
        args.reward.remote_url = args.reward.remote_url.split(",")


def _check_samples_per_prompt(args: SimpleNamespace) -> None:
    count = args.rollout.n_samples_per_prompt
    if count > 1:
        return
    estimator = args.algo.advantage.estimator
    if estimator in GROUP_ESTIMATORS:
        raise UsageError(
            f"--rollout.n_samples_per_prompt {count}: --algo.advantage.estimator {estimator} compares the responses "
            "to a prompt with each other; use at least 2"
        )
    if args.algo.dynamic_filtering_enable:
        raise UsageError(
            f"--rollout.n_samples_per_prompt {count}: --algo.dynamic_filtering_enable compares the responses to a "
            "prompt with each other; use at least 2"
        )


def _check_images(args: SimpleNamespace) -> None:
    count = args.data.max_images_per_prompt
    if count <= 0:
        return
    if args.critic.model_name_or_path is not None:
        raise UsageError(
            f"--data.max_images_per_prompt {count}: a vision-language model trains without a critic; choose "
            "another --algo.advantage.estimator than gae"
        )
    if args.ds.packing_samples:
        raise UsageError(
            f"--data.max_images_per_prompt {count}: samples with images cannot be packed; drop --ds.packing_samples"
        )


def _check_template(args: SimpleNamespace, warnings: list[str]) -> None:
    given = getattr(args, "chat_template_kwargs", "")
    if given:  # one spelling, so that a resume does not take another order or spacing for another template
        args.chat_template_kwargs = json.dumps(template_arguments(given), sort_keys=True)
    template = args.data.input_template
    if not template:
        return
    if "{}" not in template:
        warnings.append(f"--data.input_template {template!r} has no {{}} for the prompt and is ignored")
        args.data.input_template = None
    elif "\\n" in template:
        warnings.append(
            f"--data.input_template {template!r} has a backslash and an n, not a line break; write $'\\n' in Bash"
        )


def _choose_packing(args: SimpleNamespace, warnings: list[str]) -> None:
    """Pack samples where ring attention or dynamic batches need it, and choose an attention that can."""
    if args.ds.ring_attn_size > 1 and not args.ds.packing_samples:
        warnings.append(f"--ds.ring_attn_size {args.ds.ring_attn_size} turns on --ds.packing_samples")
        args.ds.packing_samples = True
    if args.train.dynamic_batch_enable:
        if not args.ds.packing_samples:
            warnings.append("--train.dynamic_batch_enable turns on --ds.packing_samples")
            args.ds.packing_samples = True
        if args.rollout.max_tokens_per_gpu is None:
            tokens = args.train.max_tokens_per_gpu
            warnings.append(f"--rollout.max_tokens_per_gpu is {tokens}, as --train.max_tokens_per_gpu")
            args.rollout.max_tokens_per_gpu = tokens
    if args.ds.packing_samples and "flash_attention" not in args.ds.attn_implementation:
        warnings.append(
            f"--ds.attn_implementation {args.ds.attn_implementation} cannot attend to packed samples; "
            "flash_attention_2 is used"
        )
        args.ds.attn_implementation = "flash_attention_2"


def _check_asynchronous(args: SimpleNamespace, warnings: list[str]) -> None:
    if args.vllm.enable_sleep and not args.train.colocate_all:
        warnings.append("--vllm.enable_sleep has no effect without --train.colocate_all")
        args.vllm.enable_sleep = False
    if args.train.async_enable:
        if args.vllm.enable_sleep:
            raise UsageError(
                "--vllm.enable_sleep: engines cannot sleep with --train.async_enable, where they generate while the "
                "policy trains; drop one of the two"
            )
        if args.train.colocate_all:
            warnings.append("--train.colocate_all leaves the engines on GPUs of their own with --train.async_enable")
    elif args.train.partial_rollout_enable:
        raise UsageError("--train.partial_rollout_enable only applies with --train.async_enable; add it or drop this")


def _check_evaluation(args: SimpleNamespace) -> None:
    if args.eval.dataset and not args.reward.remote_url:
        raise UsageError(
            f"--eval.dataset {args.eval.dataset}: evaluation needs a reward function or server; give "
            "--reward.remote_url or --train.agent_func_path"
        )


def _check_kl_estimator(args: SimpleNamespace, warnings: list[str]) -> None:
    kl = args.algo.kl
    if kl.use_loss and kl.estimator == "k1" and not kl.unbiased_gradient:
        warnings.append("--algo.kl.estimator k1 has no useful gradient as a loss; k2 or k3 is recommended")
    if not kl.use_loss and kl.estimator != "k1":
        warnings.append(f"--algo.kl.estimator {kl.estimator} is biased as a penalty in the reward; k1 is recommended")


def _check_batches(args: SimpleNamespace) -> None:
    rollout = args.rollout
    algo = args.algo
    if not rollout.vllm_generate_batch_size:
        rollout.vllm_generate_batch_size = rollout.batch_size
    if rollout.vllm_generate_batch_size > rollout.batch_size and not args.train.async_enable:
        raise UsageError(
            f"--rollout.vllm_generate_batch_size {rollout.vllm_generate_batch_size}: more prompts than "
            f"--rollout.batch_size {rollout.batch_size} can only wait with --train.async_enable; lower it or add that"
        )
    if algo.dynamic_filtering_enable:
        low, high = algo.dynamic_filtering_range
        if low >= high:
            raise UsageError(f"--algo.dynamic_filtering_range {low:g} {high:g}: the lower bound must come first")
        if not args.reward.remote_url:
            raise UsageError(
                "--algo.dynamic_filtering_enable needs the scores of a reward function or server; give "
                "--reward.remote_url or --train.agent_func_path"
            )
    micro_batches = rollout.n_samples_per_prompt * rollout.batch_size // rollout.micro_batch_size
    gpus = args.actor.num_nodes * args.actor.num_gpus_per_node
    ranks = gpus // args.ds.ring_attn_size // args.ds.tensor_parallel_size
    if micro_batches < ranks:
        raise UsageError(
            f"--rollout.batch_size {rollout.batch_size}: {micro_batches} micro-batches are fewer than the {ranks} "
            "ranks of the policy; raise it or --rollout.n_samples_per_prompt, or lower --rollout.micro_batch_size"
        )
