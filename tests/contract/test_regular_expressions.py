"""Every regular expression of the package reads its worst input in linear time.

The worst inputs are made from the pattern itself: every repeat in it is pumped with everything that its body may be,
behind a beginning that leads to it and before an end that makes the match fail, and the whole is repeated, so that a
search begins anew at every place.
"""

import ast
import importlib
import itertools
import re
import signal
import time
from pathlib import Path
from re import _constants as codes
from re import _parser as parser

import pytest

import openrlhf_cov
from openrlhf_cov.cluster import cpu_host

pytestmark = pytest.mark.slow

ROOT = Path(openrlhf_cov.__file__).parent
LENGTH = 3_000
GIVE_UP = 0.5
METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
ENDS = ("", "!", "a1}")
MAX_SAMPLES = 6

# What ``shapes.split`` is called with; capitals are names of patterns in ``shapes``.
SEPARATORS = (",", ";", "COMMA_OR_WORD", "CONNECTOR", "OR", "RELATION", "EQUALS", "UNEQUAL")


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent.name == "inside":
            continue  # of the sandbox, which limits a program and its tests whatever they search
        text = path.read_text(encoding="utf-8")
        if re.search(rf"\.(?:compile|{'|'.join(METHODS)})\b", text):  # others need not be parsed
            yield path.relative_to(ROOT).as_posix(), list(ast.walk(ast.parse(text)))


def module_of(name):
    cpu_host.install()  # OpenRLHF's model, which one module imports, needs flash-attn or what stands in for it
    return importlib.import_module(
        "openrlhf_cov." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    )


def is_call_of_re(node):
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


