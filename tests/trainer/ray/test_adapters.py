import pickle
import sys

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
