"""Linear layers in fp32 by oneDNN, for processors on which PyTorch's own choice is slow.

MKL and oneDNN are two libraries that PyTorch includes. It multiplies fp32 matrices with MKL, which uses 256
of the 512 bits of the vectors of AMD's processors. oneDNN uses all of them. ``cpu_host`` decides which hosts use it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# PyTorch's own function, which ``cpu_host.compute_faster`` replaces by ``linear``.
plain_linear = functional.linear


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias`` as ``torch.nn.functional.linear`` does, to rounding.

    oneDNN multiplies tensors in fp32 on the CPU, also in the backward pass. All others go to PyTorch's function.

    Args:
        input: (..., K).
        weight: (N, K).
        bias: (N,) or None.

    Returns:
        (..., N).
    """
    if _fits(input, weight, bias):
        rows = input.flatten(0, -2).contiguous()
        return _OneDnnLinear.apply(rows, weight, bias).unflatten(0, input.shape[:-1])
    return plain_linear(input, weight, bias)


def _fits(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return True for tensors that oneDNN can multiply, unless autocast or a transform of ``torch.func`` is active."""
    return (
        all(_is_plain(tensor) for tensor in (input, weight, bias) if tensor is not None)
        and input.dim() > 1
        and input.shape[-1:] == weight.shape[1:]
        and min(input.numel(), weight.numel()) > 0
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
    )


def _is_plain(tensor: Tensor) -> bool:
    """Return True for a dense fp32 tensor on the CPU that is of no subclass, such as a distributed tensor."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
    )


class _OneDnnLinear(torch.autograd.Function):
    """Return y = x W^T + b for x (M, K), W (N, K) and b (N,) or None.

    Its gradients are dx = dy W, dW = dy^T x, and the sum of the rows of dy for b. They can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        for_x, for_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if for_weight else None, weight if for_x else None)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *grad_outputs
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            _OneDnnLinear.apply(gradient, weight.T, None) if for_x else None,
            _OneDnnLinear.apply(gradient.T, x.T, None) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )
