"""Read a study from its YAML file. Every field is checked before anything runs (pure).

    title: Which methods pay where exploration decides?
    task: commands                     # an embedded task
    flags: --steps 200 --updates 8     # of every run
    seeds: [0, 1, 2, 3, 4, 5, 6, 7]    # of what is reported
    tuning:
      seeds: [100]                     # of every cell of an arm's grid
      finalists: 3                     # the best cells ...
      final_seeds: [101]               # ... run again with these; the best of them is the arm's point
      grid: {--actor.adam.lr: [3e-5, 1e-4, 3e-4]}
    arms:
      - name: GRPO
        grid: {--actor.eps_clip_low_high: [0.1 0.1, 0.2 0.2, 0.4 0.4]}
      - name: wide clip
        flags: --actor.eps_clip_low_high 0.3 0.3
        grid: {--actor.entropy_coef: [0, 1e-2]}
      - name: wide clip in small micro-batches
        flags: --train.micro_batch_size 16
        at: wide clip                  # its flags and its point, not tuned anew
        tier: 2                        # runs when all of tier 1 have

A cell is one value of every entry of an arm's grid and the common one. The first arm is what others are compared with.

Three more fields are for tasks that a run either learns or does not:

    base_policies: 3                   # seed s begins with the base policy s modulo 3
    learned: 0.5                       # accuracy from which a run has learned the task
    sweep:                             # values that are run for every arm, at its point
      grid: {--shortcut_share: [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]}
      bisect: true                     # per seed, search the last value that is learned; else run all values
"""

import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.study.spec import Arm, Cell, Spec, Sweep, Tuning, slug
from openrlhf_cov.utils.json_lines import regular, valid_text
from openrlhf_cov.utils.record_checks import STRICT, checked_value, short

# Limits: bytes of a file, configurations of an arm, runs of a study, letters of a folder's name.
MAX_BYTES = 2**16
MAX_CELLS = 1000
MAX_RUNS = 10_000
MAX_LETTERS = 200


def _words(text: Any) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise ValueError(f"must be a line of flags as a shell takes it; got {short(text)}")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"must be a line of flags as a shell takes it ({error}); got {short(text)}") from error


def _value(value: Any) -> str:
    """Return a value of a flag as text. YAML reads some of them as numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not _words(str(value)):
        raise ValueError(f"must be a number or words; got {short(value)}")
    return str(value)


def _flag(name: str) -> str:
    if not name.startswith("--") or " " in name:
        raise ValueError(f"must be a flag, such as --actor.adam.lr; got {short(name)}")
    return name


def _name(name: str) -> str:
    if not name.isprintable() or not 1 <= len(slug(name)) <= MAX_LETTERS:
        raise ValueError(f"must have 1 to {MAX_LETTERS} letters or digits; got {short(name)}")
    return name


def _distinct(numbers: list[int]) -> list[int]:
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"must have each number once; got {short(numbers)}")
    return numbers


Count = Annotated[int, Ge(1)]
Seeds = Annotated[list[Annotated[int, Ge(0), Lt(2**31)]], AfterValidator(_distinct)]
# The words of a line of flags, and each flag of a grid with its values as a command line has them.
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Values = Annotated[list[Annotated[str, BeforeValidator(_value)]], MinLen(1)]
Grid = dict[Annotated[str, AfterValidator(_flag)], Values]


class _Fields(BaseModel):
    model_config = ConfigDict(**STRICT)


class ArmFields(_Fields):
    """An arm of the file."""

    name: Annotated[str, AfterValidator(_name)]
    flags: Words = ()
    grid: Grid | None = None
    at: str | None = None
    tier: Count = 1
    seeds: Annotated[Seeds, MinLen(1)] | None = None


class TuningFields(_Fields):
    """The fields that say how settings are selected."""

    seeds: Seeds = []
    finalists: Count = 1
    final_seeds: Seeds = []
    grid: Grid | None = None


class SweepFields(_Fields):
    """Values that are run for every arm."""

    grid: Grid
    bisect: bool = False

    @model_validator(mode="after")
    def check_bisected(self) -> "SweepFields":
        """Raise ValueError for a bisection of anything but 1, 3, 7, ... increasing positive numbers of one flag."""
        if not self.bisect:
            return self
        if len(self.grid) != 1:
            raise ValueError(f"bisect takes the values of one flag; got {short(list(self.grid))}")
        [values] = self.grid.values()
        try:
            numbers = [float(value) for value in values]
        except ValueError as error:
            raise ValueError(f"bisect takes numbers; got {short(values)}") from error
        if not numbers[0] > 0 or any(not after > before for before, after in itertools.pairwise(numbers)):
            raise ValueError(f"bisect takes positive numbers that increase; got {short(values)}")
        if len(numbers) & (len(numbers) + 1):
            raise ValueError(f"bisect takes 1, 3, 7, 15, ... values; got {len(numbers)}")
        return self


class SpecFields(_Fields):
    """The fields of the file."""

    title: str
    about: str = ""
    task: str
    engine: Literal["lab", "ray"] = "lab"
    needs: Words = ()
    flags: Words = ()
    validation: Words = ()
    test: Words = ()
    seeds: Annotated[Seeds, MinLen(1)]
    tuning: TuningFields | None = None
    arms: Annotated[list[ArmFields], MinLen(1)]
    base_policies: Annotated[int, Ge(1), Le(100)] = 1
    learned: Annotated[float, Gt(0), Le(1)] | None = None
    sweep: SweepFields | None = None


class _OneOfEach(yaml.SafeLoader):
    """A YAML loader that refuses keys that stand twice, of which YAML would take the last, and aliases."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node; ValueError for a key that stands twice."""
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in keys.items():
            if times > 1:
                raise ValueError(
                    f"line {node.start_mark.line + 1}: {short(key)} stands twice in these fields; drop one"
                )
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node; ValueError for an alias, a few of which unpack to any number of fields."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise ValueError(f"line {event.start_mark.line + 1}: *{event.anchor} is an alias; write out what it means")
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        """Return the text of a node; ValueError for characters that no file and no command line can have."""
        text = super().construct_scalar(node)
        if "\0" in text or text != valid_text(text):
            raise ValueError(f"line {node.start_mark.line + 1}: {short(text)} has a character that no text has")
        return text


