"""Upstream is rebound by ``seams`` alone, when it is told to, and twice is as good as once."""

import ast
import json
import subprocess
import sys

import pytest
from rebinding import rebound

from openrlhf_cov.trainer.ray.seams import ACTOR, DRIVER, REMOTE

REBINDING = {"trainer/ray/seams.py", "trainer/cpu_host.py"}
"""``cpu_host`` supplies what a host without an accelerator lacks, before upstream can be imported at all."""

NO_SUBCLASS = "DeepSpeed makes the object, so no subclass can stand in"
FOR_OUR_LOADER = "no name of upstream's buffer: what our loader asks of it, as it is all that upstream hands a loader"
SANDBOX = "inside of the sandbox for programs: modules that are ours by other names, as tests of programs import them"
REPLACED = {
    "trainer/bad_updates.py": {"optimizer._update_scale": NO_SUBCLASS, "optimizer.step": NO_SUBCLASS},
    "trainer/checkpoints.py": {"setattr(owner, ...)": f"{NO_SUBCLASS}; while a checkpoint is written"},
    "trainer/actor_model.py": {"head.forward": "transformers makes the output head; for the time of a call"},
    "trainer/actor_trainer.py": {
        "self.replay_buffer.steps_of": FOR_OUR_LOADER,
        "self.replay_buffer.dealt": FOR_OUR_LOADER,
    },
    "trainer/ppo_trainer.py": {"self.samples_generator.tokenizer": "data: a reference in the place of a tokenizer"},
    "trainer/old_rollouts.py": {"sample.rewards": "data: the reward of a sample whose reward function abstained"},
    "cli/host/probe.py": {"handler.emit": "the standard library's handler, made there to keep what is logged"},
    "utils/terminal.py": {"sys.excepthook": "what Python calls with an error that nobody catches"},
    "rewards/code/inside/program.py": {
        "setattr(builtins, ...)": "exit and quit, which Python itself puts there for programs",
        "sys.modules[...]": SANDBOX,
        "sys.modules.pop": SANDBOX,
    },
    "rewards/code/inside/testing.py": {"sys.modules[...]": SANDBOX, "sys.modules.update": SANDBOX},
}
"""Module -> what it rebinds -> why it may."""

