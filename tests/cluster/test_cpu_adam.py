"""DeepSpeed's own Adam: its C++ code is compiled once per host, in a minute."""

import copy
import shutil

import pytest
import torch
from torch import nn

from openrlhf_cov.cluster import cpu_adam
from openrlhf_cov.cluster.cpu_adam import replay_bias_corrections

# Upstream's. In float32, 0.95 ** 7 is not the product of seven 0.95, nor is that of 6, 8, 10 and more.
BETAS = (0.9, 0.95)
STEPS = 14


def training(kind, start=None):
    """A parameter and its optimizer; from a state of both, as a checkpoint restores it."""
    weight = nn.Parameter(torch.linspace(-1, 1, 50))
    optimizer = kind([weight], lr=1e-2, betas=BETAS)
    if start:
        weight.data.copy_(start[0])
        optimizer.load_state_dict(copy.deepcopy(start[1]))  # it keeps the tensors that it is given
    return weight, optimizer


def step(weight, optimizer, number):
    weight.grad = torch.randn(50, generator=torch.Generator().manual_seed(number))
    optimizer.step()
    optimizer.zero_grad()
    return weight.detach().clone()


@pytest.fixture(params=["FusedAdam", "DeepSpeedCPUAdam"])
def kind(request):
    import deepspeed.ops.adam as adam
    from deepspeed.accelerator import get_accelerator

    from openrlhf_cov.cluster.extension_locks import remove_stale_locks

    if shutil.which("g++") is None:
        pytest.skip("DeepSpeed compiles its Adam with g++")
    if request.param == "FusedAdam" and get_accelerator().device_name() != "cpu":
        pytest.skip("here it runs on the accelerator")
    remove_stale_locks()
    return getattr(adam, request.param)


@pytest.fixture
def straight(kind):
    """Weights after each step, and the state after each, of a run without a stop."""
    weight, optimizer = training(kind)
    weights, states = [], []
    for number in range(STEPS):
        weights.append(step(weight, optimizer, number))
        states.append((weights[-1], copy.deepcopy(optimizer.state_dict())))
    return weights, states


def resumed(kind, state, done, replay, elsewhere=False):
    """Weights of the steps after ``done``; ``elsewhere``: as under ZeRO-3, parameters are there during a step only."""
    weight, optimizer = training(kind, state)
    if replay:
        parameters = [] if elsewhere else [weight]
        optimizer.param_groups[0]["params"] = parameters
        replay_bias_corrections(optimizer)
        assert optimizer.param_groups[0]["params"] is parameters
        optimizer.param_groups[0]["params"] = [weight]
        assert list(optimizer.state) == [weight]
        assert weight.detach().equal(state[0])
    return [step(weight, optimizer, number) for number in range(done, STEPS)]


@pytest.mark.e2e
@pytest.mark.long
def test_a_resumed_adam_is_bit_for_bit_the_one_that_went_on(kind, straight):
    weights, states = straight
    for done in range(1, STEPS):
        for elsewhere in (False, True):
            after = resumed(kind, states[done - 1], done, replay=True, elsewhere=elsewhere)
            assert all(map(torch.equal, after, weights[done:])), (done, elsewhere)
    # What it mends: after some numbers of steps, the next one would begin with another power of 0.95.
    unmended = [resumed(kind, states[done - 1], done, replay=False)[0] for done in range(1, STEPS)]
    assert not all(map(torch.equal, unmended, weights[1:]))


def test_other_optimizers_are_left_alone():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    replay_bias_corrections(optimizer)
    assert optimizer.state == {}
    assert weight.tolist() == [1.0, 1.0]


def test_the_replay_asks_nobody_who_stands_before_the_step(monkeypatch):
    class Adam(torch.optim.Adam):
        """Stands in for DeepSpeed's, which takes a minute to compile."""

    monkeypatch.setattr(cpu_adam, "DeepSpeedCPUAdam", Adam)
    weight = nn.Parameter(torch.ones(3))
    optimizer = Adam([weight])
    step(nn.Parameter(torch.ones(50)), optimizer, 0)
    weight.grad = torch.ones(3)
    optimizer.step()
    before = weight.detach().clone()

    def refuse(*args, **kwargs):
        raise AssertionError("a look for NaN, among gradients that are not there yet")

    optimizer.step = refuse
    replay_bias_corrections(optimizer)
    assert weight.detach().equal(before)
    assert list(optimizer.state) == [weight]
