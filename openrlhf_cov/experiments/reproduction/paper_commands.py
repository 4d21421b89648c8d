"""The command lines of an exhibit, as words: data, runs, evaluations, report. All folders are absolute."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import select
from openrlhf_cov.experiments.reproduction.exhibits import Exhibit, PaperRun, Recipe

# Bash: a script that submits by ``ray`` prints its words instead, with NUL between them.
PRINTED = 'ray() { printf "%s\\0" ray "$@"; }; export -f ray; exec "$0" "$@"'
# What a script must not take from the shell that asks for its command.
VARIABLES = (
    *("MODEL", "TEMPLATE", "DATA", "EVAL_DATA", "DATA_DIR", "BENCHMARKS", "SIZE", "LAYOUT", "OUTPUT"),
    *("NODES", "ENGINES", "EPISODES", "EVAL_STEPS"),
)
# The program of the commands of this package.
PROGRAM = "openrlhf-cov"


def command(name: str, *words: str) -> list[str]:
    """Return the words of a command of this package."""
    return [PROGRAM, name, *words]


def prepared(data: Path, recipe: Recipe) -> Path:
    """Return the folder of the training set of a recipe.

    Args:
        data: Folder of training sets.
        recipe: The recipe. Its data and template name the folder, so recipes with equal ones share a training set.
    """
    return data / f"{Path(recipe.data).stem.replace(',', '-')}-{recipe.template}"


def brought(exhibit: Exhibit, data: Path) -> list[Path]:
    """Return the files that the runs of an exhibit read and that no command makes.

    Args:
        exhibit: The exhibit. Only its runs with a recipe read such files.
        data: Folder of training sets, and of benchmarks in ``eval``; it stands in for ``/data`` of the exhibits.
    """
    recipes = [run.recipe for run in exhibit.runs if run.recipe]
    named = dict.fromkeys(name for each in recipes for name in (each.data, *each.variables.values()))
    found = [Path(_below(name, data)) for name in named if name.startswith("/data/")]
    asked = [each for group in _groups(exhibit) for each in select(group)]
    return [*found, *dict.fromkeys(data / "eval" / each.files[0] for each in asked if each.hub is None)]


def benchmark_files(exhibit: Exhibit, data: Path) -> Iterator[list[str]]:
    """Yield the commands that fill the folder of benchmarks, one for each group of named benchmarks.

    Args:
        exhibit: The exhibit, whose recipes name the benchmarks. Groups that are files of the user have no command.
        data: Folder of training sets; the benchmarks are written to ``eval`` in it.
    """
    for group in _groups(exhibit):
        yield command("evaluate", "--benchmarks", group, "--write_data", str(data / "eval"))


def _groups(exhibit: Exhibit) -> list[str]:
    """Return the named groups of benchmarks that the recipes evaluate on."""
    recipes = [run.recipe for run in exhibit.runs if run.recipe]
    groups = dict.fromkeys(each.variables.get("BENCHMARKS", each.benchmarks) for each in recipes)
    return [group for group in groups if not group.startswith("/data/")]


def preparations(exhibit: Exhibit, data: Path) -> Iterator[list[str]]:
    """Yield the commands that make the training sets of an exhibit, each once.

    Args:
        exhibit: The exhibit, whose recipes name the data.
        data: Folder of training sets. The problems of the benchmarks in ``eval`` are left out of them.
    """
    recipes = {prepared(data, run.recipe): run.recipe for run in exhibit.runs if run.recipe}
    for folder, recipe in recipes.items():
        how = ("--template", recipe.template, "--eval_dir", str(data / "eval"), "--eval_ngram", "20")
        yield command("prepare", "--dataset", _below(recipe.data, data), *how, "--output", str(folder))


def submission(scripts: Path, script: str, variables: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """Return the words of the ``ray job submit`` that a script makes; nothing is submitted.

    Args:
        scripts: Folder of the recipes.
        script: Name of the script.
        variables: Environment variables that the script gets; those of ``VARIABLES`` are not taken from this process.
        words: Arguments of the script.

    Raises:
        UsageError: The script does not exist, or it fails.
    """
    path = scripts / script
    if not path.is_file():
        raise UsageError(f"{path} is not there: the paper's scale takes the recipes of a clone; run it in one")
    known = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        ["bash", "-c", PRINTED, str(path.resolve()), *words],
        env=known | dict(variables),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise UsageError(f"{path}: status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout.rstrip("\0").split("\0")


def training(run: PaperRun, scripts: Path, data: Path, output: Path) -> list[str]:
    """Return the words of the ``ray job submit`` of a run at the paper's scale.

    Args:
        run: A run with a recipe.
        scripts: Folder of the recipes.
        data: Folder of training sets, and of benchmarks in ``eval``.
        output: Folder of all runs.
    """
    recipe = run.recipe
    assert recipe is not None
    places = {"DATA": prepared(data, recipe) / "train.jsonl", "EVAL_DATA": data / "eval", "OUTPUT": output / run.name}
    given = {name: _below(value, data) for name, value in recipe.variables.items()}
    variables = given | {name: str(place) for name, place in places.items()}
    return submission(scripts, recipe.script, variables, (*recipe.arguments, *recipe.flags))


def _below(value: str, data: Path) -> str:
    """Return a path of the exhibits in the folder that the reader keeps data in."""
    return value.replace("/data/", f"{data}/")


def laboratory(run: PaperRun, output: Path, steps: int) -> list[str]:
    """Return the command of a run at the tiny scale, in one process.

    Args:
        run: A run with flags of the lab.
        output: Folder of all runs.
        steps: Global steps.
    """
    return command("lab", "--output", str(output / run.tiny_name), "--steps", str(steps), *(run.lab or ()))


def evaluations(exhibit: Exhibit, scripts: Path, data: Path, output: Path) -> Iterator[list[str]]:
    """Yield the evaluations of an exhibit's trained models, and the comparisons with the paper's rows.

    Args:
        exhibit: The exhibit.
        scripts: Folder of the recipes.
        data: Folder of training sets, and of benchmarks in ``eval``.
        output: Folder of all runs.
    """
    for against in exhibit.tables:
        size = against.removeprefix("paper-")
        runs = [output / run.name for run in exhibit.runs if run.recipe and run.recipe.size == size]
        for run in runs:
            places = {"MODEL": run, "DATA_DIR": data / "eval", "OUTPUT": run / "evaluation"}
            variables = {name: str(place) for name, place in places.items()}
            yield submission(scripts, "eval_qwen2.5.sh", variables, (size,))
        yield command(
            "compare", *(str(run / "evaluation") for run in runs), "--against", against, "--grader", "published"
        )
