"""A run from its first request to its files: order, what is written when, and what stops it."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.response_records import Response, read_responses
from openrlhf_cov.evaluation.runner import open_run, run
from openrlhf_cov.rewards.pool import WorkerDied


def test_a_run(straight, small):
    assert small.files(straight).keys() == {"run.json", "problems.jsonl", "responses.jsonl"}
    responses = read_responses(straight)
    assert [response.key for response in responses] == [request.key for request in small.requests]
    assert [response.seed for response in responses] == [request.seed for request in small.requests]
    for request, response in zip(small.requests, responses, strict=True):
        if request.key in small.too_long:
            assert response == Response(
                benchmark="p", id="p2", sample=response.sample, seed=request.seed, text="", tokens=0, prompt_tokens=60,
                truncated=True, surprisal=None, answer=None, status="prompt_too_long", correct=False,
                published=False,
            )  # fmt: skip
        else:
            said = small.completion_of(request)
            assert (response.text, response.tokens, response.truncated) == (said.text, said.tokens, said.truncated)
            assert (response.prompt_tokens, response.surprisal) == (5, said.surprisal)
            expected = {1: ("graded", True), 2: ("graded", False), 3: ("no_answer", False), 4: ("no_answer", False)}
            assert (response.status, response.correct) == expected[said.tokens]  # the n-th text has n tokens
    assert {response.status for response in responses} == {"graded", "no_answer", "prompt_too_long"}
    assert {response.correct for response in responses} == {True, False}


@pytest.mark.slow
@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_the_order_of_completion_does_not_matter(again, straight, small, order):
    folder = again()
    small.evaluate(folder, small.Model(order))
    assert small.files(folder) == small.files(straight)


def test_a_finished_run_asks_for_nothing(again, straight, small):
    folder = again()
    small.evaluate(folder, small.Model())
    small.evaluate(folder, model := small.Model())
    assert model.asked == []
    assert small.files(folder) == small.files(straight)


def test_responses_are_written_while_others_are_generated(again, small):
    folder, seen, grader = again(), [], small.grader()
    graded = threading.Semaphore(0)

    def grade(request, completion):
        response = grader(request, completion)
        graded.release()
        return response

    def generate(requests):
        for request, completion in small.Model()(requests):
            seen.append(len(read_responses(folder)) - len(small.too_long))
            yield request, completion
            graded.acquire(timeout=10)
            time.sleep(0.01)  # until the thread has handed it over

    small.evaluate(folder, generate, grade=grade)
    # the n-th is written, at the latest, when the one after it has been generated
    assert all(written >= generated - 1 for generated, written in enumerate(seen))


def test_an_error_of_the_engines_is_not_taken_for_one_of_the_disk(again, small):
    folder = again()
    with pytest.raises(ConnectionError, match="engine"):
        small.evaluate(folder, small.Model(stop_after=2, error=ConnectionError("engine")))
    assert len(read_responses(folder)) == 2 + len(small.too_long)


def test_a_response_that_cannot_be_graded_ends_the_run_and_loses_no_other(again, small):
    folder, grader, stop = again(), small.grader(), WorkerDied("no worker could be started")
    fitting = [request for request in small.requests if request.fits]
    waiting = threading.Event()

    def grade(request, completion):
        if request == fitting[0]:
            waiting.wait(10)
            raise stop
        return grader(request, completion)

    def generate(requests):
        yield from small.Model()(requests)
        waiting.set()

    with pytest.raises(WorkerDied):
        small.evaluate(folder, generate, grade=grade)
    assert len(read_responses(folder)) == len(small.requests) - 1


def test_a_full_disk_ends_the_run_in_one_line(again, small):
    folder = again()
    open_run(folder, small.settings, small.plan.problems)
    (folder / "responses.jsonl").symlink_to("/dev/full")
    fitting = [request for request in small.requests if request.fits]
    with pytest.raises(UsageError) as stopped:
        run(folder, fitting, [], small.grader(), model := small.Model(), workers=2)
    assert str(stopped.value) == f"{folder / 'responses.jsonl'} cannot be written: No space left on device"
    assert model.asked
