"""Ray in this process: a reference is a value, an error, or a call that runs when its result is fetched.

Unit tests cannot start a cluster: it takes seconds, and its engines and NCCL need GPUs.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

# The answer of an actor that hangs.
SILENT = object()


class Call:
    """A reference to the result of a call, which runs once, when it is fetched."""

    def __init__(self, method: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.results: list[Any] = []

    def fetch(self) -> Any:
        if not self.results:
            self.results.append(self.method(*self.args, **self.kwargs))
        return self.results[0]


class PlayedActor:
    """An actor handle. ``handle.method.remote(...)`` refers to what ``answers`` has under the name of the method.

    Args:
        answers: Method -> its answer: a value, an error that it raises, ``SILENT``, or a function that is called when
            the answer is fetched.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, method: str) -> "Method":
        if method.startswith("__"):
            raise AttributeError(method)
        return Method(self.answers[method])


class Method:
    """A method of an actor handle."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return Call(self.answer, args, kwargs) if callable(self.answer) else self.answer


@dataclass
class Now:
    """A method of an actor handle that runs when it is called."""

    remote: Callable[..., Any]


class PlayedRay:
    """The functions of Ray that read references; notes what was stored, how long it waited, and who was ended."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.timeouts: list[float | None] = []
        self.killed: list[Any] = []

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        if isinstance(reference, list):
            return [self.get(each, timeout) for each in reference]
        if reference is SILENT:
            raise GetTimeoutError
        if isinstance(reference, Exception):
            raise reference
        if isinstance(reference, Future):
            return reference.result(timeout=20)
        return reference.fetch() if isinstance(reference, Call) else reference

    def put(self, value: Any) -> Any:
        self.stored.append(value)
        return value

    def wait(self, references: list, num_returns: int = 1, timeout: float | None = None) -> tuple[list, list]:
        self.timeouts.append(timeout)
        ready = [reference for reference in references if reference is not SILENT]
        return ready, [reference for reference in references if reference is SILENT]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


def install(monkeypatch: Any, played: Any) -> None:
    """Let ``played`` take the place of Ray's functions of the same names until the end of the test."""
    for name in ("get", "put", "wait", "kill"):
        if hasattr(played, name):
            monkeypatch.setattr(ray, name, getattr(played, name))
