"""Settings with which each method acts on a few random samples; those of the others are their defaults."""

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.methods import METHODS

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
}


def active(name, **settings):
    """The run of one method that acts."""
    chosen = {"cov_type" if METHODS[name].by_covariance else "method": name}
    return CovConfig(**chosen, **ACTIVE.get(name, {}), **settings)


def active_flags(name):
    """The same as flags of a command."""
    flags = METHODS[name].flag.split()
    for setting, value in ACTIVE.get(name, {}).items():
        flags += [f"--{setting}", str(value)]
    return flags
