"""Every flag we add to upstream's parser, and the checks that need no file and no heavy import."""

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.config import (
    DryRunConfig,
    EngineConfig,
    EvaluationConfig,
    ModelConfig,
    PromptConfig,
    RewardConfig,
    RunConfig,
    SamplingConfig,
)
from openrlhf_cov.errors import UsageError
from openrlhf_cov.models.cov_config import CovConfig, methods_of
from openrlhf_cov.models.method import CORRECT, fills
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.slots import SLOTS, UNCLIPPED, ClipRange, ProcessEstimator, Surrogate, TokenPenalty
from openrlhf_cov.models.unread_method_flags import OWN_FLAGS, unread_method_flags
from openrlhf_cov.rewards.unread_reward_flags import unread_reward_flags
from openrlhf_cov.settings import flag_of
from openrlhf_cov.trainer.flags.normalise import normalise
from openrlhf_cov.trainer.flags.presets import PRESETS, flags_of_preset, follow_given, words_of
from openrlhf_cov.trainer.flags.ranges import range_faults
from openrlhf_cov.trainer.flags.reward_flags import OF_BENCHMARKS, fault_of_place, fault_without_file
from openrlhf_cov.trainer.flags.unread_upstream_flags import combination_faults, unread_upstream_flags
from openrlhf_cov.trainer.flags.upstream import add_upstream_arguments
from openrlhf_cov.utils.config_flags import add_config_arguments, given_flags
from openrlhf_cov.utils.terminal import Parser, say
from openrlhf_cov.utils.trackers import tracker_names

logger = logging.getLogger(__name__)

CLIP_RANGE_FLAGS = ("actor.eps_clip", "actor.eps_clip_low_high")
OUR_REWARD = ("openrlhf_cov", "rewards", "reward_func.py")
CLIP_FLAGS = (*CLIP_RANGE_FLAGS, "actor.dual_clip")

# Title in --help -> config class whose fields are its flags.
GROUPS = {
    "policy loss": CovConfig,
    "prompts": PromptConfig,
    "rule-based rewards": RewardConfig,
    "rollouts and dynamic sampling": SamplingConfig,
    "evaluation on benchmarks (--eval.dataset bench:aime24,math500)": EvaluationConfig,
    "vLLM engines": EngineConfig,
    "running, stopping and tracking": RunConfig,
    "code of models": ModelConfig,
    "dry run": DryRunConfig,
}

# Field of a config class -> its flag, without the dashes.
FLAG_OF_FIELD = {entry.name: flag_of(entry) for config in GROUPS.values() for entry in fields(config)}

# Settings of the policy loss that belong to no single method.
COMMON = [each.name for each in fields(CovConfig) if each.name not in OWN_FLAGS]

REWARD_FLAGS = ("reward.remote_url", "reward.model_name_or_path", "train.agent_func_path")

# Upstream's flags of its own estimators.
WITH_UPSTREAMS_ESTIMATOR = (
    "algo.advantage.gamma",
    "algo.advantage.lambd",
    "algo.advantage.no_std_norm",
    "reward.clip_range",
)

# Flags that make rewards of more than two values -> the value that does not.
SHAPING = {
    "reward_format_bonus": 0.0,
    "code_reward": "all",
    "reward.overlong_buffer_len": None,
    "reward.stop_properly_penalty_coef": None,
    "reward.model_name_or_path": None,
}

# Upstream's flags that a protocol of ours sets for ``bench:`` unless they are given.
PROTOCOL_FLAGS = ("eval.n_samples_per_prompt", "eval.temperature")


