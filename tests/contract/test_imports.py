"""Only the modules that may know about upstream, devices and the console do; layers stand in pyproject.toml."""

import ast
import re
import sys

import pytest

from openrlhf_cov.models.methods import METHODS

PURE = ("settings", "config", "errors", "utils", "models")
PURE_IMPORTS = {"torch", "numpy", "psutil"} | sys.stdlib_module_names
LOADS_DATASETS = "utils/hub.py"
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
        if part(path) in PURE and path != LOADS_DATASETS:
            assert foreign_imports(ours.tree(path)) <= PURE_IMPORTS, path


@pytest.mark.parametrize("path", ["config.py", "errors.py"])
def test_settings_and_errors_need_no_torch(ours, path):
    assert foreign_imports(ours.tree(path)) <= set(sys.stdlib_module_names)


def test_only_what_trains_and_cli_import_upstream_and_its_engines(ours):
    for path in modules(ours):
        if part(path) not in ("trainer", "lab", "cli"):
            assert not foreign_imports(ours.tree(path)) & HEAVY, path


def test_arguments_are_parsed_without_a_heavy_import(ours):
    # ``--help`` and a wrong flag answer at once: what these modules import at their top is light
    for path in ("cli/arguments.py", "cli/train_ppo_ray.py", "trainer/cpu_host.py"):
        top = ast.Module(
            body=[n for n in ours.tree(path).body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[]
        )
        assert not foreign_imports(top) & (HEAVY | {"torch", "transformers"}), path


def test_package_init_files_are_empty(ours):
    inits = [path for path in ours.paths() if path.endswith("__init__.py")]
    assert len(inits) >= 6
    # but for the registry: a method is a file and a line there
    assert [path for path in inits if (ours.root / path).read_text()] == ["models/methods/__init__.py"]


def test_only_the_host_module_asks_about_devices(ours):
    for path in modules(ours):
        if path != "trainer/cpu_host.py":
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
        if path not in ("utils/terminal.py", "cli/host/probe.py") and not path.startswith("rewards/code/inside/"):
            calls = {ast.unparse(node.func) for node in ast.walk(ours.tree(path)) if isinstance(node, ast.Call)}
            assert not calls & {"print", "sys.stdout.write", "sys.stderr.write", "argparse.ArgumentParser"}, path


NAMES_METHODS = {
    "cli/demo.py": "how the demo shows each",
    "dashboard/alerts.py": "an alert on Clip-Cov's band",
    "reproduction/exhibits.py": "the paper's runs",
}
"""Modules outside of ``models/methods`` that know a method by its name -> what for."""


def test_methods_are_named_in_their_files_only(ours):
    naming = set()
    for path in modules(ours):
        if not path.startswith("models/methods/"):
            texts = [node.value for node in ast.walk(ours.tree(path)) if isinstance(node, ast.Constant)]
            names = re.compile(rf"(?<!\w)(?:{'|'.join(METHODS)})(?!\w)")
            if any(names.search(text) for text in texts if isinstance(text, str)):
                naming.add(path)
    assert naming == NAMES_METHODS.keys()


def test_a_name_of_a_class_stands_for_one_thing(ours):
    places = {}
    for path in modules(ours):
        for node in ours.tree(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
