"""What DeepSpeed cannot do on a host is found before the engines start."""

import pytest
from run_flags import run_flags

from openrlhf_cov.errors import UsageError
from openrlhf_cov.trainer.preflight.check_upstream import check_strategy


def test_architectures_that_deepspeed_cannot_read(gpu_host, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    with pytest.raises(UsageError, match=r"TORCH_CUDA_ARCH_LIST=9\.0a: .* unset the variable"):
        check_strategy(run_flags())
