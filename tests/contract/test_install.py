"""Upstream is rebound by ``seams`` alone, when it is told to, and twice is as good as once."""

import ast
import json
import subprocess
import sys

import pytest

from openrlhf_cov.trainer.ray.seams import ACTOR, DRIVER, REMOTE

LIBRARIES = {"openrlhf", "vllm", "deepspeed", "ray", "transformers", "torch", "wandb"}
REBINDING = {"trainer/ray/seams.py", "trainer/cpu_host.py"}
"""``cpu_host`` supplies what a host without an accelerator lacks, before upstream can be imported at all."""

REPLACED = {
    ("trainer/bad_updates.py", "optimizer._update_scale"),
    ("trainer/bad_updates.py", "optimizer.step"),
    ("trainer/checkpoints.py", "setattr(owner, ...)"),
    ("trainer/actor_model.py", "head.forward"),
    ("cli/host/probe.py", "handler.emit"),
    ("utils/terminal.py", "sys.excepthook"),
    ("rewards/code/inside/testing.py", "pytest.param"),
    ("rewards/code/inside/testing.py", "numpy.allclose"),
    ("rewards/code/inside/remote.py", "setattr(Remote, ...)"),
    ("rewards/code/inside/program.py", "setattr(builtins, ...)"),
}
"""Methods of objects that DeepSpeed and transformers make, so no subclass can stand in (the output head's, for
a call); of the standard library's; and, inside of the sandbox for programs, modules that are ours by other names, as
tests of programs import them."""

PROGRAM = """
import importlib, inspect, json, pkgutil, sys
from types import FunctionType, SimpleNamespace
from openrlhf_cov.trainer import cpu_host
cpu_host.install()
import openrlhf_cov.trainer
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.trainer.ray import seams

tables = (seams.REMOTE, seams.DRIVER, seams.ACTOR)
paths = sorted({f"openrlhf.{path}" for table in tables for path in table} | {"openrlhf.trainer.ray.vllm_engine"})
for path in paths:
    importlib.import_module(path)

def bindings():
    found = {}
    for path, module in sorted(sys.modules.items()):
        if path.split(".")[0] == "openrlhf":
            for name, value in vars(module).items():
                found[f"{path}.{name}"] = id(value)
                if isinstance(value, type) and value.__module__ == path:
                    found |= {f"{path}.{name}.{each}": id(part) for each, part in vars(value).items()}
    return found

def changed(before):
    after = bindings()
    return sorted(name for name in before if after.get(name) != before[name])

before = bindings()
for module in pkgutil.walk_packages(openrlhf_cov.trainer.__path__, "openrlhf_cov.trainer."):
    importlib.import_module(module.name)
imported = changed(before)

originals = {(p, n): getattr(sys.modules[f"openrlhf.{p}"], n) for t in tables for p, ns in t.items() for n in ns}
args = SimpleNamespace(**vars(RewardConfig()), **vars(CovConfig()), trust_remote_code=False,
                       ds=SimpleNamespace(param_dtype="fp32"),
                       vllm=SimpleNamespace(sync_backend="nccl"))
seams.install_driver(args)
installed, once = changed(before), bindings()
seams.install_driver(args)
seams.install_actor()

def plain(value):
    metadata = getattr(value, "__ray_metadata__", None)
    return metadata.modified_class.__ray_actor_class__ if metadata else value

strangers = [name for (path, name), theirs in originals.items() if isinstance(plain(theirs), type)
             and not issubclass(plain(getattr(sys.modules[f"openrlhf.{path}"], name)), plain(theirs))]
options = [name for (path, name), theirs in originals.items() if hasattr(theirs, "_default_options")
           and getattr(sys.modules[f"openrlhf.{path}"], name)._default_options != theirs._default_options]

def names(function):
    found = [str(each).split(":")[0].split("=")[0] for each in inspect.signature(function).parameters.values()]
    return [each for each in found if each != "_ray_trace_ctx"]  # Ray's

overridden, foreign = [], []
for (path, name), theirs in originals.items():
    ours = plain(getattr(sys.modules[f"openrlhf.{path}"], name))
    order = ours.__mro__ if isinstance(ours, type) else ()
    for place, owner in enumerate(order):
        for method, function in vars(owner).items() if owner.__module__.startswith("openrlhf_cov.") else ():
            found = [vars(base)[method] for base in order[place + 1:]
                     if base.__module__.startswith("openrlhf.") and method in vars(base)]
            if found and isinstance(function, FunctionType):
                overridden.append(f"{owner.__name__}.{method}")
                taken, passed = names(function), names(found[0])
                named, needed = ([each for each in some if each[0] != "*"] for some in (taken, passed))
                if named != needed[:len(named)] or not (named == needed or {"*args", "**kwargs"} <= set(taken)):
                    foreign.append([overridden[-1], taken, passed])
print(json.dumps(dict(imported=imported, installed=installed, again=changed(once), strangers=strangers,
                      options=options, overridden=overridden, foreign=foreign)))
"""