def collect():
    """(module, call of ``re``, methods it is used with) of every regular expression."""
    nodes_of = dict(modules())
    used: dict[tuple[str, str], set[str]] = {}
    for name, nodes in nodes_of.items():
        home = {
            alias.name: (node.module or "").removeprefix("openrlhf_cov.").replace(".", "/") + ".py"
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
                used.setdefault((home.get(node.value.id, name), node.value.id), set()).add(node.attr)
    for name, nodes in nodes_of.items():
        names = {
            id(statement.value): statement.targets[0].id
            for statement in nodes
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        }
        for call in nodes:
            if is_call_of_re(call) and call.func.attr in METHODS | {"compile"}:
                methods = (
                    {call.func.attr} if call.func.attr != "compile" else used.get((name, names.get(id(call))), METHODS)
                )
                yield pytest.param(name, call, sorted(methods), id=f"{name}:{call.lineno}")


def patterns_of(name, call):
    """The compiled patterns of a call whose arguments are constants of its module; anything else fails the test."""
    scope = vars(module_of(name))
    if name == "rewards/maths/shapes.py" and "{pattern}" in ast.unparse(call):
        return [scope["_bracket_or"](scope[each] if each.isupper() else each) for each in SEPARATORS]
    # the words and signs of a marker in ``thinking``
    scope = scope | {"parts": ("<", "think", ">")}
    arguments = [call.args[0], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")]
    if len(call.args) > 1 and call.func.attr == "compile":
        arguments.append(call.args[1])
    return [re.compile(*(eval(compile(ast.Expression(each), name, "eval"), dict(scope)) for each in arguments))]


def samples(items):
    """Some texts that a part of a pattern matches, a handful at most, as different as possible."""
    texts = [""]
    for code, argument in items:
        choices = samples_of(code, argument)
        texts = [text + choice for choice, text in itertools.product(choices, texts)][: MAX_SAMPLES * 3]
    return list(dict.fromkeys(texts))[:MAX_SAMPLES]


def samples_of(code, argument):
    if code is codes.LITERAL:
        return [chr(argument)]
    if code is codes.NOT_LITERAL:
        return [next(char for char in "a1 " if ord(char) != argument)]
    if code is codes.ANY:
        return ["a", " "]
    if code is codes.IN:
        return chars(argument)
    if code is codes.BRANCH:
        return [text for branch in argument[1] for text in samples(branch)][: MAX_SAMPLES * 2]
    if code is codes.SUBPATTERN:
        return samples(argument[3])
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        low, high, body = argument
        once = samples(body)
        return [*(text * max(low, 1) for text in once), *([""] if low == 0 else [])] if high else [""]
    if code is codes.ATOMIC_GROUP:
        return samples(argument)
    return [""]  # places and assertions take no room


def chars(options):
    negated = options[0][0] is codes.NEGATE
    if negated:
        pattern = re.compile("[^" + "".join(map(set_text, options[1:])) + "]")
        return [char for char in "a1 \\{(,.'é" if pattern.match(char)][:4]
    found = []
    for code, argument in options:
        if code is codes.LITERAL:
            found.append(chr(argument))
        elif code is codes.RANGE:
            found.append(chr(argument[0]))
        else:
            found += {
                codes.CATEGORY_DIGIT: ["1"], codes.CATEGORY_SPACE: [" ", "\n"], codes.CATEGORY_WORD: ["a", "1", "_"],
                codes.CATEGORY_NOT_SPACE: ["a", "."], codes.CATEGORY_NOT_WORD: [" "], codes.CATEGORY_NOT_DIGIT: ["a"],
            }[argument]  # fmt: skip
    return found[:6]


def set_text(option):
    code, argument = option
    if code is codes.LITERAL:
        return re.escape(chr(argument))
    if code is codes.RANGE:
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    return {
        codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_NOT_WORD: r"\W", codes.CATEGORY_NOT_DIGIT: r"\D",
    }[argument]  # fmt: skip


def pumps(items, before=("",)):
    """(beginning, body) of every repeat, at any depth."""
    before = list(before)
    for code, argument in items:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT) and argument[1] > 1:
            bodies = [text for text in samples(argument[2]) if text]
            for beginning in before[:2]:
                yield from ((beginning, body) for body in bodies)
                yield from ((beginning, a + b) for a, b in itertools.permutations(bodies[:4], 2))
        for part in parts_of(code, argument):
            yield from pumps(part, before)
        shortest = sorted(samples_of(code, argument), key=len)
        before = [beginning + text for beginning in before[:2] for text in (shortest[0], shortest[-1])][:4]


def worst_inputs(pattern):
    text = pattern.pattern
    found = pumps(parser.parse(text, pattern.flags))
    texts = {beginning + body * (LENGTH // len(body)) for beginning, body in found}
    texts |= {
        (beginning + body * 8) * (LENGTH // (len(beginning) + 8 * len(body)))
        for beginning, body in pumps(parser.parse(text, pattern.flags))
    }
    texts |= {whole * (LENGTH // len(whole)) for whole in samples(parser.parse(text, pattern.flags)) if whole}
    texts |= {char * LENGTH for char in " a1\\{(,.\n"}
    ends = {*ENDS, *excluded(parser.parse(text, pattern.flags))}
    return sorted(text[: LENGTH - 1] + end for text in texts for end in ends)


def excluded(items):
    """The first characters, and texts, that each "any but" of a pattern leaves out: with one behind, it ends early."""
    for code, argument in items:
        if code is codes.ASSERT_NOT:
            yield from [text for text in samples(argument[1]) if text][:2]
        if code is codes.IN and argument[0][0] is codes.NEGATE:
            yield from [chr(value) for kind, value in argument[1:] if kind is codes.LITERAL][:2]
        elif code is codes.NOT_LITERAL:
            yield chr(argument)
        for part in parts_of(code, argument):
            yield from excluded(part)


def parts_of(code, argument):
    """The patterns inside a part of a pattern."""
    return {
        codes.MAX_REPEAT: lambda argument: [argument[2]], codes.MIN_REPEAT: lambda argument: [argument[2]],
        codes.POSSESSIVE_REPEAT: lambda argument: [argument[2]], codes.ATOMIC_GROUP: lambda argument: [argument],
        codes.SUBPATTERN: lambda argument: [argument[3]], codes.BRANCH: lambda argument: argument[1],
        codes.ASSERT: lambda argument: [argument[1]], codes.ASSERT_NOT: lambda argument: [argument[1]],
    }.get(code, lambda argument: [])(argument)  # fmt: skip


class TookTooLong(Exception):
    pass


def best_of(count, use):
    """CPU time of the quickest of some uses, in seconds."""
    taken = []
    for _ in range(count):
        started = time.thread_time()
        use()
        taken.append(time.thread_time() - started)
    return min(taken)


BRACKETS = re.compile(r"[()\[\]{}]")
# A use below 10 ms is quick; on a slow machine, one below four times what the simplest pattern takes there.
SECONDS = max(0.010, 4 * best_of(5, lambda: list(BRACKETS.finditer("(" * LENGTH))))


def seconds(pattern, method, text, quick=SECONDS):
    """CPU time of one use, the best of three if it is not quick; GIVE_UP if it is endless.

    The clock is the thread's: while a timer of CPU time is set, the kernel may count the time of a process in ticks of
    10 ms.
    """

    def stop(*_):
        raise TookTooLong

    use = getattr(pattern, method)
    arguments = ("", text) if method in ("sub", "subn") else (text,)
    best = GIVE_UP
    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_VIRTUAL, GIVE_UP)
            started = time.thread_time()
            result = use(*arguments)
            if method == "finditer":
                for _ in result:
                    pass
            best = min(best, time.thread_time() - started)
            if best < quick:
                break
    except TookTooLong:
        return GIVE_UP
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return best


def is_linear(pattern, method, text):
    """True if a use of the pattern is quick, or takes less than eight times as long as one with a quarter of the text.

    That is 4 for linear time and 16 for quadratic time; a ratio that other processes disturbed is measured again.
    """
    quarter = text[: LENGTH // 4] + text[LENGTH - 1 :]  # with the same end
    for _ in range(3):
        taken = seconds(pattern, method, text)
        if taken < SECONDS:
            return True
        if taken >= GIVE_UP:
            return False
        if taken < 8 * seconds(pattern, method, quarter, quick=0.0):
            return True
    return False


@pytest.mark.parametrize(("name", "call", "methods"), list(collect()))
def test_worst_inputs_are_read_in_linear_time(name, call, methods):
    for pattern in patterns_of(name, call):
        as_text = isinstance(pattern.pattern, str)
        inputs = worst_inputs(pattern if as_text else re.compile(pattern.pattern.decode()))
        for method, text in itertools.product(methods, inputs):
            linear = is_linear(pattern, method, text if as_text else text.encode())
            assert linear, f"{method} of {pattern.pattern!r} with {text[:60]!r}…{text[-9:]!r}"


@pytest.mark.parametrize(
    "bad", [r"(?:a|a)*b", r"(a+)+b", r"\s*\s*\s*!", r"(?:\w+\s?){1,40}!", r"(?:\\alpha\s?|[, ])*\)"]
)
def test_the_worst_inputs_are_bad_enough(bad):
    pattern = re.compile(bad)
    assert not all(is_linear(pattern, "match", text) for text in worst_inputs(pattern))