class CovArgumentParser(Parser):
    """The parser of ``openrlhf-cov train``: every flag of OpenRLHF and every flag of ours."""

    def __init__(self) -> None:
        super().__init__(prog="openrlhf-cov train", usage="%(prog)s [--preset NAME] [--method NAME[,NAME]] [flags]")
        self.description = (
            "Train a policy with Ray, vLLM and DeepSpeed. The flags of this package come first, then those of "
            "OpenRLHF. openrlhf-cov methods lists the methods; --dry_run shows what a run needs."
        )
        # Destination -> value of the flags that a preset set, and the command line did not.
        self.set_by_preset: dict[str, Any] = {}
        add_upstream_arguments(self)
        of_upstream = self._action_groups[2:]  # behind argparse's own, positional arguments and options
        for group in of_upstream:
            group.title = f"OpenRLHF: {group.title}"
        self.declare()
        # Our flags stand first in the help: those of OpenRLHF are four times as many.
        ours = [group for group in self._action_groups if group not in of_upstream]
        self._action_groups[:] = [*ours, *of_upstream]

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride] - argparse declares overloads
        self, args=None, namespace=None
    ) -> argparse.Namespace:
        """Parse the flags and check them against each other.

        Args:
            args: The words of the command line; None for those of this process.
            namespace: The object that gets the flags; None for a new one.

        Returns:
            The flags by dotted name, with the values of a preset and of the methods in those that were not given.

        Raises:
            SystemExit: A flag is unknown, has a wrong value or does not go with another; stderr has one line about it.
        """
        argv = sys.argv[1:] if args is None else list(args)
        parsed = super().parse_args(argv, namespace)
        if parsed.dry_run_gpu_memory:
            self.set_defaults(**self.gpu_host_defaults)
            parsed = super().parse_args(argv, namespace)
        if parsed.preset is not None:
            parsed = self._with_preset(argv, parsed)
        delattr(parsed, "preset")  # its values are in the other flags now
        self._check(parsed, given_flags(super().parse_args, argv, parsed))
        return parsed

    def _with_preset(self, argv: list[str], parsed: argparse.Namespace) -> argparse.Namespace:
        """Parse the flags with the values of a preset as defaults, and remember what the preset set."""
        given = given_flags(super().parse_args, argv, parsed)
        methods = [method.name for method in methods_of(parsed.cov_type, parsed.method)]
        has_gpus = bool(parsed.dry_run_gpu_memory) or not cpu_host.is_cpu_host()
        words = words_of(flags_of_preset(parsed.preset, methods, has_gpus=has_gpus))
        of_preset = super().parse_args(words)
        values = {name: getattr(of_preset, name) for name in given_flags(super().parse_args, words, of_preset)}
        self.set_defaults(**values)
        follow_given(parsed.preset, values, vars(super().parse_args(argv)), given)
        self.set_defaults(**values)
        # None: the preset leaves a flag at OpenRLHF's default, because of another one on the command line.
        self.set_by_preset = {name: value for name, value in values.items() if name not in given and value is not None}
        return super().parse_args(argv)

    def declare(self) -> None:
        """Add our flags, and the defaults of this host for flags of OpenRLHF."""
        (param_dtype,) = (action for action in self._actions if action.dest == "ds.param_dtype")
        param_dtype.choices = [*(param_dtype.choices or ()), "fp32"]
        (grad_dtype,) = (action for action in self._actions if action.dest == "ds.grad_accum_dtype")
        grad_dtype.choices = ["bf16", "fp16", "fp32"]
        self.gpu_host_defaults = {name: self.get_default(name) for name in cpu_host.FLAG_DEFAULTS}
        if cpu_host.is_cpu_host():
            self.set_defaults(**cpu_host.FLAG_DEFAULTS)
        about = "\n".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())
        self.add_argument_group("presets").add_argument(
            "--preset",
            choices=tuple(PRESETS),
            help=f"set many flags at once (docs/presets.md); a flag that you give takes precedence\n{about}",
        )
        for title, config in GROUPS.items():
            only = COMMON if config is CovConfig else None
            add_config_arguments(self, title, config, only)
        add_method_arguments(self)

    def _check(self, args: argparse.Namespace, given: set[str]) -> None:
        try:
            config, *_ = (group.from_args(args) for group in GROUPS.values())
        except ValueError as error:
            self.error(str(error))
        for reason in unread_method_flags(config, given):
            self.error(reason)
        if config.methods:
            self._take_published(args, config, given)
            self._open_ppo_clip(args, config, given)
        if getattr(args, "actor.policy_loss_type") == "gspo" and given.isdisjoint(CLIP_RANGE_FLAGS):
            self.error(
                f"--actor.policy_loss_type gspo clips the ratio of a sequence, and --actor.eps_clip "
                f"{getattr(args, 'actor.eps_clip')} is for that of a token; add --actor.eps_clip_low_high 3e-4 4e-4, "
                "as published, or your own"
            )
        self._check_trackers(args)
        self._check_counts(args)
        self._check_gradients(args)
        self._name_all_linear(args)
        self._check_sampling(args, given)
        self._check_evaluation(args, given)
        for reason in (*unread_upstream_flags(vars(args), given), *combination_faults(vars(args))):
            self.error(reason)
        if not any(getattr(args, name) for name in REWARD_FLAGS):
            self.error(
                "--reward.remote_url is missing: a run needs a reward; give a reward_func.py or a server, or "
                "--reward.model_name_or_path"
            )

    def _check_trackers(self, args: argparse.Namespace) -> None:
        """Refuse trackers that are unknown or not installed, and one that flags of OpenRLHF name as well."""
        try:
            names = tracker_names(args.log_to)
        except ValueError as error:
            self.error(str(error))
        for name, flag in (("wandb", "logger.wandb.key"), ("tensorboard", "logger.tensorboard_dir")):
            if name in names and getattr(args, flag):
                self.error(f"--log_to {args.log_to}: --{flag} writes to {name} as well; drop one of the two")

    def _check_counts(self, args: argparse.Namespace) -> None:
        """Refuse numbers that upstream divides by or waits for, before its own checks compute with them."""
        needs_engines = not args.rollout_replay_dir or getattr(args, "eval.dataset")
        if needs_engines and getattr(args, "vllm.num_engines") is None:
            self.error(
                "--vllm.num_engines is missing: rollouts come from vLLM; give at least 1, or --preset grpo, which "
                "sets what a run needs"
            )
        for fault in range_faults(vars(args)):
            self.error(fault)

    def _check_gradients(self, args: argparse.Namespace) -> None:
        """Refuse a type of accumulated gradients that DeepSpeed 0.19.6 refuses or ignores at this ZeRO stage."""
        accumulated = getattr(args, "ds.grad_accum_dtype")
        weights = getattr(args, "ds.param_dtype")
        stage = getattr(args, "ds.zero_stage")
        if accumulated in (None, weights) or stage in (1, 3):
            return
        fault = "DeepSpeed refuses another type than that of the weights" if stage == 0 else "DeepSpeed ignores it"
        self.error(
            f"--ds.grad_accum_dtype {accumulated}: {fault} with --ds.zero_stage {stage} and --ds.param_dtype {weights}"
            "; use --ds.zero_stage 3 (or 1), or drop it"
        )

    def _name_all_linear(self, args: argparse.Namespace) -> None:
        """Give PEFT its word for all linear layers as a string; as a list, it would be the name of a layer."""
        modules = getattr(args, "ds.lora.target_modules")
        if isinstance(modules, list) and "all-linear" in modules:
            if len(modules) > 1:
                self.error(
                    f"--ds.lora.target_modules {' '.join(modules)}: all-linear stands for all linear layers but the "
                    "output head; give it alone, or name layers"
                )
            setattr(args, "ds.lora.target_modules", "all-linear")
        elif not modules:
            self.error("--ds.lora.target_modules is empty; name layers such as q_proj v_proj, or drop it")

    def _check_sampling(self, args: argparse.Namespace, given: set[str]) -> None:
        """Refuse what dynamic sampling, or the reward, would ignore."""
        filters = getattr(args, "algo.dynamic_filtering_enable")
        is_ours = Path(str(getattr(args, "reward.remote_url"))).parts[-3:] == OUR_REWARD
        benchmarks = (getattr(args, "eval.dataset") or "").startswith("bench:")
        for name in sorted(given):
            if name.startswith("sampling_") and not filters:
                self.error(f"--{name} only applies with --algo.dynamic_filtering_enable; drop it or add that")
        # Benchmarks have rules of their own, which read all but the grader.
        read_by_benchmarks = OF_BENCHMARKS if benchmarks else ()
        if is_ours:
            for reason in unread_reward_flags(RewardConfig.from_args(args), given - set(read_by_benchmarks)):
                self.error(reason)
        if getattr(args, "train.agent_func_path") and "reward.remote_url" in given:
            self.error("--reward.remote_url has no effect with --train.agent_func_path; drop one of the two")
        for fault in (fault_of_place(getattr(args, "reward.remote_url")), fault_without_file(vars(args), given)):
            if fault is not None:
                self.error(fault)
        generated = getattr(args, "rollout.vllm_generate_batch_size")
        batch = getattr(args, "rollout.batch_size")
        if filters and generated not in (None, batch):
            self.error(
                f"--rollout.vllm_generate_batch_size {generated} has no effect with --algo.dynamic_filtering_enable, "
                f"which asks for what --rollout.batch_size {batch} needs (--sampling_oversample_max); drop it"
            )

    def _check_evaluation(self, args: argparse.Namespace, given: set[str]) -> None:
        """Give ``bench:`` the settings of its protocol, and refuse flags of benchmarks without ``bench:``."""
        self._check_best(args)
        if args.eval_at_start and not getattr(args, "eval.dataset"):
            self.error("--eval.at_start: there is nothing to evaluate; add --eval.dataset, or drop it")
        if args.chat_template_kwargs and not (
            getattr(args, "data.apply_chat_template") or args.eval_template == "chat"
        ):
            self.error(
                "--data.chat_template_kwargs only applies with --data.apply_chat_template or --eval.template chat; "
                "add one or drop it"
            )
        if (getattr(args, "eval.dataset") or "").startswith("bench:"):
            for name in PROTOCOL_FLAGS:
                if name not in given:
                    setattr(args, name, None)
            return
        for setting in fields(EvaluationConfig):
            if setting.name in given and setting.name != "eval_at_start":
                flag = setting.metadata["flag"]
                self.error(f"--{flag} only applies to --eval.dataset bench:NAMES; drop it or name benchmarks there")

    def _check_best(self, args: argparse.Namespace) -> None:
        """Give ``--ckpt.best_metric_key`` the values that upstream understands.

        Upstream chooses a metric where the key is empty. Here an empty key keeps no best model, because a copy of the
        weights at every better evaluation should be asked for; ``auto`` is upstream's empty key.
        """
        key = getattr(args, "ckpt.best_metric_key")
        if key in ("", "none"):
            setattr(args, "ckpt.best_metric_key", "none")
            return
        if not getattr(args, "eval.dataset") or (getattr(args, "eval.steps") <= 0 and not args.eval_at_start):
            self.error(
                f"--ckpt.best_metric_key {key}: no evaluation chooses the best model; add --eval.dataset and "
                "--eval.steps, or drop it"
            )
        if key == "auto":
            setattr(args, "ckpt.best_metric_key", "")

    def _take_published(self, args: argparse.Namespace, config: CovConfig, given: set[str]) -> None:
        """Give upstream the aggregation and the estimator that the methods were published with, unless given."""
        if config.aggregation and "actor.loss_agg_mode" not in given:
            setattr(args, "actor.loss_agg_mode", config.aggregation)
        method = config.estimator
        if method is None:
            return
        if "algo.advantage.estimator" not in given:
            setattr(args, "algo.advantage.estimator", method.slot.stands_for)
        upstream = getattr(args, "algo.advantage.estimator")
        if upstream != method.slot.stands_for:
            self.error(
                f"{method.flag} computes the advantages in place of --algo.advantage.estimator "
                f"{method.slot.stands_for}, got {upstream}; drop one of the two"
            )
        for name in WITH_UPSTREAMS_ESTIMATOR:
            if name in given:
                self.error(f"--{name} has no effect with {method.flag}, which computes the advantages itself; drop it")
        if method.slot.two_valued and args.reward_incorrect > CORRECT:
            self.error(
                f"--reward_incorrect {args.reward_incorrect:g} counts as correct with {method.flag}, as rewards above "
                f"{CORRECT} do; lower it"
            )
        if not method.slot.two_valued:
            return
        for name, neutral in SHAPING.items():
            value = getattr(args, name)
            if value != neutral:
                self.error(
                    f"{method.flag} needs one reward for correct and one for incorrect responses; --{name} {value} "
                    "makes others, drop it"
                )

    def _open_ppo_clip(self, args: argparse.Namespace, config: CovConfig, given: set[str]) -> None:
        """Give upstream's PPO clip the published range, unless the user set one."""
        policy_loss_type = getattr(args, "actor.policy_loss_type")
        on_tokens = [
            each
            for each in config.methods
            if each.token_slots or isinstance(each.slot, (Surrogate, ClipRange, ProcessEstimator))
        ]
        if on_tokens and policy_loss_type != "ppo":
            self.error(
                f"{on_tokens[0].flag} needs --actor.policy_loss_type ppo, got {policy_loss_type}: it acts on "
                "each token, this ratio is of a sequence and would average that away"
            )
        for reason in unread_clip(config, {name: getattr(args, name) for name in CLIP_FLAGS if name in given}):
            self.error(reason)
        first = config.at(0)  # schedules give numbers step by step, and each step sets its own
        flags = dict(vars(args))
        if "actor.eps_clip" in given and "actor.eps_clip_low_high" not in given:
            # Upstream uses --actor.eps_clip for both sides of the range when the other flag is missing.
            flags["actor.eps_clip_low_high"] = (flags["actor.eps_clip"], flags["actor.eps_clip"])
        for reason in filter(None, (method.refuses(config, flags) for method in config.methods)):
            self.error(reason)
        if first.ppo_clip and given.isdisjoint(CLIP_RANGE_FLAGS):
            setattr(args, "actor.eps_clip_low_high", first.ppo_clip)
        if first.entropy_bonus_in_force is not None:
            setattr(args, "actor.entropy_coef", first.entropy_bonus_in_force)  # upstream then computes the entropy


