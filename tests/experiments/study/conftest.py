import numpy as np
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.experiments.study.run_plan import REPORT, StudyRun
from openrlhf_cov.experiments.study.run_results import Result
from openrlhf_cov.experiments.study.spec_file import spec_of

STEPS = 40


@pytest.fixture
def content():
    """Three methods as parsed YAML: two tuned ones of four and two configurations, and one that takes the second's."""
    return {
        "title": "Two methods",
        "task": "commands",
        "flags": "--steps 40",
        "seeds": [0, 1, 2],
        "tuning": {"seeds": [100], "finalists": 2, "final_seeds": [101], "grid": {"--actor.adam.lr": [1e-4, "3e-4"]}},
        "arms": [
            {"name": "GRPO", "grid": {"--actor.eps_clip_low_high": ["0.1 0.1", "0.2 0.2"]}},
            {"name": "KL-Cov", "flags": "--cov_type kl_cov"},
            {"name": "by micro-batch", "flags": "--cov_scope micro_batch", "at": "KL-Cov", "tier": 2},
        ],
    }


@pytest.fixture
def spec(content):
    return spec_of(content)


@pytest.fixture
def make_result():
    """Function (run, accuracy, more) -> a finished run whose validation and test accuracy are that of 10 questions.

    Its reward lies on 0.9 - 0.2 exp(H) + ``off`` while H falls from 1 to ``entropy``.
    """

    def make(run: StudyRun, accuracy: float, entropy: float = 0.5, off: float = 0.0, cpu: float = 0.1) -> Result:
        steps = np.arange(1, STEPS + 1)
        wiggle = np.random.default_rng([run.seed, 7]).normal(0, 1e-3, STEPS)
        fall = np.linspace(1.0, entropy, STEPS)
        metrics = {
            "entropy/mean": fall,
            "entropy/position_0": 2 * fall,
            "reward": 0.9 - 0.2 * np.exp(fall) + off + wiggle,
            "entropy/delta": np.r_[np.nan, np.diff(fall)] + wiggle / 100,
            "entropy/delta_theorem1": -1e-3 + wiggle,
            "entropy/delta_theorem2": -1e-3 - wiggle,
            "cov/prob_weighted_mean": np.full(STEPS, 1e-3),
            "cov/mean": np.full(STEPS, 1e-3),
            "gradient/positive_mass": np.ones(STEPS),
            "gradient/negative_mass": np.ones(STEPS),
            "gradient/norm": np.ones(STEPS),
            "cov/selected_frac": np.full(STEPS, 0.02),
            "timing/cpu": np.full(STEPS, cpu),
        }
        curve = {
            "greedy": np.array([0.4, accuracy, accuracy]),
            "entropy": np.array([1.0, 0.7, entropy]),
            "entropy/position_0": np.array([2.0, 2 * entropy, 2 * entropy]),
            "length": np.full(3, 5.0),
        }
        right = round(10 * accuracy)
        return Result(
            run,
            Table(steps, metrics),
            Table(np.array([0, 20, 40]), curve),
            ("a",) * 10,
            np.arange(10) < right,
            np.full(10, 32 * right // 10),
            64,
        )

    return make


@pytest.fixture
def make_runs(make_result):
    """Function (name -> settings of its three runs) -> the runs by method and seed."""

    def make(**of_method):
        return {
            method: {
                seed: make_result(StudyRun(method, REPORT, (), seed), **settings) for seed, settings in enumerate(runs)
            }
            for method, runs in of_method.items()
        }

    return make
