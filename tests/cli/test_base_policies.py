"""Base policies are made, measured, packed and unpacked."""

import io
import shutil
import tarfile

import pytest

from openrlhf_cov.cli import base_policies
from openrlhf_cov.utils.json_lines import read_json

BANDIT = ("--task", "two_peaks", "--base_seed", "0", "1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the bandit's policies of two seeds, and an archive of them in it."""
    folder = tmp_path_factory.mktemp("made")
    assert base_policies.main([*BANDIT, "--output", str(folder), "--pack", str(folder / "policies.tar.xz")]) == 0
    return folder


@pytest.fixture
def packed(tmp_path, made):
    """A copy of the archive, and of the folder that the policies were made in."""
    folder = tmp_path / "made"
    shutil.copytree(made, folder)
    return folder / "policies.tar.xz", folder


@pytest.mark.slow
def test_policies_are_measured_and_travel_in_one_file(tmp_path, packed, capsys):
    archive, folder = packed
    manifest = read_json(folder / "base_policies.json")
    assert list(manifest) == ["two_peaks-0", "two_peaks-1"]
    numbers = manifest["two_peaks-0"]["numbers"]
    assert set(numbers) == {"greedy", "sampled", "pass@32", "decision_entropy"}
    # Nobody pulls a better arm greedily; 11 of 100 uniform arms in 0.3 of the policy are better, up to the noise.
    assert numbers["greedy"] == 0.0
    assert numbers["sampled"] == pytest.approx(0.3 * 0.11, abs=0.01)
    assert len({each["files"]["model.safetensors"] for each in manifest.values()}) == 2
    # elsewhere
    other = tmp_path / "other"
    assert base_policies.main(["--unpack", str(archive), "--output", str(other)]) == 0
    for name in manifest:
        for file in manifest[name]["files"]:
            assert (other / name / file).read_bytes() == (folder / name / file).read_bytes()
    assert read_json(other / "base_policies.json") == manifest
    # again: the same policies are there already
    assert base_policies.main(["--unpack", str(archive), "--output", str(other)]) == 0


@pytest.mark.slow
def test_the_same_policies_give_the_same_archive(tmp_path, packed):
    archive, folder = packed
    again = tmp_path / "again.tar.xz"
    assert base_policies.main([*BANDIT, "--output", str(folder), "--pack", str(again)]) == 0
    assert again.read_bytes() == archive.read_bytes()


def rewritten(path, change):
    """The archive at ``path`` with its files as ``change`` (contents) makes them."""
    with tarfile.open(path) as archive:
        contents = {member.name: archive.extractfile(member).read() for member in archive}
    with tarfile.open(path, "w:xz") as archive:
        for name, content in change(contents).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files | {"two_peaks-0/config.json": b"{}"}, "does not have the SHA-256"),
        (lambda files: files | {"../outside": b""}, "is not a file of a base policy"),
        (lambda files: files | {"two_peaks-0/more": b""}, "are not those of its manifest"),
        (lambda files: {n: c for n, c in files.items() if not n.endswith("config.json")}, "are not those"),
        (lambda files: files | {"base_policies.json": b'{"x": 1}'}, "x: must have the fields files; got 1"),
        (lambda files: files | {"base_policies.json": b'{"x": {}}'}, "x.files: this field is missing"),
    ],
)
def test_an_archive_that_was_changed_is_refused(tmp_path, packed, capsys, change, said):
    archive, _ = packed
    rewritten(archive, change)
    assert base_policies.main(["--unpack", str(archive), "--output", str(tmp_path / "other")]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
    assert not (tmp_path / "outside").exists()
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".lock"]


@pytest.mark.slow
def test_another_policy_of_the_same_name_is_not_replaced(tmp_path, packed, capsys):
    archive, folder = packed
    weights = folder / "two_peaks-0" / "model.safetensors"
    weights.write_bytes(b"mine")
    assert base_policies.main(["--unpack", str(archive), "--output", str(folder)]) == 2
    assert "holds another base policy two_peaks-0" in capsys.readouterr().err
    assert weights.read_bytes() == b"mine"
