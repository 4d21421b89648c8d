"""A run that is stopped or killed anywhere and started again ends as the one that never was."""

import shutil
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.evaluation.response_records import read_responses

# Requests of a small run that fit.
ASKED = 6

STOPS = st.tuples(st.integers(0, ASKED), st.sampled_from([RunStopped, KeyboardInterrupt]))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(STOPS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_stopped_and_started_again_is_as_good_as_straight(again, straight, small, stops, order):
    folder, done = again(), 0
    for count, error in stops:
        if done == ASKED:
            break
        model = small.Model(order, min(count, ASKED - done), error)
        with pytest.raises(error):
            small.evaluate(folder, model)
        assert len(model.asked) == ASKED - done  # what is missing, once
        done += model.stop_after
        # what was generated before the stop is graded and on disk, and so are the prompts that are too long
        found = read_responses(folder)
        assert len(found) == done + len(small.too_long)
        assert set(found) <= set(read_responses(straight))
    small.evaluate(folder, model := small.Model(order))
    assert len(model.asked) == len(set(model.asked)) == ASKED - done
    assert small.files(folder) == small.files(straight)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), st.randoms(use_true_random=False))
def test_killed_at_any_byte_and_started_again_is_as_good_as_straight(again, straight, small, data, order):
    folder = again()
    shutil.copytree(straight, folder)
    lines = (straight / "responses.jsonl").read_bytes().splitlines(keepends=True)
    order.shuffle(lines)  # as they arrived
    content = b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    (folder / "responses.jsonl").write_bytes(content[:cut])
    if data.draw(st.booleans()):
        (folder / ".responses.jsonl.tmp").write_bytes(content[: cut // 2])  # killed in the middle of the last rewrite
    whole = {response.key for response in read_responses(folder)}
    small.evaluate(folder, model := small.Model(order))
    assert model.asked == [r.key for r in small.requests if r.key not in whole | small.too_long]
    assert {
        name: content for name, content in small.files(folder).items() if name != ".responses.jsonl.tmp"
    } == small.files(straight)


@pytest.mark.parametrize(
    "left",
    [
        {},
        {".problems.jsonl.tmp": b'{"benchm'},
        {"problems.jsonl": b"whatever\n"},
        {"problems.jsonl": b"whatever\n", ".run.json.tmp": b"{"},
    ],
)
def test_killed_before_the_settings_were_written(again, straight, small, left):
    folder = again()
    folder.mkdir()
    for name, content in left.items():
        (folder / name).write_bytes(content)
    small.evaluate(folder, small.Model())
    assert small.files(folder) == small.files(straight)


@pytest.mark.parametrize("stop_at", range(1, ASKED + 1))
def test_an_interrupt_while_a_response_is_counted_loses_none(again, straight, small, stop_at):
    # Ctrl-C comes in the main thread, which is as likely to be writing as to be waiting for the engines
    folder, counted, generated = again(), [], []

    def on_response(response):
        counted.append(response)
        if len(counted) == len(small.too_long) + stop_at:
            raise KeyboardInterrupt

    def generate(requests):
        for request in requests:
            generated.append(request.key)
            yield request, small.completion_of(request)

    with pytest.raises(KeyboardInterrupt):
        small.evaluate(folder, generate, on_response)
    assert {response.key for response in read_responses(folder)} == {*generated, *small.too_long}
    small.evaluate(folder, small.Model())
    assert small.files(folder) == small.files(straight)


def test_an_interrupt_while_the_last_are_graded_loses_none(again, small):
    # generation has ended, grading is behind by everything
    folder, generated, counted, grader = again(), threading.Event(), [], small.grader()

    def grade(request, completion):
        generated.wait(10)
        return grader(request, completion)

    def generate(requests):
        yield from small.Model()(requests)
        assert len(counted) == len(small.too_long)
        generated.set()

    def on_response(response):
        counted.append(response)
        if len(counted) == len(small.too_long) + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.evaluate(folder, generate, on_response, grade)
    assert len(read_responses(folder)) == len(small.requests)
