import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.bad_updates import BadUpdates


class Engine:
    """A DeepSpeed engine of which the last update was skipped, or not."""

    def __init__(self) -> None:
        self.optimizer = SimpleNamespace(overflow=False)

    def watched(self, tmp_path, on_nan):
        return BadUpdates(self, on_nan, tmp_path / "bad", rank=0)


def test_good_updates_are_nothing_to_report(tmp_path):
    updates = Engine().watched(tmp_path, "stop")
    assert [updates.check(1, "batch") for _ in range(3)] == [False] * 3
    assert (updates.total, (tmp_path / "bad").exists()) == (0, False)


def test_three_in_a_row_end_the_run(tmp_path):
    engine = Engine()
    updates = engine.watched(tmp_path, "stop")
    for overflow in (True, True, False, True, True):  # never three in a row
        engine.optimizer.overflow = overflow
        assert updates.check(4, "batch") is overflow
    with pytest.raises(RunStopped, match=r"global step 5: the gradient is NaN .*; 3 in a row end the run"):
        updates.check(5, "batch")
    assert updates.total == 5


def test_skip_goes_on_and_keeps_the_first_batches(tmp_path):
    engine = Engine()
    updates = engine.watched(tmp_path, "skip")
    engine.optimizer.overflow = True
    assert all(updates.check(7, {"batch": number}) for number in range(9))
    kept = sorted(path.name for path in (tmp_path / "bad").iterdir())
    assert kept == ["step7_1_rank0.pt", "step7_2_rank0.pt", "step7_3_rank0.pt"]
    assert torch.load(tmp_path / "bad" / kept[1], weights_only=False) == {"batch": 1}


ON_DEEPSPEED = """
import os, sys
from pathlib import Path
import deepspeed, torch
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.extension_locks import remove_stale_locks

remove_stale_locks()
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(2, 1, bias=False)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
updates = BadUpdates(engine, "skip", Path(sys.argv[2]), rank=0)

def weights():
    with deepspeed.zero.GatheredParameters(list(engine.parameters())):
        return next(engine.parameters()).detach().clone()

def update(factor):
    engine.backward((engine(torch.ones(1, 2)) * factor).sum())
    engine.step()
    return updates.check(1, "batch")

before = weights()
for factor in (float("nan"), float("inf")):
    assert update(factor) is True
    assert torch.equal(weights(), before)
assert update(1.0) is False
# Adam's first step is the learning rate times the sign of the gradient, which is 1
torch.testing.assert_close(weights(), before - 0.1, rtol=0, atol=1e-5)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_skips_the_update_and_goes_on(tmp_path, stage):
    """On a real engine, in a process of its own: NaN and infinity change no weight, the next loss does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-c", ON_DEEPSPEED, str(stage), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
