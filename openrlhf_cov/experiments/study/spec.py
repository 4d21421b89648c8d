"""A study as its YAML file describes it: the types. ``spec_file`` reads them."""

import re
from dataclasses import dataclass

ENGINES = ("lab", "ray")

# Flags and values of one point of a grid, as words of a command line; () without a grid.
Cell = tuple[str, ...]


@dataclass(frozen=True)
class Arm:
    """One method with its settings, and the cells from which tuning selects; one cell leaves nothing to select."""

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
    """The seeds of tuning: every cell runs with ``seeds``, and the ``finalists`` also run with ``final_seeds``."""

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
        """Return the arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)


def slug(text: str) -> str:
    """Return text as a part of a path: letters, digits, dots, hyphens and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text.replace("--", "")).strip("_.")