PROGRAM = """
import importlib, inspect, json, pkgutil, sys
from types import FunctionType, SimpleNamespace
from openrlhf_cov.trainer import cpu_host
cpu_host.install()
import openrlhf_cov.trainer
from openrlhf_cov.config import EngineConfig, RewardConfig
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
args = SimpleNamespace(**vars(RewardConfig()), **vars(CovConfig()), **vars(EngineConfig()),
                       trust_remote_code=False, data=SimpleNamespace(max_len=64),
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


@pytest.mark.parametrize(
    ("code", "found"),
    [
        # attributes of libraries, whatever the value is
        ("import torch\ntorch.cuda.set_device = print", ["torch.cuda.set_device"]),
        ("import openrlhf.trainer.ppo_trainer as upstream\nupstream.X, other = 1, 2", ["upstream.X"]),
        ("import torch\n[other, *torch.x] = 1, 2", ["torch.x"]),
        ("import torch\ntorch.x += 1", ["torch.x"]),
        ("import torch\ndel torch.x", ["torch.x"]),
        ("from openrlhf.utils import utils\nsetattr(utils, 'f', 1)", ["setattr(utils, ...)"]),
        ("from vllm import LLM\nLLM.generate = None", ["LLM.generate"]),
        ("from vllm import LLM\ntype.__setattr__(LLM, 'generate', None)", ["type.__setattr__(LLM, ...)"]),
        ("import openrlhf.models\nmodels = openrlhf.models\nmodels.x = 1", ["models.x"]),
        ("import torch\nvars(torch)['x'] = 1", ["vars(torch)[...]"]),
        ("import torch\ntorch.__dict__.update(x=1)", ["torch.__dict__.update"]),
        # of modules that are looked up
        ("setattr(importlib.import_module(p), 'x', 1)", ["setattr(importlib.import_module(p), ...)"]),
        ("setattr(import_module(p), name, value)", ["setattr(import_module(p), ...)"]),
        ("setattr(sys.modules[p], name, value)", ["setattr(sys.modules[p], ...)"]),
        ("sys.modules[p].X = cls", ["sys.modules[p].X"]),
        ("sys.modules[p].x = 1", ["sys.modules[p].x"]),
        ("def f(p):\n    module = importlib.import_module(p)\n    module.x = 1", ["module.x"]),
        ("if module := sys.modules.get(p):\n    module.x = 1", ["module.x"]),
        ("for module in list(sys.modules.values()):\n    module.x = 1", ["module.x"]),
        ("kind = getattr(importlib.import_module(p), name)\nkind.x = 1", ["kind.x"]),
        ("sys.modules[p] = 1", ["sys.modules[...]"]),
        # methods of objects that somebody else made
        ("def f(): ...\ndef g(thing):\n    thing.method = f", ["thing.method"]),
        ("from openrlhf_cov.utils.masked import f\ndef g(thing):\n    thing.method = f", ["thing.method"]),
        ("def g(thing):\n    thing.method = lambda: 1", ["thing.method"]),
        ("class A:\n    def f(self): ...\n    def g(self, thing):\n        thing.step = self.f", ["thing.step"]),
        ("class A(B):\n    def g(self, thing):\n        thing.step = self.f\n        self.f()", ["thing.step"]),
        ("class A:\n    def f(self): ...\ndef g(thing):\n    thing.step = A().f", ["thing.step"]),
        ("class A:\n    def f(self): ...\n    def g(self):\n        self.a.step = self.f", ["self.a.step"]),
        ("class A:\n    def f(self): ...\n    def g(self):\n        a.x, a.y = self.f, 1", ["a.x"]),
        ("def g(thing):\n    thing.step = partial(f)", ["thing.step"]),
        ("def g(thing):\n    thing.step = functools.partial(f, 1)", ["thing.step"]),
        ("def g(thing):\n    thing.step = types.MethodType(f, thing)", ["thing.step"]),
        ("def g(thing):\n    thing.step = wraps(thing.step)(f)", ["thing.step"]),
        ("def f(): ...\ndef h(): ...\ndef g(a):\n    a.x, a.y = f, h", ["a.x", "a.y"]),
        ("def f(): ...\ndef g(a, b):\n    a.x = b.y = f", ["a.x", "b.y"]),
        ("def f(): ...\ndef g(a):\n    a.x = f if a else None", ["a.x"]),
        ("def g(a):\n    step = partial(f)\n    a.x = step", ["a.x"]),
        ("def g(a, step: Callable[[int], int]):\n    a.x = step", ["a.x"]),
        ("def g(thing, wrap):\n    thing.step = wrap(thing.step)", ["thing.step"]),
        ("def g(thing, wrap):\n    thing.step = wrap(getattr(thing, 'step'), 1)", ["thing.step"]),
        ("def g(thing, wrap):\n    setattr(thing, name, wrap(getattr(thing, name)))", ["setattr(thing, ...)"]),
        ("def f(): ...\ndef g(thing):\n    setattr(thing, 'step', f)", ["setattr(thing, ...)"]),
        ("model.register_forward_hook(f)", ["register_forward_hook"]),
        # classes
        ("def g(module, cls):\n    module.Actor = cls", ["module.Actor"]),
        ("class A: ...\ndef g(thing):\n    thing.kind = A", ["thing.kind"]),
        ("from openrlhf_cov.trainer.actor_model import CovActor\nmodule.actor = CovActor", ["module.actor"]),
        ("def g(thing, cls):\n    thing.__class__ = cls", ["thing.__class__"]),
    ],
)
def test_rebinding_is_recognized(code, found):
    assert list(rebound(ast.parse(code))) == found


OWN = "from openrlhf_cov.models.window import Window\nclass A:\n    def f(self): ...\n"


@pytest.mark.parametrize(
    "code",
    [
        # attributes of the object itself and of its class, whatever they are
        "class A:\n    def f(self): ...\n    def __init__(self, g: Callable):\n        self.g, self.h = g, self.f",
        "class A:\n    def __init__(self, model):\n        self.model, self.Kind = partial(model), model",
        "class A:\n    def g(self):\n        self.f = wraps(self.f)(self.h)\n        setattr(self, name, f(name))",
        "class A: ...\nfor name in names:\n    setattr(A, name, made(name))\nA.kind = lambda: 1",
        "class A:\n    @classmethod\n    def g(cls):\n        cls.step = lambda: 1",
        # objects of ours, and what nobody else has made
        OWN + "def g():\n    a = A()\n    a.step, a.other = partial(f), Window.of(1)",
        OWN + "def g(a: A, window: 'Window | None'):\n    a.step = window.keys = lambda: 1",
        OWN + "def g():\n    window = Window.of(1)\n    window.step = A().f",
        OWN + "class B:\n    def __init__(self):\n        self.a = A()\n        self.a.step = A().f",
        OWN + "class B:\n    a: A\n    def g(self):\n        self.a.step = lambda: 1",
        "module = ModuleType('x')\nmodule.f = lambda: 1\nvars(module).update(y=1)",
        # data of others
        "import torch\nself.x = torch.zeros(3)\nx = torch\nsetattr(args, name, None)\nsetattr(args, 'a', b.c)",
        "import torch\ndef g(args):\n    args.x = torch.zeros(3)\n    y = torch.nn.Linear(1, 2)\n    y.x = args.x",
        "def g(thing, value):\n    thing.x, thing.MAX, thing.y = value, 1, thing.y.copy()",
        "def g(thing, states):\n    thing.value = states.get(KEY, thing.value)\n    thing.count += 1\n    del thing.x",
        "class A:\n    @property\n    def x(self): ...\n    def g(self, thing):\n        thing.x = self.x",
        "class A:\n    def f(self): ...\n    def g(self, thing):\n        thing.result = self.f()",
        "def step(): ...\ndef g(thing, step):\n    thing.x = step",  # a parameter hides the function
        "def g(options):\n    options['x'] = lambda: 1\n    options.update(step=partial(f))",
    ],
)
def test_what_is_nobody_elses_may_be_bound(code):
    assert list(rebound(ast.parse(code))) == []


@pytest.mark.slow
def test_no_other_module_rebinds_what_is_not_its_own(ours):
    found = {path: set(rebound(ours.tree(path))) for path in ours.paths() if path not in REBINDING}
    assert {path: what for path, what in found.items() if what} == {path: {*why} for path, why in REPLACED.items()}


def test_what_our_loader_asks_of_upstreams_buffer_is_no_name_of_upstreams(upstream):
    buffer = upstream.find("trainer/ppo_utils/replay_buffer.py", "NaiveReplayBuffer")
    taken = {getattr(node, "attr", getattr(node, "name", None)) for node in ast.walk(buffer)}
    assert {"items", "append"} <= taken
    assert taken.isdisjoint({"steps_of", "dealt"})
