"""The preparation of worker processes, and classes under Ray's decorator as base classes."""

import json
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

from openrlhf_cov.cluster.cpu_host import TRUST_VARIABLE, environment, is_cpu_host
from openrlhf_cov.cluster.workers import plain_class
from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor


def test_a_subclass_is_sent_by_its_name_and_upstreams_module_keeps_its_own():
    assert pickle.loads(pickle.dumps(CovRolloutActor)) is CovRolloutActor
    plain = plain_class(RolloutRayActor)
    assert issubclass(CovRolloutActor, plain)
    module = sys.modules[plain.__module__]
    assert module.RolloutRayActor is RolloutRayActor
    assert plain not in vars(module).values()


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


IMPORTED_BEFORE = "import transformers.models.auto.configuration_auto"


@pytest.mark.slow
@pytest.mark.parametrize(("trusted", "first"), [(False, IMPORTED_BEFORE), (False, "pass"), (True, "pass")])
def test_code_of_a_model_runs_only_where_it_is_trusted(model_with_code, trusted, first):
    # as upstream's actors do it: the flag of transformers is always set
    program = f"""
    {first}
    from openrlhf_cov.cluster.workers import prepare_worker
    prepare_worker()
    from transformers import AutoConfig
    AutoConfig.from_pretrained({str(model_with_code)!r}, trust_remote_code=True)
    """
    env = {**os.environ, TRUST_VARIABLE: "1"} if trusted else dict(os.environ)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True)
    assert (done.returncode == 0) is trusted, done.stderr
    assert (model_with_code.parent / "ran").exists() is trusted


@pytest.mark.slow
def test_a_worker_of_a_cpu_host_multiplies_with_the_faster_library_and_compiles_nothing():
    program = """
        import sys
        from openrlhf_cov.cluster import cpu_host
        from openrlhf_cov.cluster.workers import prepare_worker
        cpu_host.onednn_is_faster = lambda: True
        prepare_worker()
        import torch
        print(torch.nn.functional.linear.__module__)

        def double(x):
            return 2 * x
        print(torch.compile(double) is double)
        import deepspeed, vllm
        print("torch._inductor.lowering" in sys.modules)
        from torch._inductor import lowering  # all other modules find it
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    variables = os.environ | environment()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    module, compiles_nothing, has_compiler = done.stdout.split()
    assert ("onednn_linear" in module) is is_cpu_host()
    assert (compiles_nothing == "True") is is_cpu_host()
    assert (has_compiler == "False") is is_cpu_host()