def parse_args() -> SimpleNamespace:
    """Parse and check the flags of ``sys.argv``.

    Returns:
        The flags as OpenRLHF nests them: ``args.actor.adam.lr``.

    Raises:
        SystemExit: A flag is unknown or has a wrong value; one line on stderr says which.
        UsageError: A combination of flags cannot train.
    """
    parser = CovArgumentParser()
    parsed = parser.parse_args()
    if parser.set_by_preset:
        say(f"the preset sets\n{preset_lines(parser)}\n")
    # This import takes seconds (torch and transformers), so --help and wrong flags are answered before it.
    from openrlhf.utils.config import hierarchize

    args = hierarchize(parsed)
    for warning in normalise(args):
        logger.warning(warning)
    if args.use_ms:
        try:
            from modelscope.utils.hf_util import patch_hub  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UsageError(f"--use_ms needs ModelScope ({error}); run `pip install modelscope`") from error
        patch_hub()
    if not args.dry_run_gpu_memory:
        cpu_host.adapt(args)
    return args


def preset_lines(parser: CovArgumentParser, width: int = 100) -> str:
    """Return what a preset set as indented lines that a shell reads as one, each flag beside its values.

    Args:
        parser: The parser, after it has parsed the flags.
        width: Columns of a line.
    """
    continued = " \\"
    lines = [" "]
    for words in _preset_flags(parser):
        flag = " ".join(words)
        if len(f"{lines[-1]} {flag}{continued}") > width:
            lines.append(" ")
        lines[-1] += f" {flag}"
    return f"{continued}\n".join(lines)


