"""The image gets its versions from requirements.txt, and .dockerignore keeps what the build copies."""

import fnmatch
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")


def test_no_version_of_a_package_is_written_twice():
    assert "pip install --no-build-isolation -r requirements.txt" in DOCKERFILE
    assert re.findall(r"([\w-]+(?:\[\w+\])?)==[\d.]+", DOCKERFILE) == []
    # the one package that must come first is read from the list
    (first,) = re.findall(r"\$\(grep '\^([\w-]+==)' requirements.txt\)", DOCKERFILE)
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith(first)]) == 1


def test_files_that_the_image_needs_are_not_ignored():
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = [line for line in lines if line and not line.startswith("#")]
    copied = [name for line in re.findall(r"^COPY (.+) \./?$", DOCKERFILE, re.M) for name in line.split()]
    package = ["openrlhf_cov", "pyproject.toml", "README.md", "LICENSE", "scripts", "requirements-tools.txt"]
    for name in [*copied, *package]:
        assert (REPOSITORY / name).exists()
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in ignored), name
