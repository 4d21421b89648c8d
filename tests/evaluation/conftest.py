"""A small run and its model; the server of tests/conftest.py as an endpoint; tables of what was solved."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.evaluation.endpoint import Endpoint
from openrlhf_cov.evaluation.plan import Completion, EvaluationPlan, PromptedProblem, Request
from openrlhf_cov.evaluation.response_records import AskedProblem, BenchmarkSettings, RunSettings, graded_by
from openrlhf_cov.evaluation.runner import Grader, open_run, run

# p0 to p2 are asked twice with seeds, q0 and q1 once, greedily; p2 is too long for a response.
ANSWERS = {"p0": "0", "p1": "1", "p2": "2", "q0": "10", "q1": "11"}


def benchmark(name, problems, samples):
    return BenchmarkSettings(
        name=name, version=1, problems=problems, complete=True, samples=samples, top_p=1.0, grader="math",
        temperature=float(samples > 1), max_tokens=8, sha256=name * 3,
    )  # fmt: skip


PLAN = EvaluationPlan(
    benchmarks=(benchmark("p", 3, 2), benchmark("q", 2, 1)),
    items=tuple(
        PromptedProblem(
            AskedProblem(benchmark=name[0], id=name, problem=f"{name}?", answer=answer, source="s"),
            prompt=f"{name}?",
            prompt_ids=tuple(range(60 if name == "p2" else 5)),
        )
        for name, answer in ANSWERS.items()
    ),
)
SETTINGS = RunSettings(
    model="m", protocol="paper", template="none", template_text="{problem}", seed=3, log_probs=False,
    max_model_len=50, benchmarks=PLAN.benchmarks, packages={"vllm": "1"}, **graded_by(RewardConfig()),
)  # fmt: skip
# Right, wrong, right outside of a box, none.
TEXTS = (r"So \boxed{{{answer}}}.", r"So \boxed{{7}}, 二.", "So the answer is {answer}.", "\u2028\n")


def completion_of(request):
    """What the model says: a function of the request."""
    place = random.Random(f"{request.key} {request.seed}").randrange(len(TEXTS))
    text = TEXTS[place].format(answer=ANSWERS[request.key[1]])
    return Completion(text, tokens=place + 1, prompt_tokens=5, truncated=place == 3, surprisal=place / 4)


@dataclass
class Model:
    """Answers in an order of its own, up to ``stop_after`` requests, then raises ``error``; notes what it is asked."""

    order: random.Random = field(default_factory=lambda: random.Random(0))
    stop_after: int | None = None
    error: type[BaseException] | BaseException = RunStopped
    asked: list = field(default_factory=list)

    def __call__(self, requests):
        self.asked += [request.key for request in requests]
        for number, request in enumerate(self.order.sample(requests, len(requests))):
            if number == self.stop_after:
                raise self.error
            yield request, completion_of(request)
        if self.stop_after == len(requests):
            raise self.error


class SmallRun:
    """Five problems, 8 requests, of which 6 fit into the context of the model."""

    plan, settings, config = PLAN, SETTINGS, RewardConfig()
    requests: ClassVar[list[Request]] = list(PLAN.requests(seed=SETTINGS.seed, max_model_len=SETTINGS.max_model_len))
    too_long = frozenset({("p", "p2", 0), ("p", "p2", 1)})
    asked = len(requests) - len(too_long)
    Model = Model
    completion_of = staticmethod(completion_of)

    @classmethod
    def grader(cls) -> Grader:
        return Grader.of(cls.plan, cls.config)

    @classmethod
    def evaluate(cls, folder, model, on_response=lambda response: None, grade=None) -> None:
        """One start of the command."""
        done = open_run(folder, cls.settings, cls.plan.problems)
        run(folder, cls.requests, done, grade or cls.grader(), model, workers=2, on_response=on_response)

    @staticmethod
    def files(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="session")
def small() -> type[SmallRun]:
    return SmallRun


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """The folder of a small run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    SmallRun.evaluate(folder, Model())
    return folder


@pytest.fixture(scope="module")
def again(tmp_path_factory) -> Callable[[], Path]:
    """Function () -> folder of a run; empty at every call."""
    folder = tmp_path_factory.mktemp("again") / "run"

    def fresh() -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    return fresh


@pytest.fixture
def endpoint(openai_server) -> Callable[..., Endpoint]:
    """Function (settings...) -> the endpoint of the server."""

    def make(**settings) -> Endpoint:
        given = dict(base_url=openai_server.url, model="tiny", chat=False, concurrency=4, max_retries=3, api_key="key")
        return Endpoint(**(given | settings))

    return make


@pytest.fixture(scope="session")
def error_reply() -> Callable[[int, str], tuple[int, dict[str, Any]]]:
    """Function (status, message) -> a reply of the server that refuses a request."""
    return lambda status, message: (status, {"error": {"message": message, "type": "BadRequestError", "code": status}})


def table_of(*counts: int, samples: int) -> np.ndarray:
    """(N, samples) array with ``counts[i]`` correct samples in problem i."""
    return np.arange(samples) < np.array(counts)[:, None]


@pytest.fixture(scope="session")
def solved() -> Callable[..., np.ndarray]:
    """Function (counts..., samples=) -> table of (problems, samples), of which so many of each problem are correct."""
    return table_of


@pytest.fixture(scope="session")
def solved_tables() -> st.SearchStrategy[np.ndarray]:
    """Tables of up to 12 problems with up to 8 samples."""
    return st.integers(1, 8).flatmap(
        lambda samples: st.lists(st.integers(0, samples), min_size=1, max_size=12).map(
            lambda counts: table_of(*counts, samples=samples)
        )
    )
