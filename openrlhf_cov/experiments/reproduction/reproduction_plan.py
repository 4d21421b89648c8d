"""The commands that reproduce one exhibit of the paper, in their order, and which of them are due."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.cluster.sizing.model_shape import KNOWN
from openrlhf_cov.data.templates import FOR_PROGRAMS
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.reproduction import paper_commands
from openrlhf_cov.experiments.reproduction.exhibits import Exhibit, PaperRun
from openrlhf_cov.experiments.tiny_task import demo_training
from openrlhf_cov.utils.metrics_log import METRICS_FILE
from openrlhf_cov.utils.terminal import command_name

# The recipes of this clone.
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
# Dashboard of the Ray that a printed training is submitted to.
DASHBOARD = "http://127.0.0.1:8265"
# In a message that data is missing.
ABSENCES = ("no such file", "no such folder", "no file ", "no *.jsonl files")

# The words of a command.
Words = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a plan."""

    words: Words
    # The training run that it makes; None for a command of data, evaluation or report.
    run: PaperRun | None = None

    @property
    def name(self) -> str:
        """The command of ``openrlhf-cov`` that the words start; the first two words of another program."""
        return name_of(self.words)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """An exhibit, how large it is reproduced, and the folders of that."""

    shown: Exhibit
    # Such as ``figure 8``.
    number: str
    # On the embedded tasks instead of at the paper's scale.
    is_tiny: bool
    # Global steps of a run at the tiny scale.
    steps: int
    # Absolute folder of runs and reports.
    output: Path
    # Absolute folder of training sets, and of benchmarks in ``eval``.
    data_dir: Path

    @property
    def task(self) -> Path:
        """The folder of the embedded addition, which the runs of one output folder share."""
        return self.output / "tiny_task"

    def folder_of(self, run: PaperRun) -> Path:
        """Return the folder that a run writes to."""
        return self.output / (run.tiny_name if self.is_tiny else run.name)

    def report_folders(self) -> list[Path]:
        """Return the folders of the reports. Programs have a law of their own, so mixed exhibits have two."""
        name = self.number.replace(" ", "")
        domains = [""] if self.is_tiny else by_domain(self._paper_runs())
        return [self.output / (name + domain) for domain in domains]

    def commands(self) -> Iterator[Command]:
        """Yield the commands in the order in which they are carried out."""
        return self._tiny_commands() if self.is_tiny else self._paper_commands()

    def comment_on(self, command: Command) -> str:
        """Return the comment line above a command, which names its run or model; empty for other commands."""
        words = command.words
        if command.run is not None:
            return f"# run {self.folder_of(command.run).name}\n"
        if "--model" in words:
            return f"# {command.name} {Path(words[words.index('--model') + 1]).name}\n"
        return ""

    def training_on_ray(self, run: PaperRun, dashboard: str) -> list[str]:
        """Return the training of a run by the whole trainer on the embedded addition.

        It has no reference model: the entropy law is stated without one.

        Args:
            run: A run with flags of the whole trainer.
            dashboard: Address of the dashboard of the Ray to which the training is submitted.
        """
        words = demo_training.training_command(
            "none",
            steps=self.steps,
            task=self.task,
            output=self.folder_of(run),
            address=dashboard,
            kl_coef=0.0,
        )
        return [*words, *(run.trainer or ())]

    def due(self, command: Command) -> Words | None:
        """Return the words of a command as it is to be given now; None if its folder holds the trained model.

        A run that was interrupted goes on from its checkpoint. The lab finds out by itself what is left of a run.

        Raises:
            UsageError: The run was interrupted and has no checkpoint.
        """
        if command.run is None or command.name == "lab":
            return command.words
        from openrlhf_cov.trainer.preflight.check_run import find_weights, has_checkpoint

        folder = self.folder_of(command.run)
        if find_weights(folder) and (folder / "config.json").is_file():
            return None
        if not self.is_tiny and has_checkpoint(folder / "state"):
            return [*command.words, "--ckpt.load_enable"]
        if (folder / METRICS_FILE).exists():
            raise UsageError(
                f"{folder} holds a run that broke off and has no checkpoint to go on from; remove it, or name another "
                "--output"
            )
        return command.words

    def _paper_runs(self) -> list[PaperRun]:
        return [run for run in self.shown.runs if run.recipe]

    def _paper_commands(self) -> Iterator[Command]:
        """Yield benchmarks and training sets, then the runs, then what reads the trained models."""
        runs = self._paper_runs()
        for words in paper_commands.benchmark_files(self.shown, self.data_dir):
            yield Command(words=words)
        for words in paper_commands.preparations(self.shown, self.data_dir):
            yield Command(words=words)
        for run in runs:
            yield Command(words=paper_commands.training(run, SCRIPTS, self.data_dir, self.output), run=run)
        for words in paper_commands.evaluations(self.shown, SCRIPTS, self.data_dir, self.output):
            yield Command(words=words)
        for domain, runs_of_domain in by_domain(runs).items():
            sizes = size_flags(runs_of_domain) if self.shown.with_sizes else []
            yield self._report(domain, runs_of_domain, [*self.shown.report, *sizes])

    def _tiny_commands(self) -> Iterator[Command]:
        runs = [run for run in self.shown.runs if run.is_tiny]
        if any(run.trainer is not None for run in runs):
            task = paper_commands.command("tiny-task", "--task", "addition", "--output", str(self.task))
            yield Command(words=task)
            yield Command(words=["ray", "start", "--head", "--num-gpus", "2", "--num-cpus", "8"])
        for run in runs:
            if run.trainer is not None:
                yield Command(words=self.training_on_ray(run, DASHBOARD), run=run)
            else:
                yield Command(words=paper_commands.laboratory(run, self.output, self.steps), run=run)
        # No benchmark is evaluated there, so R is the reward of training.
        yield self._report("", runs, [word for word in self.shown.report if word not in ("--metric", "eval/mean/avg")])

    def _report(self, domain: str, runs: Sequence[PaperRun], flags: Words) -> Command:
        """Return the report of these runs, in a folder of its own, with its numbers in ``law.json``."""
        folder = self.output / (self.number.replace(" ", "") + domain)
        places = ("--output", str(folder), "--export", str(folder / "law.json"))
        folders = [str(self.folder_of(run)) for run in runs]
        return Command(words=paper_commands.command("report", *folders, *places, *flags))


