"""Run an evaluation: generate the missing responses, grade them, and write each as it arrives."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.data import ungradable_by
from openrlhf_cov.evaluation.plan import Completion, EvaluationPlan, Request
from openrlhf_cov.evaluation.response_records import (
    PROBLEMS_FILE,
    PROMPT_TOO_LONG,
    RESPONSES_FILE,
    RUN_FILE,
    AskedProblem,
    Key,
    Response,
    RunSettings,
    graded_by,
    read_problems,
    read_responses,
    read_settings,
    record_line,
    write_records,
    write_settings,
)
from openrlhf_cov.rewards import sources
from openrlhf_cov.rewards.grades import Grade

# Completions of requests, in the order in which they are done; None for a prompt that leaves no room for one.
# RunStopped where one cannot be had.
Generate = Callable[[Sequence[Request]], Iterable[tuple[Request, Completion | None]]]

# Settings in which a resumed run may differ.
NOT_COMPARED = ("packages",)

# Files of a run that was killed before its settings were written.
UNSTARTED = {PROBLEMS_FILE, f".{PROBLEMS_FILE}.tmp", f".{RUN_FILE}.tmp"}


def open_run(folder: Path, settings: RunSettings, problems: Sequence[AskedProblem]) -> list[Response]:
    """Return the responses that a folder already holds, and make the files of a new folder.

    Args:
        folder: Value of ``--output``. It may be new, empty, or that of an evaluation with equal settings.
        settings: Settings of the run.
        problems: The problems of all benchmarks, for a new folder.

    Raises:
        UsageError: The folder holds another run, whose first differing setting is named, or something else, or it
            cannot be written.
    """
    with writing(f"--output {folder}"):
        if (folder / RUN_FILE).exists():
            old = asdict(read_settings(folder))
            new = asdict(settings)
            for name in old:
                if name not in NOT_COMPARED and old[name] != new[name]:
                    difference = _difference(name, old[name], new[name])
                    raise UsageError(f"--output {folder} holds another run: {difference}; choose another folder")
            responses = read_responses(folder)
            write_records(folder / RESPONSES_FILE, responses)  # without a line that was cut
            if len(responses) < sum(each.problems * each.samples for each in settings.benchmarks):
                versions = _joined_versions(old["packages"], settings.packages)
                write_settings(folder, replace(read_settings(folder), packages=versions))
            return responses
        if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - UNSTARTED):
            raise UsageError(f"--output {folder} is not empty and holds no evaluation; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_records(folder / PROBLEMS_FILE, problems)
        write_settings(folder, settings)
    return []


def _joined_versions(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of packages with which an evaluation was begun and continued, such as ``0.1, 0.9``."""
    versions = dict(now) | dict(before)
    for name, version in now.items():
        if version not in versions[name].split(", "):
            versions[name] += f", {version}"
    return versions


def run(
    folder: Path,
    requests: Sequence[Request],
    done: Sequence[Response],
    grade: Callable[[Request, Completion | None], Response],
    generate: Generate,
    *,
    workers: int,
    on_response: Callable[[Response], None] = lambda response: None,
) -> None:
    """Generate and grade all missing responses; ``responses.jsonl`` is then complete and in order.

    Each response is appended as soon as it is graded, so a killed run loses only what is in flight. What was generated
    when an error or an interrupt ends the run is still graded and written.

    Args:
        folder: Folder of the results.
        requests: All requests of the plan.
        done: Responses that the folder already has.
        grade: Returns the graded response to a request; its completion is None where the prompt does not fit.
        generate: Yields completions of requests.
        workers: Threads that grade.
        on_response: Called with every new response.

    Raises:
        RunStopped: The engines or the server failed.
        UsageError: The disk refuses a line.
    """
    have = {response.key for response in done}
    missing = [request for request in requests if request.key not in have]

    def keep(response: Response) -> None:
        path = folder / RESPONSES_FILE
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(record_line(response) + "\n")
        on_response(response)

    for request in missing:
        if not request.fits:
            keep(too_long(request))
    respond([request for request in missing if request.fits], grade, generate, workers, keep)
    order = {request.key: place for place, request in enumerate(requests)}
    with writing(folder):
        responses = sorted(read_responses(folder), key=lambda each: order.get(each.key, len(order)))
        write_records(folder / RESPONSES_FILE, responses)


