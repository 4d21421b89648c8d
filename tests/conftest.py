"""What ``--quick`` runs; evaluations made from a table of answers; and a server that speaks OpenAI's protocol."""

import gc
import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.response_records import (
    PROBLEMS_FILE,
    RESPONSES_FILE,
    AskedProblem,
    BenchmarkSettings,
    Response,
    RunSettings,
    write_records,
    write_settings,
)
from openrlhf_cov.evaluation.samples import BenchmarkSamples, group_samples
from openrlhf_cov.experiments.tiny_task.catalogue import check_sandbox
from openrlhf_cov.utils.search_path import search_path

os.environ["PATH"] = search_path()  # as in the workers of a run: a long test compiles an optimizer

# Folders whose every case is another thing: a flag, a message, a page.
WHOLE = {"contract", "docs"}
# The line of a file that marks all of its tests as slow or as end-to-end tests.
ALL_LEFT_OUT = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.(slow|e2e)\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "leave out slow tests; at most two cases of a parametrised test, ten examples of a property"
    parser.addoption("--quick", action="store_true", help=about)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file of which ``--quick`` runs nothing: importing vLLM or TRL takes seconds in each worker."""
    if not config.getoption("--quick"):
        return None
    is_left_out = collection_path.suffix == ".py" and ALL_LEFT_OUT.search(collection_path.read_text(encoding="utf-8"))
    return True if is_left_out else None  # None: pytest decides


def pytest_collection(session: pytest.Session) -> None:
    """Modules and tests are there to stay: the garbage collector does not look through them again and again."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """See ``pytest_collection``."""
    gc.freeze()
    gc.enable()


class _Seen:
    """What ``pytest_runtest_logstart`` has seen of this process."""

    file = ""
    loggers = 0


def pytest_runtest_logstart(nodeid: str) -> None:
    """Keep two costs from growing with the tests that ran before.

    - The garbage collector looks no more through what the tests of former files have left. Trainers call it several
      times, for more than a second each where thousands of tests have run.
    - Torch's loggers pass records on to that of torch, instead of each to pytest: pytest adds its handlers to every
      logger that passes nothing on, six times for each test, and torch has about 80 of them.
    """
    file = nodeid.partition("::")[0]
    if file != _Seen.file:
        _Seen.file = file
        gc.collect()
        gc.freeze()
    known = logging.root.manager.loggerDict
    if len(known) != _Seen.loggers:
        _Seen.loggers = len(known)
        for name, logger in known.items():
            if name.startswith("torch.") and isinstance(logger, logging.Logger):
                logger.propagate = True


@pytest.hookimpl(trylast=True)  # hypothesis has loaded the profile of its flag
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        profiles = hypothesis.settings
        profiles.register_profile("quick", profiles.get_profile("ci"), max_examples=10)
        profiles.load_profile("quick")


def is_whole(path: Path) -> bool:
    """Return True if ``--quick`` runs all cases of the tests in this file."""
    return path.relative_to(Path(__file__).parent).parts[0] in WHOLE


def ends_of(values: Iterable[Any]) -> list[Any]:
    """Return the first and the last of the values, or all of them where there are no more than two."""
    found = list(values)
    return found if len(found) < 3 else [found[0], found[-1]]


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make no test of a case that ``--quick`` leaves out: making 8,000 tests takes seconds in each worker."""
    if not metafunc.config.getoption("--quick") or is_whole(metafunc.definition.path):
        return
    marks = metafunc.definition.own_markers
    for place, mark in enumerate(marks):
        if mark.name == "parametrize":
            names, values = mark.args
            settings = dict(mark.kwargs)
            if settings.get("ids") is not None and not callable(settings["ids"]):
                settings["ids"] = ends_of(settings["ids"])
            marks[place] = pytest.mark.parametrize(names, ends_of(values), **settings).mark


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what ``--quick`` runs; of more than two cases of a test the first and the last."""
    if not config.getoption("--quick"):
        return
    families: dict[tuple[pytest.Collector | None, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            families.setdefault((item.parent, getattr(item, "originalname", item.name)), []).append(item)
    kept = set()
    for family in families.values():
        places = range(len(family)) if is_whole(family[0].path) else {0, len(family) - 1}
        kept |= {family[n].nodeid for n in places}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT interrupts this process, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def quiet_engines(monkeypatch) -> None:
    """Engines set this variable of the process."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture
