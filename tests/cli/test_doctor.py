import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_cov.cli import doctor
from openrlhf_cov.cluster.cpu_host import is_cpu_host
from openrlhf_cov.cluster.host.checks import CHECKS, Line

GOLDEN = Path(__file__).parents[1] / "cluster" / "host" / "doctor_cpu_host.txt"

# First words of checks that say something else on the next machine.
VOLATILE = (
    "g++",
    "network",
    "cpu",
    "cores",
    "memory",
    "disk",
    "/dev/shm",
    "port",
    "open",
    "processes",
    "locked",
    "extensions",
    "code",
)


def masked(text):
    """The report with ``*`` for what is volatile, and N for numbers."""
    lines = []
    for line in text.splitlines():
        if re.match(r"(?:ok|warn|fail) ", line):
            status, check, found = re.split(r"\s{2,}", line, maxsplit=2)
            is_hidden = check.split()[0] in VOLATILE
            numberless = re.sub(r"[0-9]+([.][0-9]+)*", "N", found)
            lines.append(f"*  {check}" if is_hidden else f"{status}  {check}  {numberless}")
        else:
            lines.append(re.sub("[0-9]+", "N", line))
    return "\n".join(lines) + "\n"


@pytest.mark.e2e
@pytest.mark.skipif(not is_cpu_host(), reason="the report is that of a CPU host")
def test_the_report_on_this_host(capsys):
    status = doctor.main([])
    report = capsys.readouterr().out
    assert masked(report) == GOLDEN.read_text()
    assert status == ("\nfail  " in report)


def test_the_report_is_a_line_for_each_check_with_what_fixes_it():
    lines = [
        Line("ray", "ok", "2.55.0", None),
        Line("port 6379", "warn", "taken by redis", "ray start --head --port 6380"),
        Line("g++", "fail", "none", "sudo apt install g++"),
        Line("vllm", "ok", "0.29.0", None),
    ]
    assert doctor.report(lines) == (
        "ok    ray        2.55.0\n"
        "warn  port 6379  taken by redis; fix: ray start --head --port 6380\n"
        "fail  g++        none; fix: sudo apt install g++\n"
        "ok    vllm       0.29.0\n"
        "\n"
        "2 ok, 1 warn, 1 fail"
    )


def doctor_process(*flags, **keywords):
    return subprocess.run(
        [sys.executable, "-m", "openrlhf_cov.cli.doctor", *flags], capture_output=True, text=True, **keywords
    )


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
    assert lines["g++"]["status"] == "fail"


def test_broken_packages_do_not_end_the_report(bare, tmp_path):
    for name, code in (("torch", "raise OSError('libtorch.so')"), ("ray", "import os; os.abort()")):
        (tmp_path / f"{name}.py").write_text(code)
    done = python_without_packages("--json", env=bare)
    lines = {line["check"]: line["found"] for line in json.loads(done.stdout)}
    assert lines["torch"] == "unknown version, but the import fails: OSError: libtorch.so"
    assert lines["ray"] == "unknown version, but the import fails: the process ended with signal 6"
    assert lines["vllm"] == "not installed"


def test_a_flag_that_does_not_exist_is_refused():
    done = doctor_process("--hubs")
    assert done.returncode == 2
    assert "unrecognized arguments: --hubs" in done.stderr


def test_help_answers_at_once_and_without_a_heavy_import():
    started = time.monotonic()
    assert doctor_process("--help").returncode == 0
    assert time.monotonic() - started < 2
    code = (
        "import sys; from openrlhf_cov.cli import doctor;"
        "sys.exit(bool({'torch', 'ray', 'vllm', 'deepspeed', 'openrlhf'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
