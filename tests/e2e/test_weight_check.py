"""A run ends if an engine keeps old weights, and the check changes nothing in a run whose engines receive them."""

import os

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.e2e

# A ``sitecustomize.py`` with which the second engine takes part in every transfer and keeps the weights it has.
BREAKS_ENGINE_1 = """
import importlib.abc
import importlib.machinery
import sys

MODULE = "openrlhf_cov.trainer.weights.weight_receiver"


class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        engine = module.GlooWeightTransferEngine
        ours = {name: getattr(engine, name) for name in ("start_weight_update", "finish_weight_update")}
        receive, join = engine.receive_weights, engine.init_transfer_engine

        def init_transfer_engine(self, init_info):
            self.is_broken = init_info.rank_offset == 2  # the trainer is rank 0, engine 0 rank 1
            join(self, init_info)

        def receive_weights(self, update_info):
            if self.is_broken:
                ignore = type("Model", (), {"load_weights": lambda self, named: list(named)})
                model, self.model = self.model, ignore()
            try:
                receive(self, update_info)
            finally:
                if self.is_broken:
                    self.model = model

        def unless_broken(method):
            return lambda self: None if self.is_broken else method(self)

        engine.init_transfer_engine, engine.receive_weights = init_transfer_engine, receive_weights
        for name, method in ours.items():
            setattr(engine, name, unless_broken(method))


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, Finder())
"""


# The patch of an engine needs processes that import all, of two engines: most of a minute. The check itself has the
# tests of tests/trainer/weights/test_weight_check.py; in the last test of this file engines receive their weights.
@pytest.mark.long
def test_an_engine_that_keeps_the_initial_weights_ends_the_run_with_one_line(run_trainer, task, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BREAKS_ENGINE_1)
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    flags = [*task.flags(tmp_path / "run"), "--vllm.num_engines", "2"]
    run = run_trainer(flags, tmp_path / "run", {"PYTHONPATH": path}, status=1)
    (line,) = (line for line in run.stderr.splitlines() if line.startswith("openrlhf-cov train: error: "))
    assert (
        ": error: --train.check_weight_update first: vLLM engine 1 did not receive the new weights of global" in line
    )
    assert "under the policy and by 0 under the engine" in line
    assert not (tmp_path / "run" / "model.safetensors").exists()


# Two whole runs. In ``make test`` no other test compares runs with and without the check.
@pytest.mark.long
def test_the_check_changes_nothing_in_a_run(run_trainer, task, tmp_path, ray):
    runs = {}
    for mode in ("off", "first"):
        flags = [*task.flags(tmp_path / mode), "--rollout_seeded", "--rollout.temperature", "0.8"]
        flags += ["--rollout_limit", "2", "--train.check_weight_update", mode]
        runs[mode] = run_trainer(flags, tmp_path / mode, ray)
    off, first = (
        [{name: value for name, value in line.items() if not name.startswith("timing/")} for line in run.metrics]
        for run in runs.values()
    )
    for line in (*off, *first):
        line.pop("time", None)
    assert first == off
    assert "received the new weights of global step 1" in runs["first"].stdout
    assert "received the new weights" not in runs["off"].stdout
    models = [load_file(tmp_path / mode / "model.safetensors") for mode in runs]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_every_transfer_is_checked_while_engines_generate(run_trainer, task, tmp_path, ray):
    flags = [*task.flags(tmp_path / "run"), "--train.async_enable", "--train.partial_rollout_enable"]
    flags += ["--train.check_weight_update", "always", "--ds.param_dtype", "bf16"]
    run = run_trainer(flags, tmp_path / "run", ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert "--train.check_weight_update always: " in run.stdout
