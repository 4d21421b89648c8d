"""The pages as text, code blocks, links and flags; the parsers of our commands; nothing of a page is imported."""

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

from openrlhf_cov.cli.main import COMMANDS
from openrlhf_cov.trainer.flags.parser import CovArgumentParser

REPOSITORY = Path(__file__).resolve().parents[2]

FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$", re.M | re.S
)
MARKER = re.compile(r"<!-- (?P<marker>[a-z ]+) -->\s*\Z")
COMMENT = re.compile(r"<!--.*?-->", re.S)
CODE = re.compile(r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)", re.S)
HEADING = re.compile(r"^#+ +(.+?) *$", re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


# Inputs that the pages name: text, or rows of JSON Lines.
FILES = {
    "responses.jsonl": [{"response": "\\boxed{2}", "answer": "2"}],
    "train/dapo_math_8k.jsonl": [{"problem": "1+1?", "answer": "2", "id": "1", "source": "math/dapo"}],
    "train/math_train.jsonl": [{"problem": "1+2?", "answer": "3", "id": "1", "source": "math"}],
    "eval/math500.jsonl": [{"problem": "What is 1+2?", "answer": "3", "id": "1", "source": "math500"}],
    "data/gsm8k/train.jsonl": [
        {"prompt": f"What is 1 + {n}?", "answer": f"{n + 1}", "source": "math"} for n in range(90)
    ],
    "verl_run.csv": "step,critic/score/mean,actor/entropy\n1,0.2,1.1\n2,0.3,0.9\n3,0.4,0.8\n",
    "their_run.csv": "iteration,score/mean,policy/H\n1,0.2,1.1\n2,0.3,0.9\n3,0.4,0.8\n",
}
# Runs that the pages name beside those of the tutorial, and the method of the real run in their place.
ALIASES = {
    "runs/none": "none",
    "runs/kl_cov": "kl_cov",
    "checkpoints/qwen2.5_7b_kl_cov": "kl_cov",
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its place, language, text, and the marker in the comment before it, "" without one."""

    place: str
    language: str
    marker: str
    text: str


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return str(self.path.relative_to(REPOSITORY))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        found = []
        for match in FENCE.finditer(self.text):
            marker = MARKER.search(self.text, 0, match.start())
            line = self.text.count("\n", 0, match.start()) + 1
            language, text = match["language"].strip(), re.sub(f"^{match['indent']}", "", match["text"], flags=re.M)
            found.append(Block(f"{self.name}:{line}", language, marker["marker"] if marker else "", text))
        return found

    @cached_property
    def prose(self) -> str:
        """The text without fenced blocks and comments."""
        return COMMENT.sub("", FENCE.sub("", self.text))

    @property
    def code_spans(self) -> list[str]:
        """Inline code, white space collapsed."""
        return [" ".join(match["code"].split()) for match in CODE.finditer(self.prose)]

    @property
    def anchors(self) -> list[str]:
        """Ids of the headings as GitHub and the site make them."""
        seen: dict[str, int] = {}
        anchors = []
        for title in HEADING.findall(self.prose):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
            anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            seen[anchor] = seen.get(anchor, -1) + 1
            anchors.append(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        return anchors

    @property
    def links(self) -> list[str]:
        """Targets of the links."""
        return LINK.findall(CODE.sub("", self.prose))


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


def all_pages() -> list[Page]:
    """README.md, CONTRIBUTING.md and the pages of the site."""
    paths = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    return [Page(path) for path in paths if path.is_file()]


@pytest.fixture(scope="session")
def pages() -> list[Page]:
    """README.md, CONTRIBUTING.md and the pages of the site."""
    return all_pages()


@pytest.fixture(scope="session")
def page(pages) -> Callable[[str], Page]:
    """Function: the page of this path."""
    by_name = {page.name: page for page in pages}
    return lambda name: by_name[name]


class Declared(BaseException):
    """A command has declared its flags and wants to parse them; carries its parser."""


def _raise_declared(parser, *args, **kwargs):
    raise Declared(parser)


@cache
def parser_of(module: str) -> argparse.ArgumentParser:
    """The parser of ``openrlhf_cov.cli.<module>``, complete; that of the trainer without upstream's checks."""
    if module == "train_ppo_ray":
        return CovArgumentParser()
    main = importlib.import_module(f"openrlhf_cov.cli.{module}").main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", _raise_declared)
        with pytest.raises(Declared) as declared:
            main()
    return declared.value.args[0]


@pytest.fixture(scope="session")
def parser() -> Callable[[str], argparse.ArgumentParser]:
    """Function: the parser of a module of ``openrlhf_cov.cli``."""
    return parser_of


@pytest.fixture(scope="session")
def commands() -> list[str]:
    """Modules of ``openrlhf_cov.cli`` that are commands; not the one that chooses among them."""
    paths = sorted((REPOSITORY / "openrlhf_cov" / "cli").glob("*.py"))
    programs = [path for path in paths if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")]
    return [path.stem for path in programs if path.stem != "main"]


@pytest.fixture(scope="session")
def console() -> dict[str, str]:
    """Subcommand of ``openrlhf-cov`` -> module of ``openrlhf_cov.cli``."""
    return {name: module for name, (module, _) in COMMANDS.items()}


def split_commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell script, as words; comments, here-documents and redirections are gone."""
    text = re.sub(r"<<\s*'?(\w+)'?(.*)\n(?:.*\n)*?\1$", r"\2", text, flags=re.M)
    text = re.sub(r"(^|\s)#.*$", "", text.replace("\\\n", " "), flags=re.M)
    text = re.sub(r"\$\{\w+:[-=?]([^}]*)\}", r"\1", re.sub(r"\$\([^)]*\)", "VALUE", text))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    skip = False
    for token in [*lexer, "\n"]:
        if set(token) <= set(";|&\n"):
            if words:
                yield words
            words = []
        elif set(token) <= set("<>&"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(token)


@pytest.fixture(scope="session")
def commands_of() -> Callable[[str], Iterator[list[str]]]:
    """Function: the commands of a shell script, as words."""
    return split_commands


def link_clone(repository: Path, folder: Path) -> None:
    """Make a folder look like a clone of the repository with its environment."""
    for path in repository.iterdir():
        if path.name not in (".git", ".venv", "runs", "site"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv").symlink_to(sys.prefix)


@pytest.fixture(scope="session")
def linked_clone(repository, tmp_path_factory) -> Path:
    """A folder that looks like a clone of the repository with its environment."""
    folder = tmp_path_factory.mktemp("clone")
    link_clone(repository, folder)
    return folder


@pytest.fixture
def workplace(repository, tmp_path, make_evaluation) -> dict[str, object]:
    """Arguments of subprocess: a folder that looks like a clone in which ``make demo`` trained two policies.

    Their metrics are those of real runs, of some columns. There are two evaluations, responses and problems as well.
    """
    link_clone(repository, tmp_path)
    runs = Path(shutil.copytree(repository / "tests" / "docs" / "runs", tmp_path / "runs"))
    for name, method in ALIASES.items():
        (found,) = runs.glob(f"demo-{method}-2*")
        shutil.copytree(found, tmp_path / name)
    for run, answers in (("base", "1 2 2 -"), ("kl_cov", "1 1 2 1")):
        make_evaluation({"amc23": [answers] * 3}).write(tmp_path / "results" / run)
    for name, rows in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(repository), "PATH": path}}


def pytest_generate_tests(metafunc) -> None:
    """``page_name``: every page; ``run_page``, ``python_page``, ...: those with such blocks."""
    pages = all_pages()

    def marked(marker: str) -> list[Page]:
        return [page for page in pages if any(block.marker == marker for block in page.blocks)]

    chosen = {
        "page_name": pages,
        "run_page": marked("run"),
        "terminal_page": marked("terminal"),
        "gpu_page": [
            page for page in marked("gpu") if any("openrlhf-cov train" in block.text for block in page.blocks)
        ],
        "python_page": [page for page in pages if any(block.language == "python" for block in page.blocks)],
    }
    if "minutes_block" in metafunc.fixturenames:
        blocks = [block for page in pages for block in page.blocks if block.marker == "minutes"]
        blocks.sort(key=lambda block: not block.text.startswith("make "))
        metafunc.parametrize("minutes_block", blocks, ids=[block.place for block in blocks])
    for fixture, each in chosen.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, [page.name for page in each])
