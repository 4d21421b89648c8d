"""A run that is stopped or killed anywhere and started again ends as the one that never was."""

import random
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation.plan import Completion, Plan
from openrlhf_cov.evaluation.records import (
    AskedProblem,
    BenchmarkSettings,
    Response,
    RunSettings,
    read_responses,
    read_settings,
    record_line,
)
from openrlhf_cov.evaluation.runner import Grader, open_run, regrade, respond, run
from openrlhf_cov.rewards import reward_func, sources

ANSWERS = {"p0": "0", "p1": "1", "p2": "2", "q0": "10", "q1": "11"}
"""p0 to p2 are asked twice with seeds, q0 and q1 once, greedily; p2 is too long for a response."""


def benchmark(name, problems, samples, **changes):
    values = dict(name=name, version=1, problems=problems, complete=True, samples=samples, top_p=1.0, grader="math")
    values |= dict(temperature=float(samples > 1), max_tokens=8, sha256=name * 3)
    return BenchmarkSettings(**(values | changes))


PLAN = Plan(
    benchmarks=(benchmark("p", 3, 2), benchmark("q", 2, 1)),
    problems=tuple(
        AskedProblem(benchmark=name[0], id=name, problem=f"{name}?", answer=answer, source="s")
        for name, answer in ANSWERS.items()
    ),
    prompts=tuple((f"{name}?", tuple(range(60 if name == "p2" else 5))) for name in ANSWERS),
)
SETTINGS = RunSettings(
    model="m", protocol="paper", template="none", template_text="{problem}", seed=3, log_probs=False,
    reward_format="boxed", max_model_len=50, benchmarks=PLAN.benchmarks, packages={"vllm": "1"},
)  # fmt: skip
REQUESTS = list(PLAN.requests(seed=SETTINGS.seed, max_model_len=SETTINGS.max_model_len))
TOO_LONG = {("p", "p2", 0), ("p", "p2", 1)}
ASKED = len(REQUESTS) - len(TOO_LONG)  # 6 of 8
CONFIG = RewardConfig()
TEXTS = (r"So \boxed{{{answer}}}.", r"So \boxed{{7}}, 二.", "So the answer is {answer}.", "\u2028\n")
"""Right, wrong, right outside of a box, none."""


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


def evaluate(folder, model, on_response=lambda response: None, grade=None):
    """One start of the command."""
    done = open_run(folder, SETTINGS, PLAN.problems)
    run(folder, REQUESTS, done, grade or Grader.of(PLAN, CONFIG), model, workers=2, on_response=on_response)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    evaluate(folder, Model())
    return folder


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """Folder of a run; empty at every call."""
    folder = tmp_path_factory.mktemp("again") / "run"

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    return fresh


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run(straight):
    assert files(straight).keys() == {"run.json", "problems.jsonl", "responses.jsonl"}
    responses = read_responses(straight)
    assert [response.key for response in responses] == [request.key for request in REQUESTS]
    assert [response.seed for response in responses] == [request.seed for request in REQUESTS]
    for request, response in zip(REQUESTS, responses, strict=True):
        if request.key in TOO_LONG:
            assert response == Response(
                benchmark="p", id="p2", sample=response.sample, seed=request.seed, text="", tokens=0, prompt_tokens=60,
                truncated=True, surprisal=None, answer=None, status="prompt_too_long", correct=False,
            )  # fmt: skip
        else:
            said = completion_of(request)
            assert (response.text, response.tokens, response.truncated) == (said.text, said.tokens, said.truncated)
            assert (response.prompt_tokens, response.surprisal) == (5, said.surprisal)
            expected = {1: ("graded", True), 2: ("graded", False), 3: ("no_answer", False), 4: ("no_answer", False)}
            assert (response.status, response.correct) == expected[said.tokens]  # the n-th text has n tokens
    assert {response.status for response in responses} == {"graded", "no_answer", "prompt_too_long"}
    assert {response.correct for response in responses} == {True, False}


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_the_order_of_completion_does_not_matter(again, straight, order):
    folder = again()
    evaluate(folder, Model(order))
    assert files(folder) == files(straight)


