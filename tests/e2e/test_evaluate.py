"""An evaluation with real engines that is killed, interrupted and continued ends as the one that never was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ending import ended
from processes import HANGS

from openrlhf_cov.evaluation.response_records import read_responses

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SAMPLES = 16
# More than vLLM runs at once, so that responses arrive over some seconds.
TOTAL = 40 * SAMPLES


@pytest.fixture
def start(task, kill_tree):
    """Function (folder) -> the command in a process of its own; killed with all its children at the end."""
    running = []

    def start_run(folder: Path) -> subprocess.Popen:
        command = [sys.executable, "-m", "openrlhf_cov.cli.evaluate", "--model", str(task.model)]
        command += ["--benchmarks", str(task.benchmark), "--output", str(folder), "--template", "none"]
        command += ["--temperature", "1", "--samples", str(SAMPLES), "--max_tokens", "24"]
        env = os.environ | {"RAY_ADDRESS": "local"}
        env |= {"PYTHONWARNINGS": "ignore"}
        with folder.with_suffix(".log").open("a") as log:
            running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder.parent))
        return running[-1]

    yield start_run
    for process in running:
        kill_tree(process)


def wait_for_responses(process: subprocess.Popen, folder: Path, count: int) -> None:
    """Until there are at least ``count`` lines."""
    deadline, path = time.monotonic() + HANGS, folder / "responses.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, log_of(folder)
        assert time.monotonic() < deadline, log_of(folder)
        time.sleep(0.002)


def log_of(folder: Path) -> str:
    return folder.with_suffix(".log").read_text()[-20_000:]


def test_killed_interrupted_and_continued_is_as_good_as_straight(start, kill_tree, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert start(straight).wait(timeout=HANGS) == 0, log_of(straight)
    expected = (straight / "responses.jsonl").read_bytes()
    assert expected.count(b"\n") == TOTAL
    responses = read_responses(straight)
    assert {response.correct for response in responses} == {True, False}  # a model that knows something
    assert len({response.text for response in responses}) > 40  # whose samples differ
    assert "avg@K" in log_of(straight)

    process = start(broken)
    wait_for_responses(process, broken, 1)
    process.send_signal(signal.SIGSTOP)  # it takes a while to find its children
    kill_tree(process)
    killed_at = len(read_responses(broken))
    assert 0 < killed_at < TOTAL

    process = start(broken)
    wait_for_responses(process, broken, killed_at + 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANGS) == 128 + signal.SIGTERM, log_of(broken)
    assert killed_at < len(read_responses(broken)) < TOTAL
    assert f"evaluate: {TOTAL - killed_at} of {TOTAL} responses are missing" in log_of(broken)
    last = "openrlhf-cov evaluate: interrupted; what was generated is kept, the same command continues"
    assert log_of(broken).splitlines()[-1] == last

    assert start(broken).wait(timeout=HANGS) == 0, log_of(broken)
    assert (broken / "responses.jsonl").read_bytes() == expected
    assert (broken / "summary.json").read_bytes() == (straight / "summary.json").read_bytes()

    command = [sys.executable, "-m", "openrlhf_cov.cli.evaluate", "--regrade", "--output", str(broken)]
    assert ended(command, "grading again").stdout.startswith("0 grades changed\n")
    assert (broken / "responses.jsonl").read_bytes() == expected
