"""A study whose runs are those of the whole trainer, on the Ray that is there or on one of each run's own.

A run is a training and then an evaluation of the trained model, which does not influence the training. The lab
evaluates policies of embedded tasks, because it knows their splits. ``openrlhf-cov evaluate`` evaluates all others,
with the flags that the spec has under ``validation`` and ``test``.
"""

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.local_ray import local_ray, stop
from openrlhf_cov.cluster.ray_here import KEEP_ENGINES, is_ray_of_this_host, ray_of_this_host
from openrlhf_cov.cluster.sizing.flag_sizes import CONTROLLER_CPUS, layout_of
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.templates import get_template
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation.benchmarks import get_protocol, select
from openrlhf_cov.evaluation.flags import GRADING_FLAGS, SAMPLING_FLAGS, build_parser
from openrlhf_cov.evaluation.plan import sampling_of
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.request import LabRequest, test_record
from openrlhf_cov.experiments.study.lab_runs import LOOKS, Study, check_lab_spec, given_of
from openrlhf_cov.experiments.study.run_flags import HELD_OUT, lab_request, trainer_flags
from openrlhf_cov.experiments.study.run_plan import StudyRun, all_runs, number_of_runs
from openrlhf_cov.experiments.study.run_results import VALIDATION_FILE
from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS
from openrlhf_cov.experiments.tiny_task.task_files import read_task
from openrlhf_cov.utils.cores import most_processes
from openrlhf_cov.utils.json_lines import read_json, write_json
from openrlhf_cov.utils.metric_table import STEP_TOTAL
from openrlhf_cov.utils.metrics_log import METRICS_FILE, RESULT_FILE, TEST_FILE, MetricsLog, read_metrics
from openrlhf_cov.utils.orphans import die_with_parent
from openrlhf_cov.utils.terminal import command_name, say

# Of a run: its flags, that its training has ended, what its commands said, its checkpoints.
ASKED_FILE = "asked.json"
TRAINED_FILE = "trained.json"
LOG_FILE = "log.txt"
STATE = "state"
# Command that a study starts -> its module in ``openrlhf_cov.cli``.
MODULES = {"train": "train_ppo_ray", "evaluate": "evaluate", "tiny-task": "make_tiny_task"}
# What the Ray that runs share said.
RAY_FILE = "ray.txt"

# What a look at a trained model finds: evaluations by step, and the record of the test.
Seen = tuple[Mapping[int, Mapping[str, float]], Mapping[str, Any]]


