"""Checkpoints of real DeepSpeed engines on two ranks, in processes of their own, of which one has no room to write."""

import os
import socket
import subprocess
import sys

import pytest

RANK = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from openrlhf_cov.trainer import cpu_host

cpu_host.install()
import deepspeed, torch
from openrlhf.utils.deepspeed import DeepspeedStrategy
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.extension_locks import remove_stale_locks
from openrlhf_cov.trainer.ray.ppo_actor import CovPolicyActor

stage, moment, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
rank = int(os.environ["RANK"])
remove_stale_locks()
deepspeed.init_distributed("gloo", timeout=timedelta(seconds=60))
model = torch.nn.Linear(4, 4)
model.config = SimpleNamespace(model_type="linear", hidden_size=4, num_hidden_layers=1, vocab_size=4)
optimizer = torch.optim.Adam(model.parameters())
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

strategy = object.__new__(DeepspeedStrategy)
strategy.args = SimpleNamespace(
    ckpt=SimpleNamespace(path=str(folder), max_num=3, max_mem=1000, save_hf=False),
    actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
    ds=SimpleNamespace(zero_stage=stage, tensor_parallel_size=1),
    train=SimpleNamespace(enable_ema=False),
)
actor = object.__new__(CovPolicyActor)
vars(actor).update(
    strategy=strategy,
    actor=SimpleNamespace(model=engine),
    diagnostics=SimpleNamespace(dynamics=SimpleNamespace(state_dict=dict)),
    disable_ds_ckpt=False,
    save_hf_ckpt=False,
)
actor.save_checkpoint("global_step1", {"global_step": 1}, 0.5, "accuracy")

FULL = OSError(28, "No space left on device")
if moment == "rank 1 writes" and rank == 1:
    torch.save, write = lambda *_, **__: (_ for _ in ()).throw(FULL), torch.save
elif moment == "rank 0 copies the script" and rank == 0:
    import deepspeed.runtime.engine as module
    module.copyfile, copy = lambda *_: (_ for _ in ()).throw(FULL), module.copyfile
started = time.monotonic()
try:
    actor.save_checkpoint("global_step2", {"global_step": 2}, 0.75, "accuracy")
except RunStopped as stopped:
    assert time.monotonic() - started < 20
    print(f"rank {rank}: {stopped}")
torch.distributed.barrier()  # the ranks are in step: this one and the next checkpoint come to an end
if rank == 0:
    assert (folder / "_actor" / "latest").read_text() == "global_step1"
    assert not (folder / "_actor" / "global_step2").exists()
if moment == "rank 1 writes" and rank == 1:
    torch.save = write
elif rank == 0 and moment != "rank 1 writes":
    module.copyfile = copy
actor.save_checkpoint("global_step3", {"global_step": 3}, 1.0, "accuracy")
if rank == 0:
    assert (folder / "_actor" / "latest").read_text() == "global_step3"
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("stage", "moment", "failing"),
    [(2, "rank 1 writes", 1), (3, "rank 1 writes", 1), (2, "rank 0 copies the script", 0)],
)
def test_a_rank_without_room_stops_both_and_leaves_the_checkpoint_before(tmp_path, stage, moment, failing):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
    env |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RANK, str(stage), moment, str(tmp_path)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ranks = [subprocess.Popen(command, env=env | {"RANK": str(rank)}, **pipes) for rank in range(2)]
    try:
        outputs = [rank.communicate(timeout=180) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    reason = f"could not be written: No space left on device (rank {failing}); the one before it is whole"
    for rank, (process, (stdout, stderr)) in enumerate(zip(ranks, outputs, strict=True)):
        assert process.returncode == 0, stderr[-3000:]
        assert f"rank {rank}: checkpoint {tmp_path / '_actor' / 'global_step2'} {reason}" in stdout
