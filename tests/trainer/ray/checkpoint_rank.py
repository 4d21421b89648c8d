"""One of two ranks with a real DeepSpeed engine as policy or critic; ``test_roles_of_ranks.py`` starts them.

A task: what to do, ZeRO stage, folder, and how.
"""

import json
import os
import pickle
import shutil
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from rank_group import serve

from openrlhf_cov.cluster import cpu_host

cpu_host.install()
import deepspeed  # noqa: E402
import deepspeed.runtime.engine as ds_engine  # noqa: E402
import torch  # noqa: E402
from deepspeed.runtime.zero.offload_states import offload_adam_states  # noqa: E402
from run_flags import run_flags  # noqa: E402
from transformers import LlamaConfig, get_scheduler  # noqa: E402

from openrlhf_cov.cluster.extension_locks import remove_stale_locks  # noqa: E402
from openrlhf_cov.errors import RunStopped  # noqa: E402
from openrlhf_cov.trainer.checkpoint.checkpoints import ROLLOUTS  # noqa: E402
from openrlhf_cov.trainer.model.strategy import CovStrategy  # noqa: E402
from openrlhf_cov.trainer.ray import roles  # noqa: E402
from openrlhf_cov.trainer.ray.roles import CriticRole, PolicyRole  # noqa: E402

RANK = int(os.environ["RANK"])
FULL = OSError(28, "No space left on device")
# Bytes of the groups that wait.
GROUPS = 2**20


class Policy(PolicyRole):
    """A policy whose engine is made here, not loaded."""

    engine = property(lambda self: self.made)


class Critic(CriticRole):
    """A critic whose engine is made here, not loaded."""

    engine = property(lambda self: self.made)


WITH_ENGINE = {PolicyRole: Policy, CriticRole: Critic}


def make_engine(stage, rate=1e-3, betas=(0.9, 0.999), weight_decay=0.0, max_norm=0.0):
    model = torch.nn.Linear(4, 4)
    model.config = LlamaConfig(hidden_size=4, num_hidden_layers=1, num_attention_heads=1, vocab_size=4)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    config |= {"gradient_clipping": max_norm}
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=betas, weight_decay=weight_decay)
    halved = partial(get_scheduler, "linear", num_warmup_steps=0, num_training_steps=8)
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=halved, config=config)[0]


