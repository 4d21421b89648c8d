import pytest

from openrlhf_cov.trainer.ray import evaluation_engines
from openrlhf_cov.trainer.ray.cluster import Needs


@pytest.mark.parametrize(("engines", "parallel", "gpus"), [(1, 1, 1), (3, 1, 3), (1, 4, 4), (2, 4, 8)])
def test_an_engine_needs_a_gpu_for_each_of_its_parts(engines, parallel, gpus):
    needs = evaluation_engines.needs_of_engines(engines, parallel)
    assert needs == Needs(
        [{"GPU": 1.0, "CPU": 1.0}] * gpus,
        training_processes=1,
        way_out="lower --num_engines or --tensor_parallel_size",
    )
