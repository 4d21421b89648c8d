"""docs/troubleshooting.md has every error message of the package, and no other."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

PLACE = "…"
"""Stands for what a message fills in."""

FOR_USERS = {"UsageError", "RunStopped", "StoppedBySignal", "MissingRewardFunction", "SystemExit", "ArgumentTypeError"}
"""Errors whose text a user reads."""

ALSO_RAISED_AS = {"refused", "kind", "_refuse", "_one_line"}
"""Local names under which modules raise or print them."""

QUOTED = (
    "rewards/sources.py",
    "rewards/reward_func.py",
    "experiments/tiny_task/tiny_reward_func.py",
    "experiments/study/spec.py",
)
"""Modules whose ValueErrors other messages quote: what is wrong with a label, or with a study."""


PROGRAM = r"^[a-z_-]+: error: "
"""What some modules write in front of a message themselves."""


def template(node: ast.expr) -> str:
    """The text that an expression makes, with ``…`` for what it fills in."""
    if isinstance(node, ast.Constant):
        return PLACE if isinstance(node.value, bytes) else str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) if isinstance(value, ast.Constant) else PLACE for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return PLACE


def collapsed(text: str) -> str:
    """One line, places that follow each other as one."""
    return re.sub(rf"{PLACE}(?:\s*{PLACE})+", PLACE, " ".join(text.split()))


def message_of(call: ast.Call, flags: dict[str, str]) -> str:
    """What a call says; ``Settings.require(name, fits, what, then)`` puts it together with the field's flag."""
    if ast.unparse(call.func).endswith(".require") and len(call.args) > 2:
        name, what, *then = (template(call.args[place]) for place in (0, *range(2, len(call.args))))
        return f"--{flags.get(name, name)} {what}, got {PLACE}{''.join(then)}"
    return template(call.args[0])


def flags_of(tree: ast.Module) -> dict[str, str]:
    """{field of settings in a module: its flag} of those whose flag is called otherwise."""
    fields = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)]
    return {
        ast.unparse(field.target): ast.literal_eval(keyword.value)
        for field in fields
        for keyword in field.value.keywords
        if keyword.arg == "flag"
    }


def is_for_users(path: str, call: ast.Call, text: str) -> bool:
    name = ast.unparse(call.func).split(".")[-1]
    if name == "write":
        return re.match(PROGRAM, template(call.args[0])) is not None
    if name in ("ValueError", "require"):
        return text.startswith("--") or path in QUOTED
    return name in FOR_USERS | ALSO_RAISED_AS or (name == "error" and isinstance(call.func, ast.Attribute))


def messages_of(path: str, tree: ast.Module) -> Iterator[str]:
    """Messages of a module that say something themselves; the others pass on what another one says."""
    flags = flags_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            text = re.sub(PROGRAM, "", collapsed(message_of(node, flags)))
            words = re.findall(r"[A-Za-z]{2,}", re.sub(r"--[\w.]+", "", text))
            if len(words) >= 2 and is_for_users(path, node, text):
                yield text


@pytest.fixture(scope="module")
def modules(repository):
    """{path in the package: syntax tree}"""
    root = repository / "openrlhf_cov"
    paths = sorted(root.rglob("*.py"))
    return {str(path.relative_to(root)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@pytest.fixture(scope="module")
def messages(modules):
    """{message: the modules that raise it}"""
    found = {}
    for path, tree in modules.items():
        for message in messages_of(path, tree):
            found.setdefault(message, []).append(path)
    return found


@pytest.fixture(scope="module")
def parts(modules):
    """Every text in the source: some messages are put together from a part that stands elsewhere."""
    nodes = (node for tree in modules.values() for node in ast.walk(tree))
    return {collapsed(template(node)) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)}


@pytest.fixture(scope="module")
def documented(page):
    """The messages of the page: the code of the lists."""
    items = re.findall(r"^- (`+)(.+)\1$", page("docs/troubleshooting.md").text, flags=re.M)
    return [collapsed(text.strip()) for _, text in items]


def test_a_message_is_read_from_source():
    source = 'raise UsageError(f"{flag} {value:g} is too large ({limit}); " "use " + other + f"{a}{b}")'
    assert list(messages_of("x.py", ast.parse(source))) == ["… is too large (…); use …"]
    for passed_on in ('raise UsageError(f"{path}: {error}")', 'raise UsageError(f"--model {x}: {y}")'):
        assert list(messages_of("x.py", ast.parse(passed_on))) == []
    assert list(messages_of("x.py", ast.parse('raise ValueError("for programmers")'))) == []
    required = 'self.require("mib", lambda mib: mib > 0, "is a size above 0", "; 8 will do")'
    assert list(messages_of("x.py", ast.parse(required))) == ["--mib is a size above 0, got …; 8 will do"]
    named = f'mib: int = setting(1, "size", flag="x.mib")\n{required}'
    assert list(messages_of("x.py", ast.parse(named))) == ["--x.mib is a size above 0, got …; 8 will do"]
    assert list(messages_of("x.py", ast.parse('sys.stderr.write(f"x: error: no yard {z}\\n")'))) == ["no yard …"]
    assert list(messages_of("x.py", ast.parse('sys.stderr.write(f"x: {y} of {z} done")'))) == []
    assert list(messages_of("rewards/sources.py", ast.parse('raise ValueError("no such label")'))) == ["no such label"]


def test_every_message_is_explained(messages, documented):
    assert len(messages) > 150
    missing = {message: paths for message, paths in messages.items() if message not in documented}
    assert missing == {}


def test_every_message_that_is_explained_exists(messages, documented, parts):
    assert [message for message in documented if message not in messages.keys() | parts] == []


def test_no_message_is_explained_twice(documented):
    assert len(documented) == len(set(documented))


def test_every_message_has_an_explanation(page):
    """A paragraph after it, or after the messages that follow it at once."""
    lines = [line for line in page("docs/troubleshooting.md").text.splitlines() if line]
    for line, following in pairwise(lines):
        if re.fullmatch("- (`+).+\\1", line):
            assert following.startswith(("    ", "- `")), line
