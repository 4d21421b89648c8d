import json
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.checkpoint import checkpoints
from openrlhf_cov.trainer.checkpoint.checkpoints import (
    errors_at_the_end,
    export_best,
    partial_checkpoints,
    pointed_to,
    prune,
    save_whole,
)

RUN = {"ranks": 2, "ZeRO stage": 2}


def writer(folder, content="weights", fails=None):
    """What DeepSpeed does: a folder of the name it is given, with files in it."""

    def save(name):
        (folder / name).mkdir(parents=True)
        (folder / name / "states.pt").write_text(content)
        if fails:
            raise fails

    return save


def save(folder, tag, run=RUN, **settings):
    save_whole(writer(folder, **settings), folder, tag, run, first=True, share=lambda error: [error])


def test_a_checkpoint_appears_when_it_is_complete(tmp_path):
    save(tmp_path, "global_step1")
    save(tmp_path, "global_step2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step1", "global_step2", "latest"]
    assert (tmp_path / "latest").read_text() == "global_step2"
    assert json.loads((tmp_path / "global_step2" / "run.json").read_text()) == RUN


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_syncs_files_before_the_checkpoint_gets_its_name(tmp_path, monkeypatch, rank):
    synced, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    monkeypatch.setattr(os, "replace", lambda *paths: (synced.append("rename"), replace(*paths)))
    save_whole(writer(tmp_path), tmp_path, "global_step1", RUN, first=rank == 0, share=lambda error: [error])
    states = str(tmp_path / "partial-global_step1" / "states.pt")
    assert states in synced
    if rank == 0:
        assert str(tmp_path / "partial-global_step1" / "run.json") in synced[: synced.index("rename")]
        assert synced.index(states) < synced.index("rename")


def export(tmp_path, content, fails=None):
    def write(path):
        os.mkdir(path)
        (tmp_path / path / "model.safetensors").write_text(content)
        if fails:
            raise fails

    export_best(write, tmp_path, {"global_step": 1, "value": 0.5}, first=True, share=lambda error: [error])


def test_a_disk_that_refuses_the_best_model_leaves_the_one_before(tmp_path):
    export(tmp_path, "first")
    with pytest.raises(RunStopped, match=f"{tmp_path}/best could not be written: No space left on device .rank 0."):
        export(tmp_path, "second", fails=OSError(28, "No space left on device"))
    assert (tmp_path / "best" / "model.safetensors").read_text() == "first"
    export(tmp_path, "third")  # the remains of the second are not in the way
    assert (tmp_path / "best" / "model.safetensors").read_text() == "third"


def test_a_kill_between_the_two_renames_loses_no_model(tmp_path, monkeypatch):
    export(tmp_path, "first")
    replace, calls = os.replace, []

    def replace_once(*paths):
        calls.append(paths)
        if len(calls) == 2:
            raise Killed
        replace(*paths)

    monkeypatch.setattr(os, "replace", replace_once)
    with pytest.raises(Killed):
        export(tmp_path, "second")
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(RunStopped):
        export(tmp_path, "third", fails=OSError(28, "No space left on device"))
    assert (tmp_path / "best" / "model.safetensors").read_text() == "first"


class TwoRanks:
    """Ranks in threads that tell each other their errors, as ``torch.distributed`` does."""

    def __init__(self):
        self.barrier, self.errors = threading.Barrier(2, timeout=20), [None, None]

    def share(self, rank):
        def tell(error):
            self.errors[rank] = error
            self.barrier.wait()
            errors = list(self.errors)
            self.barrier.wait()
            return errors

        return tell

    def save(self, folder, tag, savers):
        """What ``save_whole`` raised on each rank, as text; None where it did not."""

        def on_rank(rank):
            try:
                save_whole(savers[rank], folder, tag, RUN, first=rank == 0, share=self.share(rank))
            except RunStopped as stopped:
                return str(stopped)
            return None

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(on_rank, range(2)))


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_write_stops_them_all_and_nothing_is_committed(tmp_path, failing):
    save(tmp_path, "global_step1")
    savers = [writer(tmp_path), lambda name: None]
    savers[failing] = writer(tmp_path / str(failing), fails=FULL)
    lines = TwoRanks().save(tmp_path, "global_step2", savers)
    reason = f"could not be written: No space left on device (rank {failing}); the one before it is whole"
    assert lines == [f"checkpoint {tmp_path / 'global_step2'} {reason}"] * 2
    assert (tmp_path / "latest").read_text() == "global_step1"
    assert not (tmp_path / "global_step2").exists()


