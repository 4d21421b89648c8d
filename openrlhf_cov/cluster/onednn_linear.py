"""Linear layers in fp32 by oneDNN, for processors on which PyTorch's own choice is slow.

PyTorch multiplies fp32 matrices with Intel's MKL, which uses vectors of 256 bits on AMD's processors even if they have
vectors of 512 bits. PyTorch brings oneDNN along as well, which uses the longer ones. ``cpu_host`` says where this
matters.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# PyTorch's own function, which ``cpu_host.compute_faster`` replaces by ``linear``.
plain_linear = functional.linear


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias`` as ``torch.nn.functional.linear`` does, to rounding.

    Tensors in fp32 on the CPU are multiplied by oneDNN, also in the backward pass, which cannot be differentiated
    again. All others go to PyTorch's function.

    Args:
        input: (..., K).
        weight: (N, K).
        bias: (N,) or None.

    Returns:
        (..., N).
    """
    if _fits(input, weight):
        return _OneDnnLinear.apply(input.flatten(0, -2), weight, bias).unflatten(0, input.shape[:-1])
    return plain_linear(input, weight, bias)


def _fits(input: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN can multiply the two: plain fp32 matrices on the CPU that no autocast changes."""
    return (
        input.dtype == weight.dtype == torch.float32
        and input.device.type == weight.device.type == "cpu"
        and input.dim() > 1
        and input.numel() > 0
        and input.shape[-1:] == weight.shape[1:]
        and not torch.is_autocast_enabled("cpu")
    )


class _OneDnnLinear(torch.autograd.Function):
    """With y = x W^T + b: dx = dy W, dW = dy^T x, and db is the sum of the rows of dy. ``input`` is (rows, K)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return _times_transposed(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *grad_outputs
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        for_input, for_weight, for_bias = ctx.needs_input_grad
        return (
            _times_transposed(gradient, weight.T) if for_input else None,
            _times_transposed(gradient.T, input.T) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


def _times_transposed(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left (M, K) times the transpose of right (N, K), plus the bias (N,): (M, N)."""
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
