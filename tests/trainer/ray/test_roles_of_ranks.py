"""Checkpoints of real DeepSpeed engines on two ranks, in processes of their own (``checkpoint_rank.py``)."""

import socket
import sys
from pathlib import Path

import pytest
from rank_group import RankGroup

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    command = [sys.executable, str(Path(__file__).with_name("checkpoint_rank.py"))]
    group = RankGroup(command, ranks=2, folder=tmp_path_factory.mktemp("ranks"))
    yield group
    group.end()


@pytest.fixture
def ranks(group, tmp_path):
    """Function (what to do, stage, how) -> what both ranks printed, line by line."""
    return lambda task, stage, how: group(task, stage, str(tmp_path), how)


@pytest.mark.parametrize(
    ("stage", "moment", "failing"),
    [
        (2, "rank 1 writes", 1),
        (3, "rank 1 writes", 1),
        (2, "rank 0 copies the script", 0),
        (3, "rank 0 writes the groups", 0),
    ],
)
def test_a_rank_without_room_stops_both_and_leaves_the_checkpoint_before(ranks, tmp_path, stage, moment, failing):
    printed = ranks("full", stage, moment)
    reason = f"could not be written: No space left on device (rank {failing}); the one before it is whole"
    for rank in range(2):
        assert f"rank {rank}: checkpoint {tmp_path}/_actor/global_step2 {reason}" in printed


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_groups_that_wait_are_written_by_one_rank_and_handed_on_by_one(ranks, stage):
    printed = ranks("groups", stage, "")
    assert "files with the groups: 1" in printed
    assert {f"rank {rank} hands on {1 - rank} times the groups" for rank in range(2)} <= set(printed)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_load_from_disks_that_are_not_one_ends_both_ranks(ranks, stage):
    printed = ranks("mixed", stage, "")
    host = socket.gethostname()
    expected = (
        f"from --ckpt.path DISK: rank 0 global_step2 (global step 2, 0 updates), but rank 1 on host {host} "
        "global_step1 (global step 1, 0 updates); "
    )
    for rank in range(2):
        (line,) = (line for line in printed if line.startswith(f"rank {rank}: --ckpt.load_enable"))
        assert expected in line


def test_policy_and_critic_go_on_from_what_both_have(ranks):
    printed = ranks("critic", 2, "")
    models = [f"{model} of rank {rank}: global_step1" for model in ("actor", "critic") for rank in range(2)]
    assert set(models) <= set(printed)


@pytest.mark.parametrize("stage", [2, 3])
def test_no_buffer_of_offloaded_moments_is_restored(ranks, stage):
    printed = ranks("buffers", stage, "")
    for model in ("actor", "critic"):
        for rank in range(2):
            assert f"{model} of rank {rank}: ['exp_avg', 'exp_avg_sq', 'step']" in printed


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_resumed_run_has_the_settings_of_its_flags(ranks, stage):
    """The fifth of eight updates of a linear schedule: half of the learning rate; then three eighths."""
    printed = ranks("settings", stage, "")
    for rank in range(2):
        assert [line for line in printed if line.startswith(f"rank {rank}")] == [
            f"rank {rank}: 0.0005 (0.9, 0.999) 0.0 1.0",
            f"rank {rank} after an update: 0.000375 (0.9, 0.999) 0.0 1.0",
            f"rank {rank}: 0.005 (0.5, 0.6) 0.1 0.25",
            f"rank {rank} after an update: 0.00375 (0.5, 0.6) 0.1 0.25",
        ]
