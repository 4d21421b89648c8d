"""What a study asks: a readable file of YAML, checked field by field before anything runs (pure).

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
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import regular, valid_text

# Of a file, of an arm, of a study.
MAX_BYTES = 2**16
MAX_CELLS = 1000
MAX_RUNS = 10_000
# Of the name of a folder, and of a value in a message.
MAX_LETTERS = 200
MAX_QUOTED = 100
ENGINES = ("lab", "ray")
SPEC_FIELDS = (
    *("title", "about", "task", "engine", "needs", "flags", "validation", "test", "seeds", "tuning", "arms"),
    *("base_policies", "learned", "sweep"),
)
SWEEP_FIELDS = ("grid", "bisect")
MAX_BASE_POLICIES = 100
TUNING_FIELDS = ("seeds", "finalists", "final_seeds", "grid")
ARM_FIELDS = ("name", "flags", "grid", "at", "tier", "seeds")

# Flags and values of one point of a grid, as words of a command line; () without a grid.
Cell = tuple[str, ...]


@dataclass(frozen=True)
class Arm:
    """One method with its settings, and the cells among which its point is chosen (one: nothing to choose)."""

    name: str
    words: tuple[str, ...]
    cells: tuple[Cell, ...]
    # The arm whose point it takes.
    at: str | None = None
    tier: int = 1
    # Of what is reported.
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tuning:
    """How an arm's point is chosen: every cell with ``seeds``, then the ``finalists`` with ``final_seeds``, too."""

    seeds: tuple[int, ...] = ()
    finalists: int = 1
    final_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """Values that are run for every arm with every seed, beside the arm's own point.

    Attributes:
        cells: The cells of the grid, in the order of the file.
        bisect: Run only the cells that a bisection needs: of cells in the order in which the task becomes harder, it
            finds the last one that a seed still learns.
    """

    cells: tuple[Cell, ...]
    bisect: bool = False

    @property
    def runs_of_a_seed(self) -> int:
        """Number of runs of one arm with one seed."""
        # A bisection of 2^k - 1 cells takes k runs, whatever their outcomes.
        return len(self.cells).bit_length() if self.bisect else len(self.cells)


@dataclass(frozen=True)
class Spec:
    """A study, read by ``read_spec``."""

    title: str
    about: str
    task: str
    engine: str
    # Flags without which the study means nothing.
    needs: tuple[str, ...]
    words: tuple[str, ...]
    # Flags of ``openrlhf-cov evaluate`` for what chooses, with the trainer on another task than the embedded ones.
    validation: tuple[str, ...]
    # The same for what is reported.
    test: tuple[str, ...]
    tuning: Tuning
    arms: tuple[Arm, ...]
    # Number of base policies; seed s begins with base policy s modulo this number.
    base_policies: int = 1
    # Greedy accuracy from which a run counts as having learned the task, on the validation questions that the habit of
    # the base policy does not answer. None: the study does not count such runs.
    learned: float | None = None
    sweep: Sweep | None = None

    def arm(self, name: str) -> Arm:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)