class RayStudy(Study):
    """Each run is one of ``openrlhf-cov train``."""

    # Of its trainings, beside that of this process: the Ray that they share.
    environment: Mapping[str, str] = MappingProxyType({})

    def words(self, run: StudyRun) -> list[str]:
        """Return the run as a command line of the trainer; an embedded task brings policy, data and reward."""
        folder = self.output / run.folder
        flags = self.train_flags(run)
        if self.spec.task in TINY_TASKS:
            data = ("--data.prompt_dataset", f"{self.task}/train.jsonl", "--data.input_key", "input")
            policy = ("--actor.model_name_or_path", f"{self.task}/model", "--data.label_key", "label")
            flags = [*policy, *data, *TINY_TASKS[self.spec.task].flags, *flags]
        return [*flags, "--ckpt.output_dir", str(folder), "--ckpt.path", str(folder / STATE)]

    def train_flags(self, run: StudyRun) -> list[str]:
        """Return the flags of ``openrlhf-cov train`` without those of an embedded task and of folders."""
        return self.flags(run)

    @property
    def looks(self) -> LabSettings:
        """Return the lab's settings for evaluating the policies of an embedded task."""
        return LabSettings()

    def asked(self, run: StudyRun) -> list[str]:
        """Return the flags of a run, with those that evaluate the trained model."""
        looks = [(name, getattr(self.spec, name)) for name in LOOKS]
        return [*super().asked(run), *(word for name, flags in looks if flags for word in (name, *flags))]

    @property
    def task(self) -> Path:
        """Return the folder of the embedded task, for all studies."""
        return self.base_policies / f"trainer-{self.spec.task}"

    def check_spec(self, path: Path) -> None:
        """Implement ``Study``.

        Raises:
            UsageError: The spec has a flag that the study sets itself, a field that has no effect, or evaluations that
                are missing or that ``openrlhf-cov evaluate`` refuses.
        """
        self.refuse_own_flags(path, "--ckpt.output_dir", "--ckpt.path", "--train.seed", "--help")
        if self.spec.needs:
            raise UsageError(f"{path}: needs is about the lab, and has no effect with engine: ray; drop it")
        if self.spec.task in TINY_TASKS:
            return self.refuse_looks(path)
        for name in LOOKS:
            if flags := getattr(self.spec, name):
                _check_evaluation(flags, f"{path}: {name}")
        if not given_of(self.spec.test, ("--samples",)):
            raise UsageError(
                f"{path}: test has flags of openrlhf-cov evaluate, with --samples, as task {self.spec.task!r} is "
                f"none of the embedded ones; got {shlex.join(self.spec.test)!r}"
            )
        has_grid = any(len(method.configurations) > 1 for method in self.spec.methods)
        if has_grid and self.spec.validation in ((), self.spec.test):
            raise UsageError(
                f"{path}: validation must have the flags of openrlhf-cov evaluate by which a configuration is "
                "selected, because methods have a grid; give flags that differ from those of test"
            )

    def request(self, run: StudyRun) -> SimpleNamespace:
        """Return the parsed flags of a run. The trainer checks data and models when it starts.

        Raises:
            UsageError: The trainer refuses a flag or a combination of flags.
        """
        from openrlhf_cov.trainer.flags.parser import parse_args
        from openrlhf_cov.trainer.preflight import preflight

        # The trainer's parser reads sys.argv, as OpenRLHF's does.
        argv = sys.argv
        sys.argv = ["train_ppo_ray", *self.words(run)]
        try:
            with refusing():
                args = parse_args()
        finally:
            sys.argv = argv
        # Checked here, because a fault in the flags of the last run would otherwise show after days of other runs.
        for fault in preflight.flag_faults(args):
            raise UsageError(fault)
        return args

    @cached_property
    def slots(self) -> int:
        """The most Ray slots that a training of the study needs."""
        layouts = (layout_of(self.request(run)) for run in self.one_of_each_configuration())
        return max(sum(group.slots for group in layout.groups()) for layout in layouts)

    @contextmanager
    def running(self, jobs: int) -> Iterator[None]:
        """Let runs share one Ray and its engines, where one run after another would start a Ray on a CPU host.

        Runs side by side have a Ray each, as they would hand out each other's slots. So have those of which one asks
        for more than this host is given, which then says so.
        """
        ray = os.environ.get("RAY_ADDRESS") or ray_of_this_host() or "local"
        if jobs > 1 or ray != "local" or not cpu_host.is_cpu_host() or self.slots > most_processes():
            yield
            return
        self.output.mkdir(parents=True, exist_ok=True)
        with local_ray(self.slots, self.slots + CONTROLLER_CPUS, self.output / RAY_FILE) as address:
            self.environment = {"RAY_ADDRESS": address.gcs, KEEP_ENGINES: "1"} | address.token
            yield
        self.environment = {}

    def dry_run(self, jobs: int) -> None:
        """Print every run that is known before tuning as a command line, and the expected duration."""
        known = all_runs(self.spec, self.scores())
        for run in known:
            say(shlex.join([*command_name(), "train", *self.words(run)]) + "\n")
        total = number_of_runs(self.spec)
        results = self.results()
        more = "; the others follow from tuning" if total > len(known) else ""
        say(f"# {self.spec.title}: {len(known)} of {total} runs{more}\n")
        if not results:
            say("# how long a run takes is known when one is finished here\n")
            return
        minutes = [float(np.nansum(each.metrics.column(STEP_TOTAL))) / 60 for each in results]
        left = (total - len(results)) * sum(minutes) / len(minutes)
        said = f"{left:.1f} min left, one after another and without starts and evaluations"
        say(f"# {len(results)} are finished, {said}\n")

    def is_another(self, run: StudyRun) -> bool:
        """Implement ``Study``."""
        folder = self.output / run.folder
        there = folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())
        return there and read_json(folder / ASKED_FILE) != self.asked(run)

    def prepare(self, run: StudyRun) -> None:
        """Make the embedded task, if the study is on one."""
        name = self.spec.task
        if name not in TINY_TASKS or read_task(self.task, name) is not None:
            return
        rows = ("--test_rows", str(HELD_OUT), "--train_rows", str(TINY_TASKS[name].problems - HELD_OUT))
        words = ["tiny-task", "--task", name, "--output", str(self.task), *rows]
        log = self.output / "task.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        call(words, log)

    def train(self, run: StudyRun) -> None:
        """Make a run, or continue one from its last checkpoint, and evaluate the trained model.

        A training without a checkpoint, or with a damaged log, begins again. Damaged evaluations of a complete
        training are made again.
        """
        if self.result(run):
            return
        folder = self.output / run.folder
        if not is_trained(folder):
            self._train(run, folder)
        look = seen_by_laboratory if self.spec.task in TINY_TASKS else seen_by_evaluate
        evaluations, test = look(self, folder)
        # Lines of an evaluation that was cut off would stand before the new ones.
        (folder / VALIDATION_FILE).unlink(missing_ok=True)
        curve = MetricsLog(folder / VALIDATION_FILE)
        for step, values in evaluations.items():
            curve.write(step, values)
        write_json(folder / TEST_FILE, test)
        # Last, because its existence says that the run is finished.
        write_json(folder / RESULT_FILE, evaluations[max(evaluations)])

    def _train(self, run: StudyRun, folder: Path) -> None:
        from openrlhf_cov.trainer.preflight.check_run import find_weights, has_checkpoint

        goes_on = has_checkpoint(folder / STATE)
        if folder.exists() and not goes_on:
            aside = folder.with_name(f".{folder.name}.old")  # at once, so that no part of it is taken for a run
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            shutil.rmtree(aside)
        for path in find_weights(folder):  # cut off while they were written
            path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / ASKED_FILE, self.asked(run))
        words = ["train", *self.words(run), *(["--ckpt.load_enable"] if goes_on else [])]
        there = is_ray_of_this_host(self.environment.get("RAY_ADDRESS", ""))  # the shared one may have ended
        call(words, folder / LOG_FILE, self.environment if there else {})
        write_json(folder / TRAINED_FILE, {"step": last_step(folder)})
        # Checkpoints of a finished training only take disk space.
        shutil.rmtree(folder / STATE, ignore_errors=True)