def test_a_finished_run_asks_for_nothing(again, straight):
    folder = again()
    evaluate(folder, Model())
    evaluate(folder, model := Model())
    assert model.asked == []
    assert files(folder) == files(straight)


STOPS = st.tuples(st.integers(0, ASKED), st.sampled_from([RunStopped, KeyboardInterrupt]))


@settings(max_examples=40)
@given(st.lists(STOPS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_stopped_and_started_again_is_as_good_as_straight(again, straight, stops, order):
    folder, done = again(), 0
    for count, error in stops:
        if done == ASKED:
            break
        model = Model(order, min(count, ASKED - done), error)
        with pytest.raises(error):
            evaluate(folder, model)
        assert len(model.asked) == ASKED - done  # what is missing, once
        done += model.stop_after
        # what was generated before the stop is graded and on disk, and so are the prompts that are too long
        found = read_responses(folder)
        assert len(found) == done + len(TOO_LONG)
        assert set(found) <= set(read_responses(straight))
    evaluate(folder, model := Model(order))
    assert len(model.asked) == len(set(model.asked)) == ASKED - done
    assert files(folder) == files(straight)


@settings(max_examples=60)
@given(st.data(), st.randoms(use_true_random=False))
def test_killed_at_any_byte_and_started_again_is_as_good_as_straight(again, straight, data, order):
    folder = again()
    shutil.copytree(straight, folder)
    lines = (straight / "responses.jsonl").read_bytes().splitlines(keepends=True)
    order.shuffle(lines)  # as they arrived
    content = b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    (folder / "responses.jsonl").write_bytes(content[:cut])
    if data.draw(st.booleans()):
        (folder / "responses.tmp").write_bytes(content[: cut // 2])  # killed in the middle of the last rewrite
    whole = {response.key for response in read_responses(folder)}
    evaluate(folder, model := Model(order))
    assert model.asked == [r.key for r in REQUESTS if r.key not in whole | TOO_LONG]
    assert {name: content for name, content in files(folder).items() if name != "responses.tmp"} == files(straight)


@pytest.mark.parametrize(
    "left",
    [
        {},
        {"problems.tmp": b'{"benchm'},
        {"problems.jsonl": b"whatever\n"},
        {"problems.jsonl": b"whatever\n", "run.tmp": b"{"},
    ],
)
def test_killed_before_the_settings_were_written(again, straight, left):
    folder = again()
    folder.mkdir()
    for name, content in left.items():
        (folder / name).write_bytes(content)
    evaluate(folder, Model())
    assert files(folder) == files(straight)


@pytest.mark.parametrize("stop_at", range(1, ASKED + 1))
def test_an_interrupt_while_a_response_is_counted_loses_none(again, straight, stop_at):
    # Ctrl-C comes in the main thread, which is as likely to be writing as to be waiting for the engines
    folder, counted, generated = again(), [], []

    def on_response(response):
        counted.append(response)
        if len(counted) == len(TOO_LONG) + stop_at:
            raise KeyboardInterrupt

    def generate(requests):
        for request in requests:
            generated.append(request.key)
            yield request, completion_of(request)

    with pytest.raises(KeyboardInterrupt):
        evaluate(folder, generate, on_response)
    assert {response.key for response in read_responses(folder)} == {*generated, *TOO_LONG}
    evaluate(folder, Model())
    assert files(folder) == files(straight)


def test_an_interrupt_before_a_response_is_written_does_not_lose_it(again, monkeypatch):
    folder, opened, path_open = again(), [], Path.open

    def interrupted(path, mode="r", **kwargs):
        opened.extend([path] * (mode == "a"))
        if mode == "a" and len(opened) == len(TOO_LONG) + 1:
            raise KeyboardInterrupt
        return path_open(path, mode, **kwargs)

    monkeypatch.setattr(Path, "open", interrupted)
    generated = []

    def generate(requests):
        for request in requests:
            generated.append(request.key)
            yield request, completion_of(request)

    with pytest.raises(KeyboardInterrupt):
        evaluate(folder, generate)
    assert {response.key for response in read_responses(folder)} == {*generated, *TOO_LONG}


def test_an_interrupt_while_the_last_are_graded_loses_none(again):
    # generation has ended, grading is behind by everything
    folder, generated, counted, grader = again(), threading.Event(), [], Grader.of(PLAN, CONFIG)

    def grade(request, completion):
        generated.wait(10)
        return grader(request, completion)

    def generate(requests):
        yield from Model()(requests)
        assert len(counted) == len(TOO_LONG)
        generated.set()

    def on_response(response):
        counted.append(response)
        if len(counted) == len(TOO_LONG) + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(folder, generate, on_response, grade)
    assert len(read_responses(folder)) == len(REQUESTS)


def test_responses_are_written_while_others_are_generated(again):
    folder, seen, grader = again(), [], Grader.of(PLAN, CONFIG)
    graded = threading.Semaphore(0)

    def grade(request, completion):
        response = grader(request, completion)
        graded.release()
        return response

    def generate(requests):
        for request, completion in Model()(requests):
            seen.append(len(read_responses(folder)) - len(TOO_LONG))
            yield request, completion
            graded.acquire(timeout=10)
            time.sleep(0.01)  # until the thread has handed it over

    evaluate(folder, generate, grade=grade)
    # the n-th is written, at the latest, when the one after it has been generated
    assert all(written >= generated - 1 for generated, written in enumerate(seen))


def test_without_an_answer_from_the_server_a_prompt_is_too_long(again):
    folder = again()
    evaluate(folder, lambda requests: ((request, None) for request in requests))
    assert {response.status for response in read_responses(folder)} == {"prompt_too_long"}
    assert len(read_responses(folder)) == len(REQUESTS)


def test_an_error_of_the_engines_is_not_taken_for_one_of_the_disk(again):
    folder = again()
    with pytest.raises(ConnectionError, match="engine"):
        evaluate(folder, Model(stop_after=2, error=ConnectionError("engine")))
    assert len(read_responses(folder)) == 2 + len(TOO_LONG)


def test_a_full_disk_ends_the_run_in_one_line(again):
    folder = again()
    open_run(folder, SETTINGS, PLAN.problems)
    (folder / "responses.jsonl").symlink_to("/dev/full")
    fitting = [request for request in REQUESTS if request.fits]
    with pytest.raises(UsageError) as stopped:
        run(folder, fitting, [], Grader.of(PLAN, CONFIG), model := Model(), workers=2)
    assert str(stopped.value) == f"{folder / 'responses.jsonl'} cannot be written: No space left on device"
    assert model.asked


def test_nothing_is_written_after_a_line_that_could_not_be(again, monkeypatch):
    # what follows half a line would make it a broken one
    folder, opened = again(), []
    open_run(folder, SETTINGS, PLAN.problems)
    path_open = Path.open

    def fail_at_the_third(path, mode="r", **kwargs):
        if mode == "a":
            opened.append(path)
            if len(opened) == 3:
                with path_open(path, mode, **kwargs) as file:
                    file.write('{"benchmark"')
                raise OSError(28, "No space left on device")
        return path_open(path, mode, **kwargs)

    monkeypatch.setattr(Path, "open", fail_at_the_third)
    fitting = [request for request in REQUESTS if request.fits]
    with pytest.raises(UsageError, match="No space left on device"):
        run(folder, fitting, [], Grader.of(PLAN, CONFIG), Model(), workers=2)
    assert len(opened) == 3
    assert len(read_responses(folder)) == 2


def test_respond_gives_what_a_run_writes(straight):
    fitting = [request for request in REQUESTS if request.fits]
    responses = respond(fitting, Grader.of(PLAN, CONFIG), Model(), workers=2)
    assert set(responses) == {response for response in read_responses(straight) if response.key not in TOO_LONG}
    assert respond([], Grader.of(PLAN, CONFIG), Model(), workers=2) == []


def other(**changes):
    return replace(SETTINGS, **changes)


def with_benchmark(**changes):
    return other(benchmarks=(replace(PLAN.benchmarks[0], **changes), PLAN.benchmarks[1]))


@pytest.mark.parametrize(
    ("wanted", "difference"),
    [
        (other(model="n"), "model was 'm', now 'n'"),
        (other(model="n", seed=4), "model was 'm', now 'n'"),  # the first one
        (other(seed=4), "seed was 3, now 4"),
        (other(template_text="{problem}!"), "template_text was '{problem}', now '{problem}!'"),
        (other(reward_format="any"), "reward_format was 'boxed', now 'any'"),
        (other(max_model_len=None), "max_model_len was 50, now None"),
        (other(model_sha256="ab"), "model_sha256 was None, now 'ab'"),
        (other(benchmarks=PLAN.benchmarks[:1]), "benchmarks were p, q, now p"),
        (other(benchmarks=PLAN.benchmarks[::-1]), "benchmarks were p, q, now q, p"),
        (with_benchmark(samples=4), "samples of p was 2, now 4"),
        (with_benchmark(sha256="b"), "sha256 of p was 'ppp', now 'b'"),
        (with_benchmark(version=2, top_p=0.5), "version of p was 1, now 2"),
    ],
)
def test_the_folder_of_another_run_is_refused_with_what_differs(again, straight, wanted, difference):
    folder = again()
    evaluate(folder, Model())
    with pytest.raises(UsageError) as refused:
        open_run(folder, wanted, PLAN.problems)
    assert str(refused.value) == f"--output {folder} holds another run: {difference}; choose another folder"
    assert files(folder) == files(straight)


def test_other_packages_may_continue_a_run(again, straight):
    folder = again()
    with pytest.raises(RunStopped):
        evaluate(folder, Model(stop_after=3))
    assert len(open_run(folder, other(packages={"vllm": "2", "torch": "3"}), PLAN.problems)) == 3 + len(TOO_LONG)
    assert read_settings(folder).packages == {"vllm": "1"}


@pytest.mark.parametrize("name", ["notes.txt", "responses.jsonl", "responses.tmp", ".hidden", "problems.jsonl.bak"])
def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    (tmp_path / "problems.jsonl").write_text("mine")
    with pytest.raises(UsageError) as refused:
        open_run(tmp_path, SETTINGS, PLAN.problems)
    assert str(refused.value) == f"--output {tmp_path} is not empty and holds no evaluation; choose another folder"
    assert files(tmp_path) == {name: b"mine", "problems.jsonl": b"mine"}


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"file is not empty and holds no evaluation; choose another folder$"):
        open_run(tmp_path / "file", SETTINGS, PLAN.problems)
    with pytest.raises(UsageError, match=r"^--output .*/file/run cannot be written: Not a directory$"):
        open_run(tmp_path / "file" / "run", SETTINGS, PLAN.problems)


@pytest.mark.parametrize("method", ["mkdir", "write_text", "replace"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch, method):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, method, refuse)  # tests may run as root, who may do anything
    with pytest.raises(UsageError) as refused:
        open_run(tmp_path / "run", SETTINGS, PLAN.problems)
    assert str(refused.value) == f"--output {tmp_path / 'run'} cannot be written: Permission denied"


def test_the_last_rewrite_and_a_regrade_are_refused_in_one_line_too(again, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device")

    folder = again()
    done = open_run(folder, SETTINGS, PLAN.problems)
    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(UsageError, match=r"run cannot be written: No space left"):
        run(folder, REQUESTS, done, Grader.of(PLAN, CONFIG), Model(), workers=2)
    assert len(read_responses(folder)) == len(REQUESTS)
    with pytest.raises(UsageError, match=r"run cannot be written: No space left"):
        regrade(folder, CONFIG, workers=2)


def test_a_response_to_nothing_that_was_asked_does_not_break_the_run(again, straight):
    # summaries refuse it by name
    folder = again()
    evaluate(folder, Model())
    stranger = replace(read_responses(straight)[0], id="p9")
    lines = (folder / "responses.jsonl").read_text(encoding="utf-8")
    (folder / "responses.jsonl").write_text(record_line(stranger) + "\n" + lines, encoding="utf-8")
    evaluate(folder, Model())
    assert read_responses(folder) == [*read_responses(straight), stranger]


class TestRegrade:
    def test_the_same_rule_gives_the_same_grades(self, again, straight):
        folder = again()
        shutil.copytree(straight, folder)
        assert regrade(folder, CONFIG, workers=2) == 0
        assert files(folder) == files(straight)

    def test_another_form_of_answer_gives_other_grades(self, again, straight):
        folder = again()
        shutil.copytree(straight, folder)
        # of the right answers outside of a box and the texts without any, those in a sentence are found now
        outside = [response for response in read_responses(straight) if "answer is" in response.text]
        assert outside
        assert regrade(folder, RewardConfig(reward_format="answer_line"), workers=2) > 0
        new = {response.key: response for response in read_responses(folder)}
        assert all(new[response.key].correct for response in outside)
        assert read_settings(folder) == other(reward_format="answer_line")
        boxed = [response for response in read_responses(straight) if "boxed" in response.text]
        assert {new[response.key].status for response in boxed} == {"no_answer"}
        assert {new[key].status for key in TOO_LONG} == {"prompt_too_long"}
        regrade(folder, CONFIG, workers=2)
        assert files(folder) == files(straight)

    def test_a_wrong_grade_is_put_right(self, again, straight):
        folder = again()
        shutil.copytree(straight, folder)
        text = (folder / "responses.jsonl").read_text(encoding="utf-8")
        right = text.count('"correct": true')
        text = text.replace('"correct": true', '"correct": false')
        (folder / "responses.jsonl").write_text(text, encoding="utf-8")
        assert regrade(folder, CONFIG, workers=2) == right > 0
        assert files(folder) == files(straight)

    def test_an_unfinished_run_stays_one(self, again, straight):
        folder = again()
        with pytest.raises(RunStopped):
            evaluate(folder, Model(stop_after=3))
        before = read_responses(folder)
        assert regrade(folder, CONFIG, workers=2) == 0
        assert read_responses(folder) == before
        evaluate(folder, Model())
        assert files(folder) == files(straight)

    def test_a_folder_without_a_run_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="is no folder of an evaluation"):
            regrade(tmp_path, CONFIG, workers=2)


ROWS = [("math", "s", "1/2"), ("gsm8k", "s", "1,234"), ("choice", "s", "B"), ("row", "tiny_addition", "91"),
        ("row", "gsm8k/main", "5"), ("row", "aime", "x+1")]  # fmt: skip
RESPONSES = [r"\boxed{0.5}", r"\boxed{1234}", r"\boxed{(B)}", "34+57;91<eos>", r"\boxed{5 apples}", r"\boxed{1+x}",
             r"\boxed{\dot{x}}", "", "5", r"\boxed{5}"]  # fmt: skip


@pytest.mark.parametrize(("rule", "source", "answer"), ROWS)
def test_a_response_is_graded_as_it_is_rewarded_in_training(rule, source, answer):
    problem = AskedProblem(benchmark="b", id="p", problem="?", answer=answer, source=source)
    grader = Grader([problem], {"b": rule}, CONFIG)
    reward = reward_func.make_reward_func(RewardConfig(reward_source=rule))
    scores = reward(RESPONSES, [""] * len(RESPONSES), [{"answer": answer, "source": source}] * len(RESPONSES))[
        "scores"
    ]
    assert [float(grader.grade("b", "p", text).correct) for text in RESPONSES] == scores.tolist()
    assert 0 < scores.sum() < len(RESPONSES)


def test_both_call_the_same_function(monkeypatch):
    calls = []

    def grade_label(response, label, config):
        calls.append((response, label, config))
        return sources.Grade(True, "graded", "x")

    monkeypatch.setattr(sources, "grade_label", grade_label)
    config, label = RewardConfig(reward_source="gsm8k", reward_format="any"), {"answer": "4", "source": "s"}
    reward_func.make_reward_func(config)(["t"], [""], [label])
    problem = AskedProblem(benchmark="b", id="p", problem="?", answer="4", source="s")
    grader = Grader([problem], {"b": "gsm8k"}, RewardConfig(reward_format="any"))
    assert grader.grade("b", "p", "t").correct
    assert calls == [("t", label, config)] * 2
