"""The base policies that come with the package, so that the demo and the lab start without training one.

``scripts/write_base_policies.py`` trains and writes them. A policy is used only where all its settings match those of
the shipped one; any other base policy is trained as before.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from openrlhf_cov.experiments.tiny_task import commands, hidden_skills, programs
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, build_model
from openrlhf_cov.experiments.tiny_task.tokenizer import CHARACTERS, build_tokenizer

FOLDER = Path(__file__).parent / "base_policies"

WORDS = {
    "addition": CHARACTERS,
    "commands": commands.CHARACTERS,
    "code": programs.WORDS,
    "shortcut": hidden_skills.CHARACTERS,
}

# Embedded tasks whose matrices are stored as int8. The policy of the additions has four times the parameters of the
# others together, and the package should stay small.
AS_INT8 = ("addition",)
# Embedded tasks whose policy is stored as it was trained, so that published runs can be repeated from it.
AS_FLOAT32 = ("shortcut",)

# Name of the entry of a file's metadata that holds the settings.
SETTINGS = "settings"

# Added to the name of an int8 matrix: the factors of its rows.
SCALE = ".scale"


def settings_of(task: str, seed: int, config: BasePolicyConfig) -> dict[str, Any]:
    """Return everything that determines the weights of a base policy.

    Args:
        task: Name of an embedded task of the lab.
        seed: Seed of the policy's supervised training.
        config: Architecture and supervised training; any dataclass.
    """
    return {"task": task, "seed": seed, **asdict(config)}


def shipped_policy(
    task: str, seed: int, config: BasePolicyConfig, folder: Path = FOLDER
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase] | None:
    """Return the base policy that comes with the package for these settings.

    Args:
        task: Name of an embedded task of the lab.
        seed: Seed of the policy's supervised training.
        config: Architecture and supervised training of the policy.
        folder: Folder with the files that ``write_shipped_policy`` wrote.

    Returns:
        The policy in fp32 on the CPU, with its tokenizer; None if no shipped policy has exactly these settings.
    """
    path = folder / f"{task}.safetensors"
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        # The name of the task is not enough: the caller may ask for other sizes or another seed.
        if json.loads(file.metadata()[SETTINGS]) != settings_of(task, seed, config):
            return None
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    tokenizer = build_tokenizer(config.max_length, WORDS[task])
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, tokenizer)
    # A tied output matrix is not stored; the model keeps it equal to the embeddings.
    model.load_state_dict(_restored(stored), strict=not config.tied)
    return model.eval(), tokenizer


def write_shipped_policy(
    model: LlamaForCausalLM, task: str, seed: int, config: BasePolicyConfig, folder: Path = FOLDER
) -> Path:
    """Write a trained base policy to the folder from which ``shipped_policy`` reads it, and return the file.

    Values are stored as float16, those of the tasks in ``AS_FLOAT32`` as float32. The matrices of the tasks in
    ``AS_INT8`` are int8 with one float16 factor a row.

    Args:
        model: The policy.
        task: Name of the embedded task.
        seed: Seed with which the policy was trained.
        config: Architecture and supervised training of the policy.
        folder: Folder of the files; it is created if it does not exist.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tied:
            continue
        if task in AS_INT8 and value.dim() == 2:
            # Rounded before the division, so that the integers belong to the factor that is stored.
            scale = (value.abs().amax(dim=1, keepdim=True) / 127).half()
            tensors[name] = (value / scale.float()).round().clamp(-127, 127).to(torch.int8)
            tensors[name + SCALE] = scale
        else:
            tensors[name] = value.clone() if task in AS_FLOAT32 else value.half()
    path = folder / f"{task}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={SETTINGS: json.dumps(settings_of(task, seed, config))})
    path.chmod(0o644)  # the library writes files that nobody else can read
    return path


def _restored(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights in fp32, with int8 matrices multiplied by the factors of their rows."""
    weights = {name: value.float() for name, value in stored.items() if not name.endswith(SCALE)}
    for name, scale in stored.items():
        if name.endswith(SCALE):
            weights[name.removesuffix(SCALE)] *= scale.float()
    return weights
