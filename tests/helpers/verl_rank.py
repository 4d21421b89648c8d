"""One of two ranks of verl, each with half of the samples; ``tests/integrations/test_verl.py`` starts them."""

import json

import pytest
import torch.distributed as dist
import verl_stub
from rank_group import serve
from verl_runs import some_samples, trained_by_verl

from openrlhf_cov.integrations import verl as integration


def main(name: str, settings: dict) -> None:
    """Print the gradient of this rank's log-probs. verl averages gradients over the ranks."""
    integration.register("ours", method=name, method_settings=settings)
    rows = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    gradient, _, _ = trained_by_verl("ours", some_samples(), micro_batch=2, rows=rows, dp_size=2)
    print(json.dumps((gradient / 2).tolist()), flush=True)


if __name__ == "__main__":
    verl_stub.install(pytest.MonkeyPatch())
    dist.init_process_group("gloo")
    serve(main)
