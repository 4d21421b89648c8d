"""Rows of public datasets, made up in their form, and what comes of right and wrong programs on them."""

import base64
import json
import pickle
import zlib
from contextlib import suppress

import pytest

from openrlhf_cov.rewards.code import datasets

ADD, WRONG = "def add(a, b):\n    return a + b", "def add(a, b):\n    return a - b"
STDIN, STDIN_WRONG = "print(sum(map(int, input().split())))", "print(0)"
IO = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
CALLS = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}
PROMPT = (
    "import math\n\ndef twice(x):\n    return 2 * x\n\n"
    'def add(a: int, b: int) -> int:\n    """The sum.\n    >>> add(1, 2)\n    3\n    """\n'
)
PLUS = """
import numpy as np
from math import inf

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)) and x:
        return all(isinstance(i, float) for i in x)
    return isinstance(x, np.ndarray) and x.dtype == np.float64

def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp

for given, wanted in zip([[1, 2], [0.1, 0.2]], [3, 0.3]):
    assertion(add(*given), wanted, 0)
"""


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def lcb(cases, function=None, **fields):
    metadata = json.dumps({"func_name": function} if function else {})
    row = {"question_content": "Add.", "starter_code": "", "metadata": metadata}
    return row | {"public_test_cases": json.dumps(cases[:1]), "private_test_cases": packed(cases[1:])} | fields


def case(given, out):
    return {"input": given, "output": out, "testtype": "x"}


ROWS = {
    "taco": (datasets.apps, {"question": "Add.", "input_output": json.dumps(IO), "starter_code": ""}, True),
    "apps call": (
        datasets.apps,
        {"question": "Add.", "input_output": json.dumps(CALLS), "starter_code": "def add(a, b):"},
        False,
    ),
    "eurus": (
        datasets.eurus,
        {
            "ability": "code",
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Add."}],
            "reward_model": {"ground_truth": json.dumps(IO), "style": "rule"},
        },
        True,
    ),
    "acecode": (datasets.acecode, {"question": "Add.", "test_cases": ["assert add(1, 2) == 3"]}, False),
    "kodcode": (
        datasets.kodcode,
        {
            "question": "Add.",
            "test": "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n",
            "test_info": [{"function_declaration": "def add(a, b):", "function_name": "add"}],
        },
        False,
    ),
    "humaneval": (
        datasets.humaneval,
        {
            "prompt": PROMPT,
            "entry_point": "add",
            "test": "def check(candidate):\n    assert twice(candidate(1, 2)) == 6\n",
        },
        False,
    ),
    "mbpp": (
        datasets.mbpp,
        {"text": "Add.", "test_setup_code": "import math", "test_list": ["assert math.isclose(add(1, 2), 3)"]},
        False,
    ),
    "mbpp plus": (
        datasets.mbpp_plus,
        {"prompt": "Add.", "test_imports": [], "test_list": ["assert add(1, 2) == 3"], "test": PLUS},
        False,
    ),
    "livecodebench": (datasets.livecodebench, lcb([case("1 2\n", "3\n"), case("3 4\n", "7\n")]), True),
    "livecodebench call": (
        datasets.livecodebench,
        lcb([case("1\n2", "3"), case("3\n4", "7")], "Solution.add", starter_code="class Solution:"),
        False,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_right_programs_pass_and_wrong_ones_do_not(verdict, name):
    convert, row, stdin = ROWS[name]
    problem, label = convert(row)
    assert "Add." in problem or "def add" in problem
    right, wrong = (STDIN, STDIN_WRONG) if stdin else (ADD, WRONG)
    assert verdict(right, json.loads(label)).status == "passed"
    assert verdict(wrong, json.loads(label)).status == "wrong"


def test_what_stands_before_the_function_serves_the_program_but_not_against_the_tests(verdict):
    convert, row, _ = ROWS["humaneval"]
    label = json.loads(convert(row)[1])
    assert verdict("def add(a, b):\n    return twice(a) - a + math.floor(b)", label).status == "passed"
    assert verdict("def twice(x):\n    return 6\ndef add(a, b):\n    return 0", label).status == "wrong"


def test_rows_of_mathematics_in_eurus_are_left_out():
    assert datasets.eurus({"ability": "math"}) is None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_text_is_read(protocol):
    if protocol == 0:  # other opcodes; nobody writes them
        with pytest.raises(ValueError, match=r"a pickle that is not one text: .*UNICODE"):
            datasets.pickled_text(pickle.dumps("tests", protocol))
    else:
        assert datasets.pickled_text(pickle.dumps("täsks" * 100, protocol)) == "täsks" * 100


class Evil:
    def __reduce__(self):
        return (print, ("it ran",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Evil()),
        pickle.dumps(["x"]),
        pickle.dumps(3),
        b"cos\nsystem\n(S'id'\ntR.",
        b"",
        b"\x80",
        b"garbage",
    ],
)
def test_a_pickle_of_anything_else_is_refused_and_never_run(content, capsys):
    with pytest.raises(ValueError, match="a pickle that"):
        datasets.pickled_text(content)
    assert capsys.readouterr().out == ""


def test_tests_that_unpack_to_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(datasets, "MAX_UNPACKED", 1 << 20)
    bomb = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
        datasets.livecodebench(lcb([case("1", "2")], private_test_cases=bomb))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_another_form_is_a_fault(name):
    convert, row, _ = ROWS[name]
    with pytest.raises(datasets.FAULTS):
        convert({})
    for broken in (dict.fromkeys(row, 3), dict.fromkeys(row)):  # refused here, or later as no text and no tests
        with suppress(*datasets.FAULTS):
            converted = convert(broken)
            assert converted is None or not all(isinstance(each, str) for each in converted) or "null" in converted[1]
