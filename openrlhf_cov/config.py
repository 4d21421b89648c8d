"""Every setting of the package with its default and its valid range; the command line is generated from here."""

from dataclasses import dataclass, field, fields
from typing import Any

LARGE_COV_RATIO = 0.05
"""Token fractions above this are refused without ``allow_large_cov_ratio``: published values are 2e-4 and 2e-3."""


def _setting(default: Any, help: str, only: str | None = None, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field that also carries its flag: help text, choices, and the ``cov_type`` it belongs to."""
    return field(default=default, metadata={"help": help, "only": only, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class CovConfig:
    """Settings of the covariance policy losses (arXiv 2505.22617). All shares are fractions of tokens, never percent.

    Raises ValueError, naming the flag, the value and the accepted range, when a value is out of range.
    """

    cov_type: str = _setting(
        "none",
        "none: upstream's PPO loss, untouched; clip_cov: tokens picked in a covariance band lose their gradient; "
        "kl_cov: the tokens of highest covariance get a KL penalty",
        choices=("none", "clip_cov", "kl_cov"),
    )
    cov_scope: str = _setting(
        "micro_batch",
        "tokens over which covariance is centred and ranked: micro_batch is the published code's behaviour",
        choices=("micro_batch", "global"),
    )
    clip_cov_ratio: float = _setting(2e-4, "fraction of action tokens whose gradient is dropped", only="clip_cov")
    clip_cov_lb: float = _setting(1.0, "lower bound of the covariance band", only="clip_cov")
    clip_cov_ub: float = _setting(5.0, "upper bound of the covariance band", only="clip_cov")
    kl_cov_ratio: float = _setting(
        2e-3, "fraction of action tokens that get the KL penalty (7B: 2e-3, 32B: 2e-4)", only="kl_cov"
    )
    ppo_kl_coef: float = _setting(1.0, "coefficient of the KL penalty on the selected tokens", only="kl_cov")
    kl_cov_keep_ppo_clip: bool = _setting(
        False, "keep the PPO clip beside the KL penalty; the published KL-Cov has none", only="kl_cov"
    )
    allow_large_cov_ratio: bool = _setting(False, f"accept token fractions above {LARGE_COV_RATIO}")

    def __post_init__(self) -> None:
        for setting in fields(self):
            choices, value = setting.metadata["choices"], getattr(self, setting.name)
            if choices and value not in choices:
                raise ValueError(f"--{setting.name} is one of {', '.join(choices)}, got {value!r}")
        if self.cov_scope == "global":
            raise ValueError("--cov_scope global is not available yet; use --cov_scope micro_batch")
        for name in ("clip_cov_ratio", "kl_cov_ratio"):
            self._check_fraction(name)
        if not self.clip_cov_lb < self.clip_cov_ub:
            raise ValueError(
                f"--clip_cov_lb must lie below --clip_cov_ub, got {self.clip_cov_lb} and {self.clip_cov_ub}"
            )
        if not 0.0 <= self.ppo_kl_coef < float("inf"):
            raise ValueError(f"--ppo_kl_coef is a finite number of at least 0, got {self.ppo_kl_coef}")

    @classmethod
    def from_args(cls, args: Any) -> "CovConfig":
        """The config that parsed flags describe; ``args`` has one attribute per field."""
        return cls(**{f.name: getattr(args, f.name) for f in fields(cls)})

    def _check_fraction(self, name: str) -> None:
        value = getattr(self, name)
        if not 0.0 < value <= 1.0:
            raise ValueError(f"--{name} is a fraction of tokens in (0, 1], got {value}")
        if value > LARGE_COV_RATIO and not self.allow_large_cov_ratio:
            raise ValueError(
                f"--{name} {value:g} selects {value:.1%} of all tokens; it is a fraction, not percent "
                f"(0.2 % is 2e-3). Use a value up to {LARGE_COV_RATIO}, or add --allow_large_cov_ratio if you mean it"
            )
