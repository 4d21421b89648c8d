import os
import pty
import subprocess
import sys
import time

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


@pytest.mark.slow
def test_on_a_terminal(run):
    """The whole program: it draws, and q ends it with status 0."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "openrlhf_cov.cli.watch", str(run), "--interval", "0.2"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    drawn, deadline = b"", time.monotonic() + 60
    wanted = (b"demo | step 2", b"entropy (nats): 0.5")
    while not all(text in drawn for text in wanted) and time.monotonic() < deadline:
        drawn += os.read(controller, 65536)
    os.write(controller, b"q")
    while process.poll() is None and time.monotonic() < deadline:
        try:
            os.read(controller, 65536)
        except OSError:
            break
    assert process.wait(timeout=30) == 0
    assert all(text in drawn for text in wanted)
    os.close(controller)
