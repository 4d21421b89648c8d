"""The table of metrics, the code and ``docs/metrics.md`` name the same ones."""

import ast
import re
import runpy
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from rank_models import make_samples

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.models import rollout_metrics
from openrlhf_cov.models.dynamics import EntropyDynamics, RunningLaw
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.window import ALONE
from openrlhf_cov.rewards.reward_func import make_reward_func
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics
from openrlhf_cov.trainer.rollout.dynamic_sampling import SamplingCounts, sampling_metrics, staleness
from openrlhf_cov.trainer.rollout.reward_executor import ABSTAINED, ERROR_METRIC
from openrlhf_cov.utils.metric_table import TABLE, definition, family
from openrlhf_cov.utils.metrics import MetricBuffer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "write_metric_docs.py"
TABLES = ("rollout", "theory", "law", "updates", "rewards", "programs", "sampling")
OURS = [name for rows in TABLES for row in TABLE[rows] for name in row.titles]
NAMES = [name for rows in TABLE.values() for row in rows for name in row.titles]
GROUPS = {name.split("/")[0] for name in NAMES if "/" in name}


class Recording(MetricBuffer):
    """Remembers as what each metric adds up."""

    def __init__(self):
        super().__init__()
        self.kinds = getattr(self, "kinds", {})

    def add(self, *metrics):
        super().add(*metrics)
        for metric in metrics:
            self.kinds |= dict.fromkeys(metric.name.split(), type(metric).__name__.lower())


@pytest.fixture(scope="module")
def emitted(ours):
    """Return every name of ours that one global step logs -> as what it adds up, "" for a plain number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_metrics, "MetricBuffer", Recording)
        diagnostics = StepDiagnostics(make_samples(1), 8, ALONE, "cpu")
    record = LossRecord(TokenBatch(*[torch.ones(1, 2)] * 4), torch.ones(1, 2), [], (0.2, 0.2))
    diagnostics.observe(torch.tensor([0]), record)
    names = [*diagnostics.finish(), *EntropyDynamics().step(1.0, 0.0, 0.0, eta=1.0), *RunningLaw().add(1.0, 0.5)]
    # Numbers that the update writes beside the diagnostics. Those without a group are upstream's names.
    update = ours.find("trainer/update.py", "update_policy")
    written = [
        node for node in ast.walk(update) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    ]
    names += [node.slice.value for node in written if "/" in node.slice.value]
    names += [ERROR_METRIC, ABSTAINED, "reward/unfinished_frac"]
    names += make_reward_func(RewardConfig(reward_source="code"))([], [], [])["extra_logs"]  # of programs, too
    names += sampling_metrics(SamplingCounts(), [], waiting=0).keys() | staleness([], step=0).keys()
    return dict.fromkeys(names, "") | diagnostics.buffer.kinds


def test_every_metric_has_one_row_and_every_row_a_metric(emitted):
    assert sorted(OURS) == sorted(emitted)


def test_metrics_add_up_as_the_table_says(emitted):
    assert {name: definition(name).reduction for name in OURS} == emitted


def test_no_name_has_two_rows():
    assert len(NAMES) == len(set(NAMES))


def test_every_name_in_the_package_is_in_the_table(ours):
    """Any string that looks like a metric, in whatever room; in f-strings the part that is known begins a family."""
    looks = re.compile(rf"(?:{'|'.join(GROUPS)})/[\w.@-]+")
    for path in ours.paths():
        for node in ours.nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and looks.fullmatch(node.value):
                assert any(fnmatchcase(node.value, name) for name in NAMES) or (
                    node.value.endswith("_") and family(node.value)
                ), f"{path} names {node.value}, which is not in utils/metric_table.py"


def test_the_page_prints_the_table():
    """``python scripts/write_metric_docs.py`` writes it."""
    script = runpy.run_path(str(SCRIPT))
    page = script["PAGE"].read_text(encoding="utf-8")
    assert page == script["rewritten"](page)
    assert set(re.findall(r"<!-- metrics (\w+) -->", page)) == TABLE.keys()
