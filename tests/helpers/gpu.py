"""The device ``gpu`` without a GPU, and what a GPU would refuse or wait for.

``gpu`` is PrivateUse1, the device that PyTorch leaves to others: a build for CPUs has no device guard for ``cuda``, so
autograd refuses it.
"""

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOOK = type("Hook", (backend_registration._DummyPrivateUse1Hook,), {"is_available": lambda self: False})
# Nothing asks for this device but the tests here.
BACKEND = type("Backend", (backend_registration._DummyBackendModule,), {"is_available": lambda self: False})


def gpu_device():
    """The device ``gpu``."""
    if not hasattr(torch, "gpu"):
        backend_registration._setup_privateuseone_for_python_backend("gpu", backend_module=BACKEND(), hook=HOOK())
    return torch.device("gpu", 0)


class BrokenRule(Exception):
    """What a GPU would refuse or wait for."""


class GpuGenerator(torch.Generator):
    """A generator that was asked for on the device; a build for CPUs can make none there."""

    def __new__(cls, device="cpu"):
        if torch.device(device).type == "cpu":
            raise BrokenRule("a generator of the CPU")
        return super().__new__(cls, "cpu")


class Rules(TorchDispatchMode):
    """Raises BrokenRule for mixed devices, and for more than ``reads`` reads of the host; a value read is 1."""

    READS = ("_local_scalar_dense", "equal", "is_nonzero")
    INDEXES = ("index", "index_put", "index_put_", "_unsafe_index")

    def __init__(self, reads: int) -> None:
        super().__init__()
        self.left = reads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name.removeprefix("aten::")
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim() or name in self.INDEXES}
        target = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu")).type
        if name in self.READS:
            if tensors[0].device.type != "cpu":
                self.read(name)
            return {torch.bool: True}.get(tensors[0].dtype, 1 if not tensors[0].is_floating_point() else 1.0)
        if name in ("_to_copy", "copy_"):
            into, out_of = (target, tensors[0].device.type) if name == "_to_copy" else (t.device.type for t in tensors)
            if (into, out_of) == ("cpu", "gpu"):
                self.read(name)
        elif len(devices) > 1:
            raise BrokenRule(f"{name} of tensors on {sorted(devices)}")
        return func(*args, **kwargs)

    def read(self, name: str) -> None:
        if not self.left:
            raise BrokenRule(f"the host reads: {name}")
        self.left -= 1
