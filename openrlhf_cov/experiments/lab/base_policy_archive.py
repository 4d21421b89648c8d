"""Base policies of embedded tasks as files: make and measure them, and write and read archives of them."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel

from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.experiments.lab.request import LabRequest, build_parser, prepare
from openrlhf_cov.utils.json_lines import parse_object, replacing, write_json
from openrlhf_cov.utils.record_checks import checked_value, find_record

# Describes every base policy of a folder, and is the first file of an archive.
MANIFEST = "base_policies.json"
# Bytes of one file of a policy, and number of files, that an archive may have.
MAX_BYTES = 2**26
MAX_FILES = 10_000
# Samples of each validation question.
SAMPLES = 32
# What a manifest has of the evaluation of a policy.
NUMBERS = ("greedy", "sampled", f"pass@{SAMPLES}", "decision_entropy")


class PolicyFiles(BaseModel):
    """An entry of a manifest, as far as it is checked."""

    # Name of a file -> its SHA-256.
    files: dict[str, str]


def make(output: Path, task_name: str, seed: int) -> dict[str, Any]:
    """Make or read one base policy and measure it.

    Args:
        output: Folder of base policies, in which the policy is kept.
        task_name: Name of an embedded task of the lab.
        seed: Seed of the base policy.

    Returns:
        The entry of the manifest: ``name`` of the folder, ``task``, ``seed``, ``files`` with the SHA-256 of each, and
        ``numbers`` of the validation questions: accuracy (greedy), pass@1, pass@32 and the entropy of the decision
        token in nats.
    """
    # The parser requires a folder for the run. Nothing is written there, because the policy is evaluated only.
    words = ["--output", str(output / "unused"), "--base_policies", str(output), "--task", task_name]
    words += ["--base_seed", str(seed), "--eval.n_samples_per_prompt", str(SAMPLES)]
    evaluation = prepare(LabRequest.of(build_parser(), words)).evaluate()
    name = f"{task_name}-{seed}"
    # Names that begin with a dot are those of files that were not completed.
    files = sorted(path for path in (output / name).iterdir() if path.is_file() and not path.name.startswith("."))
    return {
        "name": name,
        "task": task_name,
        "seed": seed,
        "numbers": {number: round(evaluation[number], 4) for number in NUMBERS if number in evaluation},
        "files": {path.name: _sha256(path.read_bytes()) for path in files},
    }


def pack(folder: Path, entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Write base policies and their manifest to one archive; equal policies give equal bytes.

    Args:
        folder: Folder of base policies.
        entries: Results of ``make``, in the order of the archive.
        path: The archive to write; an existing file is replaced.
    """
    manifest = json.dumps({entry["name"]: entry for entry in entries}, indent=2, sort_keys=True).encode()
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w:xz", format=tarfile.USTAR_FORMAT) as archive:
        _add(archive, MANIFEST, manifest)
        for entry in entries:
            for name in entry["files"]:
                _add(archive, f"{entry['name']}/{name}", (folder / entry["name"] / name).read_bytes())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file without the owner and the time of this machine."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def unpack(path: Path, folder: Path) -> list[str]:
    """Write the policies of an archive to a folder and return their names.

    Args:
        path: An archive of ``pack``.
        folder: Folder of base policies, which may hold other policies and need not exist. If it already holds a file
            of the archive, the two must be equal.

    Raises:
        UsageError: If the file is not such an archive, a file in it does not have the SHA-256 of the manifest, or the
            folder holds another policy of the same name.
    """
    try:
        contents = _read_archive(path)
        manifest = parse_object(contents.pop(MANIFEST, b""))
        entries = checked_value(dict[str, PolicyFiles], manifest)
        wanted = {f"{name}/{file}": digest for name, entry in entries.items() for file, digest in entry.files.items()}
        if set(wanted) != set(contents):
            raise ValueError("its files are not those of its manifest")
        for name, content in contents.items():
            if _sha256(content) != wanted[name]:
                raise ValueError(f"{name} does not have the SHA-256 of the manifest")
    except FileNotFoundError as error:
        raise UsageError(f"--unpack {path}: no such file") from error
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise UsageError(f"--unpack {path} is not an archive of base policies: {reason_of(error)}") from error
    for name, content in contents.items():
        kept = folder / name
        # All files are compared before the first one is written, so that a refusal leaves the folder as it was.
        if kept.exists() and kept.read_bytes() != content:
            raise UsageError(
                f"--output {folder} holds another base policy {kept.parent.name}; give another folder or delete it"
            )
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name) as file:
            file.write(content)
    add_to_manifest(folder, manifest)
    return sorted(manifest)


def add_to_manifest(folder: Path, entries: dict[str, Any]) -> None:
    """Add entries to the manifest of a folder of base policies.

    Args:
        folder: The folder. A manifest is made if it has none.
        entries: Name of a policy -> its entry, as ``make`` returns it. It replaces an earlier entry of the policy.
    """
    before = find_record(dict[str, Any], folder / MANIFEST) or {}
    write_json(folder / MANIFEST, before | entries)


def _read_archive(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by name; ValueError for anything that ``pack`` does not write."""
    contents: dict[str, bytes] = {}
    with tarfile.open(path, mode="r:xz") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            # A name with .. or an absolute one would be written outside of the folder of policies.
            is_plain = member.name == MANIFEST or (len(parts) == 2 and not any(part in ("..", "/") for part in parts))
            if not member.isfile() or not is_plain or member.name in contents:
                raise ValueError(f"{member.name!r} is not a file of a base policy")
            # A small archive can unpack to any size.
            if member.size > MAX_BYTES or len(contents) >= MAX_FILES:
                raise ValueError(f"it has more than {MAX_FILES} files, or one of more than {MAX_BYTES:,} bytes")
            file = archive.extractfile(member)
            assert file is not None  # it is a regular file
            contents[member.name] = file.read()
    return contents


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
