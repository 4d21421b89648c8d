"""The tests of a problem, as a label says them: one form of our own, and those of the datasets (pure).

A label is JSON. Ours is an object with one of

- ``stdin``: a list of [input, output] of a program,
- ``calls``: a list of [[argument, …], output] of ``function``, of the class Solution if there is one,
- ``asserts``: a list of statements, after ``setup``,
- ``pytest``: a file of functions ``test_…``,

and, where it needs them, ``prelude`` (Python that runs before the program), ``seconds`` (CPU time for a test),
``unordered`` (lines, or the items of a list, in any order), ``tolerance`` and ``judge`` (a key of
``openrlhf_cov.rewards.code.comparison.JUDGES``: how outputs are compared, and what a program finds imported; "exact"
where none is named). Read as well: an object with ``inputs``, ``outputs`` and maybe ``fn_name`` (APPS, TACO,
Eurus-2-RL-Code, PRIME; judged as by APPS); a list of statements (MBPP, AceCode); a list of objects with ``input`` and
``output`` (judged as by LiveCodeBench).
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from openrlhf_cov.rewards.code.comparison import JUDGES, Judge
from openrlhf_cov.rewards.code.written import check_file, check_prelude, check_statements

Kind = Literal["stdin", "calls", "asserts", "pytest"]
KINDS: tuple[Kind, ...] = ("stdin", "calls", "asserts", "pytest")
OPTIONS = {
    "function": str,
    "setup": str,
    "prelude": str,
    "seconds": (int, float),
    "unordered": bool,
    "tolerance": (int, float),
    "unwrap": bool,
    "judge": str,
}
# --code_judge: the judge that the label names, or that of the data set whose form the label has.
OF_LABEL = "label"
# Tests of one problem; more are a mistake in the data.
MAX_CASES = 10_000
# CPU time that a label may give a test, as the setting.
MAX_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Tests:
    """The tests of one problem. With ``unwrap`` an expected list of one element also accepts this element (APPS)."""

    kind: Kind
    cases: tuple[Any, ...]
    function: str = ""
    setup: str = ""
    prelude: str = ""
    # 0: the setting's.
    seconds: float = 0.0
    unordered: bool = False
    tolerance: float = 0.0
    unwrap: bool = False
    judge: Judge = "exact"
    digest: str = ""

    def with_settings(self, tolerance: float, judge: str = OF_LABEL) -> "Tests":
        """Return these tests with the settings of a run.

        Args:
            tolerance: Tolerance of numbers for tests that have none of their own; 0 for none.
            judge: The judge for all tests, a key of ``openrlhf_cov.rewards.code.comparison.JUDGES``; ``OF_LABEL``
                keeps the judge of the label.
        """
        return replace(self, tolerance=self.tolerance or tolerance, judge=self.judge if judge == OF_LABEL else judge)


# All responses to a prompt have one label.
@lru_cache(maxsize=512)
def parse_tests(label: str) -> Tests:
    """Return the tests of a label.

    Raises:
        ValueError: The label has no tests that can be used; the message says what is wrong.
    """
    try:
        content = json.loads(label)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"tests of a program are JSON: {error}") from None
    tests = _parse(_own_form(content))
    return replace(tests, digest=hashlib.sha256(label.encode()).hexdigest())


def with_judge(label: str, judge: str) -> str:
    """Return a label that names a judge.

    A label is returned as it is if it names a judge, has the form that stands for ``judge``, holds assertions, which
    need no judge, or cannot be read.

    Args:
        label: The tests as JSON.
        judge: A key of ``openrlhf_cov.rewards.code.comparison.JUDGES``.
    """
    try:
        content = json.loads(label)
        own = _own_form(content)
    except (ValueError, RecursionError):  # the check of labels says what is wrong with it
        return label
    compares_outputs = "stdin" in own or "calls" in own
    names_judge = isinstance(content, dict) and "judge" in content
    if not compares_outputs or names_judge or own.get("judge") == judge:
        return label
    return json.dumps((content if isinstance(content, dict) else own) | {"judge": judge})


def _own_form(content: Any) -> dict[str, Any]:
    """Convert tests in the form of a dataset to our form."""
    if isinstance(content, list) and content and all(isinstance(each, str) for each in content):
        return {"asserts": content}
    if isinstance(content, list) and content and all(isinstance(each, dict) for each in content):
        missing = [name for each in content for name in ("input", "output") if name not in each]
        if missing:
            raise ValueError(f"a test has no {missing[0]!r}")
        if any(each.get("testtype", "stdin") != "stdin" for each in content):
            raise ValueError("tests of a function need its name: calls and function, or fn_name")
        return {"stdin": [[each["input"], each["output"]] for each in content], "judge": "livecodebench"}
    if not isinstance(content, dict):
        raise ValueError("tests are an object, a list of statements, or a list of inputs and outputs")
    if "inputs" not in content:
        return content
    options = {name: value for name, value in content.items() if name not in ("inputs", "outputs", "fn_name")}
    options.setdefault("judge", "apps")
    inputs = content["inputs"]
    outputs = content.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("inputs and outputs are lists of one length")
    if not content.get("fn_name"):
        return options | {"stdin": [[_text(given), _text(out)] for given, out in zip(inputs, outputs, strict=True)]}
    calls = [_call(given, output) for given, output in zip(inputs, outputs, strict=True)]
    unwrap = all(isinstance(output, list) and len(output) == 1 for _, output in calls)
    return options | {"function": content["fn_name"], "calls": calls, "unwrap": unwrap}


def _parse(content: dict[str, Any]) -> Tests:
    kinds: list[Kind] = [kind for kind in KINDS if kind in content]
    if len(kinds) != 1:
        raise ValueError(f"tests have one of {', '.join(KINDS)}, got {', '.join(map(str, content)) or 'nothing'}")
    (kind,) = kinds
    for name, value in content.items():
        if name != kind and (name not in OPTIONS or not isinstance(value, OPTIONS[name])):
            raise ValueError(f"{name!r} is no option of tests, or its value {value!r:.60} is none")
    if content.get("judge", "exact") not in JUDGES:
        raise ValueError(f"judge is one of {', '.join(JUDGES)}, got {content['judge']!r:.60}")
    for name in ("seconds", "tolerance"):
        if not 0 <= content.get(name, 0) < math.inf:
            raise ValueError(f"{name} is a finite number of at least 0, got {content[name]}")
    if content.get("seconds", 0) > MAX_SECONDS:
        raise ValueError(f"seconds is at most {MAX_SECONDS:g}, got {content['seconds']:g}")
    options = {name: value for name, value in content.items() if name != kind}
    cases = content[kind] if kind != "pytest" else [content[kind]]
    if not isinstance(cases, list) or not cases or len(cases) > MAX_CASES:
        raise ValueError(f"{kind} is a list of 1 to {MAX_CASES:,} tests")
    for number, case in enumerate(cases, start=1):
        _check_case(kind, case, number)
    if kind == "calls" and not str(options.get("function", "")).isidentifier():
        raise ValueError("calls need the name of a function")
    if kind in ("stdin", "calls"):
        nothing = "" if kind == "stdin" else None
        if all((case[1].strip() if kind == "stdin" else case[1]) == nothing for case in cases):
            raise ValueError("no test expects anything, so a program that does nothing passes")
    elif kind == "asserts":
        check_statements(cases, options.get("setup", ""))
    else:
        check_file(cases[0])
    check_prelude(options.get("prelude", ""))
    return Tests(kind=kind, cases=tuple(cases), **options)


def _check_case(kind: str, case: Any, number: int) -> None:
    if kind in ("asserts", "pytest"):
        if not isinstance(case, str) or not case.strip():
            raise ValueError(f"test {number} is a text that is not empty")
        return
    if not isinstance(case, list) or len(case) != 2:
        raise ValueError(f"test {number} is an input and an output")
    if kind == "stdin" and not all(isinstance(each, str) for each in case):
        raise ValueError(f"test {number}: input and output are texts")
    if kind == "calls" and not isinstance(case[0], list):
        raise ValueError(f"test {number}: the arguments are a list")


def _text(value: Any) -> str:
    """Return a text, or join the lines of one."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return value if isinstance(value, str) else str(value)


def _call(given: Any, output: Any) -> list[Any]:
    """Return arguments and output of a call: values (APPS), or texts with JSON on each line (Eurus, PRIME)."""
    if not isinstance(given, str):
        return [_with_whole_keys(given if isinstance(given, list) else [given]), output]
    try:
        arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
        return [_with_whole_keys(arguments), json.loads(output) if isinstance(output, str) else output]
    except ValueError:
        raise ValueError(f"inputs that are texts have JSON on each line, and their outputs: {given!r:.60}") from None


def _with_whole_keys(arguments: list[Any]) -> list[Any]:
    """Return the arguments with whole numbers as keys of the first one, as the judges of APPS and PRIME give them.

    JSON has no keys but texts. Arguments whose first one is no dictionary of whole numbers are returned as they are.
    """
    if not arguments or not isinstance(arguments[0], dict):
        return arguments
    try:
        first = {int(key): value for key, value in arguments[0].items()}
    except ValueError:
        return arguments
    return [first, *arguments[1:]]