class _OneOfEach(yaml.SafeLoader):
    """Of a key that stands twice YAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See ``yaml.SafeLoader``; ValueError for a key that stands twice."""
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in keys.items():
            if times > 1:
                raise ValueError(
                    f"line {node.start_mark.line + 1}: {_short(key)} stands twice in these fields; drop one"
                )
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """See ``yaml.SafeLoader``; ValueError for an alias, a few of which unpack to any number of fields."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise ValueError(f"line {event.start_mark.line + 1}: *{event.anchor} is an alias; write out what it means")
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        """See ``yaml.SafeLoader``; ValueError for text that no file and no command line can have."""
        text = super().construct_scalar(node)
        if "\0" in text or text != valid_text(text):
            raise ValueError(f"line {node.start_mark.line + 1}: {_short(text)} has a character that no text has")
        return text


def read_spec(path: Path) -> Spec:
    """The study in a file; UsageError with one line that names the file, the field and the value."""
    try:
        if (size := regular(path).stat().st_size) > MAX_BYTES:
            raise ValueError(f"a study is a file of at most {MAX_BYTES} bytes, got {size}")
        content = yaml.load(path.read_text(encoding="utf-8"), _OneOfEach)
        return spec_of(content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start + 1} is not UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def spec_of(content: Any) -> Spec:
    """The study that parsed YAML describes; ValueError naming the field and the value."""
    found = _fields(content, "the study", SPEC_FIELDS, required=("title", "task", "seeds", "arms"))
    engine = found.get("engine", ENGINES[0])
    if engine not in ENGINES:
        raise ValueError(f"engine is one of {', '.join(ENGINES)}, got {_short(engine)}")
    tuning, grid = _tuning(found.get("tuning"))
    seeds = _seeds(found["seeds"], "seeds")
    if repeated := set(seeds) & {*tuning.seeds, *tuning.final_seeds}:
        raise ValueError(f"seeds: {min(repeated)} is one of the tuning's; what is reported needs fresh ones")
    if not isinstance(found["arms"], list) or not found["arms"]:
        raise ValueError(f"arms is a list of at least one, got {_short(found['arms'])}")
    arms: list[Arm] = []
    sweep = _sweep(found.get("sweep"))
    of_a_seed = sweep.runs_of_a_seed if sweep else 1
    runs = 0
    of_a_cell = len(tuning.seeds) + len(tuning.final_seeds)
    for number, each in enumerate(found["arms"], 1):
        arms.append(_arm(each, f"arm {number}", arms, grid, seeds))
        runs += len(arms[-1].seeds) * of_a_seed + len(arms[-1].cells) * of_a_cell
        if runs > MAX_RUNS:
            raise ValueError(f"a study has at most {MAX_RUNS} runs; give fewer arms, seeds or values")
    for arm in arms:
        if repeated := set(arm.seeds) & {*tuning.seeds, *tuning.final_seeds}:
            raise ValueError(f"arm {arm.name}: seeds: {min(repeated)} is one of the tuning's; give it fresh ones")
    if not tuning.seeds:
        for arm in arms:
            if len(arm.cells) > 1 and arm.at is None:
                raise ValueError(f"arm {arm.name}: grid has {len(arm.cells)} cells and tuning.seeds is empty")
    if sweep:
        for arm in arms:
            of_arm = [*arm.words, *(word for cell in arm.cells for word in cell)]
            _refuse_both(of_arm, sweep.cells, f"arm {arm.name}", "sweep")
    learned = found.get("learned")
    if learned is not None and not _is_share(learned):
        raise ValueError(f"learned is an accuracy above 0 and at most 1, got {_short(learned)}")
    if sweep and learned is None:
        raise ValueError("sweep needs the field learned: the accuracy from which a run has learned the task")
    base_policies = found.get("base_policies", 1)
    if not _is_count(base_policies) or base_policies > MAX_BASE_POLICIES:
        raise ValueError(f"base_policies is a number from 1 to {MAX_BASE_POLICIES}, got {_short(base_policies)}")
    return Spec(
        title=_text(found["title"], "title"),
        about=" ".join(_text(found.get("about", ""), "about").split()),
        task=_text(found["task"], "task"),
        engine=engine,
        needs=_words(found.get("needs", ""), "needs"),
        words=_words(found.get("flags", ""), "flags"),
        validation=_words(found.get("validation", ""), "validation"),
        test=_words(found.get("test", ""), "test"),
        tuning=tuning,
        arms=tuple(arms),
        base_policies=base_policies,
        learned=learned,
        sweep=sweep,
    )


def slug(text: str) -> str:
    """Text as a part of a path: letters, digits, dots, hyphens and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text.replace("--", "")).strip("_.")


def _arm(content: Any, place: str, before: Sequence[Arm], common: Mapping[str, Any], seeds: tuple[int, ...]) -> Arm:
    found = _fields(content, place, ARM_FIELDS, required=("name",))
    name = _text(found["name"], f"{place}: name")
    if not slug(name) or not name.isprintable() or len(slug(name)) > MAX_LETTERS:
        raise ValueError(f"{place}: name has 1 to {MAX_LETTERS} letters or digits, got {_short(name)}")
    place = f"arm {name}"
    if slug(name).lower() in (slug(arm.name).lower() for arm in before):
        raise ValueError(f"{place}: another arm has this name, as a folder is called")
    tier = found.get("tier", 1)
    if not _is_count(tier):
        raise ValueError(f"{place}: tier is a number from 1, got {_short(tier)}")
    of_arm = _seeds(found["seeds"], f"{place}: seeds") if "seeds" in found else seeds
    words = _words(found.get("flags", ""), f"{place}: flags")
    if "at" not in found:
        cells = _cells({**common, **_grid(found.get("grid"), place)}, place)
        _refuse_both(words, cells, place)
        return Arm(name, words, cells, tier=tier, seeds=of_arm)
    model = next((arm for arm in before if arm.name == found["at"] and arm.at is None), None)
    if model is None:
        raise ValueError(
            f"{place}: at is the name of an arm above it that has a point of its own, got {_short(found['at'])}"
        )
    if "grid" in found:
        raise ValueError(f"{place}: it takes the point of {model.name}, so a grid has no effect; drop one of the two")
    _refuse_both(words, model.cells, place)
    return Arm(name, (*model.words, *words), model.cells, model.name, max(tier, model.tier), of_arm)


def _tuning(content: Any) -> tuple[Tuning, Mapping[str, Any]]:
    found = _fields({} if content is None else content, "tuning", TUNING_FIELDS)
    seeds = _seeds(found.get("seeds", []), "tuning.seeds", fewest=0)
    final = _seeds(found.get("final_seeds", []), "tuning.final_seeds", fewest=0)
    finalists = found.get("finalists", 1)
    if not _is_count(finalists):
        raise ValueError(f"tuning.finalists is a number from 1, got {_short(finalists)}")
    if set(seeds) & set(final):
        raise ValueError(f"tuning.final_seeds: {min(set(seeds) & set(final))} is one of tuning.seeds")
    return Tuning(seeds, finalists, final), _grid(found.get("grid"), "tuning")


