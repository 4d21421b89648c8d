"""Every setting of the policy loss: which methods a run uses, what they share, and those of each method."""

import difflib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

from openrlhf_cov.models.control import Control, Controller, Gains
from openrlhf_cov.models.method import Method, OtherSlot, ProcessReward, fills
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.slots import (
    SLOTS,
    ClipRange,
    EntropyBonus,
    Estimator,
    ProcessEstimator,
    Restraint,
    Slot,
    Surrogate,
    TokenDrop,
    TokenPenalty,
    TokenSlot,
    TokenSummand,
    TokenWeight,
)
from openrlhf_cov.settings import NOT_PERCENT, Schedule, Scheduled, Settings, extremes, setting
from openrlhf_cov.utils.estimates import HIGHEST_ENTROPY

# Token fractions above this are refused without ``allow_large_cov_ratio``: published values are 2e-4 and 2e-3.
LARGE_COV_RATIO = 0.05

# Settings of a closed loop beside --entropy_target -> their values without one.
OF_A_TARGET: dict[str, Any] = {
    "entropy_control": "",
    "entropy_control_form": "sign",
    "entropy_gain_p": 0.5,
    "entropy_gain_i": 0.005,
    "entropy_integral_limit": None,
    "entropy_step": None,
    "entropy_low": None,
    "entropy_high": None,
    "entropy_band": 0.0,
}


BY_COVARIANCE = tuple(name for name, method in METHODS.items() if method.by_covariance)

OF_METHODS = tuple(dict.fromkeys(each.settings for each in METHODS.values() if each.settings is not Settings))


def methods_of(cov_type: str, method: str) -> list[Method[Slot]]:
    """Return the methods that ``--cov_type`` and ``--method`` name, each once, in the order of the registry.

    The order is the same for all ways of writing them, with methods by covariance first.

    Args:
        cov_type: The name of a method by covariance, or ``none``.
        method: Names separated by commas, or ``none``. A name that no method has is ignored.
    """
    names = {cov_type, *_names(method)}
    return sorted((each for each in METHODS.values() if each.name in names), key=lambda each: not each.by_covariance)


def process_reward_of(args: Any) -> ProcessReward | None:
    """Return the settings of the process reward model of a run, None without one.

    ``args`` are parsed flags, or a ``CovConfig``. Flags of upstream alone name no method.
    """
    chosen = (getattr(args, name, "none") for name in ("cov_type", "method"))
    found = (each.slot.process_reward(args) for each in methods_of(*chosen) if fills(each, ProcessEstimator))
    return next(found, None)


def has_process_reward(args: Any) -> bool:
    """Return True if a run with these flags has a process reward model."""
    return process_reward_of(args) is not None


def has_reference(args: Any) -> bool:
    """Return True if a run has a reference model: for a KL term, or for a process reward model."""
    return args.algo.kl.init_coef > 0 or has_process_reward(args)


def has_critic(args: Any) -> bool:
    """Return True if a run trains a critic."""
    return bool(args.critic.model_name_or_path)


def has_reward_model(args: Any) -> bool:
    """Return True if a run has a reward model. A reward function, a reward server and an agent take its place."""
    return not args.reward.remote_url


def has_engines(args: Any) -> bool:
    """Return True if a run starts vLLM engines: it generates its rollouts, or it evaluates."""
    return not args.rollout_replay_dir or bool(args.eval.dataset)


def reference_model(args: Any) -> str:
    """Return the model that the reference is, and that a process reward model starts from."""
    model = process_reward_of(args)
    return (model and model.model) or args.actor.model_name_or_path


def methods_like(name: str) -> str:
    """Return a hint for a name that no method has: the closest name, or all of them."""
    close = difflib.get_close_matches(name.lower().replace("-", "_"), METHODS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(METHODS)}"
    return f"{hint} (openrlhf-cov methods describes all)"


def _names(method: str) -> list[str]:
    return [name.strip() for name in method.split(",")]


def _names_by_slot() -> str:
    """Return a line for each slot."""
    named = {slot: [name for name, method in METHODS.items() if fills(method, slot)] for slot in SLOTS}
    return "\n".join(f"{slot.name}: {', '.join(names)}" for slot, names in named.items())