def _yaml_fault(error: Exception) -> str:
    """Return what YAML found and where, without the excerpt that its own message ends with."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def read_spec(path: Path) -> Spec:
    """Return the study in a file.

    Raises:
        UsageError: The file cannot be read or is no study. The message is one line with the file, the field, its value
            and what the field must be.
    """
    try:
        # A spec is written by hand. A larger file is something else, and is not read into memory.
        if (size := regular(path).stat().st_size) > MAX_BYTES:
            raise ValueError(f"a study is a file of at most {MAX_BYTES} bytes, got {size}")
        content = yaml.load(path.read_text(encoding="utf-8"), _OneOfEach)
        return spec_of(content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start + 1} is not UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path} is not YAML: {_yaml_fault(error)}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def spec_of(content: Any) -> Spec:
    """Return the study that parsed YAML describes; ValueError with one line for content that is no study."""
    fields = checked_value(SpecFields, content)
    tuning = fields.tuning or TuningFields()
    sweep = fields.sweep and Sweep(_cells(fields.sweep.grid, "sweep"), fields.sweep.bisect)
    if sweep and fields.learned is None:
        raise ValueError("sweep needs the field learned: the accuracy from which a run has learned the task")
    spec = Spec(
        title=fields.title,
        about=" ".join(fields.about.split()),
        task=fields.task,
        engine=fields.engine,
        needs=fields.needs,
        words=fields.flags,
        validation=fields.validation,
        test=fields.test,
        tuning=Tuning(tuple(tuning.seeds), tuning.finalists, tuple(tuning.final_seeds)),
        arms=_arms(fields, tuning.grid or {}, sweep),
        base_policies=fields.base_policies,
        learned=fields.learned,
        sweep=sweep,
    )
    _check_seeds(fields, spec)
    _check_flags(spec)
    return spec


def _arms(fields: SpecFields, common: Grid, sweep: Sweep | None) -> tuple[Arm, ...]:
    """Return the arms with their configurations. Their number is limited while they are made, as each takes memory."""
    tuning = fields.tuning or TuningFields()
    runs_of_a_cell = len(tuning.seeds) + len(tuning.final_seeds)
    runs_of_a_seed = sweep.runs_of_a_seed if sweep else 1
    arms: list[Arm] = []
    runs = 0
    for each in fields.arms:
        arm = _arm(each, arms, common, fields.seeds)
        arms.append(arm)
        runs += len(arm.seeds) * runs_of_a_seed + len(arm.cells) * runs_of_a_cell
        if runs > MAX_RUNS:
            raise ValueError(f"a study has at most {MAX_RUNS} runs; give fewer arms, seeds or values")
    return tuple(arms)


def _arm(fields: ArmFields, before: Sequence[Arm], common: Grid, seeds: Sequence[int]) -> Arm:
    place = f"arm {fields.name}"
    if slug(fields.name).lower() in (slug(arm.name).lower() for arm in before):
        raise ValueError(f"{place}: another arm has this name, as a folder is called; give another name")
    own_seeds = tuple(seeds if fields.seeds is None else fields.seeds)
    if fields.at is None:
        cells = _cells({**common, **(fields.grid or {})}, place)
        return Arm(fields.name, fields.flags, cells, tier=fields.tier, seeds=own_seeds)
    model = next((arm for arm in before if arm.name == fields.at and arm.at is None), None)
    if model is None:
        raise ValueError(
            f"{place}: at must be the name of an arm above it that has a point of its own; got {short(fields.at)}"
        )
    if fields.grid is not None:
        raise ValueError(f"{place}: it takes the point of {model.name}, so a grid has no effect; drop one of the two")
    words = (*model.words, *fields.flags)
    # Not before the tier of the arm whose point it takes.
    return Arm(fields.name, words, model.cells, model.name, max(fields.tier, model.tier), own_seeds)


def _check_seeds(fields: SpecFields, spec: Spec) -> None:
    """Raise ValueError unless the seeds that are reported are fresh, and those of tuning suffice for the grids."""
    tuning = spec.tuning
    if repeated := set(tuning.seeds) & set(tuning.final_seeds):
        raise ValueError(f"tuning.final_seeds: {min(repeated)} is one of tuning.seeds")
    for place, seeds in (("seeds", fields.seeds), *((f"arm {arm.name}: seeds", arm.seeds) for arm in spec.arms)):
        if repeated := set(seeds) & {*tuning.seeds, *tuning.final_seeds}:
            raise ValueError(f"{place}: {min(repeated)} is one of the tuning's; what is reported needs fresh ones")
    for arm in spec.arms:
        if len(arm.cells) > 1 and arm.at is None and not tuning.seeds:
            raise ValueError(f"arm {arm.name}: grid has {len(arm.cells)} cells and tuning.seeds is empty")


def _check_flags(spec: Spec) -> None:
    """Raise ValueError for a flag that an arm has beside its grid or the sweep."""
    for arm in spec.arms:
        _refuse_both(arm.words, arm.cells, f"arm {arm.name}")
        if spec.sweep:
            words = [*arm.words, *itertools.chain.from_iterable(arm.cells)]
            _refuse_both(words, spec.sweep.cells, f"arm {arm.name}", "sweep")


def _cells(grid: Mapping[str, Sequence[str]], place: str) -> tuple[Cell, ...]:
    """Return the configurations of a grid. Each has a folder, whose name must be its own."""
    # Counted before the cells are made, because a small file can ask for more of them than fit into memory.
    if math.prod(map(len, grid.values())) > MAX_CELLS:
        raise ValueError(f"{place}: grid has more than {MAX_CELLS} cells; give fewer values")
    cells = [
        tuple(word for flag, value in zip(grid, values, strict=True) for word in (flag, *shlex.split(value)))
        for values in itertools.product(*grid.values())
    ]
    # In lower case, because some file systems do not distinguish cases.
    folders = {slug(" ".join(cell)).lower() for cell in cells}
    if len(folders) < len(cells):
        raise ValueError(f"{place}: two values of the grid map to the same folder name; change one")
    # 1e-3 and 0.001 have two folders, and would count as two configurations.
    if len({tuple(map(_meaning, cell)) for cell in cells}) < len(cells):
        raise ValueError(f"{place}: the grid has a number twice, in two spellings; drop one")
    if max(map(len, folders)) > MAX_LETTERS:
        raise ValueError(f"{place}: a configuration of the grid has more than {MAX_LETTERS} letters; give fewer flags")
    return tuple(cells)


def _meaning(word: str) -> str | float:
    """Return the number that a word is, or the word."""
    try:
        return float(word)
    except ValueError:
        return word


def _refuse_both(words: Sequence[str], cells: Sequence[Cell], place: str, of: str = "grid") -> None:
    """Raise ValueError for a flag, perhaps shortened, that also has values in a grid. The later one would win."""
    of_cells = _flags(itertools.chain.from_iterable(cells))
    for flag in _flags(words):
        if len(flag) > 2 and any(each.startswith(flag) for each in of_cells):
            raise ValueError(f"{place}: flags: {flag} has values in its {of}, which win; drop one of the two")


def _flags(words: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