def _sweep(content: Any) -> Sweep | None:
    if content is None:
        return None
    found = _fields(content, "sweep", SWEEP_FIELDS, required=("grid",))
    grid = _grid(found["grid"], "sweep")
    bisect = found.get("bisect", False)
    if not isinstance(bisect, bool):
        raise ValueError(f"sweep: bisect is true or false, got {_short(bisect)}")
    if bisect:
        _check_bisected(grid)
    return Sweep(_cells(grid, "sweep"), bisect)


def _check_bisected(grid: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError unless the grid has one flag with 1, 3, 7, ... increasing positive numbers."""
    if len(grid) != 1:
        raise ValueError(f"sweep: bisect takes the values of one flag, got {_short(list(grid))}")
    [values] = grid.values()
    try:
        numbers = [float(value) for value in values]
    except ValueError as error:
        raise ValueError(f"sweep: bisect takes numbers, got {_short(values)}") from error
    if not numbers[0] > 0 or any(not after > before for before, after in itertools.pairwise(numbers)):
        raise ValueError(f"sweep: bisect takes positive numbers that increase, got {_short(values)}")
    if len(numbers) & (len(numbers) + 1):
        raise ValueError(f"sweep: bisect takes 1, 3, 7, 15, ... values, got {len(numbers)}")


def _grid(content: Any, place: str) -> dict[str, list[str]]:
    """Flag -> its values, each as it stands on a command line."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{place}: grid is a list of values for each flag, got {_short(content)}")
    for flag, values in content.items():
        if not isinstance(flag, str) or not flag.startswith("--") or " " in flag:
            raise ValueError(f"{place}: grid has values of flags such as --actor.adam.lr, got {_short(flag)}")
        if not isinstance(values, list) or not values:
            raise ValueError(f"{place}: grid: {flag} has a list of values, got {_short(values)}")
    return {flag: [_word(value, f"{place}: grid: {flag}") for value in values] for flag, values in content.items()}


def _cells(grid: Mapping[str, Sequence[str]], place: str) -> tuple[Cell, ...]:
    if math.prod(map(len, grid.values())) > MAX_CELLS:
        raise ValueError(f"{place}: grid has more than {MAX_CELLS} cells; give fewer values")
    cells = [
        tuple(word for flag, value in zip(grid, values, strict=True) for word in (flag, *shlex.split(value)))
        for values in itertools.product(*grid.values())
    ]
    folders = {slug(" ".join(cell)).lower() for cell in cells}
    if len(folders) < len(cells):
        raise ValueError(f"{place}: grid has a value twice, as folders are called")
    if len({tuple(map(_meaning, cell)) for cell in cells}) < len(cells):
        raise ValueError(f"{place}: grid has a number twice, in two spellings")
    if max(map(len, folders)) > MAX_LETTERS:
        raise ValueError(f"{place}: grid: a cell has more than {MAX_LETTERS} letters")
    return tuple(cells)


def _meaning(word: str) -> str | float:
    """A number, if it is one."""
    try:
        return float(word)
    except ValueError:
        return word


def _refuse_both(words: Sequence[str], cells: Sequence[Cell], place: str, of: str = "grid") -> None:
    """ValueError for a flag, perhaps shortened, that an arm gives beside its cells, which come later and would win."""
    of_cells = _flags([word for cell in cells for word in cell])
    for flag in _flags(words):
        if len(flag) > 2 and any(each.startswith(flag) for each in of_cells):
            raise ValueError(f"{place}: flags: {flag} has values in its {of}, which win; drop one of the two")


def _flags(words: Sequence[str]) -> dict[str, None]:
    return dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))


def _fields(content: Any, place: str, known: Sequence[str], required: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{place} is a list of fields ({', '.join(known)}), got {_short(content)}")
    for name in content:
        if name not in known:
            raise ValueError(f"{place} has no field {_short(name)}; choose of {', '.join(known)}")
    for name in required:
        if name not in content:
            raise ValueError(f"{place} lacks the field {name}")
    return content


def _seeds(content: Any, place: str, fewest: int = 1) -> tuple[int, ...]:
    if not isinstance(content, list) or len(content) < fewest:
        raise ValueError(
            f"{place} is a list of {'at least one ' if fewest else ''}whole numbers, got {_short(content)}"
        )
    for seed in content:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
            raise ValueError(f"{place} are whole numbers from 0, got {_short(seed)}")
    if len(set(content)) < len(content):
        raise ValueError(f"{place} has a number twice, got {_short(content)}")
    return tuple(content)


def _words(content: Any, place: str) -> tuple[str, ...]:
    text = _text(content, place)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{place} is a line of flags as a shell takes it, got {_short(content)}") from error


def _text(content: Any, place: str) -> str:
    if not isinstance(content, str):
        raise ValueError(f"{place} is text, got {_short(content)}")
    return content


def _word(value: Any, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not _words(str(value), place):
        raise ValueError(f"{place} has numbers or words, got {_short(value)}")
    return str(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value <= 1.0


def _short(value: Any) -> str:
    """What a message quotes of a value."""
    quoted = repr(value)
    return quoted if len(quoted) <= MAX_QUOTED else f"{quoted[:MAX_QUOTED]}..."
