"""Every setting of the policy loss: which methods a run uses, what they share, and those of each method."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations

from openrlhf_cov.models.method import SLOTS, Method
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.settings import Schedule, Settings, extremes, setting

LARGE_COV_RATIO = 0.05
"""Token fractions above this are refused without ``allow_large_cov_ratio``: published values are 2e-4 and 2e-3."""

NOT_PERCENT = "shares are fractions, not percent (0.2 % is 2e-3)"

BY_COVARIANCE = tuple(name for name, method in METHODS.items() if method.by_covariance)
OTHERS = tuple(name for name in METHODS if name not in BY_COVARIANCE)


OF_METHODS = tuple(dict.fromkeys(each.settings for each in METHODS.values() if each.settings is not Settings))


def methods_of(cov_type: str, method: str) -> list[Method]:
    """The methods that ``--cov_type`` and ``--method`` name, each once, in the order of the registry.

    That is one order for all ways of writing them, those by covariance first.
    """
    names = {cov_type, *_names(method)}
    return sorted((each for each in METHODS.values() if each.name in names), key=lambda each: not each.by_covariance)


def _names(method: str) -> list[str]:
    return [name.strip() for name in method.split(",")]


def _summaries(names: tuple[str, ...]) -> str:
    methods = (METHODS[name] for name in names)
    return "; ".join(f"{method.name}: {method.summary} ({method.source})" for method in methods)


@dataclass(frozen=True, kw_only=True)
class CovConfig(*OF_METHODS):
    """Settings of the policy loss: those of all methods, and these. Fractions are of tokens, never percent.

    Raises ValueError, naming the flag, the value and the accepted range, when a value is out of range.
    """

    cov_type: str = setting(
        "none", f"none: upstream's PPO loss, untouched; {_summaries(BY_COVARIANCE)}", choices=("none", *BY_COVARIANCE)
    )
    method: str = setting(
        "none",
        f"further methods beside --cov_type, by name, several with commas; {_summaries(OTHERS)}",
    )
    cov_scope: str = setting(
        "global",
        "tokens over which covariance is centred and ranked: global is the whole optimizer step, over all "
        "micro-batches and ranks; micro_batch is the published code's behaviour",
        choices=("global", "micro_batch"),
    )
    cov_log_probs: str = setting(
        "current",
        "log-probs of the covariance with --cov_scope global: current asks the policy again before each update, old "
        "takes those of the rollout",
        choices=("current", "old"),
    )
    allow_large_cov_ratio: bool = setting(False, f"accept token fractions above {LARGE_COV_RATIO}")
    allow_no_trust_region: bool = setting(False, "accept methods that together leave no bound on an update")
    cov_dump_every: int = setting(
        0,
        "write the tokens of highest covariance to <ckpt.output_dir>/cov_tokens every N global steps; 0: never",
    )
    cov_dump_tokens: int = setting(200, "tokens that such a file holds")

    def check(self) -> None:
        """Called when the settings are made, after the checks of the methods."""
        self._check_methods()
        for entry in fields(self):
            if entry.metadata["fraction"]:
                for value in extremes(getattr(self, entry.name)):
                    self._check_fraction(entry.name, value)
        if self.cov_log_probs == "old" and self.cov_scope != "global":
            raise ValueError(
                f"--cov_log_probs old only applies to --cov_scope global, got --cov_scope {self.cov_scope}"
            )
        if self.cov_dump_every < 0:
            raise ValueError(f"--cov_dump_every is a number of global steps of at least 0, got {self.cov_dump_every}")
        if self.cov_dump_tokens < 1:
            raise ValueError(f"--cov_dump_tokens is a number of tokens of at least 1, got {self.cov_dump_tokens}")

    @property
    def methods(self) -> list[Method]:
        """The methods of the run."""
        return methods_of(self.cov_type, self.method)

    @property
    def surrogate(self) -> Method | None:
        """The method that replaces PPO's surrogate, if one does."""
        return next((method for method in self.methods if method.slot == "surrogate"), None)

    @property
    def estimator(self) -> Method | None:
        """The method that computes the advantages, if one does."""
        return next((method for method in self.methods if method.slot == "estimator"), None)

    @property
    def aggregation(self) -> str | None:
        """The ``--actor.loss_agg_mode`` that the surrogate was published with, where it is not the default."""
        return self.surrogate.aggregation if self.surrogate else None

    @property
    def rollout_anchor(self) -> str | None:
        """The setting by which the loss needs the log-probs of the engine that sampled, None if it does not."""
        anchors = [method.anchor_policy for method in self.methods if method.anchor_policy]
        return next((anchor for anchor in anchors if getattr(self, anchor) == "rollout"), None)

    @property
    def ppo_clip(self) -> tuple[float, float] | None:
        """The PPO clip that the methods set, the surrogate's or that of the one that has one; None: the run's."""
        clips = [method.clip_of(self) for method in (self.surrogate, *self.methods) if method]
        return next((clip for clip in clips if clip), None)

    @property
    def plans_globally(self) -> bool:
        """True if a method plans over a whole optimizer step."""
        return self.cov_scope == "global" and any(method.plan for method in self.methods)

    @property
    def asks_log_probs(self) -> bool:
        """True if the window holds the log-probs of the policy before each update."""
        asked = [getattr(self, method.log_probs_policy) for method in self.methods if method.log_probs_policy]
        return "current" in asked

    @property
    def entropy_policy(self) -> str | None:
        """Whose entropies the window holds: ``current``, ``old`` or, where no method asks for any, None."""
        asked = [getattr(self, method.entropy_policy) for method in self.methods if method.entropy_policy]
        return next(iter(asked), None)

    def at(self, step: int) -> "CovConfig":
        """The settings of global step ``step`` (from 0): every schedule replaced by its value."""
        scheduled = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata["scheduled"]}
        return replace(self, **{n: v.at(step) for n, v in scheduled.items() if isinstance(v, Schedule)})

    def _check_methods(self) -> None:
        names = _names(self.method)
        for name in names:
            if name not in METHODS and names != ["none"]:
                raise ValueError(
                    f"--method {self.method}: {name!r} is no method; give none, or of {', '.join(METHODS)} one or "
                    "several with commas"
                )
        for fault in self._conflicts():
            raise ValueError(fault)

    def _conflicts(self) -> Iterator[str]:
        for one, other in combinations(self.methods, 2):
            if one.slot == other.slot:
                yield f"{one.flag} and {other.flag}: each {SLOTS[one.slot]}, and a run has one that does; drop one"
            if one.by_covariance and other.by_covariance:
                yield f"{one.flag} and {other.flag} both select by covariance, each with its own PPO clip; drop one"
        if self.cov_scope != "global":
            for method in self.methods:
                if method.plan and not method.by_covariance:
                    yield f"{method.flag} only applies to --cov_scope global, got --cov_scope {self.cov_scope}"
        yield from self._conflicts_of_responses()
        surrogate = self.surrogate.flag if self.surrogate else None
        for method in self.methods if surrogate else ():
            if method.keeps_clip and getattr(self, method.keeps_clip):
                yield f"--{method.keeps_clip} has no effect with {surrogate}, which has no PPO clip; drop it"
            if self.lacks_bound(method) and not self.allow_no_trust_region:
                yield (
                    f"{method.flag} beside {surrogate} leaves no bound on an update: {surrogate} does not clip, and "
                    f"{method.title} was published with a clip of its own or with none; drop one, or add "
                    "--allow_no_trust_region if you mean it"
                )
        asking = [method for method in self.methods if method.entropy_policy]
        if len({getattr(self, method.entropy_policy) for method in asking if method.entropy_policy}) > 1:
            flags = " and ".join(method.flag for method in asking)
            yield f"{flags} ask for entropies of different policies; let them ask for the same"

    def lacks_bound(self, method: Method) -> bool:
        """True if ``method`` brings its own clip, or none, and stands beside a surrogate that bounds nothing."""
        surrogate = self.surrogate
        return bool(surrogate and method is not surrogate and method.ppo_clip and not surrogate.bounded)

    def _conflicts_of_responses(self) -> Iterator[str]:
        for method in self.methods:
            others = [other for other in self.methods if other is not method and other.plan and not other.penalty]
            if method.by_response and others:
                yield (
                    f"{method.flag} has one advantage for all tokens of a response, and {others[0].flag} tells them "
                    "apart; drop one"
                )
            dropping = [other for other in others if other.slot == "drop"]
            if method.estimate and method.plan and dropping:
                yield (
                    f"{method.flag} leaves responses out of the mean, and {dropping[0].flag} tokens, each as if "
                    "alone; drop one"
                )

    def _check_fraction(self, name: str, value: float) -> None:
        if not 0.0 < value <= 1.0:
            raise ValueError(f"--{name} is a fraction of tokens in (0, 1], got {value}; {NOT_PERCENT}")
        if value > LARGE_COV_RATIO and not self.allow_large_cov_ratio:
            raise ValueError(
                f"--{name} {value:g} selects {value:.1%} of all tokens; {NOT_PERCENT}. "
                f"Use a value up to {LARGE_COV_RATIO}, or add --allow_large_cov_ratio if you mean it"
            )
