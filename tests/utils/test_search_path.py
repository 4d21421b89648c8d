"""Programs of the Python environment are found whether or not it is activated."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_cov.utils.search_path import search_path

OWN = str(Path(sys.executable).parent)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("/usr/bin:/bin", f"{OWN}:/usr/bin:/bin"), (f"/usr/bin:{OWN}", f"/usr/bin:{OWN}"), ("", f"{OWN}:{os.defpath}")],
)
def test_the_folder_of_this_python_comes_first_where_it_is_missing(monkeypatch, given, expected):
    monkeypatch.setenv("PATH", given)
    assert search_path() == expected


@pytest.mark.slow
def test_a_worker_finds_ninja_where_the_environment_is_not_activated():
    program = (
        "import shutil; assert not shutil.which('ninja'); from openrlhf_cov.cluster.workers import prepare_worker; "
        "prepare_worker(); print(shutil.which('ninja'))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PATH": "/none"}, capture_output=True)
    assert done.stdout.decode().strip() == str(Path(OWN, "ninja")), done.stderr.decode()
    assert shutil.which("ninja")  # in these tests, too (tests/conftest.py)