def python(monkeypatch, tmp_path) -> Callable[[str], None]:
    """Function (lines of a shell): they take the place of this Python, with which commands start others."""

    def install(script: str) -> None:
        program = tmp_path / "bin" / "python"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")

    return install


@pytest.fixture
def log(caplog):
    """``caplog`` with the messages of all modules of a training: upstream's loggers do not propagate."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("openrlhf_cov")]
    apart = [each for each in loggers if not each.propagate]
    for each in apart:
        each.addHandler(caplog.handler)
    yield caplog
    for each in apart:
        each.removeHandler(caplog.handler)


@pytest.fixture
def hub(monkeypatch) -> Callable[[list[dict]], list[tuple]]:
    """Function (rows) -> the calls of ``load_dataset``, which returns these rows of the hub."""
    import datasets

    calls: list[tuple] = []

    def serve(rows: list[dict]) -> list[tuple]:
        found = datasets.Dataset.from_list(rows)
        monkeypatch.setattr(datasets, "load_dataset", lambda *asked, split: calls.append((*asked, split)) or found)
        return calls

    return serve


@pytest.fixture(scope="session")
def needs_sandbox() -> None:
    """Skips a test that runs programs where this machine has no sandbox, and says why."""
    try:
        check_sandbox()
    except UsageError as error:
        pytest.skip(str(error))


SCRIPTS = Path(__file__).parents[1] / "scripts"
# Ray makes one line of a job's words, and a shell on the cluster reads this line.
RAY = """#!{python}
import json, subprocess, sys
words = sys.argv[1:]
assert words[:3] == ["job", "submit", "--address"], words
json.loads(words[words.index("--runtime-env-json") + 1])
line = subprocess.list2cmdline(words[words.index("--") + 1:])
command = subprocess.check_output(["sh", "-c", r"printf '%s\\0' " + line], text=True).split("\\0")[:-1]
assert command[1] == "-m", command
open({output!r}, "w").write(json.dumps(command[2:]))
"""


@pytest.fixture(scope="session")
def submitted() -> Callable[..., list[str]]:
    """Function (recipe, words, folder, variables) -> module and flags of the job that a recipe submits, by a stand-in
    for Ray in that folder. The recipe is a script with its arguments, separated by spaces."""

    def run(recipe: str, *words: str, folder: Path, **variables: str) -> list[str]:
        noted, ray = folder / "flags.json", folder / "bin" / "ray"
        ray.parent.mkdir(exist_ok=True)
        ray.write_text(RAY.format(python=sys.executable, output=str(noted)))
        ray.chmod(0o755)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("MODEL", "LAYOUT", "BENCHMARKS")
        }
        environment |= {"PATH": f"{ray.parent}:{os.environ['PATH']}"} | variables
        script, *arguments = recipe.split()
        subprocess.run(
            [str(SCRIPTS / script), *arguments, *words], check=True, timeout=60, cwd=folder, env=environment
        )
        return json.loads(noted.read_text())

    return run


@dataclass(frozen=True)
class Evaluation:
    """The records of a run."""

    settings: RunSettings
    problems: list[AskedProblem]
    responses: list[Response]

    @property
    def samples(self) -> list[BenchmarkSamples]:
        return group_samples(self.settings, self.problems, self.responses)

    def having(self, change: Callable[[Response], Response]) -> "Evaluation":
        """The same run with every response changed."""
        return replace(self, responses=list(map(change, self.responses)))

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        write_settings(folder, self.settings)
        write_records(folder / PROBLEMS_FILE, self.problems)
        write_records(folder / RESPONSES_FILE, self.responses)
        return folder


@pytest.fixture(scope="session")
def make_evaluation() -> Callable[..., Evaluation]:
    """Function ({benchmark: rows}, benchmark settings, settings of the run) -> a finished run.

    A row is the answers to one problem, with spaces between; every gold answer is 1, which alone is correct; ``-`` is
    no answer. Sample k has 10 (k + 1) tokens.
    """

    def make(tables: dict[str, list[str]], settings_of=(), **settings) -> Evaluation:
        benchmarks, problems, responses = [], [], []
        for name, rows in tables.items():
            answers = [[None if answer == "-" else answer for answer in row.split()] for row in rows]
            benchmarks.append(_benchmark(name, answers, dict(settings_of).get(name, {})))
            for n, row in enumerate(answers):
                problem_id = f"{name}-{n}"
                problems.append(
                    AskedProblem(benchmark=name, id=problem_id, problem=f"What is {n}?", answer="1", source="tests")
                )
                responses += [_response(name, problem_id, k, answer) for k, answer in enumerate(row)]
        how = dict(model="models/tiny", protocol="paper", template="qwen-boxed", template_text="{problem}", seed=7)
        how |= dict(log_probs=False, reward_format="boxed", max_model_len=512, packages={"vllm": "0.19.1"})
        return Evaluation(RunSettings(benchmarks=tuple(benchmarks), **(how | settings)), problems, responses)

    return make


def _benchmark(name: str, answers: list[list[str | None]], changes: dict) -> BenchmarkSettings:
    values = dict(name=name, version=1, problems=len(answers), complete=True, samples=len(answers[0]), top_p=1.0)
    values |= dict(temperature=0.6 if len(answers[0]) > 1 else 0.0, max_tokens=8192, grader="math")
    values |= dict(sha256=hashlib.sha256(f"{name} {len(answers)}".encode()).hexdigest())
    return BenchmarkSettings(**(values | changes))


def _response(benchmark: str, problem_id: str, sample: int, answer: str | None) -> Response:
    return Response(
        benchmark=benchmark,
        id=problem_id,
        sample=sample,
        seed=sample,
        text=f"So \\boxed{{{answer}}}." if answer else "So what?",
        tokens=10 * (sample + 1),
        prompt_tokens=5,
        truncated=False,
        surprisal=None,
        answer=answer,
        status="graded" if answer else "no_answer",
        correct=answer == "1",
    )


class OpenAIServer(ThreadingHTTPServer):
    """Serves ``models``; answers requests by ``reply(path, body)``: (status, JSON or bytes), by default ``complete``.

    ``asked`` is (path, body, headers) of all of them, ``most`` the largest number that were under way at once.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OpenAIHandler)
        self.models: list[dict[str, Any]] = [{"id": "tiny", "object": "model", "max_model_len": 64}]
        self.reply: Callable[[str, dict], tuple[int, Any]] = lambda path, body: (200, complete(path, body))
        self.asked: list[tuple[str, dict, dict]] = []
        self.lock, self.under_way, self.most = threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, path: str, body: dict, headers: dict) -> tuple[int, Any]:
        with self.lock:
            self.asked.append((path, body, headers))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            return self.reply(path, body)
        finally:
            with self.lock:
                self.under_way -= 1

    def handle_error(self, request, client_address) -> None:
        """Clients that went away are no news."""


