"""``docs/metrics.md`` and the code name the same metrics."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from openrlhf_cov.analysis.law import RunningLaw
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.rewards.reward_func import STATUS_METRICS
from openrlhf_cov.trainer import cpu_host

cpu_host.install()  # upstream's modules import on a CPU host only after that

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
GROUPS = ("cov/", "ppo/", "entropy/", "gradient/", "sampling/", "reward/", "law/")


def documented():
    """Names in backticks in the first column of the tables, of our groups."""
    first_columns = re.findall(r"^\|([^|]*)\|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    names = [name for cell in first_columns for name in re.findall(r"`([^`]+)`", cell)]
    return [name for name in names if name.startswith(GROUPS)]


@pytest.fixture(scope="module")
def emitted():
    """Every name that we add to upstream's status of one global step."""
    from openrlhf_cov.trainer.actor_trainer import SKIPPED_UPDATES
    from openrlhf_cov.trainer.dynamic_sampling import SamplingCounts, sampling_metrics
    from openrlhf_cov.trainer.observation import StepDiagnostics
    from openrlhf_cov.trainer.reward_executor import ERROR_METRIC

    ones = torch.ones(2)
    sample = dict.fromkeys(("action_log_probs", "entropy", "advantages", "action_mask"), ones)
    sample |= {"scores": None, "info": {"sample_id": torch.tensor(0)}}
    diagnostics = StepDiagnostics(samples_per_prompt=8)
    diagnostics.start([SimpleNamespace(**sample)], "cpu")
    record = LossRecord(TokenBatch(*[torch.ones(1, 2)] * 4), torch.ones(1, 2), [], (0.2, 0.2))
    diagnostics.observe(torch.tensor([0]), record)
    names = [*diagnostics.finish(eta=1.0), *RunningLaw().add(1.0, 0.5)]
    names += [SKIPPED_UPDATES, ERROR_METRIC, *STATUS_METRICS.values(), "reward/unfinished_frac"]
    return names + list(sampling_metrics(SamplingCounts(), [], waiting=0, number=0))


def test_every_metric_has_one_row_and_every_row_a_metric(emitted):
    assert sorted(documented()) == sorted(emitted)


def test_every_metric_belongs_to_a_documented_group(emitted):
    assert all(name.startswith(GROUPS) for name in emitted)
