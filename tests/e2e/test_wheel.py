"""The package as others install it: a wheel, an empty environment, the console command."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from processes import HANGS

from openrlhf_cov.cluster.packages import ENGINES

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).resolve().parents[2]
ROW = {"response": r"It is \boxed{4}.", "answer": "4"}


def call(*words, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=HANGS, **kwargs)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The bin folder of an environment with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # from a copy, because setuptools leaves a build folder behind
    copy = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((REPOSITORY / name).read_bytes())
    # what `python -m build` does: a source distribution, and the wheel from it, so that the first one is complete
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    packed = call(sys.executable, "-c", build, cwd=copy)
    assert packed.returncode == 0, packed.stderr
    (source,) = folder.glob("*.tar.gz")
    built = call(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    made = call(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    assert made.returncode == 0, made.stderr
    python = folder / "env" / "bin" / "python"
    done = call(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stderr
    return python.parent


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def test_without_any_dependency_the_doctor_says_what_lacks(installed, tmp_path, environment):
    found = call(installed / "openrlhf-cov", "doctor", "--json", cwd=tmp_path, env=environment)
    assert found.returncode == 1, found.stderr
    findings = json.loads(found.stdout)
    assert "torch" in json.dumps(findings)
    assert call(installed / "openrlhf-cov", "--help", cwd=tmp_path, env=environment).returncode == 0
    version = call(installed / "openrlhf-cov", "--version", cwd=tmp_path, env=environment)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version.stdout == f"openrlhf-cov {project['version']}\n"


def requirements_of(name: str, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """What an installed package asks for here."""
    for text in distribution(name).requires or []:
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted


def closure(wanted: Iterable[Requirement]) -> set[str]:
    """Names of all packages that these need, as far as they are installed here."""
    found, left = set(), list(wanted)
    while left:
        each = left.pop()
        if each.name not in found:
            with suppress(PackageNotFoundError):
                left += requirements_of(each.name, each.extras)
                found.add(each.name)
    return found


def link_packages(names: Iterable[str], site: Path) -> list[Path]:
    """Link the files of packages of this environment into the folder ``site`` and return the links."""
    linked = []
    for top in sorted({file.parts[0] for name in names for file in distribution(name).files or ()} - {"..", "."}):
        source = Path(sysconfig.get_path("purelib"), top)
        link = site / top
        if source.exists() and not link.exists():
            link.symlink_to(source)
            linked.append(link)
    return linked


@pytest.fixture(scope="module")
def tools(installed):
    """The environment with what the wheel asks for beside it, and what that asks for: as pip would make it."""
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    (metadata,) = site.glob("openrlhf_cov-*.dist-info")
    wanted = map(Requirement, PathDistribution(metadata).requires)
    names = closure(each for each in wanted if each.marker is None)
    linked = link_packages(names, site)
    yield installed
    for link in linked:
        link.unlink()


def test_the_wheel_has_every_file_of_the_package(installed):
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    tracked = subprocess.run(
        ["git", "ls-files", "openrlhf_cov"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in tracked if (REPOSITORY / name).is_file() and not (site / name).exists()] == []


@pytest.fixture
def run(tools, tmp_path, environment):
    """Function (command, words) -> the finished command, in a folder of its own."""

    def run(command: str, *words: str, status: int = 0) -> subprocess.CompletedProcess:
        done = call(tools / command, *words, cwd=tmp_path, env=environment)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


def test_it_asks_for_no_engine(run):
    find = f"import importlib.util as u; print([n for n in {(*ENGINES, 'fastapi')} if u.find_spec(n)])"
    assert run("python", "-c", find).stdout == "[]\n"


def test_the_lab_trains_with_its_extra_and_openrlhf(run, tools, tmp_path):
    """`pip install "openrlhf-cov[lab]"`, then `pip install --no-deps openrlhf`: no vLLM, no Ray, no flash-attn."""
    site = next((tools.parent / "lib").glob("python*/site-packages"))
    (metadata,) = site.glob("openrlhf_cov-*.dist-info")
    wanted = map(Requirement, PathDistribution(metadata).requires)
    extra = closure(each for each in wanted if each.marker is None or each.marker.evaluate({"extra": "lab"}))
    linked = link_packages([*extra, "openrlhf"], site)
    try:
        find = "import importlib.util as u; print([n for n in ('ray', 'vllm', 'flash_attn') if u.find_spec(n)])"
        assert run("python", "-c", find).stdout == "[]\n"
        few = ["--steps", "1", "--eval.n_samples_per_prompt", "1", "--test_samples", "1"]
        run("openrlhf-cov", "lab", "--output", "run", "--base_policies", "base", *few)
    finally:
        for link in linked:
            link.unlink()
    assert 0.0 <= json.loads((tmp_path / "run" / "result.json").read_text())["test/greedy"] <= 1.0


@pytest.mark.parametrize("form", [["openrlhf-cov", "grade"], ["python", "-m", "openrlhf_cov.cli.grade"]])
def test_both_forms_grade(run, tmp_path, form):
    (tmp_path / "answers.jsonl").write_text(json.dumps(ROW) + "\n")
    assert "correct" in run(*form, "answers.jsonl").stdout


def test_report_and_watch_and_prepare_work_from_the_wheel(run, tmp_path):
    lines = [{"step": n, "entropy/mean": 1.0 / n, "reward": 0.9 - 0.2 / n} for n in range(1, 60)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("openrlhf-cov", "report", "run", "--output", "out")
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
    assert "step 59" in run("openrlhf-cov", "watch", "run", "--once").stdout
    (tmp_path / "problems.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "2"}) + "\n")
    run("openrlhf-cov", "prepare", "--dataset", "problems.jsonl", "--output", "data")
    assert len((tmp_path / "data" / "train.jsonl").read_text().splitlines()) == 1


def test_evaluations_are_listed_graded_again_and_compared(run, tmp_path, make_evaluation):
    assert "aime24" in run("openrlhf-cov", "evaluate", "--list").stdout
    for name, answers in (("base", "1 2 2 -"), ("kl_cov", "1 1 2 1")):
        make_evaluation({"amc23": [answers] * 3}).write(tmp_path / name)
    run("openrlhf-cov", "evaluate", "--output", "base", "--regrade")
    assert "25.0" in run("openrlhf-cov", "compare", "base", "kl_cov").stdout  # one of four samples is 1


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--vllm.num_engines", "1", "--actor.model_name_or_path", "m", "--reward.remote_url", "http://r/"],
        ["evaluate", "--model", "m", "--benchmarks", "aime24", "--output", "out"],
        ["demo"],
        ["tiny-task", "--output", "task"],
        ["serve-reward"],
    ],
    ids=lambda words: words[0],
)
def test_what_needs_the_engines_says_so_in_one_line(run, words):
    refused = run("openrlhf-cov", *words, status=2).stderr.splitlines()
    assert len(refused) == 1
    assert "requirements-cpu.txt" in refused[0]


def test_with_the_engines_the_trainer_refuses_in_one_line(installed, tmp_path, environment):
    engines = next((installed.parent / "lib").glob("python*/site-packages")) / "engines.pth"
    engines.write_text(sysconfig.get_path("purelib") + "\n")
    done = call(installed / "openrlhf-cov", "train", "--cov_type", "kl_cow", cwd=tmp_path, env=environment)
    engines.unlink()
    assert done.returncode == 2
    assert "--cov_type" in done.stderr.splitlines()[-1]