class OpenAIHandler(BaseHTTPRequestHandler):
    server: OpenAIServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        self._send(200 if known else 404, {"object": "list", "data": self.server.models} if known else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(
            *self.server.answer(
                self.path.removeprefix("/v1"), body, {name.lower(): value for name, value in self.headers.items()}
            )
        )

    def _send(self, status: int, content: Any) -> None:
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if content[:1] in (b"{", b"[") else "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("retry-after-ms", "1")  # the client repeats at once
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def complete(path: str, body: dict, text: str | None = None, log_probs: list[float] | None = None) -> dict:
    """The answer to a request; its text, unless given, is a function of prompt and seed. A token is a word."""
    chat = path == "/chat/completions"
    prompt = body["messages"][0]["content"] if chat else body["prompt"]
    if text is None:
        digits = int(hashlib.sha256(f"{prompt}{body.get('seed')}".encode()).hexdigest(), 16) % 3
        text = f"So it is \\boxed{{{digits}}}."
    length = len(text.split())
    if chat:
        logged = None if log_probs is None else {"content": [{"token": "a", "logprob": each} for each in log_probs]}
        choice = {"message": {"role": "assistant", "content": text}, "logprobs": logged}
    else:
        choice = {"text": text, "logprobs": None if log_probs is None else {"token_logprobs": log_probs}}
    choice |= {"index": 0, "finish_reason": "length" if length == body["max_tokens"] else "stop"}
    usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": length}
    return {"id": "1", "model": body["model"], "choices": [choice], "usage": usage}


@pytest.fixture
def openai_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """A server on this host, of the model ``tiny``.

    It speaks plain HTTP. Without a folder of certificates each client would read all those of the system.
    """
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with OpenAIServer() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="session")
def completed() -> Callable[..., dict]:
    """``complete``, for replies of a test's own."""
    return complete
