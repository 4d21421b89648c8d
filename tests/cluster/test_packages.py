import pytest

from openrlhf_cov.cluster import packages
from openrlhf_cov.cluster.packages import ENGINES, check_versions, require
from openrlhf_cov.errors import UsageError


def test_what_is_missing_is_named_and_nothing_else():
    with pytest.raises(UsageError, match=r"^not installed: no_such_engine, nor_this; .*requirements-cpu\.txt"):
        require((ENGINES[0], "no_such_engine", "nor_this"))


def installed(monkeypatch, versions):
    """An environment with these versions beside the right ones; what is logged as warnings."""
    said, ours = [], packages.version_of
    monkeypatch.setattr(packages, "version_of", lambda module: versions.get(module, ours(module)))
    monkeypatch.setattr(packages.logger, "warning", said.append)
    return said


@pytest.mark.parametrize("version", ["0.11.3", "0.11.2.post1", "0.9"])
def test_another_openrlhf_is_refused_unless_it_is_meant(monkeypatch, version):
    said = installed(monkeypatch, {"openrlhf": version})
    with pytest.raises(UsageError, match=rf"^openrlhf {version} .*openrlhf==0\.11\.2.*--allow_openrlhf_version"):
        check_versions(allow_other=False)
    check_versions(allow_other=True)
    assert [version in line for line in said] == [True]


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"vllm": "0.30.0", "ray": "2.55.1"}, ["vllm 0.30.0", "ray 2.55.1"]),
        ({"deepspeed": "0.19.6+cpu", "ray": None}, []),
    ],
)
def test_other_packages_than_openrlhf_asks_for_are_a_warning_each(monkeypatch, versions, words):
    said = installed(monkeypatch, versions)
    check_versions(allow_other=False)
    assert len(said) == len(words)
    assert all(word in line for word, line in zip(words, said, strict=True))
