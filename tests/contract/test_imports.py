"""Only the modules that may know about upstream, devices and the console do; layers stand in pyproject.toml."""

import ast
import re
import sys

import pytest
from upstream_uses import imported_names, is_upstream

from openrlhf_cov.models.methods import METHODS

PURE = ("settings", "config", "errors", "utils", "models")
PURE_IMPORTS = {"torch", "numpy", "psutil"} | sys.stdlib_module_names
# Adapters import the package of their tracker when a run chooses it; records are checked by pydantic.
OTHER_IMPORTS = ("utils/trackers.py", "utils/record_checks.py")
HEAVY = {"openrlhf", "ray", "vllm", "deepspeed"}


def part(path):
    """Top-level part of the package: ``models/loss.py`` -> models, ``config.py`` -> config."""
    return path.split("/")[0].removesuffix(".py")


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def foreign_imports(tree):
    return {name.split(".")[0] for name in imports(tree)} - {"openrlhf_cov"}


def modules(ours):
    return [path for path in ours.paths() if path != "__init__.py"]


def test_pure_modules_import_torch_numpy_and_the_standard_library_only(ours):
    for path in modules(ours):
        if part(path) in PURE and path not in OTHER_IMPORTS:
            assert foreign_imports(ours.tree(path)) <= PURE_IMPORTS, path


@pytest.mark.parametrize("path", ["config.py", "errors.py"])
def test_settings_and_errors_need_no_torch(ours, path):
    assert foreign_imports(ours.tree(path)) <= set(sys.stdlib_module_names)


def test_only_training_and_the_packages_above_it_import_upstream_and_its_engines(ours):
    for path in modules(ours):
        if part(path) not in ("trainer", "cluster", "experiments", "cli"):
            assert not foreign_imports(ours.tree(path)) & HEAVY, path


def test_no_two_files_have_one_name(ours):
    """A file of a package is found by its name alone; the files of the root folder are not in a package."""
    names = [path.rpartition("/")[2] for path in modules(ours) if "/" in path and not path.endswith("__init__.py")]
    assert sorted(names) == sorted(set(names))


# Modules of upstream with its training loops, and with what belongs to them alone.
UPSTREAMS_LOOP = {
    "cli/train_ppo_ray.py",
    "datasets/prompts_dataset.py",
    "trainer/ppo_trainer.py",
    "trainer/ppo_trainer_async.py",
    "trainer/ppo_utils/experience.py",
    "trainer/ppo_utils/experience_maker.py",
    "trainer/ppo_utils/replay_buffer.py",
    "trainer/ppo_utils/samples_generator.py",
    "trainer/ray/ppo_actor.py",
    "trainer/ray/ppo_critic.py",
}


def test_upstreams_trainers_are_imported_to_send_weights_only(ours, upstream):
    assert set(upstream.paths()) >= UPSTREAMS_LOOP
    found = {
        (path, *name)
        for path in modules(ours)
        for name in imported_names(ours.tree(path), upstream).values()
        if name[0] in UPSTREAMS_LOOP
    }
    assert found == {
        ("trainer/ray/upstream_sender.py", "trainer/ray/ppo_actor.py", "ActorPPOTrainer"),
        # A function without state, which makes the text of a prompt from a row.
        ("trainer/rollout/prompts.py", "datasets/prompts_dataset.py", "preprocess_data"),
    }


