"""No module but ``cpu_host`` assigns an attribute of upstream, of another library, or of an object made elsewhere."""

import json
import subprocess
import sys

import pytest

# What happens in every process of a run: imports, the set-up of the worker, the load of a model.
PROGRAM = """
import importlib, json, pkgutil, sys
from openrlhf_cov.cluster import cpu_host
cpu_host.install()
import openrlhf
import openrlhf_cov.cli, openrlhf_cov.experiments.lab, openrlhf_cov.trainer

LEFT_OUT = ("openrlhf.cli.", "openrlhf.trainer.dpo", "openrlhf.trainer.rm", "openrlhf.trainer.sft")
for module in pkgutil.walk_packages(openrlhf.__path__, "openrlhf."):
    if not module.name.startswith(LEFT_OUT):
        importlib.import_module(module.name)

def bindings():
    found = {}
    for path, module in sorted(sys.modules.items()):
        if path.split(".")[0] == "openrlhf":
            for name, value in vars(module).items():
                found[f"{path}.{name}"] = id(value)
                metadata = getattr(value, "__ray_metadata__", None)
                if metadata is not None:  # the class under Ray's decorator
                    value = metadata.modified_class.__ray_actor_class__
                if isinstance(value, type) and value.__module__ == path:
                    found |= {f"{path}.{name}.{each}": id(part) for each, part in vars(value).items()}
    return found

def changed(before):
    after = bindings()
    return sorted(name for name in before.keys() | after.keys() if after.get(name) != before.get(name))

before = bindings()
for package in (openrlhf_cov.trainer, openrlhf_cov.cli, openrlhf_cov.experiments.lab):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
imported = changed(before)

from openrlhf_cov.cluster.workers import prepare_worker
prepare_worker()
cpu_host.adapt_deepspeed()
cpu_host.accept_fp32()
loaded, once = changed(before), bindings()
prepare_worker()
cpu_host.accept_fp32()
print(json.dumps(dict(modules=len(before), imported=imported, loaded=loaded, again=changed(once))))
"""


@pytest.fixture(scope="module")
def outcome():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_imports_assign_nothing_of_upstream(outcome):
    assert outcome["modules"] > 1000  # names were compared at all
    assert outcome["imported"] == []


@pytest.mark.slow
def test_the_cpu_host_module_assigns_one_name_of_upstream(outcome):
    assert outcome["loaded"] == ["openrlhf.utils.utils.convert_to_torch_dtype"]
    assert outcome["again"] == []
