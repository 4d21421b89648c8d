import json
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import ray
import torch

from openrlhf_cov.trainer.ray import adapters


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, amount):
        self.value += amount
        return self.value


Plain = adapters.plain_class(ray.remote(Counter))


class Doubling(Plain):
    def add(self, amount):
        return super().add(2 * amount)


def test_a_decorated_actor_can_be_subclassed():
    assert Doubling(10).add(3) == 16  # 10 + 2 * 3


def test_the_plain_class_is_found_by_its_name():
    assert getattr(sys.modules[Plain.__module__], Plain.__qualname__) is Plain
    assert pickle.loads(pickle.dumps(Plain)) is Plain


@pytest.fixture
def upstream_utils(monkeypatch):
    """Upstream's module with its own ``convert_to_torch_dtype``, restored afterwards."""
    from openrlhf.utils import utils

    def convert_to_torch_dtype(param_dtype):
        if param_dtype == "fp32":
            raise ValueError(param_dtype)
        return {"bf16": torch.bfloat16}[param_dtype]

    monkeypatch.setattr(utils, "convert_to_torch_dtype", convert_to_torch_dtype)
    return utils


def test_accept_fp32_adds_a_dtype_and_keeps_the_others(upstream_utils):
    adapters.accept_fp32()
    assert upstream_utils.convert_to_torch_dtype("fp32") == torch.float32
    assert upstream_utils.convert_to_torch_dtype("bf16") == torch.bfloat16
    once = upstream_utils.convert_to_torch_dtype
    adapters.accept_fp32()
    assert upstream_utils.convert_to_torch_dtype is once


@pytest.fixture
def model_with_code(tmp_path):
    """A folder whose configuration is code; the code leaves a file when it is run."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "odd", "auto_map": {"AutoConfig": "code.Odd"}}))
    (folder / "code.py").write_text(
        textwrap.dedent(
            f"""
            from pathlib import Path
            from transformers import PretrainedConfig
            Path({str(tmp_path / "ran")!r}).touch()
            class Odd(PretrainedConfig):
                model_type = "odd"
            """
        )
    )
    return folder


@pytest.mark.parametrize("first", ["import transformers.models.auto.configuration_auto", "pass"])
@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_model_runs_only_where_it_is_trusted(model_with_code, trusted, first):
    # as upstream's actors do it: the flag of transformers is always set
    program = f"""
    {first}
    from openrlhf_cov.trainer.ray import adapters
    adapters.protect_worker()
    from transformers import AutoConfig
    AutoConfig.from_pretrained({str(model_with_code)!r}, trust_remote_code=True)
    """
    env = {**os.environ, adapters.TRUST_VARIABLE: "1"} if trusted else dict(os.environ)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True)
    assert (done.returncode == 0) is trusted, done.stderr
    assert (model_with_code.parent / "ran").exists() is trusted
