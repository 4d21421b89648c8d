"""The pages as text, code blocks, links and flags; the parsers of our commands; nothing of a page is imported."""

import argparse
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_cov.cli.arguments import CovArgumentParser
from openrlhf_cov.cli.main import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]

FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$", re.M | re.S
)
MARKER = re.compile(r"<!-- (?P<marker>[a-z ]+) -->\s*\Z")
COMMENT = re.compile(r"<!--.*?-->", re.S)
CODE = re.compile(r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)", re.S)
HEADING = re.compile(r"^#+ +(.+?) *$", re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


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

    @property
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
        return _trainer_parser()
    main = importlib.import_module(f"openrlhf_cov.cli.{module}").main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", _raise_declared)
        with pytest.raises(Declared) as declared:
            main()
    return declared.value.args[0]


def _trainer_parser() -> argparse.ArgumentParser:
    from openrlhf_cov.trainer.ray.seams import upstream_main

    class Capturing(CovArgumentParser):
        def parse_args(self, args=None, namespace=None):
            raise Declared(self)

    fake_argparse = SimpleNamespace(ArgumentParser=Capturing, Namespace=argparse.Namespace)
    namespace = {"__name__": "__main__", "argparse": fake_argparse, "datetime": datetime, "train": None}
    with pytest.raises(Declared) as declared:
        exec(upstream_main(), namespace)
    (parser,) = declared.value.args
    parser.declare()
    return parser


@pytest.fixture(scope="session")
def parser() -> Callable[[str], argparse.ArgumentParser]:
    """Function: the parser of a module of ``openrlhf_cov.cli``."""
    return parser_of


def command_modules() -> Iterator[str]:
    """Modules of ``openrlhf_cov.cli`` that are commands; not the one that chooses among them."""
    for path in sorted((REPOSITORY / "openrlhf_cov" / "cli").glob("*.py")):
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8") and path.stem != "main":
            yield path.stem


@pytest.fixture(scope="session")
def commands() -> list[str]:
    """Modules of ``openrlhf_cov.cli`` that are commands."""
    return list(command_modules())


@pytest.fixture(scope="session")
def console() -> dict[str, str]:
    """Subcommand of ``openrlhf-cov`` -> module of ``openrlhf_cov.cli``."""
    return {name: module for name, (module, _) in COMMANDS.items()}


def pytest_generate_tests(metafunc) -> None:
    """``page_name``: every page; ``run_page``, ``python_page``: those with such blocks."""
    pages = all_pages()
    chosen = {
        "page_name": pages,
        "run_page": [page for page in pages if any(block.marker == "run" for block in page.blocks)],
        "python_page": [page for page in pages if any(block.language == "python" for block in page.blocks)],
    }
    for fixture, each in chosen.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, [page.name for page in each])
