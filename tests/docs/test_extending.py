"""docs/extending.md: its changes apply to the repository, and its Python and the tests of methods then run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def apply(diff: str, root: Path) -> None:
    """Replace, once each, the old lines of every hunk of a file by the new ones."""
    head, *hunks = diff.split("@@\n")
    path = root / re.search(r"^\+\+\+ (\S+)$", head, flags=re.M)[1]
    for hunk in hunks:
        lines = [(line[:1] or " ", line[1:]) for line in hunk.rstrip("\n").split("\n")]
        old = "".join(f"{text}\n" for sign, text in lines if sign in " -")
        new = "".join(f"{text}\n" for sign, text in lines if sign in " +")
        source = path.read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{path.name} has these lines {source.count(old)} times:\n{old}"
        path.write_text(source.replace(old, new), encoding="utf-8")


def run_python(code: str, folder: Path, *argv: str) -> str:
    env = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def extended(page, repository, tmp_path_factory):
    """A copy of the repository with all changes of the page, and the files that the page names."""
    root = tmp_path_factory.mktemp("extended")
    # With the compiled modules, which stay valid for the files that do not change; not those that are being written.
    ignored = shutil.ignore_patterns("*.pyc.*")
    for folder in ("openrlhf_cov", "docs", "tests"):
        shutil.copytree(repository / folder, root / folder, ignore=ignored)
    for path in (*repository.glob("*.md"), repository / "mkdocs.yml", repository / "pyproject.toml"):
        shutil.copy(path, root)
    for block in page("docs/extending.md").blocks:
        if block.language == "diff":
            for diff in re.split(r"^(?=--- )", block.text, flags=re.M)[1:]:
                apply(diff, root)
        elif named := re.search(r'title="(\S+)"', block.language):
            (root / named[1]).write_text(block.text, encoding="utf-8")
    return root


def test_every_python_block_runs(page, extended):
    blocks = [block for block in page("docs/extending.md").blocks if block.language == "python"]
    assert len(blocks) >= 4
    run_python("\n".join(block.text for block in blocks), extended)


@pytest.mark.e2e
@pytest.mark.long  # only here the lab trains with the new method; its tests run in ``make test``, see below
def test_every_command_runs(page, extended):
    """In the order of the page: the lab with the new method, then the test of the method."""
    blocks = [block for block in page("docs/extending.md").blocks if block.marker == "run with the changes"]
    assert len(blocks) == 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PYTHONPATH": str(extended), "PATH": path}
    for block in blocks:
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        done = subprocess.run(command, cwd=extended, capture_output=True, text=True, env=env)
        assert done.returncode == 0, f"{block.place}: {done.stdout}{done.stderr}"
    metrics = (extended / "runs" / "top_clip" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    # 20 steps, as the page says. The quota is rounded down, so that a little less than 2 % of the tokens is selected.
    selected = [json.loads(line)["cov/selected_frac"] for line in metrics]
    assert len(selected) == 20
    assert all(0.015 < share <= 0.02 for share in selected)


def test_the_new_method_has_all_that_tests_ask_for(extended):
    files = ("test_config", "test_registry", "test_placement", "test_gpu_rules", "test_site", "test_top_clip")
    paths = [path for path in sorted((extended / "tests").rglob("*.py")) if path.stem in files]
    chosen = "top_clip or cov_type or every_method or of_all or published_settings or menu"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *map(str, paths)]
    env = os.environ | {"PYTHONPATH": str(extended)}
    done = subprocess.run(command, cwd=extended, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unchanged_package_knows_none_of_it(page, repository):
    """Otherwise the blocks would prove nothing about the changes."""
    for name in ("top_clip", "yes_no", "capitals"):
        for path in (repository / "openrlhf_cov").rglob("*.py"):
            assert name not in path.read_text(encoding="utf-8"), path
