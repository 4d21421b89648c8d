"""Runs of which everything is known, and their reports."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_page import HOSTILE

from openrlhf_cov.analysis.report.build_contents import build_contents
from openrlhf_cov.analysis.report.contents import Contents, Options
from openrlhf_cov.analysis.report.curves import BAND_CURVES
from openrlhf_cov.analysis.runs import Run
from openrlhf_cov.analysis.table import EMPTY, Table

SETTINGS = {"--actor.adam.lr": "5e-7", "--logger.wandb.key": "abc123", "--algo.kl.init_coef": "0"}


def columns_of(steps: int, seed: int, method: str) -> dict[str, np.ndarray]:
    """R = -0.3 exp(H) + 0.9 with noise of 0.01 and every other column that a report shows."""
    rng, t = np.random.default_rng(seed), np.arange(steps)
    entropy = 0.05 + np.exp(-6 * t / steps) + 0.003 * rng.standard_normal(steps)
    delta = np.diff(entropy, prepend=np.nan)
    predicted = np.append(delta[1:], np.nan) * 0.01
    columns = {
        "time": 1.7e9 + 60.0 * t,
        "reward": 0.9 - 0.3 * np.exp(entropy) + 0.01 * rng.standard_normal(steps),
        "entropy/mean": entropy,
        "entropy/delta": delta,
        "entropy/delta_theorem1": predicted,
        "entropy/delta_theorem2": -predicted,
        "cov/prob_weighted_mean": np.full(steps, 0.01),
        "cov/group_weighted_mean": -predicted,
        "response_length": 100.0 + t,
        "truncated": np.zeros(steps),
        "sampling/kept_frac": np.linspace(0.6, 0.4, steps),
        "timing/generation": np.full(steps, 50.0),
        "timing/ppo_train": np.full(steps, 30.0),
        "timing/step_total": np.full(steps, 100.0),
        "cov/selected_frac": np.full(steps, 0.0 if method == "none" else 2e-3),
        "cov/selected_ppo_kl": np.full(steps, np.nan if method == "none" else 0.01),
        "control/value": np.linspace(0.0, 1.0, steps),
        "control/": np.full(steps, 0.5),  # these two are not ours
        "control/of_somebody_else": np.full(steps, 0.5),
        "method/one/share": np.full(steps, 0.25),
        "gradient/norm": np.full(steps, 0.5),
        "gradient/zero_frac": np.full(steps, 0.1),
        "cov/acc_low": np.full(steps, 0.02) + 1e-3 * rng.standard_normal(steps),
        "cov/acc_high": np.full(steps, 0.08) + 1e-3 * rng.standard_normal(steps),
    }
    return columns | {each.column: np.full(steps, 2.0**-place) for place, each in enumerate(BAND_CURVES)}


def make_run(
    name: str,
    *,
    steps: int = 60,
    seed: int = 0,
    method: str = "none",
    only: Sequence[str] | None = None,
    path: Path = Path("nowhere"),
    **fields: Any,
) -> Run:
    """A run with all columns, or with ``only`` these; evaluations every tenth step."""
    columns = columns_of(steps, seed, method)
    # Few runs log data sources: a run has these columns only where a test names them.
    of_sources = dict.fromkeys(("source/aime/reward", "source/gsm8k/pass_rate"), np.full(steps, 0.5))
    columns = {column: (columns | of_sources)[column] for column in only or columns}
    numbers = np.arange(steps) + 1
    evaluations = Table(numbers[9::10], {"eval/aime24/avg@32": np.linspace(0.1, 0.2, len(numbers[9::10]))})
    fields = {"settings": SETTINGS | {"--cov_type": method}, "evaluations": EMPTY if only else evaluations} | fields
    return Run(name, path, Table(numbers, columns), **fields)


def make_records(*, hostile: bool = False) -> list[dict[str, Any]]:
    """Tokens of two responses: " a", "b" and the negative "c" of one, in one passage, and "d" of another."""
    odd = HOSTILE if hostile else "x\ny"
    shared = {"entropy": 1.5, "advantage": -0.5, "log_prob": -2.0, "token_id": 7, "prompt_id": 1}
    return [
        shared | {"token": " a", "cov": 4.0, "selected": True, "sample_id": 8, "position": 5}
        | {"before": odd, "after": "12b3c4"},
        shared | {"token": "d", "cov": 3.0, "selected": False, "sample_id": 9, "position": 5}
        | {"before": "<", "after": "\t>"},
        shared | {"token": "b", "cov": 2.0, "selected": False, "sample_id": 8, "position": 8}
        | {"before": f"{odd} a12", "after": "3c4"},
        shared | {"token": "c", "cov": -1.0, "selected": True, "sample_id": 8, "position": 10}
        | {"before": f"{odd} a12b3", "after": "4"},
    ]  # fmt: skip


@pytest.fixture(scope="session")
def hostile() -> str:
    """Text that is markup, script and an unfinished comment."""
    return HOSTILE


@pytest.fixture(scope="session")
def token_records() -> Callable[..., list[dict[str, Any]]]:
    return make_records


@pytest.fixture(scope="session")
def make_report_run() -> Callable[..., Run]:
    return make_run


@pytest.fixture(scope="session")
def make_contents() -> Callable[..., Contents]:
    """Function (runs, options of the report) -> contents."""

    def make(*runs: Run, **options: Any) -> Contents:
        return build_contents(runs, Options(**options))

    return make


@pytest.fixture(scope="session")
def write_tokens() -> Callable[..., Path]:
    """Function (run folder, step, records) -> the file."""

    def write(folder: Path, step: int, records: Sequence[dict[str, Any]]) -> Path:
        path = folder / "cov_tokens" / f"step_{step}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """Function (folder, columns, evaluations, flags) -> the folder; evaluations are those of every tenth step."""

    def write(folder: Path, columns: Any = None, *, evaluations: Any = None, flags: str | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        columns = columns_of(60, 0, "none") if columns is None else columns
        for name, table, every in (("metrics.jsonl", columns, 1), ("eval.jsonl", evaluations or {}, 10)):
            rows = zip(*(np.asarray(values, dtype=float).tolist() for values in table.values()), strict=True)
            numbered = enumerate((dict(zip(table, row, strict=True)) for row in rows), start=1)
            lines = [json.dumps({"step": every * number} | row).replace("NaN", "null") for number, row in numbered]
            if lines:
                (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        if flags is not None:
            (folder / "command.txt").write_text(f"python -m openrlhf_cov.cli.train_ppo_ray {flags}", encoding="utf-8")
        return folder

    return write
