"""The package as others install it: a wheel, an empty environment, the console command."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).resolve().parents[2]
ROW = {"response": r"It is \boxed{4}.", "answer": "4"}


def call(*words, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=600, **kwargs)


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
    built = call(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, copy)
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
    assert version.stdout == "openrlhf-cov 0.1.0\n"


@pytest.fixture
def complete(installed):
    """The environment that also sees this one's packages, but not its installation of ours."""
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield installed
    (site / "dependencies.pth").unlink()


def test_the_wheel_has_every_file_of_the_package(installed):
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    tracked = subprocess.run(
        ["git", "ls-files", "openrlhf_cov"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in tracked if (REPOSITORY / name).is_file() and not (site / name).exists()] == []


@pytest.mark.parametrize("form", [["openrlhf-cov", "grade"], ["python", "-m", "openrlhf_cov.cli.grade"]])
def test_both_forms_grade(complete, tmp_path, environment, form):
    (tmp_path / "answers.jsonl").write_text(json.dumps(ROW) + "\n")
    done = call(complete / form[0], *form[1:], "answers.jsonl", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "correct" in done.stdout


def test_report_and_prepare_work_from_the_wheel(complete, tmp_path, environment):
    lines = [{"step": n, "entropy/mean": 1.0 / n, "reward": 0.9 - 0.2 / n} for n in range(1, 60)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = call(complete / "openrlhf-cov", "report", "run", "--output", "out", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
    (tmp_path / "problems.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "2"}) + "\n")
    done = call(
        *(complete / "openrlhf-cov", "prepare", "--dataset", "problems.jsonl", "--output", "data"),
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "data" / "train.jsonl").read_text().splitlines()) == 1


def test_the_trainer_refuses_in_one_line(complete, tmp_path, environment):
    done = call(complete / "openrlhf-cov", "train", "--cov_type", "kl_cow", cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "--cov_type" in done.stderr.splitlines()[-1]