def respond(
    requests: Sequence[Request],
    grade: Callable[[Request, Completion | None], Response],
    generate: Generate,
    workers: int,
    keep: Callable[[Response], None],
) -> None:
    """Generate and grade all responses, and pass them to ``keep`` in the order in which they were generated.

    When an error or interrupt comes, the responses that are generated and wait for their grade are graded and kept,
    too. One that was being kept at that moment may be kept twice.

    Args:
        requests: The requests, whose prompts all leave room for a response. Without any, ``generate`` is not called.
        grade: Returns the graded response to a request; it runs in threads.
        generate: Yields completions of requests.
        workers: Threads that grade.
        keep: Called with each response, in the thread of the caller.

    Raises:
        UsageError: ``keep`` raised it; nothing more is kept.
        Exception: What ``generate`` or ``grade`` raises.
    """
    grading: deque[Future[Response]] = deque()

    def keep_graded(wait: bool) -> None:
        while grading and (wait or grading[0].done()):
            if grading[0].exception():  # it has no grade, those behind it have one
                grading.popleft().result()
            keep(grading[0].result())
            grading.popleft()

    threads = ThreadPoolExecutor(workers)
    try:
        if requests:  # without any, no engine has to start
            for request, completion in generate(requests):
                grading.append(threads.submit(grade, request, completion))
                keep_graded(wait=False)
        keep_graded(wait=True)
    except UsageError:  # of ``keep``: nothing more can be kept
        raise
    except BaseException:  # whatever ends the run, what was generated is paid for
        keep_graded(wait=True)
        raise
    finally:
        threads.shutdown(cancel_futures=True)


class Grader:
    """Grades by the rule of each benchmark: ``grade_label``, the function that rewards in training.

    With ``reward_grader`` published, both graders grade; Math-Verify grades only where strict says incorrect.
    ``template_text`` is the prompt with ``{problem}`` where the problem goes: it tells whether the prompt opened the
    thinking of the model.
    """

    def __init__(
        self,
        problems: Iterable[AskedProblem],
        rules: dict[str, str],
        config: RewardConfig,
        template_text: str = "{problem}",
    ) -> None:
        self.problems = {(each.benchmark, each.id): each for each in problems}
        self._before, _, self._behind = template_text.rpartition("{problem}")
        self.asks_both = config.reward_grader == "published"
        self.configs = {
            name: replace(config, reward_source=rule, reward_grader="strict") for name, rule in rules.items()
        }

    @classmethod
    def of(cls, plan: EvaluationPlan, config: RewardConfig) -> "Grader":
        """Return the grader of a plan.

        Args:
            plan: The plan, with the problems and the rule of each benchmark. Its prompts come with the requests.
            config: Settings of the rewards. ``reward_grader`` says whether both graders grade.
        """
        return cls(plan.problems, {each.name: each.grader for each in plan.benchmarks}, config)

    def grade(self, benchmark: str, problem_id: str, text: str, prompt: str | None = None) -> Grade:
        """Return the grade of a response to one problem by the grader strict.

        Args:
            benchmark: Name of the benchmark.
            problem_id: Id of the problem in the benchmark.
            text: The response.
            prompt: The prompt of the response; None to make it from the template.
        """
        if prompt is None:
            prompt = self._before + self.problems[benchmark, problem_id].problem + self._behind
        label = self._label(benchmark, problem_id)
        return sources.grade_label(text, label, self.configs[benchmark], prompt=prompt)

    def __call__(self, request: Request, completion: Completion | None) -> Response:
        """Return the graded response."""
        if completion is None:
            return too_long(request)
        benchmark, problem_id, _ = request.key
        graded = self._graded(benchmark, problem_id, completion.text, request.prompt)
        return _response(request.key, request.seed, **asdict(completion), **graded)

    def again(self, response: Response) -> Response:
        """Return the response with a new grade."""
        if response.status == PROMPT_TOO_LONG:
            return replace(response, published=False)
        return replace(response, **self._graded(response.benchmark, response.id, response.text))

    def _graded(self, benchmark: str, problem_id: str, text: str, prompt: str | None = None) -> dict[str, Any]:
        grade = self.grade(benchmark, problem_id, text, prompt)
        published = None
        if self.asks_both:
            label = self._label(benchmark, problem_id)
            published = sources.published_grade(grade, label, self.configs[benchmark]).correct
        return {"answer": grade.answer, "status": grade.status, "correct": grade.correct, "published": published}

    def _label(self, benchmark: str, problem_id: str) -> dict[str, str]:
        problem = self.problems[benchmark, problem_id]
        return {"answer": problem.answer, "source": problem.source}


