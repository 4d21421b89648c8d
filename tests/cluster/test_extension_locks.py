import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psutil
import pytest

from openrlhf_cov.cluster import extension_locks
from openrlhf_cov.cluster.extension_locks import YOUNG, Locks, find_locks, is_local, remove_stale_locks


class Mount(NamedTuple):
    """What psutil says of a mounted file system."""

    mountpoint: str
    fstype: str


@pytest.fixture
def mounts(monkeypatch, tmp_path):
    """Function ({folder: file system}) -> what the host has mounted; at first the tests' own folder, as ext4."""

    def mount(file_systems):
        parts = [Mount(str(path), kind) for path, kind in file_systems]
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)

    mount([("/", "nfs4"), (tmp_path, "ext4")])
    return mount


@pytest.fixture
def folder(tmp_path, monkeypatch, mounts):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "py311_cpu" / "deepspeed_shm_comm").mkdir(parents=True)
    return tmp_path / "py311_cpu" / "deepspeed_shm_comm"


def make_lock(folder, age=2 * YOUNG):
    """A lock that nobody holds."""
    (folder / "lock").touch()
    os.utime(folder / "lock", (time.time() - age,) * 2)
    return folder / "lock"


def no_sleep(seconds):
    raise AssertionError("nothing to wait for")


def test_a_lock_that_nobody_holds_is_removed(folder):
    lock = make_lock(folder)
    (folder / "build.ninja").touch()
    assert remove_stale_locks(no_sleep) == [lock]
    assert [path.name for path in folder.iterdir()] == ["build.ninja"]


@pytest.mark.slow
@pytest.mark.parametrize("age", [0.0, 2 * YOUNG])
def test_a_lock_that_a_process_holds_stays(folder, age):
    code = "import os, sys; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(folder / "lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        lock = make_lock(folder, age)
        assert remove_stale_locks(no_sleep) == []
        assert lock.exists()
    finally:
        holder.kill()
        holder.communicate()
    make_lock(folder)
    assert remove_stale_locks(no_sleep) == [lock]  # it was killed


@pytest.mark.slow
def test_the_lock_of_torch_is_recognised(folder):
    """What torch's own lock does: created and kept open until it is released."""
    from torch.utils.file_baton import FileBaton

    baton = FileBaton(str(folder / "lock"))
    assert baton.try_acquire()
    assert remove_stale_locks(no_sleep) == []
    os.close(baton.fd)  # as the kernel does for a killed process, which removes nothing
    make_lock(folder)
    assert remove_stale_locks(no_sleep) == [folder / "lock"]


@pytest.fixture
def warnings(caplog):
    with caplog.at_level(logging.WARNING, extension_locks.__name__):
        yield caplog


class Clock:
    """Makes a lock older instead of sleeping; ``then`` happens in the second pause."""

    def __init__(self, lock, then=lambda: None):
        self.lock, self.then, self.slept = lock, then, 0.0

    def __call__(self, seconds):
        self.slept += seconds
        assert self.slept <= 2 * YOUNG, "for ever"
        if self.lock.exists():
            os.utime(self.lock, (self.lock.stat().st_mtime - seconds,) * 2)
        if self.slept == 2 * seconds:
            self.then()


@pytest.mark.slow
def test_a_young_lock_is_removed_when_it_is_old(folder, warnings):
    lock = make_lock(folder, age=YOUNG - 10)
    clock = Clock(lock)
    assert remove_stale_locks(clock) == [lock]
    assert 0 < clock.slept <= 12  # the time that the test itself takes counts, too
    assert f"rm {lock}" in warnings.text


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "9p", "fuse.sshfs", "cifs", "beegfs", "something new", ""])
def test_a_lock_that_another_host_may_hold_stays(folder, tmp_path, mounts, warnings, kind):
    mounts([("/", "ext4"), (tmp_path, kind)])
    lock = make_lock(folder, age=1e6)
    assert find_locks(tmp_path) == Locks(foreign=(lock,))
    assert remove_stale_locks(no_sleep) == []
    assert lock.exists()
    assert f"rm {lock}" in warnings.text  # by hand


@pytest.mark.slow
def test_a_lock_of_another_user_stays(folder, monkeypatch, tmp_path):
    lock = make_lock(folder)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(lock).st_uid + 1)
    assert find_locks(tmp_path) == Locks(foreign=(lock,))
    assert remove_stale_locks(no_sleep) == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # who sees what every process has open
    assert remove_stale_locks(no_sleep) == [lock]


@pytest.mark.parametrize(
    ("file_systems", "expected"),
    [
        ([("/", "ext4"), ("/home", "nfs4"), ("/home/me/scratch", "xfs")], [True, False, True, False]),
        ([("/", "ext4"), ("/home", "ext4"), ("/home", "nfs4")], [True, False, False, False]),  # the later one is seen
        ([("/", "overlay"), ("/home", "autofs"), ("/home/me", "zfs")], [True, True, True, False]),
        ([("/proc", "proc")], [False] * 4),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(mounts, file_systems, expected):
    from pathlib import Path

    mounts(file_systems)
    folders = ("/etc", "/home/me", "/home/me/scratch/cache", "/home/scratch")
    assert [is_local(Path(folder)) for folder in folders] == expected


@pytest.mark.slow
def test_several_actors_of_a_node_take_turns(folder, monkeypatch):
    """One that has judged a lock must not remove the one that another actor made of the same name meanwhile."""
    lock = make_lock(folder)
    inside, most = [], []
    find = extension_locks.find_locks

    def slow(root):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        found = find(root)
        inside.pop()
        return found

    removed = []

    def actor(_):
        removed.extend(remove_stale_locks(no_sleep))

    monkeypatch.setattr(
        extension_locks, "_remove", lambda root: [path for path in slow(root).stale if not path.unlink()]
    )
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(actor, range(4)))
    assert removed == [lock]
    assert max(most) == 1