class RayStudyOfLabFlags(RayStudy):
    """Each run is one of ``openrlhf-cov train``, of a spec that is written for the lab."""

    def train_flags(self, run: StudyRun) -> list[str]:
        """Implement ``RayStudy``."""
        return trainer_flags(self._of_lab(self.flags(run)))

    @property
    def looks(self) -> LabSettings:
        """Return the lab's settings of the spec. A policy is evaluated before and after its training only."""
        return self._of_lab(self.flags(next(self.one_of_each_configuration()))).settings  # the same for all methods

    def asked(self, run: StudyRun) -> list[str]:
        """Return the flags of a run with ``--engine ray``, as the lab's run with the same flags is another run."""
        return [*asked, "--engine", "ray"] if (asked := super().asked(run)) else []

    def check_spec(self, path: Path) -> None:
        """Implement ``Study``."""
        check_lab_spec(self, path)

    def _of_lab(self, words: Sequence[str]) -> LabRequest:
        return lab_request(["--output", str(self.output), "--task", self.spec.task, *words])


@contextmanager
def refusing() -> Iterator[None]:
    """Raise UsageError with the reason where a parser would end this process; drop all other output of the parser."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            yield
    except SystemExit as error:
        last = (said.getvalue().strip().splitlines() or ["the trainer refuses it"])[-1]
        raise UsageError(last.partition(": error: ")[2] or last) from error


def call(words: Sequence[str], log: Path, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a command of this package to its end.

    Args:
        words: The command, a key of ``MODULES``, and its flags.
        log: File to which the output of the command is appended.
        environment: Variables beside those of this process.

    Raises:
        RunStopped: The command failed; the message has its last line and names the log.
    """
    with log.open("a") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", f"openrlhf_cov.cli.{MODULES[words[0]]}", *words[1:]],
            stdout=said,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=die_with_parent,  # at once: the next start would find it at work in its folder
        )
        try:
            status = child.wait()
        finally:
            stop(child)
    if status:
        lines = log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else ""
        raise RunStopped(f"openrlhf-cov {words[0]} ended with status {status}: {last} (all of it: {log})")


def _check_evaluation(flags: Sequence[str], place: str) -> None:
    """Raise UsageError for flags that ``openrlhf-cov evaluate`` refuses, or that the study gives itself."""
    for flag in given_of(flags, ("--model", "--output", "--list", "--regrade", "--write_data", "--help")):
        raise UsageError(f"{place}: {flag} is the study's own; drop it")
    try:
        with refusing():
            args = build_parser().parse_args(["--model", "m", "--output", "o", *flags])
        _check_asked(args)
    except (UsageError, ValueError) as error:
        raise UsageError(f"{place}: {error}") from error


