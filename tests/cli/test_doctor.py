import json
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_cov.cli import doctor
from openrlhf_cov.cluster.host.checks import CHECKS, Line


def test_the_report_is_a_line_for_each_check_with_what_fixes_it():
    lines = [
        Line("ray", "ok", "2.55.0", None),
        Line("port 6379", "warn", "taken by redis", "ray start --head --port 6380"),
        Line("g++", "fail", "none", "sudo apt install g++"),
        Line("vllm", "ok", "0.29.0", None),
    ]
    assert [" ".join(line.split()) for line in doctor.report(lines).splitlines()] == [
        "ok ray 2.55.0",
        "warn port 6379 taken by redis; fix: ray start --head --port 6380",
        "fail g++ none; fix: sudo apt install g++",
        "ok vllm 0.29.0",
        "",
        "2 ok, 1 warn, 1 fail",
    ]


@pytest.fixture
def bare(tmp_path):
    """Environment of a process that finds our package and no other."""
    (tmp_path / "openrlhf_cov").symlink_to(Path(doctor.__file__).parents[1])
    return {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path), "HOME": str(tmp_path)}


def python_without_packages(*flags, env):
    # -S: no site-packages
    return subprocess.run(
        [sys.executable, "-S", "-m", "openrlhf_cov.cli.doctor", *flags], capture_output=True, text=True, env=env
    )


@pytest.mark.slow
def test_a_host_with_nothing_at_all_gets_its_report(bare):
    done = python_without_packages("--json", env=bare)
    assert (done.returncode, done.stderr) == (1, "")
    lines = {line["check"]: line for line in json.loads(done.stdout)}
    # Without torch nobody knows what the CPU can do.
    assert list(lines) == [name for name in CHECKS if name not in ("cpu", "hub")]
    assert lines["torch"] == {
        "check": "torch",
        "status": "fail",
        "found": "not installed",
        "fix": "pip install --no-deps -r requirements-cpu.txt --extra-index-url https://download.pytorch.org/whl/cpu",
    }
    assert lines["flash-attn"]["status"] == "ok"
    assert lines["ray"]["status"] == "fail"
    assert lines["g++"]["status"] == "ok"  # without GPUs nothing is compiled


@pytest.mark.slow
def test_reports_of_libraries_follow_the_lines_of_the_checks(bare, tmp_path):
    for module, code in (
        ("torch/utils/collect_env.py", "print('PyTorch version: 2\\n\\x1b[31mOS: Debian')"),
        ("deepspeed/env_report.py", "import sys; sys.exit('no accelerator')"),
    ):
        path = tmp_path / module
        path.parent.mkdir(parents=True)
        path.write_text(code)
        (path.parent / "__init__.py").touch()
    (tmp_path / "torch" / "__init__.py").touch()
    done = python_without_packages("--libraries", env=bare)
    assert (done.returncode, done.stderr) == (1, "")
    # The code for a colour is not sent to the terminal.
    assert done.stdout.endswith(
        "\n\ntorch.utils.collect_env:\nPyTorch version: 2\n?[31mOS: Debian\n"
        "\ndeepspeed.env_report:\nno report: no accelerator\n"
    )


def test_reports_of_libraries_are_no_part_of_the_json(capsys):
    assert doctor.main(["--json", "--libraries"]) == 2
    assert capsys.readouterr().err.endswith("--libraries has no effect with --json; drop one of the two\n")


@pytest.mark.slow
def test_broken_packages_do_not_end_the_report(bare, tmp_path):
    for name, code in (("torch", "raise OSError('libtorch.so')"), ("ray", "import os; os.abort()")):
        (tmp_path / f"{name}.py").write_text(code)
    done = python_without_packages("--json", env=bare)
    lines = {line["check"]: line["found"] for line in json.loads(done.stdout)}
    assert lines["torch"] == "unknown version, but the import fails: OSError: libtorch.so"
    assert lines["ray"] == "unknown version, but the import fails: the process ended with signal 6"
    assert lines["vllm"] == "not installed"
