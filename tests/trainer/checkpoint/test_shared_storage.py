"""Two real ranks, each with a folder of its own or both with one: what they are told."""

import importlib
import json
import socket
from pathlib import Path

import pytest
import torch
from texts import missing

RESTORED = {
    "equal loads": ("global_step4", "global_step4"),
    "nothing was there": (None, None),
    "one found nothing": ("global_step4", None),
    "one found something": (None, "global_step4"),
    "other loads": ("global_step4", "global_step2"),
}
WELL = {"shared", "new", "late", "equal loads", "nothing was there"}

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What both ranks were told in each case, after a check that it is the same; and the folder of all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "shared" / "_actor").mkdir(parents=True)
    (folder / "shared" / "_actor" / "latest").write_text("global_step4")
    for case in ("separate", "late", "old pointer", "no pointer"):
        for rank in "01":
            (folder / case / rank / "_actor").mkdir(parents=True)
    for rank, tag in enumerate(("global_step4", "global_step2")):
        (folder / "old pointer" / str(rank) / "_actor" / "latest").write_text(tag)
    (folder / "no pointer" / "0" / "_actor" / "latest").write_text("global_step4")
    (folder / "new").mkdir()
    (folder / "refused").mkdir()
    for rank in "01":
        (folder / "refused" / rank).touch()  # where a folder has to be
    (folder / "restored.json").write_text(json.dumps(RESTORED))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.multiprocessing.spawn(importlib.import_module("gloo_storage").look, args=(2, folder), nprocs=2)
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second  # no rank goes on alone
    return first, folder


@pytest.mark.parametrize("case", sorted(WELL))
def test_all_is_well(said, case):
    assert said[0][case] is None


@pytest.mark.parametrize("case", ["separate", "old pointer", "no pointer"])
def test_folders_that_are_not_one_end_the_run(said, case):
    told, folder = said
    host = socket.gethostname()
    assert told[case].startswith(f"--ckpt.path {folder / case} is not one folder")
    assert missing(told[case], "rank 1", host, "rank 0", host) == []
    assert "\n" not in told[case]


def test_a_folder_that_cannot_be_written_ends_the_run(said):
    told, folder = said
    facts = (f"--ckpt.path {folder / 'refused'}", "rank 0", socket.gethostname(), "File exists")
    assert missing(told["refused"], *facts) == []


@pytest.mark.parametrize("case", sorted(RESTORED.keys() - WELL))
def test_ranks_that_restored_different_checkpoints_end_the_run(said, case):
    told = said[0][case]
    first, second = RESTORED[case]
    assert f"rank 0 {first or 'none'}, but rank 1 on host {socket.gethostname()} {second or 'none'};" in told


def test_nothing_is_left_in_the_folders(said):
    left = [path for path in said[1].rglob(".shared-*") if path.parent.name != "1"]  # what a test copied there
    assert left == []
