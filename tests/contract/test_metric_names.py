"""``docs/metrics.md`` and the code name the same metrics."""

import re
from pathlib import Path

import torch

from openrlhf_cov.models.diagnostics import entropy_metrics, update_metrics
from openrlhf_cov.models.objectives import TokenBatch

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
GROUPS = ("cov/", "ppo/", "entropy/")


def documented():
    """Names in backticks in the first column of the tables, of our groups."""
    first_columns = re.findall(r"^\|([^|]*)\|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    names = [name for cell in first_columns for name in re.findall(r"`([^`]+)`", cell)]
    return [name for name in names if name.startswith(GROUPS)]


def emitted():
    ones = torch.ones(1, 2)
    metrics = [*update_metrics(TokenBatch(ones, ones, ones, ones), None, 0.2, 0.2), *entropy_metrics(ones, ones)]
    return [metric.name for metric in metrics]


def test_every_metric_has_one_row_and_every_row_a_metric():
    assert sorted(documented()) == sorted(emitted())


def test_every_metric_belongs_to_a_documented_group():
    assert all(name.startswith(GROUPS) for name in emitted())
