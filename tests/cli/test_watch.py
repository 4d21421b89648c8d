import pytest

from openrlhf_cov.cli import watch
from openrlhf_cov.utils.metrics_log import MetricsLog


@pytest.fixture
def run(tmp_path):
    log = MetricsLog(tmp_path / "demo/metrics.jsonl")
    for step in (1, 2):
        log.write(step, {"entropy/mean": 1 / step, "reward": step / 4, "timing/step_total": 3.0})
    return tmp_path / "demo"


def test_once(run, capsys):
    assert watch.main([str(run), "--once", "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("demo | step 2 of 2 | finished, last step ")
    assert lines[1].split() == ["reward", "0.25", "to", "0.5", "▁█"]
    assert lines[-1] == "  entropy law: does not apply: 2 points, fewer than 10"
