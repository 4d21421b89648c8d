"""The command of the reward service: flags, one-line errors, and two real replicas behind upstream's own client."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager

import psutil
import pytest
import torch

from openrlhf_cov.cli import serve_reward
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.limits import REWARD_TOKEN, ServiceLimits
from openrlhf_cov.rewards.reward_func import make_reward_func

cpu_host.install()  # upstream's modules import on a CPU host only after that


def test_flags_reach_the_settings():
    flags = ["--reward_format", "any", "--reward_workers", "7", "--reward_timeout", "1.5", "--max_request_mb", "3"]
    flags += ["--max_queries", "5", "--reward_grader", "published"]
    args = serve_reward.build_parser().parse_args(flags)
    assert RewardConfig.from_args(args) == RewardConfig(
        reward_format="any", reward_grader="published", reward_workers=7, reward_timeout=1.5
    )
    assert ServiceLimits.from_args(args) == ServiceLimits(max_request_mb=3, max_queries=5)


def test_an_empty_token_in_the_environment_does_not_open_the_service(run_command, monkeypatch):
    monkeypatch.setenv(REWARD_TOKEN, "")
    status, out, error = run_command("serve-reward", "--port", 0)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert f"{REWARD_TOKEN} holds no token" in error


def test_token_of_the_file_before_that_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(REWARD_TOKEN, "fromEnvironment")
    (tmp_path / "token").write_text("from.file-1\n")
    assert serve_reward.read_token(tmp_path / "token") == "from.file-1"
    monkeypatch.setenv(REWARD_TOKEN, "fromEnvironment")
    assert serve_reward.read_token(None) == "fromEnvironment"
    assert REWARD_TOKEN not in os.environ  # the grading processes do not inherit it
    assert serve_reward.read_token(None) is None


SHOWN = """
import os, subprocess, sys
from pathlib import Path
from openrlhf_cov.cli.serve_reward import read_token
print(read_token(None))
print(b"s3cret" in Path("/proc/self/environ").read_bytes(), "OTHER=kept" in Path("/proc/self/environ").read_text())
child = "import os; print('s3cret' in repr(os.environ), b's3cret' in open('/proc/self/environ', 'rb').read())"
subprocess.run([sys.executable, "-c", child], check=True)
print(os.environ["OTHER"], read_token(None))
"""


@pytest.mark.slow
def test_a_token_is_not_left_in_the_environment_of_a_process():
    environment = os.environ | {REWARD_TOKEN: "s3cret", "OTHER": "kept"}
    command = [sys.executable, "-u", "-c", SHOWN]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == ["s3cret", "False True", "False False", "kept None"]


@contextmanager
def replica(*flags, **environment):
    """A running service; killed at the end if it still runs."""
    command = [sys.executable, "-m", "openrlhf_cov.cli.serve_reward", "--port", "0", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def url_of(process):
    line = process.stdout.readline()
    assert re.fullmatch(r"serving on http://\S+:\d+\n", line), line + process.stderr.read()
    return line.split()[-1]


def health(url):
    with urllib.request.urlopen(url + "/health", timeout=30) as answer:
        return json.load(answer)


@pytest.mark.e2e
def test_two_replicas_behind_the_client_of_upstream_and_no_process_left():
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    prompt = "What is half of $x + 1$? "
    answers = [
        r"\boxed{\frac{x+1}{2}}",
        r"\boxed{(1+x)/2}",
        r"\boxed{x}",
        "none",
        r"\boxed{\frac{x}{2} + \frac{1}{2}}",
    ]
    queries, prompts, labels = [prompt + a for a in answers], [prompt] * 5, [r"\frac{1+x}{2}"] * 5
    patient = ("--reward_timeout", "30")  # this machine may be busy
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(replica(*patient, **{REWARD_TOKEN: "s3cret"})),
            stack.enter_context(replica(*patient, "--host", "0.0.0.0", "--reward_workers", "1")),
        ]
        urls = [url_of(process) for process in replicas]
        started = [child for process in replicas for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(started) == 3  # grading processes: 2 and 1
        client = SingleTurnAgentExecutor([f"{urls[0]}?token=s3cret", f"{urls[1]}/get_reward"])

        async def fetch():
            batch = await client._fetch_rewards_via_http(queries, prompts, labels)
            one_by_one = [
                await client._fetch_rewards_via_http([query], [prompt], [label])
                for query, prompt, label in zip(queries, prompts, labels, strict=True)
            ]
            return batch, [answer for (answer,) in one_by_one]

        batch, one_by_one = asyncio.run(fetch())
        expected = make_reward_func(RewardConfig(reward_timeout=30.0))(queries, prompts, labels)
        assert expected["scores"].tolist() == [1, 1, 0, 0, 1]
        assert [len(part["rewards"]) for part in batch] == [3, 2]  # 5 queries on 2 servers
        for parts in (batch, one_by_one):
            for name in ("rewards", "scores", "truncated_rewards"):
                joined = [value for part in parts for value in part[name]]
                assert torch.equal(torch.tensor(joined), expected[name]), name
            for metric, values in expected["extra_logs"].items():
                assert [v for part in parts for v in part["extra_logs"][metric]] == values.tolist(), metric
        counts = [health(url) for url in urls]
        assert [count["answers"]["200"] for count in counts] == [1 + 3, 1 + 2]  # a part of the batch, then in turn

        started += [child for process in replicas for child in psutil.Process(process.pid).children(recursive=True)]
        replicas[0].send_signal(signal.SIGTERM)
        replicas[1].kill()
        output, log = replicas[0].communicate(timeout=60)
        _, warning = replicas[1].communicate(timeout=60)
        assert replicas[0].returncode == 0
        assert output == ""
        assert [line.split("] ")[1].split(" ")[0] for line in log.splitlines()] == ["start:"]
        assert "s3cret" not in log
        assert "can be reached from other machines and asks for no token" in warning
        assert psutil.wait_procs(started, timeout=30)[1] == []


@pytest.mark.e2e
def test_sigint_while_a_case_is_stuck_ends_within_seconds(request):
    body = {"query": [r"\boxed{x+1}"] * 50, "prompts": [""] * 50, "labels": ["1+x"] * 50}
    with replica("--reward_timeout", "100") as process:
        url = url_of(process)
        workers = psutil.Process(process.pid).children(recursive=True)
        for worker in workers:
            worker.suspend()
            request.addfinalizer(lambda worker=worker: worker.is_running() and worker.kill())
        with socket.create_connection(url.removeprefix("http://").rsplit(":", 1)) as connection:
            data = json.dumps(body).encode()
            connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            while health(url)["requests_in_work"] != 1:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=60)
            assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")
    assert process.returncode == 0
    assert "Traceback" not in log
    assert psutil.wait_procs(workers, timeout=30)[1] == []