@pytest.mark.parametrize("moment", ["clear", "commit"])
def test_a_first_rank_that_cannot_begin_or_commit_stops_them_all(tmp_path, monkeypatch, moment):
    folder = tmp_path / "_actor"
    if moment == "clear":
        folder.touch()  # where a folder has to be
    else:
        monkeypatch.setattr(checkpoints.os, "replace", lambda *_: (_ for _ in ()).throw(FULL))
    saved = []
    lines = TwoRanks().save(folder, "global_step2", [writer(folder), saved.append])
    assert lines[0] == lines[1]
    assert "(rank 0)" in lines[0]
    assert len(saved) == (moment == "commit")  # the other rank did not write in vain
    assert not (folder / "latest").exists()


class Disk:
    """An engine with two methods that write."""

    def __init__(self, error=None):
        self.error, self.written = error, []

    def save(self, name, last=False):
        if self.error:
            raise self.error
        self.written.append((name, last))

    def copy(self):
        self.written.append("copy")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FULL, "No space left on device"),
        (  # torch's writer
            RuntimeError("[enforce fail at inline_container.cc:672] .\nunexpected pos 64 vs 0"),
            "[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0",
        ),
    ],
)
def test_what_cannot_be_written_is_told_after_the_others_had_their_turn(error, reason):
    disk, script, turns = Disk(error), Disk(), []

    def write():
        with errors_at_the_end((disk, "save")) as noting:
            disk.save("weights")
            turns.append("barrier")
            disk.error = None
            disk.save("optimizer", last=True)  # in vain: the checkpoint is lost
            noting(script.copy)()
            turns.append("barrier")

    with pytest.raises(OSError, match=re.escape(reason)):
        write()
    assert turns == ["barrier"] * 2
    assert disk.written + script.written == []
    disk.save("weights")  # as before
    assert disk.written == [("weights", False)]


def test_other_errors_are_not_kept_back():
    disk = Disk(KeyError("a bug"))
    with pytest.raises(KeyError), errors_at_the_end((disk, "save")):
        disk.save("weights")
    assert "save" not in vars(disk)


def loaded(folder):
    """What DeepSpeed would load: the content of a checkpoint that is complete."""
    checkpoint = folder / (folder / "latest").read_text()
    assert json.loads((checkpoint / "run.json").read_text()) == RUN
    return (checkpoint / "states.pt").read_text()


class Killed(BaseException):
    """What a process notices of its end: nothing that ``except Exception`` or ``ignore_errors`` would catch."""


DISK_CALLS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "os.listdir", "shutil.rmtree"}
# How many calls to the disk go well before the process is killed, while this is not empty.
countdown = []


def watch(event, _):
    """An audit hook: Python calls it before each call to the disk; it cannot be taken away again."""
    if countdown and event in DISK_CALLS | {"os.fsync"}:
        countdown[0] -= 1
        if countdown[0] < 0:
            countdown.clear()
            raise Killed


sys.addaudithook(watch)

HISTORIES = {
    "the first": (),
    "after another": (("global_step1", "old"),),
    "twice": (("global_step2", "old"),),
    "three times": (("global_step2", "older"), ("global_step2", "old")),
    "made again, no longer the newest": (("global_step2", "older"), ("global_step1", "old")),
    "the best, again": (("best_global_step2", "old"),),
}


@pytest.mark.slow
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_whenever_a_run_is_killed_a_complete_checkpoint_is_pointed_to(tmp_path, history):
    before = history[-1][1] if history else None
    tag = history[0][0] if history and history[0][0].startswith("best") else "global_step2"
    found, calls = set(), 0
    fsync, killed = os.fsync, True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: sys.audit("os.fsync") or fsync(handle))  # Python has no event for it
        while killed:
            folder = tmp_path / str(calls)
            folder.mkdir()
            for old_tag, content in history:
                save(folder, old_tag, content=content)
            countdown[:] = [calls]
            try:
                save(folder, tag, content="new")
                prune(folder, pointed_to(folder), 1, float("inf"), lambda path: None)
                killed = bool(countdown.clear())
            except Killed:
                calls += 1
            content = loaded(folder) if (folder / "latest").exists() else None
            assert content in (before, "new"), calls
            found.add(content)
            for checkpoint in folder.iterdir():  # whatever has a name of its own is complete, pointed to or not
                if checkpoint.is_dir() and checkpoint.name not in partial_checkpoints(folder):
                    assert {path.name for path in checkpoint.iterdir()} == {"run.json", "states.pt"}
            save(folder, tag, content="newer")  # whatever the kill left is not in the way of the next one
            assert loaded(folder) == "newer"
    assert calls > 10  # points at which it was killed
    assert found == {before, "new"}
