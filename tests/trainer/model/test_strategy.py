"""The state of an optimizer that was saved after its moments had been on the host (--ds.enable_sleep)."""

import io

import pytest
import torch
from deepspeed.runtime.zero.offload_states import offload_adam_states, reload_adam_states
from openrlhf.utils.deepspeed import DeepspeedStrategy
from run_flags import run_flags
from torch import nn

from openrlhf_cov.trainer.model.offload_buffers import OFFLOAD_SUFFIX, drop_offload_buffers
from openrlhf_cov.trainer.model.strategy import CovStrategy

MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


class Engine:
    """A DeepSpeed engine, as far as its optimizer goes."""

    optimizer = lr_scheduler = None


def trained(steps=2, size=6):
    """A parameter and its Adam after some steps."""
    weight = nn.Parameter(torch.linspace(-1, 1, size))
    optimizer = torch.optim.Adam([weight, nn.Parameter(torch.zeros(2))], lr=0.1)  # the second has no state
    for number in range(steps):
        weight.grad = torch.linspace(0, 1 + number, size)
        optimizer.step()
    return weight, optimizer


def restored(optimizer):
    """A new optimizer with what a checkpoint keeps of this one."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    weight, new = trained(steps=0)
    new.load_state_dict(torch.load(file))
    return weight, new


@pytest.mark.parametrize("asleep", [True, False], ids=["saved asleep", "saved awake"])
def test_a_restored_optimizer_has_no_buffers_and_offloads_again(asleep):
    old_weight, old = trained()
    offload_adam_states(old, "cpu")
    if not asleep:
        reload_adam_states(old, "cpu")
    weight, optimizer = restored(old)
    assert optimizer.state[weight].keys() > MOMENTS  # the fault: the checkpoint has the buffers
    drop_offload_buffers(optimizer)
    assert optimizer.state[weight].keys() == MOMENTS
    for name in MOMENTS:
        assert torch.equal(optimizer.state[weight][name], old.state[old_weight][name])

    # The next offload allocates new buffers. With the keys it had written into those on the parameter's device.
    moment = optimizer.state[weight]["exp_avg"].clone()
    on_device = {name: value.data_ptr() for name, value in optimizer.state[weight].items()}
    offload_adam_states(optimizer, "cpu")
    state = optimizer.state[weight]
    for name in ("exp_avg", "exp_avg_sq"):
        assert state[name].data_ptr() == state[name + OFFLOAD_SUFFIX].data_ptr() != on_device[name]
    reload_adam_states(optimizer, "cpu")
    assert torch.equal(state["exp_avg"], moment)


def test_training_goes_on_as_without_the_restart():
    weight, _ = trained(steps=3)
    old_weight, old = trained(steps=2)
    offload_adam_states(old, "cpu")
    new_weight, new = restored(old)
    new_weight.data.copy_(old_weight.data)
    drop_offload_buffers(new)
    new_weight.grad = torch.linspace(0, 3, 6)  # the third step's
    new.step()
    assert torch.equal(new_weight, weight)


@pytest.mark.parametrize("folder", ["_actor", "_critic"])
def test_every_model_that_is_restored_loses_the_buffers(monkeypatch, tmp_path, folder):
    weight, optimizer = trained()
    offload_adam_states(optimizer, "cpu")
    reload_adam_states(optimizer, "cpu")
    found = [(None, {}), (str(tmp_path / folder / "global_step3" / "states.pt"), {"global_step": 3})]
    monkeypatch.setattr(DeepspeedStrategy, "load_ckpt", lambda *args, **kwargs: found.pop(0))
    strategy = CovStrategy(args=run_flags({"ckpt.path": str(tmp_path), "critic.model_name_or_path": "critic"}))
    model = Engine()
    model.basic_optimizer = optimizer
    strategy.load_ckpt(model, str(tmp_path / folder))  # no checkpoint: a fresh start
    assert optimizer.state[weight].keys() > MOMENTS
    strategy.load_ckpt(model, str(tmp_path / folder))
    assert optimizer.state[weight].keys() == MOMENTS
    assert strategy.restored == ("global_step3", 3)