def regrade(folder: Path, config: RewardConfig, workers: int, packages: Mapping[str, str] | None = None) -> int:
    """Grade the responses of a folder again, without a model.

    Args:
        folder: Folder of an evaluation.
        config: Settings of the grader.
        workers: Threads that grade.
        packages: Versions of the packages that grade, for the record.

    Returns:
        Number of the grades of the grader strict that changed.

    Raises:
        UsageError: The folder is not that of an evaluation, or a response is to an unknown problem.
    """
    settings = read_settings(folder)
    responses = read_responses(folder)
    rules = {each.name: each.grader for each in settings.benchmarks}
    problems = read_problems(folder)
    grader = Grader(problems, rules, config, settings.template_text)
    for each in responses:
        if (each.benchmark, each.id) not in grader.problems or each.benchmark not in grader.configs:
            raise UsageError(f"{folder}: there is a response to {each.id!r} of {each.benchmark}, but no such problem")
    with ThreadPoolExecutor(workers) as threads:
        graded = list(threads.map(grader.again, responses))
    # Another version of the grader may read other gold answers.
    benchmarks = []
    for each in settings.benchmarks:
        own = [problem.without_benchmark() for problem in problems if problem.benchmark == each.name]
        benchmarks.append(replace(each, ungradable=tuple(ungradable_by(each.grader, own))))
    with writing(folder):
        write_records(folder / RESPONSES_FILE, graded)
        versions = settings.packages | dict(packages or {})
        write_settings(folder, replace(settings, **graded_by(config), packages=versions, benchmarks=tuple(benchmarks)))
    return sum(replace(old, published=new.published) != new for old, new in zip(responses, graded, strict=True))


@contextmanager
def writing(place: object) -> Iterator[None]:
    """Turn an OSError of the block into a UsageError.

    Args:
        place: The only file or folder that the block writes, for the message.

    Raises:
        UsageError: The block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror or error}") from error


def too_long(request: Request) -> Response:
    """Return the response to a prompt that leaves no room for one."""
    prompt_tokens = len(request.prompt_ids or ())
    nothing = Completion("", 0, prompt_tokens, truncated=True)
    wrong = {"answer": None, "status": PROMPT_TOO_LONG, "correct": False, "published": False}
    return _response(request.key, request.seed, **asdict(nothing), **wrong)


def _response(key: Key, seed: int | None, **values: Any) -> Response:
    benchmark, problem_id, sample = key
    return Response(benchmark=benchmark, id=problem_id, sample=sample, seed=seed, **values)


def _difference(name: str, old: Any, new: Any) -> str:
    """Return the difference as one short text: for benchmarks the first field of the first one."""
    if name != "benchmarks":
        return f"{name} was {old!r}, now {new!r}"
    names = [[each["name"] for each in side] for side in (old, new)]
    if names[0] != names[1]:
        return f"benchmarks were {', '.join(names[0])}, now {', '.join(names[1])}"
    for before, after in zip(old, new, strict=True):
        for key in before:
            if before[key] != after[key]:
                return f"{key} of {before['name']} was {before[key]!r}, now {after[key]!r}"
    raise AssertionError("equal settings")
