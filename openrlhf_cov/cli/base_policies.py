"""Make the base policies of embedded tasks, measure them, and publish them as one file."""

import hashlib
import io
import json
import logging
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.experiments.lab import request as lab
from openrlhf_cov.experiments.tiny_task.catalogue import check_sandbox
from openrlhf_cov.utils.json_lines import parse_object, read_json, replacing, write_json
from openrlhf_cov.utils.output_folders import alone_in, check_folder
from openrlhf_cov.utils.terminal import Parser, say

# Describes every base policy of a folder, and is the first file of an archive.
MANIFEST = "base_policies.json"
# The tasks on which methods can end at different scores, each with policies of three seeds.
DEFAULT_TASKS = ("shortcut", "tail", "graph_paths", "two_peaks")
DEFAULT_SEEDS = (0, 1, 2)
SAMPLES = 32
# Bytes of one file of a policy, and number of files, that an archive may have.
MAX_BYTES = 2**26
MAX_FILES = 10_000
WEIGHTS = "model.safetensors"
NUMBERS = ("greedy", "sampled", f"pass@{SAMPLES}", "decision_entropy")


def build_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="base_policies", description=__doc__)
    parser.add_argument(
        "--task", nargs="+", choices=lab.TASKS, default=DEFAULT_TASKS, help=f"default: {' '.join(DEFAULT_TASKS)}"
    )
    parser.add_argument(
        "--base_seed", nargs="+", type=int, default=DEFAULT_SEEDS, metavar="N", help="seeds (default: 0 1 2)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of base policies, as lab and study take it with --base_policies (default: theirs)",
    )
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the policies to one file (.tar.xz)")
    parser.add_argument(
        "--unpack", type=Path, metavar="FILE", help="take the policies of a file of --pack; nothing is trained"
    )
    return parser


@program("base_policies")
def main(argv: Sequence[str] | None = None) -> None:
    """Exit status 0 when the folder holds the policies, 2 for a refused request."""
    args = build_parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    output: Path = args.output or lab.base_policies()
    if any(not 0 <= seed < 2**31 for seed in args.base_seed):
        raise UsageError(f"--base_seed {' '.join(map(str, args.base_seed))}: must be numbers from 0 to 2^31 - 1")
    if args.pack and args.unpack:
        raise UsageError("--pack writes an archive and --unpack reads one; give one of the two")
    check_folder(output)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if args.unpack:
        with alone_in(output):
            names = unpack(args.unpack, output)
        say(f"{output}: took {', '.join(names)}\n")
        return
    if args.pack:
        check_folder(args.pack.absolute().parent, "--pack")
    require(("torch", "transformers", "openrlhf"))
    if "code" in args.task:
        check_sandbox()
    with alone_in(output):
        entries = [make(output, task, seed) for task in args.task for seed in args.base_seed]
        known = read_json(output / MANIFEST)
        before = known if isinstance(known, dict) else {}
        write_json(output / MANIFEST, before | {entry["name"]: entry for entry in entries})
    say("\n".join(_line(entry) for entry in entries) + "\n")
    if args.pack:
        pack(output, entries, args.pack)
        say(f"{args.pack}: {len(entries)} base policies\n")


def make(output: Path, task_name: str, seed: int) -> dict[str, Any]:
    """Make or read one base policy and measure it.

    Returns:
        The entry of the manifest: ``name`` of the folder, ``task``, ``seed``, ``files`` with the SHA-256 of each, and
        ``numbers`` of the validation questions: accuracy (greedy), pass@1, pass@32 and the entropy of the decision
        token in nats.
    """
    words = ["--output", str(output / "unused"), "--base_policies", str(output), "--task", task_name]
    words += ["--base_seed", str(seed), "--eval.n_samples_per_prompt", str(SAMPLES)]
    evaluation = lab.prepare(lab.LabRequest.of(lab.build_parser(), words)).evaluate()
    name = f"{task_name}-{seed}"
    files = sorted(path for path in (output / name).iterdir() if path.is_file() and not path.name.startswith("."))
    return {
        "name": name,
        "task": task_name,
        "seed": seed,
        "numbers": {number: round(evaluation[number], 4) for number in NUMBERS if number in evaluation},
        "files": {path.name: _sha256(path.read_bytes()) for path in files},
    }


def pack(folder: Path, entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the policies and their manifest to one archive; equal policies give equal bytes."""
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

    Raises:
        UsageError: If the file is not such an archive, a file in it does not have the SHA-256 of the manifest, or the
            folder holds another policy of the same name.
    """
    try:
        contents = _read_archive(path)
        manifest = parse_object(contents.pop(MANIFEST, b""))
        wanted = {
            f"{name}/{file}": digest for name, entry in manifest.items() for file, digest in entry["files"].items()
        }
        if set(wanted) != set(contents):
            raise ValueError("its files are not those of its manifest")
        for name, content in contents.items():
            if _sha256(content) != wanted[name]:
                raise ValueError(f"{name} does not have the SHA-256 of the manifest")
    except FileNotFoundError as error:
        raise UsageError(f"--unpack {path}: no such file") from error
    except (OSError, EOFError, tarfile.TarError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"--unpack {path} is not an archive of base policies: {reason_of(error)}") from error
    for name, content in contents.items():
        kept = folder / name
        if kept.exists() and kept.read_bytes() != content:
            raise UsageError(
                f"--output {folder} holds another base policy {kept.parent.name}; give another folder or delete it"
            )
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name) as file:
            file.write(content)
    known = read_json(folder / MANIFEST)
    write_json(folder / MANIFEST, (known if isinstance(known, dict) else {}) | manifest)
    return sorted(manifest)


def _read_archive(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by name; ValueError for anything that ``pack`` does not write."""
    contents: dict[str, bytes] = {}
    with tarfile.open(path, mode="r:xz") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            is_plain = member.name == MANIFEST or (len(parts) == 2 and not any(part in ("..", "/") for part in parts))
            if not member.isfile() or not is_plain or member.name in contents:
                raise ValueError(f"{member.name!r} is not a file of a base policy")
            if member.size > MAX_BYTES or len(contents) >= MAX_FILES:
                raise ValueError(f"it has more than {MAX_FILES} files, or one of more than {MAX_BYTES:,} bytes")
            file = archive.extractfile(member)
            assert file is not None  # it is a regular file
            contents[member.name] = file.read()
    return contents


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _line(entry: dict[str, Any]) -> str:
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in entry["numbers"].items())
    return f"{entry['name']}: {numbers}, {WEIGHTS} {entry['files'][WEIGHTS][:12]}"


if __name__ == "__main__":
    sys.exit(main())
