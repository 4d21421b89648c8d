"""The host buffers of DeepSpeed that a checkpoint must not bring back to the GPU (needs torch alone)."""

import torch

# The end of the names that DeepSpeed gives to host buffers in an optimizer's state (_make_offload_state_key).
OFFLOAD_SUFFIX = "_offload_buffer"


def drop_offload_buffers(optimizer: torch.optim.Optimizer) -> None:
    """Remove DeepSpeed's host buffers of offloaded moments from the state of an optimizer that was just loaded.

    DeepSpeed's ``offload_adam_states`` keeps the buffer of ``exp_avg`` as ``exp_avg_offload_buffer`` in that state,
    so that a checkpoint contains it, and ``load_state_dict`` moves all of it to the device of the parameter. DeepSpeed
    would then offload the moments into buffers on the GPU. Without the keys it allocates buffers on the host.
    """
    for state in optimizer.state.values():
        for name in [name for name in state if isinstance(name, str) and name.endswith(OFFLOAD_SUFFIX)]:
            del state[name]
