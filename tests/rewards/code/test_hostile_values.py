"""Replies that a program writes by itself: whatever it says costs the judge little and breaks nothing."""

import json
import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest

from openrlhf_cov.rewards.code.comparison import Unlike, read_value, same_value
from openrlhf_cov.rewards.code.inside import wire
from openrlhf_cov.rewards.code.judge import Failure, ProgramBudget, Report, number_of_tests, read_object, value_of

SHARE = ProgramBudget(seconds=1.0, total_seconds=20.0, memory_mb=256, output_mb=4, stop=False)
CALL = {"function": "f", "calls": [[[1], 1]]}
# Seconds of CPU time for the judge, generous for a busy machine.
LITTLE = 1.0
COSTLY = {
    "a fraction of a text": {"fraction": ["1e10000000"]},
    "a fraction of two texts": {"fraction": ["1e10000000", "3"]},
    "a fraction inside a text": {"str": [{"fraction": ["1e10000000"]}]},
    "a fraction inside a float": {"float": [{"fraction": ["1e10000000"]}]},
    "a fraction inside a decimal": {"decimal": [{"fraction": ["1e10000000"]}]},
    "a fraction of a decimal": {"fraction": [{"decimal": "1e10000000"}, 1]},
    "a fraction of long numbers": {"fraction": [{"int": "0x" + "f" * 1_000_000}, {"int": "0x" + "e" * 1_000_000}]},
    "a whole number": {"int": "0x" + "f" * 4_000_000},
    "a whole number of underscores": {"int": "0x" + "f_" * 2_000_000 + "f"},
    "a whole number of another form": {"int": ["f", 16]},
    "a decimal": {"decimal": "9" * 4_000_000},
    "a decimal of many powers": {"decimal": "1E+999999999999999999"},
    "a decimal of its parts": {"decimal": [0, [1] * 100_000, 999_999_999]},
    "a float": {"float": "0x1." + "f" * 4_000_000 + "p+0"},
    "a float of a number": {"float": 10},
    "a range in a text": {"str": [{"range": [0, 10**12]}]},
    "a dict of one part": {"dict": [1]},
    "a dict of no list": {"dict": "ab"},
    "a named tuple of no list": {"namedtuple": 5},
    "two kinds": {"int": "0x1", "str": "1"},
    "no kind": {},
    "an unknown kind": {"x" * 1_000_000: 1},
    "long numbers as keys": {"dict": [{"int": "0x" + "f" * 1_000_000}, 1]},
    "a set of colliding numbers": {"set": [(2**61 - 1) * each for each in range(100_000)]},
    "fractions by the thousand": [{"fraction": [3**900, 7**900]}] * 1000,
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_reply_that_a_program_made_up_takes_little_time(name):
    started = time.process_time()
    try:
        value = value_of({"value": COSTLY[name]})
    except Failure as failure:
        value = Unlike(failure.status)
    for expected in (1, 0.5, "1", [1], {"1": 1}, None, True):
        assert not same_value(value, expected, tolerance=1e-6, unordered=True)
    assert time.process_time() - started < LITTLE


@pytest.mark.parametrize("opening", ["[", '{"tuple": [', '{"dict": [1, ', '{"list": '])
@pytest.mark.parametrize("levels", [300, 5_000, 200_000])
def test_a_reply_that_is_nested_is_refused(opening, levels):
    closing = {"[": "]", '{"tuple": [': "]}", '{"dict": [1, ': "]}", '{"list": ': "}"}[opening]
    line = ('{"value": ' + opening * levels + "0" + closing * levels + "}").encode()
    started = time.process_time()
    try:
        value = value_of(read_object(line))
    except Failure as failure:
        value = Unlike(failure.status)
    assert isinstance(value, Unlike)
    assert time.process_time() - started < LITTLE


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[]", b"5", b'"x"', b"{", b"\xff", b'{"value": ' + b"9" * 5000 + b"}", b"[" * 100_000, b"NaN"],
)
def test_a_line_that_is_no_object_is_a_failure(line):
    with pytest.raises(Failure, match="error"):
        read_object(line)


@pytest.mark.parametrize("reply", [{}, {"values": 1}, {"value": {"fraction": [1, 0]}}, {"value": {"int": "1"}}])
def test_a_reply_without_a_value_is_wrong(reply):
    with pytest.raises(Failure) as failed:
        value_of(reply)
    assert failed.value.status == "wrong"


@pytest.mark.parametrize("error", ["x" * 10**7, ["x"] * 10**5, {"x": {}}, None, 5])
def test_an_error_is_told_in_a_short_text(error):
    started = time.process_time()
    with pytest.raises(Failure) as failed:
        value_of({"error": error})
    assert len(failed.value.detail) <= 300
    assert time.process_time() - started < LITTLE


@pytest.mark.parametrize("passed", [1, "true", "false", [True], {"x": 1}, None, 1.0])
def test_a_report_passes_only_with_true(passed):
    assert Report.of({"passed": passed, "detail": ["x"]}) == Report(False, "")
    assert Report.of({"passed": True, "detail": "x"}) == Report(True, "x")


@pytest.mark.parametrize("tests", [-1, 10**9, True, 1.0, "1", None, [1], math.inf])
def test_a_number_of_tests_is_a_small_number(tests):
    with pytest.raises(Failure, match="error"):
        number_of_tests({"tests": tests})
    assert number_of_tests({"tests": 3}) == 3


@pytest.mark.parametrize(
    "value",
    [0.1, -1.5, 5e-324, 1e308, -0.0, 3.0, math.inf, -math.inf, 2**53, -(2**60), Decimal("-1.50"), Decimal("1E+30"),
     Decimal("Infinity"), Fraction(-1, 3), "", "x", None, True, (1, (2,))],
)  # fmt: skip
def test_what_a_program_can_return_is_still_read(value):
    packed = json.loads(wire.line(wire.dump(value)))
    wanted = [1, [2]] if isinstance(value, tuple) else value
    assert read_value(packed) == wanted
    assert read_value(json.loads(wire.line(wire.dump([value])))) == [wanted]


def test_numbers_without_an_order_are_not_the_same():
    mixed = [Fraction(1, 2), Decimal("0.25"), Decimal("NaN")]
    assert not same_value(mixed, [0.5, 0.25, 0.125], unordered=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        # Equal up to the last item, so that every pair takes long.
        ([[0] * 200 + [1.5 + each] for each in range(2000)], [[0] * 200 + [-each] for each in range(2000)]),
        ([[each, "x"] for each in range(20_000)], [[each, "y"] for each in range(20_000)]),
        ([{"a": [each + 0.5]} for each in range(5000)], [{"a": [-each]} for each in range(5000)]),
    ],
)
def test_values_in_any_order_take_bounded_time(values, wanted):
    started = time.process_time()
    assert not same_value(values, wanted, tolerance=1e-9, unordered=True)
    assert time.process_time() - started < 5 * LITTLE


REPLIES = """
import json, socket
channel = socket.socket(fileno=4)
while channel.recv(65536):
    channel.sendall(REPLY)
"""


@pytest.mark.parametrize(
    "reply",
    [
        b'{"value": {"fraction": ["1e10000000"]}}\n',
        b'{"value": {"str": [{"fraction": ["1e10000000"]}]}}\n',
        b'{"value": {"decimal": "' + b"9" * 900_000 + b'"}}\n',
        b"[" * 100_000 + b"\n",
        b"5\n",
        b'{"value": 1}\n{"value": 1}\n',
        b'{"error": {"x": [1]}}\n',
    ],
)
def test_a_program_that_answers_for_itself_costs_its_own_budget(verdict, reply):
    started = time.process_time()
    tests = {"function": "f", "calls": [[[1], 1], [[2], 2]]}
    found = verdict(REPLIES.replace("REPLY", repr(reply)), tests, SHARE)
    assert found.passed <= (b'1}\n{"value' in reply)  # the first answer may be right, the next one was given too early
    assert found.status in ("wrong", "error", "output")
    assert time.process_time() - started < LITTLE
