"""Runs as the trainer writes them, and the numbers of a real one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.utils.metrics_log import MetricsLog

# `make demo` of KL-Cov: 40 steps of the embedded task, entropy/mean, reward and ppo/ratio_p99
ENTROPY = """0.4358 0.3708 0.3398 0.3537 0.3409 0.319 0.3106 0.289 0.2713 0.2699 0.2736 0.2895 0.2456 0.2601 0.2227
    0.2381 0.2362 0.2274 0.21 0.2131 0.2129 0.2071 0.2153 0.1875 0.1791 0.1819 0.1968 0.1809 0.1813 0.1808 0.1714
    0.1687 0.1676 0.1527 0.1713 0.1516 0.1563 0.15 0.1594 0.1523"""
REWARD = """0.2656 0.3125 0.3164 0.3164 0.3008 0.3672 0.3633 0.3984 0.4805 0.4297 0.4062 0.3633 0.4727 0.4219 0.4648
    0.4414 0.4609 0.5195 0.5586 0.4844 0.4492 0.5117 0.4805 0.5977 0.6055 0.6172 0.5156 0.5391 0.5977 0.6484 0.6211
    0.5898 0.5781 0.625 0.6094 0.7227 0.6641 0.7422 0.6094 0.6719"""
RATIO = """1.4409 1.1487 1.1852 1.1623 1.2039 1.1668 1.1714 1.1221 1.1178 1.1806 1.1578 1.1398 1.2372 1.2133 1.1004
    1.1178 1.1221 1.1134 1.1091 1.1532 1.2181 1.1623 1.413 1.1623 1.1091 1.2086 1.1487 1.1265 1.176 1.1309 1.1134
    1.0876 1.1178 1.0919 1.1578 1.1178 1.1487 1.1178 1.1623 1.1309"""
COMMAND = (
    "python -m openrlhf_cov.cli.train_ppo_ray --data.max_samples 1280 --rollout.batch_size 32 --cov_type {} "
    "--algo.kl.init_coef 0\n"
)
START = 1_700_000_000.0


@pytest.fixture(scope="session")
def real_run() -> Table:
    """The metrics of a real run that the alerts ask for; what never happened is 0."""
    columns = {"entropy/mean": ENTROPY, "reward": REWARD, "ppo/ratio_p99": RATIO}
    found = {name: np.array([float(word) for word in text.split()]) for name, text in columns.items()}
    never = ("reward/error_frac", "ppo/skipped_updates", "cov/empty_update_frac")
    found |= {name: np.zeros(40) for name in never} | {"cov/selected_count": np.full(40, 55.0)}
    return Table(np.arange(1, 41), found)


@pytest.fixture(scope="session")
def line() -> Callable[..., dict]:
    """Function (step, changes) -> the values of a step: reward step / 100, entropy exp(-step / 20), 10 s a step.

    Generation 2 s, experience 1 s, training 6 s, broadcast 0.5 s of 10 s, so 0.5 s are of none; 64 samples of 50
    tokens: 3,200 tokens, 1,600 a second of generation and 320 a second of the step.
    """

    def values(step: int, changes: dict | None = None) -> dict:
        found = {"reward": step / 100, "entropy/mean": float(np.exp(-step / 20)), "cov/mean": 0.01, "truncated": 0.0}
        found |= {"response_length": 50.0 + step, "rollout/response_length_mean": 50.0, "rollout/num_samples": 64.0}
        found |= {"timing/generation": 2.0, "timing/make_experience": 1.0, "timing/ppo_train": 6.0}
        found |= {"timing/broadcast": 0.5, "timing/step_total": 10.0, "cov/selected_frac": 0.0}
        found |= {"reward/error_frac": 0.0, "reward/no_answer_frac": 0.25, "ppo/ratio_p99": 1.1}
        return found | (changes or {})

    return values


class Folder:
    """A run folder that a test writes; step s has the time ``START + 10 s``."""

    def __init__(self, path: Path, values: Callable[..., dict], cov_type: str) -> None:
        self.path, self._values = path, values
        path.mkdir(parents=True)
        (path / "command.txt").write_text(COMMAND.format(cov_type))
        self._log = MetricsLog(path / "metrics.jsonl")

    def add(self, *steps: int, **changes: float) -> "Folder":
        """Append the lines of steps; ``reward__error_frac`` stands for reward/error_frac."""
        for step in steps:
            named = {name.replace("__", "/"): value for name, value in changes.items()}
            self._log.write(step, {**self._values(step, named), "time": START + 10 * step})
        return self


@pytest.fixture
def folder(tmp_path, line) -> Callable[..., Folder]:
    """Function (name, cov_type) -> a new run folder with a command and no step."""
    return lambda name="demo", cov_type="none": Folder(tmp_path / name, line, cov_type)