@dataclass(frozen=True, kw_only=True)
class CovConfig(*OF_METHODS):
    """Settings of the policy loss: those of all methods, and these. Fractions are of tokens, never percent.

    Raises ValueError, naming the flag, the value and the accepted range, when a value is out of range.
    """

    method: str = setting(
        "none",
        "methods by name, separated by commas: at most one of each family below, and any number of the family weight; "
        f"openrlhf-cov methods describes them\n{_names_by_slot()}",
    )
    cov_type: str = setting(
        "none",
        "adds clip_cov or kl_cov to the methods of --method, as in the paper's scripts",
        choices=("none", *BY_COVARIANCE),
    )
    cov_scope: str = setting(
        "global",
        "tokens over which covariance is centred and ranked\n"
        "global: all tokens of the optimizer step, over all micro-batches and ranks\n"
        "micro_batch: those of one micro-batch, as in the published code",
        choices=("global", "micro_batch"),
    )
    cov_log_probs: str = setting(
        "current",
        "policy whose log-probs enter the covariance, with --cov_scope global\n"
        "current: the policy before each update\n"
        "old: the policy before the first update of the rollout",
        choices=("current", "old"),
        only=("cov_scope", "global"),
    )
    entropy_target: Scheduled = setting(
        None,
        "hold the mean entropy (nats) at this value: one setting of the method moves after every global step "
        "(Skywork-OR1: 0.2; MAI-Thinking-1, STARE: 0.3)",
        scheduled=True,
    )
    entropy_control: str = setting(
        "",
        "the setting that --entropy_target moves; empty: the main one of the method\n"
        + "\n".join(f"{m.flag}: {', '.join(c.setting for c in m.controls)}" for m in METHODS.values() if m.controls),
    )
    entropy_control_form: str = setting(
        "sign",
        "how the controlled setting moves\n"
        "sign: by one step in the direction of the target\n"
        "pi: by the gap between target and entropy, and by the sum of earlier gaps (EntroPIC)",
        choices=("sign", "pi"),
    )
    entropy_gain_p: float = setting(
        0.5,
        "pi: change of the setting for a gap of one nat, as a share of the range between its bounds (EntroPIC: 0.5)",
        only=("entropy_control_form", "pi"),
    )
    entropy_gain_i: float = setting(
        0.005,
        "pi: change of the setting for one nat of the sum of earlier gaps, as a share of that range (EntroPIC: "
        "0.005); 0: none",
        only=("entropy_control_form", "pi"),
    )
    entropy_integral_limit: float | None = setting(
        None,
        "pi: largest absolute sum of earlier gaps, in nats, so that the sum stops growing at a bound (default: "
        "no limit, as published)",
        only=("entropy_control_form", "pi"),
    )
    entropy_step: float | None = setting(
        None,
        "sign: step of the controlled setting; for a setting that is doubled and halved, its smallest size "
        "(default: docs/methods/control.md)",
        only=("entropy_control_form", "sign"),
    )
    entropy_low: float | None = setting(
        None, "lower bound of the controlled setting (default: docs/methods/control.md)"
    )
    entropy_high: float | None = setting(
        None, "upper bound of the controlled setting (default: docs/methods/control.md)"
    )
    entropy_band: float = setting(0.0, "distance from the target, in nats, within which the setting does not move")
    allow_large_cov_ratio: bool = setting(False, f"accept token fractions above {LARGE_COV_RATIO}")
    allow_no_trust_region: bool = setting(False, "accept methods that together do not bound the size of an update")
    cov_dump_every: int = setting(
        0,
        "write the tokens of highest covariance to <ckpt.output_dir>/cov_tokens every N global steps; 0: never",
    )
    cov_dump_tokens: int = setting(200, "tokens in each file of --cov_dump_every")

    def check(self) -> None:
        """Check these settings and the combination of all settings, after the methods have checked their own.

        It is called when the settings are made, as ``Settings`` describes it.

        Raises:
            ValueError: A value is out of range, a method does not exist, or two methods do not go together. The
                message names the flags.
        """
        self._check_methods()
        for entry in fields(self):
            if entry.metadata["fraction"]:
                for value in extremes(getattr(self, entry.name)):
                    self._check_fraction(entry.name, value)
        if self.cov_log_probs == "old" and self.cov_scope != "global":
            raise ValueError(
                f"--cov_log_probs old only applies to --cov_scope global, got --cov_scope {self.cov_scope}"
            )
        self._check_target()
        self.require("cov_dump_every", lambda steps: steps >= 0, "must be a number of global steps of at least 0")
        self.require("cov_dump_tokens", lambda tokens: tokens >= 1, "must be a number of tokens of at least 1")

    @property
    def methods(self) -> list[Method[Slot]]:
        """The methods of the run."""
        return methods_of(self.cov_type, self.method)

    @property
    def surrogate(self) -> Method[Surrogate] | None:
        """The method that replaces PPO's surrogate, if one does."""
        return self._method_of(Surrogate)

    @property
    def estimator(self) -> Method[Estimator] | None:
        """The method that computes the advantages, if one does."""
        return self._method_of(Estimator)

    def _method_of(self, slot: type[OtherSlot]) -> Method[OtherSlot] | None:
        """Return the method of a slot that a run has at most one method of."""
        return next((method for method in self.methods if fills(method, slot)), None)

    @property
    def token_slots(self) -> list[TokenSlot]:
        """The slots that act on tokens, in the order of the methods. Each makes one plan per micro-batch."""
        return [slot for method in self.methods for slot in method.token_slots]

    @property
    def aggregation(self) -> str | None:
        """The ``--actor.loss_agg_mode`` that the surrogate was published with, where it is not the default."""
        return self.surrogate.slot.aggregation if self.surrogate else None

    @property
    def rollout_anchor(self) -> str | None:
        """The setting by which the loss needs the log-probs of the engine that sampled, None if it does not."""
        methods = [method for method in (self.surrogate, self.estimator) if method]
        anchors = [method.slot.anchor_policy for method in methods if method.slot.anchor_policy]
        return next((anchor for anchor in anchors if getattr(self, anchor) == "rollout"), None)

    @property
    def ratio_is_to_rollout(self) -> bool:
        """True if PPO's ratio is to the policy of the engine that sampled, not to that of the trainer."""
        anchor = self.estimator.slot.anchor_policy if self.estimator else None
        return anchor is not None and getattr(self, anchor) == "rollout"

    @property
    def uses_positive_prompts(self) -> bool:
        """True if the window of an optimizer step has the share of prompts with a positive advantage."""
        needed = any(isinstance(slot, TokenWeight) and slot.needs_positive_prompts for slot in self.token_slots)
        return needed and self.plans_globally

    @property
    def ppo_clip(self) -> tuple[float, float] | None:
        """The PPO clip that the methods set, the surrogate's or that of the one that has one; None: the run's."""
        clips = [method.clip_of(self) for method in (self.surrogate, *self.methods) if method]
        return next((clip for clip in clips if clip), None)

    def clip_of_step(self, clip: tuple[float, float]) -> tuple[float, float]:
        """Return the PPO clip of a step: that of a method of the slot ``clip``, or else the given one.

        Args:
            clip: Lower and upper range of the run.
        """
        return self.moved_clip or clip

    @property
    def moved_clip(self) -> tuple[float, float] | None:
        """The PPO clip of a step that a method of the slot ``clip`` moves; None without such a method."""
        moving = self._method_of(ClipRange)
        return moving.slot.clip(self) if moving else None

    @property
    def plans_globally(self) -> bool:
        """True if a method plans over a whole optimizer step."""
        return self.cov_scope == "global" and bool(self.token_slots)

    @property
    def asks_log_probs(self) -> bool:
        """True if the window holds the log-probs of the policy before each update."""
        return "current" in self._policies(slot.log_probs_policy for slot in self.token_slots)

    @property
    def entropy_policy(self) -> str | None:
        """Return whose entropies the window holds: ``current``, ``old``, or None if no method needs them."""
        return next(iter(self._policies(slot.entropy_policy for slot in self.token_slots)), None)

    @property
    def proxy_min_p(self) -> float | None:
        """Return the min-p of the window's proxy log-probs; None if no method needs them."""
        names = [slot.proxy_min_p for slot in self.token_slots if isinstance(slot, TokenPenalty) and slot.proxy_min_p]
        return next((getattr(self, name) for name in names), None)

    @property
    def needs_discriminator_mean(self) -> bool:
        """True if the window holds the expectation of the entropy discriminator at each token."""
        return any(isinstance(slot, TokenDrop) and slot.needs_discriminator_mean for slot in self.token_slots)

    @property
    def entropies(self) -> dict[str, float]:
        """Setting that is a mean entropy, in nats -> the highest that it takes."""
        names = ["entropy_target", *(name for method in self.methods for name in method.entropies)]
        values = {name: getattr(self, name) for name in names}
        return {name: max(extremes(value)) for name, value in values.items() if value is not None}

    def check_reachable(self, vocabulary: int) -> None:
        """Check that a distribution over the vocabulary can have the entropies that the settings name.

        Args:
            vocabulary: Number of tokens.

        Raises:
            ValueError: An entropy is not below ln(vocabulary).
        """
        for name, highest in self.entropies.items():
            if highest >= math.log(vocabulary):
                raise ValueError(
                    f"--{name} {highest:g} is out of reach: a vocabulary of {vocabulary} tokens has an entropy of at "
                    f"most {math.log(vocabulary):.2f} nats"
                )

    def _policies(self, named: Iterable[str | None]) -> list[str]:
        """Return the policies that ``log_probs_policy`` or ``entropy_policy`` of some slots name."""
        return [getattr(self, name, name) for name in named if name]

    def at(self, step: int, controller: Controller | None = None) -> "CovConfig":
        """Return the settings of one global step, in which every schedule is replaced by its value.

        Args:
            step: Number of the global step, from 0.
            controller: The controller of ``--entropy_target``, which gives the setting that it moves its value; None
                without a target.
        """
        scheduled = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata["scheduled"]}
        values = {n: v.at(step) for n, v in scheduled.items() if isinstance(v, Schedule)}
        return replace(self, **values, **(controller.applied if controller else {}))

    def controller(self) -> Controller | None:
        """Return the controller that holds a run at ``entropy_target``; None without a target."""
        if self.entropy_target is None:
            return None
        control = self._control()
        return Controller(control, getattr(self, control.setting), self.entropy_band, self._gains(control))

    def _gains(self, control: Control) -> Gains | None:
        """Return the gains of ``--entropy_control_form pi`` in units of the setting per nat; None for another form."""
        if self.entropy_control_form == "sign":
            return None
        limit = math.inf if self.entropy_integral_limit is None else self.entropy_integral_limit
        width = control.high - control.low
        return Gains(self.entropy_gain_p * width, self.entropy_gain_i * width, limit)

    @property
    def controlled(self) -> str | None:
        """The setting that ``entropy_target`` moves; None without a target."""
        return None if self.entropy_target is None else self._control().setting

    @property
    def entropy_bonus_in_force(self) -> float | None:
        """Coefficient of the entropy bonus that a method sets, None if it is the run's."""
        method = self._method_of(EntropyBonus)
        return method.slot.bonus(self) if method else None

    def _control(self) -> Control:
        """Return the setting that ``--entropy_target`` moves, with step and bounds. ValueError if it is ambiguous."""
        offered = [method for method in self.methods if method.controls]
        named = [c for method in offered for c in method.controls if c.setting == self.entropy_control]
        if self.entropy_control and not named:
            known = (
                ", ".join(c.setting for method in offered for c in method.controls) or "none of its methods has one"
            )
            raise ValueError(
                f"--entropy_control {self.entropy_control} is no setting that this run can move; give one of: {known}"
            )
        if not named and len(offered) != 1:
            methods = " and ".join(method.flag for method in offered)
            raise ValueError(
                f"--entropy_target is for {methods}; name the setting that it moves by --entropy_control"
                if offered
                else "--entropy_target needs a method with a setting that it can move; --help lists them at "
                "--entropy_control"
            )
        given = {name: getattr(self, f"entropy_{name}") for name in ("step", "low", "high")}
        return replace((named or offered[0].controls)[0], **{n: v for n, v in given.items() if v is not None})

    def _check_target(self) -> None:
        if self.entropy_target is None:
            for name, default in OF_A_TARGET.items():
                if getattr(self, name) != default:
                    raise ValueError(f"--{name} only applies with --entropy_target; drop it or set --entropy_target")
            return
        self.require(
            "entropy_target",
            lambda nats: 0.0 < nats < HIGHEST_ENTROPY,
            "must be a mean entropy in nats, above 0 and below ln of the vocabulary",
        )
        self.require(
            "entropy_band", lambda nats: 0.0 <= nats < math.inf, "must be a finite number of nats of at least 0"
        )
        control = self._control()
        start = getattr(self, control.setting)
        if isinstance(start, Schedule):
            raise ValueError(f"--{control.setting} has a schedule, and --entropy_target moves it, too; drop one")
        if self.entropy_control_form == "pi":
            self._check_gains(control)
        if not 0.0 < control.step < math.inf:
            raise ValueError(f"--entropy_step {control.step}: must be a finite number above 0")
        if control.doubles and 0 < abs(start) < control.step:
            raise ValueError(
                f"--entropy_step {control.step:g} is above --{control.setting} {start:g}, which is doubled and halved "
                "down to it; lower it"
            )
        for name in ("low", "high"):
            bound = getattr(control, name)
            is_given = getattr(self, f"entropy_{name}") is not None
            if control.doubles and 0 < abs(bound) < control.step and (is_given or control.low <= 0):
                raise ValueError(
                    f"--entropy_step {control.step:g} is above {abs(bound):g}, the size of --entropy_{name}: "
                    f"--{control.setting} is doubled and halved down to it; lower it"
                )
        inside = control.low <= start <= control.high or (control.gated and start == 0)
        if not (control.low < control.high and inside):
            raise ValueError(
                f"--{control.setting} {start:g} is not between --entropy_low {control.low:g} and --entropy_high "
                f"{control.high:g}, the bounds within which --entropy_target moves it"
            )
        without_target = OF_A_TARGET | {"entropy_target": None}
        for bound in (control.low, control.high):  # each checked as if it were given
            replace(self, **without_target, **{control.setting: bound})

    def _check_gains(self, control: Control) -> None:
        for name in ("entropy_gain_p", "entropy_gain_i"):
            self.require(name, lambda gain: 0.0 <= gain < math.inf, "must be a finite number of at least 0")
        if self.entropy_gain_p == self.entropy_gain_i == 0:
            raise ValueError(
                f"--entropy_gain_p 0 and --entropy_gain_i 0: nothing would move --{control.setting}; raise one of them"
            )
        if self.entropy_band > 0 and self.entropy_gain_i > 0:
            raise ValueError(
                f"--entropy_band {self.entropy_band:g}: gaps inside of the band would add up beside --entropy_gain_i "
                f"{self.entropy_gain_i:g}; drop the band or give --entropy_gain_i 0"
            )
        if control.doubles:
            raise ValueError(
                f"--entropy_control_form pi: --{control.setting} is doubled and halved, so no gain fits it; give "
                "--entropy_control_form sign"
            )
        if not control.high - control.low < math.inf:
            raise ValueError(
                "--entropy_control_form pi: its gains are shares of the range between --entropy_low and "
                "--entropy_high; give finite bounds"
            )
        limit = self.entropy_integral_limit
        if limit is not None and not 0.0 < limit < math.inf:
            raise ValueError(f"--entropy_integral_limit {limit}: must be a finite number of nats above 0")

    def _check_methods(self) -> None:
        names = _names(self.method)
        for name in names:
            if not name:
                raise ValueError(
                    f"--method {self.method or repr('')}: a name is missing; openrlhf-cov methods lists all"
                )
            if name not in METHODS and names != ["none"]:
                raise ValueError(f"--method {self.method}: no method is called {name!r}; {methods_like(name)}")
            if names.count(name) > 1:
                raise ValueError(f"--method {self.method}: {name} is named twice; name it once")
        for fault in self._conflicts():
            raise ValueError(fault)

    def _conflicts(self) -> Iterator[str]:
        for one, other in combinations(self.methods, 2):
            slot = one.slot
            if slot.name == other.slot.name and not slot.is_shared:
                yield f"{one.flag} and {other.flag}: each {slot.effect}, and a run has one that does; drop one"
            if all(fills(each, TokenWeight) and each.slot.by_sign for each in (one, other)):
                yield f"{one.flag} and {other.flag}: each scales advantages by their sign; drop one"
            if one.by_covariance and other.by_covariance:
                yield f"{one.flag} and {other.flag} both select by covariance, each with its own PPO clip; drop one"
            clips = {each.ppo_clip for each in (one, other) if not fills(each, Surrogate) and each.ppo_clip}
            if len(clips) > 1:
                yield f"{one.flag} and {other.flag} were each published with a PPO clip of its own; drop one"
        if self.cov_scope != "global":
            for method in self.methods:
                if method.token_slots and not method.by_covariance:
                    yield f"{method.flag} only applies to --cov_scope global, got --cov_scope {self.cov_scope}"
        moving = self._method_of(ClipRange)
        if moving:
            for method in self.methods:
                if method is not moving and method.clip_of(self):
                    yield f"{moving.flag} and {method.flag}: each sets the PPO clip; drop one"
        yield from self._conflicts_of_responses()
        if self.surrogate:
            yield from self._conflicts_of_clips(self.surrogate)
        asked = {
            "entropies": [(method, slot.entropy_policy) for method in self.methods for slot in method.token_slots],
            "log-probs": [(method, slot.log_probs_policy) for method in self.methods for slot in method.token_slots],
        }
        for title, named in asked.items():
            if len(set(self._policies(policy for _, policy in named))) > 1:
                flags = " and ".join(dict.fromkeys(method.flag for method, policy in named if policy))
                yield f"{flags} ask for {title} of different policies; let them ask for the same"

    def _conflicts_of_clips(self, surrogate: Method[Surrogate]) -> Iterator[str]:
        """Yield conflicts of a surrogate, which has no PPO clip, with methods that need one."""
        for method in self.methods:
            if fills(method, TokenPenalty) and method.keeps_run_clip(self):
                yield f"--{method.slot.keeps_clip} has no effect with {surrogate.flag}, which has no PPO clip; drop it"
            if self.lacks_bound(method) and not self.allow_no_trust_region:
                yield (
                    f"{method.flag} beside {surrogate.flag} leaves no bound on an update: {surrogate.flag} does not "
                    f"clip, and {method.title} was published with a clip of its own or with none; drop one, or add "
                    "--allow_no_trust_region if you mean it"
                )

    def lacks_bound(self, method: Method[Slot]) -> bool:
        """Return True if ``method`` has its own clip, or none, and the surrogate of the run bounds no update."""
        surrogate = self.surrogate
        return bool(surrogate and method is not surrogate and method.ppo_clip and not surrogate.slot.bounded)

    def _conflicts_of_responses(self) -> Iterator[str]:
        """Yield conflicts with methods that are defined for whole responses, or for all tokens of a step."""
        surrogate = self.surrogate
        apart = [
            each
            for each in self.methods
            if isinstance(each.slot, (TokenDrop, TokenWeight, TokenSummand, ProcessEstimator)) or each.leaves_out
        ]
        if surrogate and surrogate.slot.by_response and apart:
            yield (
                f"{surrogate.flag} has one advantage for all tokens of a response, and {apart[0].flag} tells them "
                "apart; drop one"
            )
        picking = [
            each
            for each in self.methods
            if fills(each, Restraint) or (fills(each, TokenWeight) and each.slot.of_all_tokens(self))
        ]
        for method in self.methods:
            if method.leaves_out and picking:
                yield (
                    f"{method.flag} leaves responses out of the mean, and {picking[0].flag} picks or measures tokens "
                    "of these, too; drop one"
                )
        # A loss has one denominator: a constant number of tokens, or the number of those that a method keeps.
        lengths = [f"{each.name}_length" for each in self.methods if getattr(self, f"{each.name}_length", None)]
        means = [f"{each.name}_mean" for each in self.methods if getattr(self, f"{each.name}_mean", None) == "kept"]
        if lengths and means:
            yield (
                f"--{lengths[0]} divides the loss by a constant number of tokens, and --{means[0]} kept by the number "
                f"of those that are kept; give --{means[0]} all, or drop the length"
            )

    def _check_fraction(self, name: str, value: float) -> None:
        if not 0.0 < value <= 1.0:
            raise ValueError(f"--{name} {value}: must be a fraction of tokens in (0, 1]; {NOT_PERCENT}")
        if value > LARGE_COV_RATIO and not self.allow_large_cov_ratio:
            raise ValueError(
                f"--{name} {value:g} selects {value:.1%} of the tokens; {NOT_PERCENT}. "
                f"Use a value up to {LARGE_COV_RATIO}, or add --allow_large_cov_ratio if you mean it"
            )
