"""The file of a checkpoint with the state of the sampler, in a format that cannot run code.

The file is one of safetensors. It holds every tensor of the state, and a text of JSON, as bytes, that says where the
tensors belong. ``torch.load`` would run whatever a pickle in the file names.
"""

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from openrlhf_cov.trainer.records import Group, Sample

# Name of the tensor with the text of JSON, whose size is not limited as that of the file's header is.
STRUCTURE = "structure"
RECORDS = {kind.__name__: kind for kind in (Sample, Group)}
MAX_DEPTH = 100


def write_state(path: Path, state: Any) -> None:
    """Write the state of the sampler.

    Args:
        path: the file to write.
        state: records of ``Sample`` and ``Group``, tensors, arrays, images, and what JSON has, in lists, tuples and
            dicts.

    Raises:
        TypeError: If the state holds a value of another type, whose place the message names.
        OSError: If the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_packed(state, tensors, "state"))
    tensors[STRUCTURE] = torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8)
    path.write_bytes(save(tensors))  # safetensors itself would report a full disk as an error of its own


def read_state(path: Path) -> Any:
    """Return the state that ``write_state`` wrote.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file has another format.
    """
    if not path.is_file():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    try:
        tensors = load_file(path)
        structure = json.loads(tensors[STRUCTURE].numpy().tobytes())
        return _unpacked(structure, tensors)
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no state of a sampler: {type(error).__name__}: {error}") from error


def _packed(value: Any, tensors: dict[str, Tensor], place: str) -> Any:
    """Return what JSON has for a value. An object of JSON has one key, the kind of the value."""
    if value is None or (isinstance(value, bool | int | float | str) and type(value) in (bool, int, float, str)):
        return value
    if place.count("/") > MAX_DEPTH:
        raise TypeError(f"{place} is nested too deep")
    if isinstance(value, list):
        return [_packed(each, tensors, f"{place}/{index}") for index, each in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_packed(each, tensors, f"{place}/{index}") for index, each in enumerate(value)]}
    if isinstance(value, Mapping):  # also what a processor of images returns
        pairs = [[key, _packed(each, tensors, f"{place}/{key}")] for key, each in value.items()]
        unknown = [type(key).__name__ for key, _ in pairs if type(key) not in (str, int, bool, float)]
        if unknown:
            raise TypeError(f"{place} has a key of type {unknown[0]}, which a checkpoint cannot hold")
        return {"dict": pairs}
    if type(value) in RECORDS.values():
        record: Any = value
        named = {entry.name: getattr(record, entry.name) for entry in fields(record)}
        kept = {name: _packed(each, tensors, f"{place}/{name}") for name, each in named.items()}
        return {type(value).__name__: kept}
    if isinstance(value, np.generic):
        return _packed(value.item(), tensors, place)
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Tensor):
        return {"tensor": _stored(value, tensors)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": _stored(torch.from_numpy(np.ascontiguousarray(value)), tensors)}
    if hasattr(value, "save") and hasattr(value, "mode"):  # an image of Pillow, which need not be installed
        content = io.BytesIO()
        image: Any = value
        image.save(content, "PNG")
        return {"image": base64.b64encode(content.getvalue()).decode()}
    raise TypeError(f"{place} is of type {type(value).__name__}, which a checkpoint cannot hold")


def _stored(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    """Add a tensor to those of the file and return its name. A copy, because tensors of a file share no memory."""
    name = str(len(tensors))
    tensors[name] = tensor.detach().cpu().contiguous().clone()
    return name


def _unpacked(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(packed, list):
        return [_unpacked(each, tensors) for each in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    match kind:
        case "tuple":
            return tuple(_unpacked(each, tensors) for each in content)
        case "dict":
            return {key: _unpacked(each, tensors) for key, each in content}
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "tensor":
            return tensors[content]
        case "array":
            return tensors[content].numpy()
        case "image":
            from PIL import Image

            try:
                image = Image.open(io.BytesIO(base64.b64decode(content, validate=True)), formats=["PNG"])
                image.load()
            except (OSError, SyntaxError, Image.DecompressionBombError) as error:
                raise ValueError(f"an image that cannot be read: {error}") from error
            return image
        case str() if kind in RECORDS:
            return RECORDS[kind](**{name: _unpacked(each, tensors) for name, each in content.items()})
    raise ValueError(f"{kind!r:.60} is no kind of a value")