def by_domain(runs: Sequence[PaperRun]) -> dict[str, list[PaperRun]]:
    """Return the runs of each report, by what its folder's name has at the end."""
    programs = [run for run in runs if run.recipe and run.recipe.template in FOR_PROGRAMS]
    others = [run for run in runs if run not in programs]
    return {"": others, "-programs": programs} if others and programs else {"": list(runs)}


def size_flags(runs: Sequence[PaperRun]) -> list[str]:
    """Return ``--size`` of the report: the parameters of each run's model without its embeddings."""
    flags = ["--size"]
    for run in runs:
        if run.recipe:
            shape = KNOWN[run.recipe.variables["MODEL"]]
            flags.append(f"{run.name}={shape.layers * shape.layer_parameters + shape.hidden}")
    return flags


def name_of(words: Words) -> str:
    """Return the command of ``openrlhf-cov`` that words start, or the first two words of another program."""
    if words[0] == paper_commands.PROGRAM:
        return words[1]
    if "-m" not in words:
        return " ".join(words[:2])
    module = words[words.index("-m") + 1].rpartition(".")[2]
    return {"train_ppo_ray": "train"}.get(module, module)


def flags_of(words: Words) -> list[str]:
    """Return the flags of a command of ``openrlhf-cov``, also of one that is submitted to Ray."""
    first = 2 if words[0] == paper_commands.PROGRAM else words.index("-m") + 2
    return list(words[first:])


def shell_line(words: Words) -> str:
    """Return a command as it is typed in the current folder."""
    if words[0] == paper_commands.PROGRAM:
        words = [*command_name(), *words[1:]]
    return shlex.join(words)


def outputs_of(words: Words) -> list[Path]:
    """Return the folders of data that a command makes for later ones."""
    flags = {"evaluate": "--write_data", "prepare": "--output", "tiny-task": "--output"}
    flag = flags.get(name_of(words))
    return [Path(words[words.index(flag) + 1])] if flag in words else []


def maker_of_missing(fault: str, made: Mapping[Path, str], to_bring: Sequence[Path]) -> str | None:
    """Return the earlier command that makes the data whose absence a fault is about; None for any other fault.

    Args:
        fault: What is wrong with a command.
        made: Folder -> name of the command of the plan that fills it.
        to_bring: Files that no command makes.
    """
    if not any(absence in fault for absence in ABSENCES) or any(path.name in fault for path in to_bring):
        return None
    return next((maker for folder, maker in made.items() if str(folder) in fault), None)
