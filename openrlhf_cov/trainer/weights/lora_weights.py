"""The weights of a model with LoRA adapters as those of the plain model: names, merged values, the whole state."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn

# Part of a parameter's name that PEFT adds between an adapted layer and the weight of the plain model.
BASE = ".base_layer."


def plain_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name in the plain model, parameter) of every weight that the plain model has, adapters left out.

    A shared parameter is yielded once, under its first name, as ``named_parameters`` does. Modules that PEFT trains
    as a whole (``modules_to_save``) are yielded with their trained copy.
    """
    if not isinstance(model, PeftModel):
        yield from model.named_parameters()
        return
    base = model.get_base_model()
    copies = {name: module for name, module in base.named_modules() if isinstance(module, ModulesToSaveWrapper)}
    adapters = {id(param) for layer in adapted_layers(model).values() for param in adapter_parameters(layer)}
    for name, param in base.named_parameters():
        if id(param) in adapters:
            continue
        wrapper = next((prefix for prefix in copies if name.startswith(f"{prefix}.")), None)
        if wrapper is None:
            yield name.replace(BASE, "."), param
        elif name.startswith(trained := f"{wrapper}.modules_to_save.{copies[wrapper].active_adapter}."):
            yield f"{wrapper}.{name.removeprefix(trained)}", param


def adapted_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Return {name of a weight in the plain model: the layer that adapts it}; empty for a model without LoRA.

    Raises:
        ValueError: An adapted weight is shared, as a tied output head is. The plain model has one weight for both
            places and cannot express an adapter on one of them.
    """
    if not isinstance(model, PeftModel):
        return {}
    base = model.get_base_model()
    uses: dict[int, int] = {}
    for _, param in base.named_parameters(remove_duplicate=False):
        uses[id(param)] = uses.get(id(param), 0) + 1
    layers: dict[str, LoraLayer] = {}
    for name, module in base.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        if uses[id(module.get_base_layer().weight)] > 1:
            raise ValueError(f"{name} has a LoRA adapter and shares its weight with another layer")
        layers[f"{name}.weight"] = module
    return layers


def adapter_parameters(layer: Any) -> list[nn.Parameter]:
    """Return the parameters of a layer's adapters, without the weight that they adapt; none without a layer."""
    if layer is None:
        return []
    return [param for name, param in layer.named_parameters() if not name.startswith(BASE.removeprefix("."))]


@torch.no_grad()
def merged_weight(param: nn.Parameter, layer: Any) -> Tensor:
    """Return W + scale B A as a new tensor of the weight's type, or the weight itself where no adapter changes it.

    The sum is rounded once, from fp32. The weight and its adapters stay as they are.

    Args:
        param: The weight W. With ZeRO-3 the caller gathers it and ``adapter_parameters(layer)`` first.
        layer: The layer that adapts it, a value of ``adapted_layers``; None without one.
    """
    if layer is None:
        return param.data
    total = param.data.float()
    for adapter in layer.active_adapters:
        total = total + layer.get_delta_weight(adapter).float()
    return total.to(param.dtype)


def merged_state_dict(model: PeftModel, zero_stage: int) -> dict[str, Tensor]:
    """Return the state of the plain model with all adapters merged, on the CPU; called on every rank.

    Buffers that belong into a checkpoint are included; a tied head is left out, as the embedding stands for it.

    Args:
        model: The model with adapters, inside of the DeepSpeed engine.
        zero_stage: ``--ds.zero_stage``. At stage 3 the ranks gather each weight from its shards.

    Returns:
        Name in the plain model -> tensor.

    Raises:
        ValueError: See ``adapted_layers``.
    """
    layers = adapted_layers(model)
    state: dict[str, Tensor] = {}
    for name, param in plain_parameters(model):
        with gathered([param, *adapter_parameters(layers.get(name))], zero_stage):
            # A copy: an unadapted weight is the parameter itself, and ZeRO-3 frees it when the context ends.
            state[name] = merged_weight(param, layers.get(name)).detach().cpu().clone()
    base = model.get_base_model()
    parameters = dict(base.named_parameters(remove_duplicate=False))
    buffers = {name: value for name, value in base.state_dict().items() if name not in parameters}
    return state | {name.replace(BASE, "."): value.cpu().clone() for name, value in buffers.items()}


def gathered(params: list[nn.Parameter], zero_stage: int) -> AbstractContextManager:
    """Return a context in which parameters are whole on every rank; with ZeRO-3 all ranks enter it together.

    Args:
        params: The parameters.
        zero_stage: ``--ds.zero_stage``; below 3 the context does nothing, because no parameter is sharded.
    """
    if zero_stage < 3:
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(params)