def make_role(stage, folder, kind=PolicyRole, with_critic=False):
    """Return a policy or a critic with a new engine, whose checkpoints are in ``folder``."""
    args = run_flags({
        "ckpt.path": str(folder), "ckpt.load_enable": True, "ds.zero_stage": stage, "ds.param_dtype": "fp32",
        "actor.num_gpus_per_node": 2, "critic.num_gpus_per_node": 2,
        "critic.model_name_or_path": "model" if with_critic else None,
    })  # fmt: skip
    role = WITH_ENGINE[kind](2, RANK, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
    role.made = make_engine(stage)
    role.strategy = CovStrategy(args=args)
    role.client_states = {}
    return role


def load(stage, folder, kind=PolicyRole, with_critic=False):
    """Return a role that has restored what is in ``folder``."""
    role = make_role(stage, folder, kind, with_critic)
    role.client_states = role.restore()
    return role


def client_states(step):
    """What the controller sends: with groups that wait."""
    groups = [torch.full((GROUPS // 4 // 8,), step) for _ in range(4)]
    return {"global_step": step, ROLLOUTS: {"loader": step, "generator": {"groups": groups}}}


def refuse(*_, **__):
    raise FULL


def full(stage, folder, moment):
    """A disk has no room at one moment of the second checkpoint; the first stays, and the third is written."""
    role = make_role(stage, folder)
    role.save_checkpoint("global_step1", client_states(1))
    before = torch.save, ds_engine.copyfile, roles.write_state
    if moment == "rank 1 writes" and RANK == 1:
        torch.save = refuse
    elif moment == "rank 0 writes the groups" and RANK == 0:
        roles.write_state = refuse
    elif moment == "rank 0 copies the script" and RANK == 0:
        ds_engine.copyfile = refuse
    started = time.monotonic()
    try:
        role.save_checkpoint("global_step2", client_states(2))
    except RunStopped as stopped:
        assert time.monotonic() - started < 20
        print(f"rank {RANK}: {stopped}")
    torch.distributed.barrier()  # the ranks are in step: this one and the next checkpoint come to an end
    torch.save, ds_engine.copyfile, roles.write_state = before
    if RANK == 0:
        assert (folder / "_actor" / "latest").read_text() == "global_step1"
        assert not (folder / "_actor" / "global_step2").exists()
    role.save_checkpoint("global_step3", client_states(3))
    if RANK == 0:
        assert (folder / "_actor" / "latest").read_text() == "global_step3"


def groups(stage, folder, _):
    """The groups are in one file, and the first rank alone hands them on."""
    role, states = make_role(stage, folder), client_states(4)
    role.save_checkpoint("global_step4", client_states=states)
    torch.distributed.barrier()
    sizes = {path.name: path.stat().st_size for path in (folder / "_actor" / "global_step4").iterdir()}
    if RANK == 0:
        print("files with the groups:", sum(size > GROUPS for size in sizes.values()))
    resumed = load(stage, folder)
    assert resumed.restored == "global_step4"
    found = resumed.get_checkpoint_states()
    assert found["global_step"] == 4
    print(f"rank {RANK} hands on {len(pickle.dumps(found)) // GROUPS} times the groups")
    if RANK == 0:
        assert found[ROLLOUTS]["loader"] == 4
        for got, sent in zip(
            found[ROLLOUTS]["generator"]["groups"], states[ROLLOUTS]["generator"]["groups"], strict=True
        ):
            assert torch.equal(got, sent)


def mixed(stage, folder, _):
    """Two disks that are not one: each rank restores what is on its own."""
    role = make_role(stage, folder)
    for step in (1, 2):
        role.save_checkpoint(f"global_step{step}", client_states=client_states(step))
    torch.distributed.barrier()
    own = folder / str(RANK)
    shutil.copytree(folder / "_actor", own / "_actor")
    (own / "_actor" / "latest").write_text(f"global_step{2 - RANK}")
    try:
        load(stage, own)
    except RunStopped as stopped:
        print(f"rank {RANK}: {stopped}".replace(str(own), "DISK"))
    torch.distributed.barrier()


def critic(stage, folder, _):
    """A kill when the policy's second checkpoint was complete and the critic's was not."""
    policy, critic = (make_role(stage, folder, kind) for kind in (PolicyRole, CriticRole))
    for step in (1, 2):
        policy.save_checkpoint(f"global_step{step}", client_states(step))
        if step == 1:
            critic.save_checkpoint(f"global_step{step}")
    torch.distributed.barrier()
    if RANK == 0:
        assert json.loads((folder / "_critic" / "global_step1" / "run.json").read_text())["ranks"] == 2
    for kind in (PolicyRole, CriticRole):
        print(f"{kind.model_name} of rank {RANK}: {load(stage, folder, kind, with_critic=True).restored}")


def settings(stage, folder, _):
    """A run that is resumed with other settings of its optimizer, and one with the same."""
    role = make_role(stage, folder)
    role.made = make_engine(stage, max_norm=1.0)
    for _ in range(4):
        role.engine.backward(role.engine(torch.ones(1, 4)).sum())
        role.engine.step()
    role.save_checkpoint("global_step1", client_states=client_states(1))
    torch.distributed.barrier()
    for changed in ({}, {"rate": 1e-2, "betas": (0.5, 0.6), "weight_decay": 0.1, "max_norm": 0.25}):
        resumed = make_role(stage, folder)
        resumed.made = make_engine(stage, **{"max_norm": 1.0, **changed})
        resumed.restore()
        for when in ("", " after an update"):
            (group,) = resumed.engine.basic_optimizer.param_groups
            clip = getattr(resumed.engine.optimizer, "clip_grad", resumed.engine.gradient_clipping())
            print(f"rank {RANK}{when}: {group['lr']} {tuple(group['betas'])} {group['weight_decay']} {clip}")
            resumed.engine.backward(resumed.engine(torch.ones(1, 4)).sum())
            resumed.engine.step()


def buffers(stage, folder, _):
    """Policy and critic are saved after their moments were on the host, and loaded."""
    for kind in (PolicyRole, CriticRole):
        role = make_role(stage, folder, kind)
        optimizer = role.engine.basic_optimizer
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            optimizer.state[parameter] = {name: torch.ones_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter]["step"] = torch.tensor(1.0)
        if stage == 3:  # ZeRO-3 has no parameters in its optimizer between two steps
            for parameter in role.engine.optimizer.fp32_partitioned_groups_flat:
                moments = {name: torch.ones_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
        offload_adam_states(optimizer, "cpu")
        states = {"client_states": client_states(1)} if kind is PolicyRole else {}
        role.save_checkpoint("global_step1", **states)
        torch.distributed.barrier()
        restored = load(stage, folder, kind).engine.basic_optimizer.state
        print(f"{kind.model_name} of rank {RANK}: {sorted({name for state in restored.values() for name in state})}")


if __name__ == "__main__":
    remove_stale_locks()
    cpu_host.adapt_deepspeed()
    deepspeed.init_distributed("gloo", timeout=timedelta(seconds=60))
    tasks = {"full": full, "groups": groups, "mixed": mixed, "critic": critic, "buffers": buffers}
    tasks |= {"settings": settings}
    serve(lambda name, stage, folder, how: tasks[name](stage, Path(folder), how))
