"""No module but ``cpu_host`` assigns an attribute of upstream, of another library, or of an object made elsewhere."""

import ast
import json
import subprocess
import sys

import pytest
from rebinding import rebound

# It supplies what a host without an accelerator lacks, before upstream can be imported at all.
CPU_HOST = "cluster/cpu_host.py"

NO_SUBCLASS = "DeepSpeed makes the object, so no subclass can take its place"
SANDBOX = "inside the sandbox for programs: our modules under other names, as the tests of programs import them"

# Module -> what it assigns -> why it may. None of it is upstream's.
REPLACED = {
    "trainer/bad_updates.py": {"optimizer._update_scale": NO_SUBCLASS, "optimizer.step": NO_SUBCLASS},
    "trainer/checkpoint/checkpoints.py": {"setattr(owner, ...)": f"{NO_SUBCLASS}; while a checkpoint is written"},
    "trainer/actor_model.py": {"head.forward": "transformers makes the output head; for the time of a call"},
    "integrations/verl.py": {"engine_class.train_batch": "verl shows a policy loss no optimizer step"},
    "cluster/host/probe.py": {"handler.emit": "a handler of the standard library, made there to keep what is logged"},
    "utils/terminal.py": {"sys.excepthook": "the function that Python calls with an uncaught error"},
    "rewards/code/inside/program.py": {
        "setattr(builtins, ...)": "exit and quit, which Python itself adds for programs",
        "sys.modules[...]": SANDBOX,
        "sys.modules.pop": SANDBOX,
    },
    "rewards/code/inside/testing.py": {"sys.modules[...]": SANDBOX, "sys.modules.update": SANDBOX},
}

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
    found = {path: set(rebound(ours.tree(path))) for path in ours.paths() if path != CPU_HOST}
    assert {path: what for path, what in found.items() if what} == {path: {*why} for path, why in REPLACED.items()}


def test_the_cpu_host_module_assigns_what_its_table_says(ours):
    assert set(rebound(ours.tree(CPU_HOST))) == {
        "torch.cuda.current_device",
        "setattr(torch.cuda, ...)",
        "device_mesh.init_device_mesh",
        "sys.modules[...]",  # stand-ins for flash_attn
        "setattr(TorchBackend, ...)",
        "utils.convert_to_torch_dtype",
        "module.resolve_trust_remote_code",
    }
