"""The folders of the tests are those of the package: who knows a module finds its tests, and the other way round."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Tests of what is outside the package, and tests of many packages at once.
OTHERS = {"benchmarks", "contract", "docs", "e2e", "examples", "scripts"}


def mirrored():
    """Return the test files below a folder that is named after a package."""
    files = sorted(file.relative_to(TESTS) for file in TESTS.rglob("test_*.py"))
    return [file for file in files if file.parts[0] not in OTHERS and len(file.parts) > 1]


def imports(text, module):
    """Return True if the text of a test file imports a module, or names from it."""
    package = ".".join(("openrlhf_cov", *module.parent.parts))
    names = r"(?:\([^)]*|.*)"  # those in front of the module's
    return bool(
        re.search(rf"^ *from {package}(?:\.{module.stem} import| import {names}\b{module.stem}\b)", text, re.M)
    )


def test_every_folder_is_a_package(ours):
    for folder in {file.parent for file in mirrored()}:
        assert f"{folder}/__init__.py" in ours.paths(), f"tests/{folder}: there is no package openrlhf_cov/{folder}"


def test_a_file_with_the_name_of_a_module_lies_in_the_folder_of_its_package(ours):
    modules = [Path(path) for path in ours.paths()]
    for file in mirrored():
        # tests/cli/test_dry_run.py tests openrlhf_cov/trainer/preflight/dry_run.py through its command.
        if file.parts[0] == "cli":
            continue
        subject = file.stem.removeprefix("test_")
        # test_weight_check.py and test_weight_check_of_ranks.py have the name of weight_check.py.
        named = [module for module in modules if f"{subject}_".startswith(f"{module.stem}_")]
        text = (TESTS / file).read_text(encoding="utf-8")
        packages = {module.parent for module in named if imports(text, module)}
        where = " or ".join(f"tests/{package}" for package in sorted(packages))
        assert not packages or file.parent in packages, f"tests/{file} belongs in {where}"