def test_modules_of_upstream_are_imported_by_statements_only(ours):
    # A module that is looked up by a string would not be seen by the tests that read imports.
    for path in modules(ours):
        for node in ast.walk(ours.tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.fullmatch(r"openrlhf(\.\w+)+", node.value), (path, node.value)
            if isinstance(node, ast.ImportFrom) and is_upstream(node.module or ""):
                assert "*" not in {alias.name for alias in node.names}, path


# The whole algorithm of a training.
ALGORITHM = ("trainer/loop.py", "trainer/update.py", "trainer/advantages.py")
MOST_LINES = 600


@pytest.mark.parametrize("path", ALGORITHM)
def test_the_algorithm_is_no_override_of_other_code(ours, path):
    nodes = list(ast.walk(ours.tree(path)))
    assert "super" not in {node.id for node in nodes if isinstance(node, ast.Name)}
    assert [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases] == []


def test_the_algorithm_can_be_read_in_ten_minutes(ours):
    lines = {path: len((ours.root / path).read_text(encoding="utf-8").splitlines()) for path in ALGORITHM}
    assert sum(lines.values()) <= MOST_LINES, lines


def test_arguments_are_parsed_without_a_heavy_import(ours):
    # ``--help`` and a wrong flag answer at once: what these modules import at their top is light
    for path in ("trainer/flags/parser.py", "cli/train_ppo_ray.py", "cluster/cpu_host.py"):
        top = ast.Module(
            body=[n for n in ours.tree(path).body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[]
        )
        assert not foreign_imports(top) & (HEAVY | {"torch", "transformers"}), path


def test_package_init_files_hold_no_code(ours):
    inits = [path for path in ours.paths() if path.endswith("__init__.py")]
    assert len(inits) >= 6
    # A docstring may say what belongs in the package. The registry of the methods alone is code.
    with_code = [path for path in inits if any(not is_docstring(node) for node in ours.tree(path).body)]
    assert with_code == ["models/methods/__init__.py"]


def is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_only_the_host_module_asks_about_devices(ours):
    for path in modules(ours):
        if path != "cluster/cpu_host.py":
            nodes = list(ast.walk(ours.tree(path)))
            attributes = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
            words = {name for attribute in attributes for name in attribute.split(".")}
            words |= {node.id for node in nodes if isinstance(node, ast.Name)}
            assert not {a for a in attributes if a.startswith("torch.cuda")}, path
            assert not words & {"is_available", "cuda"}, path


def test_everything_is_said_in_one_place(ours):
    # utils/terminal.py makes it printable; the probe of doctor writes lines of JSON to a pipe; what runs inside of the
    # sandbox for programs has nothing of this package around it
    for path in modules(ours):
        if path not in ("utils/terminal.py", "cluster/host/probe.py") and not path.startswith("rewards/code/inside/"):
            calls = {ast.unparse(node.func) for node in ast.walk(ours.tree(path)) if isinstance(node, ast.Call)}
            assert not calls & {"print", "sys.stdout.write", "sys.stderr.write", "argparse.ArgumentParser"}, path


METHOD_FILES = "models/methods/"
# Modules with the judge of programs and the data set of that name, or prime numbers.
OTHER_PRIMES = (
    "config.py",
    "data/inputs.py",
    "rewards/code/comparison.py",
    "rewards/code/datasets.py",
    "rewards/code/inside/program.py",
    "rewards/maths/latex.py",
    "rewards/maths/normalization.py",
)
UPSTREAMS_DR_GRPO = (
    "models/responses.py",
    "models/methods/rs_grpo.py",
    "trainer/flags/normalise.py",
    "trainer/flags/upstream.py",
)
# Modules that know a method by its name, other than its own file -> what for.
NAMES_METHODS = {
    "cli/demo.py": "how the demo shows each",
    "cli/methods.py": "an example of the command",
    "models/config.py": "--cov_type is another way to choose the paper's two",
    "trainer/flags/presets.py": "presets of the paper",
    "analysis/dashboard/alerts.py": "an alert on Clip-Cov's band",
    "integrations/trl_options.py": "options of TRL that a method stands for, say the messages that refuse them",
    "integrations/verl.py": "an example in its docstring",
    "models/methods/__init__.py": "the registry",
    "models/methods/w_reinforce.py": "a weight of 0 is NSR, says the message that refuses it",
    "experiments/reproduction/exhibits.py": "the paper's runs",
    **dict.fromkeys(UPSTREAMS_DR_GRPO, "upstream's estimator of the same name"),
    **dict.fromkeys(OTHER_PRIMES, "another PRIME, or prime numbers"),
}

NAME = re.compile(rf"(?<!\w)(?:{'|'.join(METHODS)})(?!\w)")
# Fields of a ``Method`` that say which one it is, not what it does.
IDENTITY = {"name", "title", "flag", "source"}


def methods_named(tree, own=None):
    """Names of methods in the strings of a module; in the file of a method, ``own``, those of others, prose aside."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} if own else set()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose]
    return {name for node in nodes if isinstance(node.value, str) for name in NAME.findall(node.value)} - {own}


def identity_questions(tree):
    """Comparisons by which the file of a method asks which other one it meets, as written."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    files = [node for node in nodes if f"{node.module}.".startswith("openrlhf_cov.models.methods.")]
    others = {alias.asname or alias.name for node in files for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.Match):
            compared = [node.subject] if isinstance(node, ast.Match) else [node.left, *node.comparators]
            parts = [part for each in compared for part in ast.walk(each)]
            if any(getattr(part, "attr", None) in IDENTITY or getattr(part, "id", None) in others for part in parts):
                yield " ".join(map(ast.unparse, compared))


@pytest.mark.parametrize(
    ("code", "named", "questions"),
    [
        ("settings.estimator.name == 'nsr'", {"nsr"}, ["settings.estimator.name 'nsr'"]),
        ("settings.method in ('psr', 'nsr')", {"psr", "nsr"}, []),
        ("settings.estimator.title == 'NSR'", set(), ["settings.estimator.title 'NSR'"]),
        ("match other.name:\n    case 'nsr': ...", {"nsr"}, ["other.name"]),
        ("f'{a} beside nsr; drop one'", {"nsr"}, []),
        ("getattr(settings, 'positive_weight')", {"positive_weight"}, []),
        (
            "from openrlhf_cov.models.methods import psr\nx = settings.estimator is psr.METHOD",
            set(),
            ["settings.estimator psr.METHOD"],
        ),
        (
            "from openrlhf_cov.models.methods.psr import estimate as theirs\nx = a.estimate == theirs",
            set(),
            ["a.estimate theirs"],
        ),
        # its own name, what another one offers, prose, and properties of the one that it meets
        ("METHOD = Method(name='qae')\nx = '--method qae changes nothing'", set(), []),
        ("from openrlhf_cov.models.methods import psr\nMETHOD = replace(psr.METHOD, plan=psr.plan)", set(), []),
        ("'''As nsr, but for psr.'''\nx = 1\n'''Not that of nsr.'''\ndef f():\n    '''That of nsr.'''", set(), []),
        ("x = f'beside {settings.estimator.name}' if settings.estimator.one_sided else None", set(), []),
        ("x = settings.estimator is not None and 'kl_cov_ratio' != 'unsr'", set(), []),
    ],
)
def test_naming_another_method_is_recognized(code, named, questions):
    tree = ast.parse(code)
    assert methods_named(tree, own="qae") == named
    assert list(identity_questions(tree)) == questions


def test_methods_are_named_in_their_files_only(ours):
    own = {path: path.removeprefix(METHOD_FILES).removesuffix(".py") for path in modules(ours) if METHOD_FILES in path}
    naming = {path for path in modules(ours) if methods_named(ours.tree(path), own.get(path))}
    assert naming == NAMES_METHODS.keys()
    assert {path: found for path in own if (found := list(identity_questions(ours.tree(path))))} == {}


def test_a_name_of_a_class_stands_for_one_thing(ours):
    places = {}
    for path in modules(ours):
        for node in ours.tree(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
