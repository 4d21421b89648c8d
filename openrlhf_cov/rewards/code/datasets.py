"""Rows of public datasets of programming problems as a problem and a label (pure).

The fields are those that public code reads; they could not be tried here, on a host without the hub. Each converter
gives None for a row that is none of its problems, and raises one of ``FAULTS`` for one that is not as it should be.
"""

import ast
import base64
import json
import pickletools
import zlib
from collections.abc import Callable
from typing import Any

from openrlhf_cov.rewards.code.tests import with_judge

# Problem and label.
Converted = tuple[str, str]

# What a converter raises for a row of another form.
FAULTS = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)

# Bytes of tests that a row may hold when unpacked.
MAX_UNPACKED = 1 << 28
TEXT_OPCODES = frozenset(
    ("PROTO", "FRAME", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "MEMOIZE", "BINPUT", "STOP")
)


def apps(row: dict[str, Any]) -> Converted | None:
    """Convert a row of APPS or TACO: ``input_output`` is JSON with inputs, outputs and maybe fn_name."""
    problem = row["question"]
    if starter := (row.get("starter_code") or "").strip():
        problem = f"{problem}\n\nBegin with this code:\n```python\n{starter}\n```"
    return problem, row["input_output"]


def eurus(row: dict[str, Any]) -> Converted | None:
    """Convert a row of Eurus-2-RL-Data. The last message is the problem; rows of mathematics are left out."""
    if row["ability"] != "code":
        return None
    return row["prompt"][-1]["content"], with_judge(row["reward_model"]["ground_truth"], "prime")


def acecode(row: dict[str, Any]) -> Converted | None:
    """Convert a row of AceCode-87K, which has a list of assertions."""
    return row["question"], json.dumps(list(row["test_cases"]))


def kodcode(row: dict[str, Any]) -> Converted | None:
    """Convert a row of KodCode: a file for pytest, which imports ``solution``. The prompt declares the functions."""
    problem = row["question"]
    declared = [each["function_declaration"] for each in row.get("test_info") or [] if "function_declaration" in each]
    if declared:
        problem += "\n\nWrite:\n```python\n" + "\n".join(declared) + "\n```"
    return problem, json.dumps({"pytest": row["test"]})


def humaneval(row: dict[str, Any]) -> Converted | None:
    """Convert a row of HumanEval or HumanEval+.

    ``check`` is called with the function. Imports and functions that precede it in the prompt are given to the program
    and to the tests.
    """
    prompt = row["prompt"]
    name = row["entry_point"]
    before = _before(prompt, name)
    label = {
        "asserts": [f"check({name})"],
        "setup": f"{before}\n{row['test']}",
        "function": name,
        "prelude": before,
    }
    return f"Complete this function; repeat it as a whole.\n```python\n{prompt.rstrip()}\n```", json.dumps(label)


def mbpp(row: dict[str, Any]) -> Converted | None:
    """Convert a row of MBPP. The problem includes the assertions, because they show how the function is called."""
    imports = "\n".join(row.get("test_imports") or [row.get("test_setup_code") or ""])
    problem = row.get("prompt") or row["text"]
    shown = "\n".join(row["test_list"])
    text = f"{problem}\nYour function should pass:\n```python\n{shown}\n```"
    return text, json.dumps({"asserts": list(row["test_list"]), "setup": imports})


def mbpp_plus(row: dict[str, Any]) -> Converted | None:
    """Convert a row of MBPP+: the problem of MBPP with one script of many assertions."""
    problem, _ = mbpp(row) or ("", "")
    return problem, json.dumps({"asserts": [row["test"]]})


def livecodebench(row: dict[str, Any]) -> Converted | None:
    """Convert a row of LiveCodeBench. Public and private tests are joined; they use standard input or a function."""
    cases = _cases(row["public_test_cases"]) + _cases(row["private_test_cases"])
    problem = row["question_content"]
    if starter := (row.get("starter_code") or "").strip():
        problem = f"{problem}\n\nBegin with this code:\n```python\n{starter}\n```"
    function = json.loads(row.get("metadata") or "{}").get("func_name")
    pairs = [(case["input"], case["output"]) for case in cases]
    if not function:
        return problem, json.dumps({"stdin": pairs, "judge": "livecodebench"})
    calls = [
        [[json.loads(line) for line in given.split("\n") if line.strip()], json.loads(out)] for given, out in pairs
    ]
    label = {"calls": calls, "function": function.split(".")[-1], "judge": "livecodebench"}
    return problem, json.dumps(label)


def pickled_text(content: bytes) -> str:
    """Return the one text in a pickle, which is read and never executed.

    Raises:
        ValueError: It is a pickle of anything else.
    """
    try:
        opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    except ValueError as error:
        raise ValueError(f"a pickle that cannot be read: {error}") from None
    unknown = {name for name, _ in opcodes} - TEXT_OPCODES
    texts = [argument for _, argument in opcodes if isinstance(argument, str)]
    if unknown or len(texts) != 1:
        raise ValueError(f"a pickle that is not one text: {', '.join(sorted(unknown)) or len(texts)}")
    return texts[0]


def _cases(packed: str) -> list[dict[str, Any]]:
    """Read the tests of a field: JSON, or JSON that was pickled, compressed and encoded."""
    try:
        return json.loads(packed)
    except ValueError:
        pass
    # A short text may unpack to gigabytes, so no more is unpacked than a row may hold.
    unpack = zlib.decompressobj()
    try:
        content = unpack.decompress(base64.b64decode(packed, validate=True), MAX_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"tests that cannot be unpacked: {error}") from None
    if unpack.unconsumed_tail:
        raise ValueError(f"tests of more than {MAX_UNPACKED:,} bytes")
    return json.loads(pickled_text(content))


def _before(prompt: str, name: str) -> str:
    """Return the imports and functions of a prompt that precede the function to be written."""
    tree = ast.parse(prompt)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return "".join(prompt.splitlines(keepends=True)[: node.lineno - 1 - len(node.decorator_list)]).strip()
    return ""


Converter = Callable[[dict[str, Any]], Converted | None]
