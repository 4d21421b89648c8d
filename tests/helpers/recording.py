"""Records which calls the controller makes on models and engines, and when it waits for their results."""

from typing import Any

from played_models import PlayedGroup
from played_ray import Now


class Result:
    """A reference to the result of a call."""

    def __init__(self, label: str, value: Any) -> None:
        self.label, self.value = label, value
        self.is_known = False


class Recorder:
    """Stands in for ``ray`` and notes calls and waits, one line each; equal lines in a row are one line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        if self.lines[-1:] != [line]:
            self.lines.append(line)

    def call(self, label: str, value: Any) -> Result:
        self.note(label)
        return Result(label, value)

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        if not isinstance(refs, Result):
            return refs
        if not refs.is_known:  # a result is waited for once
            refs.is_known = True
            self.note(f"wait {refs.label}")
        return refs.value

    def put(self, value: Any) -> Any:
        return value

    def wait(self, refs: list, num_returns: int = 1, timeout: float | None = None) -> tuple[list, list]:
        return refs, []


class RecordedGroup(PlayedGroup):
    """A group whose calls are recorded."""

    def __init__(self, model: str, recorder: Recorder, status: Any = None) -> None:
        super().__init__(model)
        self.recorder, self.status = recorder, status

    def async_run_method(self, method_name: str, *args: Any, **kwargs: Any) -> list:
        return [self.recorder.call(f"{self.model}.{method_name}", None)]

    def async_run_method_batch(self, method_name: str, **batches: list) -> list:
        (answers,) = super().async_run_method_batch(method_name, **batches)
        return [self.recorder.call(f"{self.model}.{method_name}", answers)]

    def answer(self, method: str, rank: int) -> Any:
        return self.recorder.call(f"{self.model}.{method}", self.status)


class RecordedEngine:
    """A vLLM engine whose calls are recorded."""

    def __init__(self, recorder: Recorder, results: dict[str, Any] | None = None) -> None:
        self.recorder, self.results = recorder, results or {}

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Result:
            arguments = f" {kwargs}" if method == "wake_up" and kwargs else ""
            value = self.results.get(method)
            return self.recorder.call(f"engines.{method}{arguments}", value)

        return Now(remote)
