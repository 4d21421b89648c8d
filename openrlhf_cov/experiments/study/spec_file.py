"""Read a study from its YAML file. Every field is checked before anything runs (pure).

    title: Which methods pay where exploration decides?
    task: commands                     # an embedded task
    flags: --steps 200 --updates 8     # of every run
    seeds: [0, 1, 2, 3, 4, 5, 6, 7]    # of what is reported
    tuning:
      seeds: [100]                     # of every configuration of a method's grid
      finalists: 3                     # the best configurations ...
      final_seeds: [101]               # ... run again with these; the best one is selected
      grid: {--actor.adam.lr: [3e-5, 1e-4, 3e-4]}
    arms:
      - name: GRPO
        grid: {--actor.eps_clip_low_high: [0.1 0.1, 0.2 0.2, 0.4 0.4]}
      - name: wide clip
        flags: --actor.eps_clip_low_high 0.3 0.3
        grid: {--actor.entropy_coef: [0, 1e-2]}
      - name: wide clip in small micro-batches
        flags: --train.micro_batch_size 16
        at: wide clip                  # its flags and its selected configuration, not tuned anew
        tier: 2                        # runs when all of tier 1 have

An entry of ``arms`` is a method. A configuration has one value of every entry of its grid and of the common grid.
The other methods are compared with the first one.

Three more fields are for tasks that a run either learns or does not:

    base_policies: 3                   # seed s begins with the base policy s modulo 3
    learned: 0.5                       # accuracy from which a run has learned the task
    sweep:                             # values that are run for every method, beside its selected configuration
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
from openrlhf_cov.experiments.study.spec import Configuration, Spec, StudyMethod, Sweep, Tuning, slug
from openrlhf_cov.utils.json_lines import regular, valid_text
from openrlhf_cov.utils.record_checks import STRICT, checked_value, short

# Limits: bytes of a file, configurations of a method, runs of a study, letters of a folder's name.
MAX_BYTES = 2**16
MAX_CONFIGURATIONS = 1000
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


class MethodFields(_Fields):
    """One entry of ``arms``: a method of the study."""

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
    """Values that are run for every method."""

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
    arms: Annotated[list[MethodFields], MinLen(1)]
    base_policies: Annotated[int, Ge(1), Le(100)] = 1
    learned: Annotated[float, Gt(0), Le(1)] | None = None
    sweep: SweepFields | None = None


class _OneOfEach(yaml.SafeLoader):
    """A YAML loader that refuses aliases and duplicate keys. YAML itself would keep the last of equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node. Raise ValueError for a duplicate key."""
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in keys.items():
            if times > 1:
                raise ValueError(
                    f"line {node.start_mark.line + 1}: {short(key)} stands twice in these fields; drop one"
                )
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node. Raise ValueError for an alias: a few aliases can unpack to any number of fields."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise ValueError(f"line {event.start_mark.line + 1}: *{event.anchor} is an alias; write out what it means")
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        """Return the text of a node. Raise ValueError for characters that no file and no command line can have."""
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
        UsageError: The file cannot be read or is no study. The message is one line that names the file and, for a
            study with a fault, the field, its value and what the field must be.
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
    """Return the study that parsed YAML describes.

    Raises:
        ValueError: The content is no study. The message is one line that names the field, its value and what the field
            must be.
    """
    fields = checked_value(SpecFields, content)
    tuning = fields.tuning or TuningFields()
    sweep = fields.sweep and Sweep(_configurations(fields.sweep.grid, "sweep"), fields.sweep.bisect)
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
        methods=_methods(fields, tuning.grid or {}, sweep),
        base_policies=fields.base_policies,
        learned=fields.learned,
        sweep=sweep,
    )
    _check_seeds(fields, spec)
    _check_flags(spec)
    return spec


def _methods(fields: SpecFields, common: Grid, sweep: Sweep | None) -> tuple[StudyMethod, ...]:
    """Return the methods with their configurations. Raise ValueError if they have too many runs."""
    tuning = fields.tuning or TuningFields()
    runs_of_a_configuration = len(tuning.seeds) + len(tuning.final_seeds)
    runs_of_a_seed = sweep.runs_of_a_seed if sweep else 1
    methods: list[StudyMethod] = []
    runs = 0
    # Counted while the methods are made, because each of them takes memory.
    for each in fields.arms:
        method = _method(each, methods, common, fields.seeds)
        methods.append(method)
        runs += len(method.seeds) * runs_of_a_seed + len(method.configurations) * runs_of_a_configuration
        if runs > MAX_RUNS:
            raise ValueError(f"a study has at most {MAX_RUNS} runs; give fewer methods, seeds or values")
    return tuple(methods)


def _method(fields: MethodFields, before: Sequence[StudyMethod], common: Grid, seeds: Sequence[int]) -> StudyMethod:
    place = f"method {fields.name}"
    if slug(fields.name).lower() in (slug(method.name).lower() for method in before):
        raise ValueError(f"{place}: another method has this name as its folder name; give another name")
    own_seeds = tuple(seeds if fields.seeds is None else fields.seeds)
    if fields.at is None:
        configurations = _configurations({**common, **(fields.grid or {})}, place)
        return StudyMethod(fields.name, fields.flags, configurations, tier=fields.tier, seeds=own_seeds)
    model = next((method for method in before if method.name == fields.at and method.at is None), None)
    if model is None:
        raise ValueError(
            f"{place}: at must be the name of a method above it that has no at itself; got {short(fields.at)}"
        )
    if fields.grid is not None:
        raise ValueError(
            f"{place}: it takes the configuration of {model.name}, so a grid has no effect; drop one of the two"
        )
    words = (*model.words, *fields.flags)
    # Not before the tier of the method whose selected configuration it takes.
    return StudyMethod(fields.name, words, model.configurations, model.name, max(fields.tier, model.tier), own_seeds)


def _check_seeds(fields: SpecFields, spec: Spec) -> None:
    """Raise ValueError if a reported seed is also one of tuning, or if a grid has no seeds of tuning."""
    tuning = spec.tuning
    if repeated := set(tuning.seeds) & set(tuning.final_seeds):
        raise ValueError(f"tuning.final_seeds: {min(repeated)} is one of tuning.seeds")
    if tuning.finalists > 1 and not tuning.final_seeds:
        raise ValueError(
            f"tuning.finalists: {tuning.finalists} has no effect without tuning.final_seeds, with which they run "
            "again; add these, or drop it"
        )
    for place, seeds in (
        ("seeds", fields.seeds),
        *((f"method {method.name}: seeds", method.seeds) for method in spec.methods),
    ):
        if repeated := set(seeds) & {*tuning.seeds, *tuning.final_seeds}:
            raise ValueError(f"{place}: {min(repeated)} is one of the tuning's; what is reported needs fresh ones")
    for method in spec.methods:
        if len(method.configurations) > 1 and method.at is None and not tuning.seeds:
            raise ValueError(
                f"method {method.name}: grid has {len(method.configurations)} configurations and tuning.seeds is empty"
            )


def _check_flags(spec: Spec) -> None:
    """Raise ValueError for a flag of a method that also has values in its grid or in the sweep."""
    for method in spec.methods:
        _refuse_both(method.words, method.configurations, f"method {method.name}")
        if spec.sweep:
            words = [*method.words, *itertools.chain.from_iterable(method.configurations)]
            _refuse_both(words, spec.sweep.configurations, f"method {method.name}", "sweep")


def _configurations(grid: Mapping[str, Sequence[str]], place: str) -> tuple[Configuration, ...]:
    """Return the configurations of a grid. Raise ValueError if two of them have the same folder name."""
    # Counted before the configurations are made: a small file can ask for more of them than fit into memory.
    if math.prod(map(len, grid.values())) > MAX_CONFIGURATIONS:
        raise ValueError(f"{place}: grid has more than {MAX_CONFIGURATIONS} configurations; give fewer values")
    configurations = [
        tuple(word for flag, value in zip(grid, values, strict=True) for word in (flag, *shlex.split(value)))
        for values in itertools.product(*grid.values())
    ]
    # In lower case, because some file systems do not distinguish cases.
    folders = {slug(" ".join(configuration)).lower() for configuration in configurations}
    if len(folders) < len(configurations):
        raise ValueError(f"{place}: two values of the grid map to the same folder name; change one")
    # 1e-3 and 0.001 have two folders, and would count as two configurations.
    if len({tuple(map(_meaning, configuration)) for configuration in configurations}) < len(configurations):
        raise ValueError(f"{place}: the grid has a number twice, in two spellings; drop one")
    if max(map(len, folders)) > MAX_LETTERS:
        raise ValueError(f"{place}: a configuration of the grid has more than {MAX_LETTERS} letters; give fewer flags")
    return tuple(configurations)


def _meaning(word: str) -> str | float:
    """Return the number that a word is, or the word."""
    try:
        return float(word)
    except ValueError:
        return word


def _refuse_both(words: Sequence[str], configurations: Sequence[Configuration], place: str, of: str = "grid") -> None:
    """Raise ValueError for a flag, perhaps shortened, that also has values in a grid. The later one would win."""
    of_configurations = _flags(itertools.chain.from_iterable(configurations))
    for flag in _flags(words):
        if len(flag) > 2 and any(each.startswith(flag) for each in of_configurations):
            raise ValueError(f"{place}: flags: {flag} has values in its {of}, which win; drop one of the two")


def _flags(words: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