def _preset_flags(parser: CovArgumentParser) -> list[list[str]]:
    """Return the words of each flag that a preset set."""
    flags: list[list[str]] = []
    for action in parser._actions:
        if action.dest in parser.set_by_preset:
            value = parser.set_by_preset[action.dest]
            values = value if isinstance(value, (list, tuple)) else [value]
            flags.append([action.option_strings[0], *(str(each) for each in values if each is not True)])
    return flags


def unread_clip(config: CovConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield why flags of the PPO clip would have no effect beside the methods, one line each.

    Args:
        config: The settings of the run.
        given: Flags of the PPO clip that the user gave, dotted name -> value.
    """
    first = config.at(0)
    for method in config.methods:
        if fills(method, ClipRange):
            for name in CLIP_RANGE_FLAGS:
                if name in given:
                    yield f"--{name} has no effect with {method.flag}, which sets the PPO clip; drop it"
    if first.ppo_clip != UNCLIPPED:
        return
    for method in config.methods:
        if method.clip_of(first) != UNCLIPPED:
            continue
        keeps_clip = method.slot.keeps_clip if fills(method, TokenPenalty) else None
        keep = f" or add --{keeps_clip}" if keeps_clip else ""
        for name, value in given.items():
            yield f"--{name} {value} has no effect with {method.flag}, which has no PPO clip; drop it{keep}"


def add_method_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag group for each method, slot by slot, which says what the method is, also where it has no flag."""
    for slot in SLOTS:
        for method in METHODS.values():
            if fills(method, slot):
                title = f"{slot.name}: {method.title} ({method.flag})"
                what = f"{method.summary} ({method.source})"
                add_config_arguments(parser, title, method.settings, description=what)
