"""A study as its YAML file describes it: the types. ``spec_file`` reads them."""

import re
from dataclasses import dataclass

ENGINES = ("lab", "ray")

# Flags of a grid with one value each, as words of a command line; () without a grid.
Configuration = tuple[str, ...]


@dataclass(frozen=True)
class StudyMethod:
    """One method of a study with its settings.

    Tuning selects one of the configurations. A method with a single configuration is not tuned.
    """

    name: str
    words: tuple[str, ...]
    configurations: tuple[Configuration, ...]
    # Name of the method whose selected configuration it takes; None if it has its own.
    at: str | None = None
    tier: int = 1
    # Seeds of the reported runs.
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tuning:
    """The seeds of tuning: every configuration runs with ``seeds``, the ``finalists`` also with ``final_seeds``."""

    seeds: tuple[int, ...] = ()
    finalists: int = 1
    final_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """Values that are run for every method with every seed, beside the selected configuration of the method.

    Attributes:
        configurations: The configurations of the grid, in the order of the file.
        bisect: Run only the configurations that a bisection needs. In the order of the grid the task becomes harder,
            and the bisection finds the last configuration that a seed still learns.
    """

    configurations: tuple[Configuration, ...]
    bisect: bool = False

    @property
    def runs_of_a_seed(self) -> int:
        """Number of runs of one method with one seed."""
        # A bisection of 2^k - 1 configurations takes k runs, whatever their outcomes.
        return len(self.configurations).bit_length() if self.bisect else len(self.configurations)

    @property
    def first_of_bisection(self) -> Configuration:
        """The configuration with which the bisection of every seed begins."""
        return self.configurations[(len(self.configurations) - 1) // 2]


@dataclass(frozen=True)
class Spec:
    """A study, read by ``read_spec``."""

    title: str
    about: str
    task: str
    engine: str
    # Flags that the lab of this version must have for the study.
    needs: tuple[str, ...]
    words: tuple[str, ...]
    # Flags of ``openrlhf-cov evaluate`` for the evaluation by which tuning selects. Only a study of the trainer on a
    # task that is not embedded has them.
    validation: tuple[str, ...]
    # The same for the evaluation that is reported.
    test: tuple[str, ...]
    tuning: Tuning
    methods: tuple[StudyMethod, ...]
    # Number of base policies; seed s begins with base policy s modulo this number.
    base_policies: int = 1
    # Greedy accuracy from which a run counts as having learned the task, on the validation questions that the habit of
    # the base policy does not answer. None: the study does not count such runs.
    learned: float | None = None
    sweep: Sweep | None = None

    def method(self, name: str) -> StudyMethod:
        """Return the method of this name, which the study must have."""
        return next(method for method in self.methods if method.name == name)


def slug(text: str) -> str:
    """Return text as a part of a path: letters, digits, dots, hyphens and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text.replace("--", "")).strip("_.")