@pytest.fixture(scope="module")
def outcome():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_imports_rebind_nothing(outcome):
    # the name of a class under Ray's decorator is ``plain_class``'s; its module gets another name for it
    assert [name for name in outcome["imported"] if not name.endswith(".__qualname__")] == []


@pytest.mark.slow
def test_what_is_installed_is_the_tables(outcome):
    expected = {
        f"openrlhf.{path}.{name}" for table in (REMOTE, DRIVER, ACTOR) for path in table for name in table[path]
    }
    expected.add("openrlhf.trainer.ray.vllm_engine.RolloutRayActor")
    parts_of_classes = {name for name in outcome["installed"] if name.rsplit(".", 1)[0] in expected}
    assert set(outcome["installed"]) - parts_of_classes == expected


@pytest.mark.slow
def test_twice_is_as_good_as_once(outcome):
    assert outcome["again"] == ["openrlhf.trainer.ray.vllm_engine.RolloutRayActor"]  # with the latest settings


@pytest.mark.slow
def test_what_stands_in_for_a_class_derives_from_it_and_asks_for_the_same_gpus(outcome):
    assert outcome["strangers"] == outcome["options"] == []


@pytest.mark.slow
def test_overrides_take_what_upstream_passes(outcome):
    assert {"CovPolicyActor.forward", "StepLogging.train_step", "CovStrategy.load_ckpt"} <= set(outcome["overridden"])
    assert outcome["foreign"] == []


def foreign_names(tree):
    """Names that a module binds to something of a library, by import or by assignment from such a name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            for alias in node.names:
                if (module or alias.name).split(".")[0] in LIBRARIES:
                    found.add(alias.asname or alias.name.split(".")[0])
    return found


def root(node):
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", None)


def rebound(tree):
    """What a module assigns to attributes of libraries, and the methods of objects that it replaces, as written."""
    foreign = foreign_names(tree)
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = [node.target] if hasattr(node, "target") else node.targets
            parts = [part for target in targets for part in getattr(target, "elts", [target])]
            value = getattr(node, "value", None)
            callable_ = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions)
            for part in parts:
                if isinstance(part, ast.Attribute) and (root(part) in foreign or callable_):
                    yield ast.unparse(part)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("setattr", "delattr"):
            wrapped = isinstance(node.args[-1], ast.Call)  # a method that is replaced by what is made of it
            if root(node.args[0]) in foreign or (wrapped and len(node.args) == 3):
                yield f"setattr({ast.unparse(node.args[0])}, ...)"
        elif isinstance(node, ast.Attribute) and node.attr in ("register_forward_hook", "register_forward_pre_hook"):
            yield node.attr


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch\ntorch.cuda.set_device = print", ["torch.cuda.set_device"]),
        ("import openrlhf.trainer.ppo_trainer as upstream\nupstream.X, other = 1, 2", ["upstream.X"]),
        ("from openrlhf.utils import utils\nsetattr(utils, 'f', 1)", ["setattr(utils, ...)"]),
        ("from vllm import LLM\nLLM.generate = None", ["LLM.generate"]),
        ("def f(): ...\ndef g(thing):\n    thing.method = f", ["thing.method"]),
        ("def g(thing):\n    thing.method = lambda: 1", ["thing.method"]),
        ("def g(thing, wrap):\n    setattr(thing, name, wrap(getattr(thing, name)))", ["setattr(thing, ...)"]),
        ("model.register_forward_hook(f)", ["register_forward_hook"]),
        ("import torch\nself.x = torch.zeros(3)\nx = torch\nsetattr(args, name, None)\nsetattr(args, 'a', b.c)", []),
    ],
)
def test_rebinding_is_recognized(code, found):
    assert list(rebound(ast.parse(code))) == found


@pytest.mark.slow
def test_no_other_module_rebinds_a_name_of_a_library_or_replaces_a_method(ours):
    found = {(path, what) for path in ours.paths() if path not in REBINDING for what in rebound(ours.tree(path))}
    assert found == REPLACED
