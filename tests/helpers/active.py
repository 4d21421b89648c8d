"""Settings with which each method acts on a few random samples, and those with which it is GRPO."""

from dataclasses import replace

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import fills
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.slots import Estimator, ProcessEstimator, Surrogate

# Settings with which a method acts; those of the others are their defaults.
ACTIVE = {
    "kl_cov": {"kl_cov_ratio": 0.04},
    "lp_reg": {"lp_reg_frac": 0.05},
    "clip_cov": {"clip_cov_ratio": 0.05, "clip_cov_lb": 0.1, "clip_cov_ub": 1e3},
    "random_drop": {"random_drop_ratio": 0.05},
    "stare": {"stare_gate": 9.0},
    "erc": {"erc_low": 0.9999, "erc_high": 1.0001},
    "positive_weight": {"positive_weight": 0.5},
    "adaptive_clip": {"adaptive_clip_eps": 0.1},
    "adaptive_entropy": {"entropy_bonus": 0.05},
    "repo_r": {"repo_zeta": 0.1},
    "passk": {"passk_k": 2},
    "entropic": {"entropic_alpha": -0.4, "entropic_theta": 0.01},
    "clip_b": {"clip_b_mu": 0.5},
    "clip_v": {"clip_v_mu": 0.5, "clip_v_frac": 0.2},
    "wapo": {"wapo_length": 7.0},
    "dr_grpo": {"dr_grpo_length": 7.0},
}

# Settings in which a method is GRPO.
NEUTRAL = {
    "clip_b": {"clip_b_mu": 1e9},
    "entropic": {"entropic_alpha": 0.0},
    "clip_v": {"clip_v_mu": 1e9},
    "clip_cov": {"clip_cov_lb": 1e6, "clip_cov_ub": 2e6},
    "kl_cov": {"ppo_kl_coef": 0.0},
    "lp_reg": {"lp_reg_coef": 0.0},
    "steer": {"steer_min": 1.0},
    "stare": {"stare_strength": 0.0},
    "positive_weight": {"positive_weight": 1.0},
    "entropy_advantage": {"entropy_advantage_coef": 0.0},
    "repo_r": {"repo_zeta": 0.0},
    "erc": {"erc_low": 0.0, "erc_high": 1e9},
    "adaptive_entropy": {"entropy_bonus": 0.0},
    "adaptive_clip": {"adaptive_clip_eps": 0.2, "adaptive_clip_high": 0.03},  # 1 / 0.8 + 0.03 = 1.28
    "cw_grpo": {},
    "random_drop": {"random_drop_on": "positive"},
    "psr": {},
    "nsr": {},
}
# Advantage of all tokens with which it is: equal covariances, no positive token, no response that is left out.
EQUAL = {"cw_grpo": 1.0, "random_drop": -0.5, "psr": 1.0, "nsr": -1.0}


# Methods that the laboratory has: it has no process reward model.
IN_THE_LAB = tuple(name for name, method in METHODS.items() if not fills(method, ProcessEstimator))
# One method of each slot: each slot has a code path of its own in a trainer. For tests that are too expensive for all.
OF_EACH_SLOT = ("clip_cov", "kl_cov", "entropic", "repo_r", "cispo", "passk", "adaptive_clip", "adaptive_entropy")
OTHER_METHODS = tuple(name for name in IN_THE_LAB if name not in OF_EACH_SLOT)
# Methods that plan what to do to tokens, those that replace PPO's surrogate, and those that compute advantages.
PLANNED = tuple(name for name, method in METHODS.items() if method.token_slots)
SURROGATES = tuple(name for name, method in METHODS.items() if fills(method, Surrogate))
ESTIMATORS = tuple(name for name, method in METHODS.items() if fills(method, Estimator))


def active(name, **settings):
    """The run of one method that acts."""
    chosen = {"cov_type" if METHODS[name].by_covariance else "method": name}
    return CovConfig(**chosen, **ACTIVE.get(name, {}), **settings)


def neutral(name):
    """The run of one method that is GRPO."""
    return replace(active(name), **NEUTRAL[name])


def active_flags(name):
    """The same as flags of a command."""
    flags = METHODS[name].flag.split()
    for setting, value in ACTIVE.get(name, {}).items():
        flags += [f"--{setting}", str(value)]
    return flags
