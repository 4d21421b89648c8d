"""DeepSpeed's Adam on the CPU, to the last bit as if the run had not been interrupted."""

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from torch import nn

from openrlhf_cov.cluster import cpu_host


def replay_bias_corrections(optimizer: torch.optim.Optimizer) -> None:
    """Let the Adam of a restored checkpoint count its steps again, on a parameter that belongs to nobody.

    Its C++ code keeps beta ** step in float32 as a running product, outside of the optimizer's state; after a restart
    it would begin with a power, which differs in the last bits. Does nothing for another optimizer, nor for
    ``FusedAdam`` on an accelerator, where each step takes the power. The steps are those of the optimizer's state: its
    parameters may be elsewhere, as under ZeRO-3, which hands them over one step at a time.
    """
    if not (isinstance(optimizer, DeepSpeedCPUAdam) or (isinstance(optimizer, FusedAdam) and cpu_host.is_cpu_host())):
        return
    steps = max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)
    nobodys = nn.Parameter(torch.zeros(1))
    nobodys.grad = torch.zeros(1)
    groups = optimizer.param_groups
    optimizer.param_groups = [groups[0] | {"params": [nobodys], "step": 0}]
    for _ in range(steps):
        type(optimizer).step(optimizer)  # not what may stand before it on the object, such as a look for NaN
    optimizer.param_groups = groups
    optimizer.state.pop(nobodys, None)