def _check_asked(args: argparse.Namespace) -> None:
    """Raise UsageError or ValueError for benchmarks, sampling or grading that cannot be; no file is read."""
    if not args.benchmarks:
        raise UsageError("--benchmarks is missing; --list shows the benchmarks")
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit {args.limit}: must be at least 1")
    protocol = get_protocol(args.protocol)
    get_template(args.template or protocol.template)
    for each in select(args.benchmarks):
        sampling_of(protocol, each, {name: getattr(args, name) for name in SAMPLING_FLAGS})
    graded = {name: getattr(args, name) for name in GRADING_FLAGS}
    RewardConfig(**{name: value for name, value in graded.items() if value is not None})


def seen_by_laboratory(study: RayStudy, folder: Path) -> Seen:
    """Return the evaluations and the test of a trained policy of an embedded task, as the lab makes them.

    Args:
        study: The study, for its task, base policy and the lab's settings.
        folder: The folder of the run, with the trained model.

    Returns:
        Evaluations on the validation split at step 0, of the base policy, and at the last step, and the record of the
        test.
    """
    cpu_host.install()
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    from openrlhf_cov.experiments.lab.tasks import TASKS
    from openrlhf_cov.experiments.lab.training import Lab
    from openrlhf_cov.models.cov_config import CovConfig

    disable_progress_bar()
    task = TASKS[study.spec.task]()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    base, trained = (
        LlamaForCausalLM.from_pretrained(place, dtype=torch.float32).eval() for place in (study.task / "model", folder)
    )
    before, after = (Lab(task, model, tokenizer, study.looks, CovConfig(), base) for model in (base, trained))
    return {0: before.evaluate(), last_step(folder): after.evaluate()}, test_record(after)


def seen_by_evaluate(study: RayStudy, folder: Path) -> Seen:
    """Return the evaluation and the test of a trained model, as ``openrlhf-cov evaluate`` makes them.

    Args:
        study: The study, for its flags ``validation`` and ``test``.
        folder: The folder of the run, with the trained model. Responses are written to folders in it.

    Returns:
        Greedy accuracy on ``validation``, or on ``test`` without it, and the mean length of the sampled test responses
        in tokens, at the last step; and the record of the test.

    Raises:
        RunStopped: An evaluation failed.
    """
    from openrlhf_cov.evaluation.samples import BenchmarkSamples, read_samples

    def asked(name: str, flags: Sequence[str]) -> list[BenchmarkSamples]:
        call(["evaluate", "--model", str(folder), "--output", str(folder / name), *flags], folder / LOG_FILE)
        return read_samples(folder / name)[1]

    one = ("--temperature", "0", "--samples", "1")
    greedy = asked("test-greedy", (*study.spec.test, *one))
    drawn = asked("test", study.spec.test)
    validation = asked("validation-greedy", (*study.spec.validation, *one)) if study.spec.validation else greedy
    right = [each.correct for each in drawn]
    test = {
        "kinds": [each.settings.name for each in drawn for _ in each.items],
        "samples": right[0].shape[1],
        "greedy": [int(row[0]) for each in greedy for row in each.correct],
        "right": [int(row.sum()) for each in right for row in each],
    }
    rows = [float(row[0]) for each in validation for row in each.correct]
    lengths = [response.tokens for each in drawn for response in each.responses]
    return {last_step(folder): {"greedy": sum(rows) / len(rows), "length": sum(lengths) / len(lengths)}}, test


def last_step(folder: Path) -> int:
    """Return the last step of the training in a folder.

    Raises:
        RunStopped: The log of the training has no step.
    """
    lines = read_metrics(folder / METRICS_FILE)
    if not lines:
        raise RunStopped(f"{folder / METRICS_FILE} has no step")
    return lines[-1]["step"]


def is_trained(folder: Path) -> bool:
    """Return True if the training in a folder has ended with a line for each step in its log."""
    ended = read_json(folder / TRAINED_FILE)
    try:
        steps = [line["step"] for line in read_metrics(folder / METRICS_FILE)]
    except OSError:
        return False
    return bool(steps) and ended == {"step": len(steps)} and steps == list(range(1, len(steps) + 1))
