"""A run of the lab: its flags, the checks before it, and the files that it writes."""

import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.freed_memory import keep_freed_memory
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.lab.lab_settings import PPO_CLIP, LabSettings
from openrlhf_cov.experiments.study.run_results import STOPPED_AT, read_run
from openrlhf_cov.experiments.tiny_task.catalogue import check_sandbox
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import MORE_UPDATES, fills
from openrlhf_cov.models.slots import ProcessEstimator
from openrlhf_cov.models.unread_method_flags import unread_method_flags
from openrlhf_cov.settings import flag_of
from openrlhf_cov.trainer.flags.parser import COMMON, add_method_arguments, unread_clip
from openrlhf_cov.utils.command import write_command, write_settings
from openrlhf_cov.utils.config_flags import add_config_arguments, given_flags
from openrlhf_cov.utils.json_lines import write_json
from openrlhf_cov.utils.metric_table import CPU_TIME, STEP_TOTAL
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, RESULT_FILE, TEST_FILE, MetricsLog
from openrlhf_cov.utils.output_folders import alone_in, check_folder
from openrlhf_cov.utils.record_checks import find_record
from openrlhf_cov.utils.terminal import Parser, say
from openrlhf_cov.utils.trackers import TRACKERS, Trackers, tracker_names

ABOUT = (
    "Train GRPO or a method on a small embedded task, in one process and about a minute, without Ray, vLLM and "
    "DeepSpeed. openrlhf-cov methods lists the methods; docs/lab.md describes the tasks."
)
BASE_POLICIES_HELP = "folder of base policies (default: ~/.cache/openrlhf_cov)"
# What a run was asked for.
RUN_FILE = "lab.json"

MAX_THREADS = 1024

# Keys of ``openrlhf_cov.experiments.lab.tasks.TASKS``, which takes PyTorch to import.
TASKS = ("commands", "addition", "code", "shortcut", "shortcut_large", "tail", "graph_paths", "two_peaks")
# Those of them whose prompts have a single correct response each.
ONE_ANSWER_TASKS = ("commands", "tail")
# Those of them with a shortcut.
SHORTCUT_TASKS = ("shortcut", "shortcut_large")


def build_parser(kind: type[Parser] = Parser) -> Parser:
    """Return the parser of ``openrlhf-cov lab``, which needs no PyTorch.

    Args:
        kind: Class of the parser. A study uses one that raises errors instead of ending the process.
    """
    parser = kind(prog="openrlhf-cov lab", description=ABOUT)
    parser.usage = "%(prog)s --output DIR [--task TASK] [--method NAME[,NAME]] [flags]"
    parser.add_argument("--output", required=True, metavar="DIR", type=Path, help="new or empty folder for the run")
    parser.add_argument("--task", default="commands", choices=TASKS, help="embedded task (default: commands)")
    parser.add_argument("--base_policies", metavar="DIR", type=Path, help=BASE_POLICIES_HELP, default=None)
    parser.add_argument("--base_seed", type=int, default=0, metavar="N", help="seed of the base policy (default: 0)")
    parser.add_argument(
        "--dump_dir",
        metavar="DIR",
        type=Path,
        default=None,
        help="also write the samples of every step to this folder",
    )
    parser.add_argument(
        "--replay_dir",
        metavar="DIR",
        type=Path,
        default=None,
        help="train on the samples that --dump_dir wrote instead of sampling (docs/replay.md)",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="number of PyTorch threads (default: 1)")
    parser.add_argument(
        "--log_to", default="", metavar="NAMES", help=f"trackers, separated by commas: {', '.join(TRACKERS)}"
    )
    add_config_arguments(parser, "the run", LabSettings)
    shared = [name for name in COMMON if not name.startswith("cov_dump")]
    add_config_arguments(parser, "policy loss", CovConfig, shared)
    add_method_arguments(parser)
    return parser


@dataclass(frozen=True)
class LabRequest:
    """One run, as its flags ask for it."""

    words: Sequence[str]
    args: Any
    settings: LabSettings
    config: CovConfig

    @classmethod
    def of(cls, parser: Parser, words: Sequence[str]) -> "LabRequest":
        """Return the request of a command line.

        Args:
            parser: Result of ``build_parser``, which refuses words that are no flags.
            words: The command line without the name of the command.

        Raises:
            ValueError: A setting is out of range, has no effect, or is not allowed beside another one.
        """
        args = parser.parse_args(list(words))
        for name, lowest, most in (("threads", 1, MAX_THREADS), ("base_seed", 0, 2**31 - 1)):
            if not lowest <= getattr(args, name) <= most:
                raise ValueError(f"--{name} {getattr(args, name)}: must be a number from {lowest} to {most}")
        given = given_flags(parser.parse_args, list(words), args)
        if "shortcut_share" in given and args.task not in SHORTCUT_TASKS:
            raise ValueError(f"--shortcut_share has no effect with --task {args.task}; drop it or use --task shortcut")
        if args.random_reward and args.replay_dir is not None:
            raise ValueError("--random_reward has no effect with --replay_dir, which has the rewards; drop it")
        settings = LabSettings.from_args(args)
        config = configured(args, given)
        estimator = config.estimator
        # A random reward counts any response as correct.
        if estimator and estimator.slot.one_answer and args.task in ONE_ANSWER_TASKS and not args.random_reward:
            raise ValueError(
                f"{estimator.flag} has no effect with --task {args.task}, whose prompts have one correct response: "
                f"{estimator.slot.one_answer}; use --task shortcut"
            )
        _check_micro_batches(settings, config)
        return cls(words, args, settings, config)

    @property
    def base_policies(self) -> Path:
        """The folder of the base policy."""
        return self.args.base_policies or base_policies()

    @property
    def record(self) -> dict[str, Any]:
        """Everything that the numbers of the run depend on."""
        named = {"task": self.args.task, "base_seed": self.args.base_seed}
        if self.args.replay_dir is not None:
            named["replay_dir"] = str(self.args.replay_dir)
        values = {**named, **asdict(self.settings), **asdict(self.config)}
        if not any(self.settings.clip):
            values["clip"] = PPO_CLIP  # or the method's, which its settings say
        elif self.config.at(0).ppo_clip:
            values["clip_in_place_of_the_methods"] = True
        found = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {name: value for name, value in found.items() if not name.startswith("allow_")}

    @property
    def flags(self) -> dict[str, Any]:
        """Return every setting of the run by its flag, with the defaults of the lab filled in."""
        return {_flag(name): value for name, value in self.record.items()}

    def check(self) -> None:
        """Raise UsageError where this host cannot make the run, or its folder cannot take it; write nothing."""
        # The lab needs no Ray, vLLM and DeepSpeed, which ``require`` checks by default.
        require(("torch", "transformers", "openrlhf"))
        tracker_names(self.args.log_to)
        if self.args.task == "code":
            check_sandbox()
        check_folder(self.args.output)
        check_folder(self.base_policies, "--base_policies")
        self._check_recordings()
        if self.is_another():
            raise UsageError(
                f"--output {self.args.output} is not empty and does not hold this run{self._difference()}; choose "
                "another folder"
            )

    def _check_recordings(self) -> None:
        """Raise UsageError for folders of recorded rollouts that this run cannot write or read."""
        from openrlhf_cov.data.rollout_files import RolloutFileError, check_steps, recorded_steps

        dump: Path | None = self.args.dump_dir
        replay: Path | None = self.args.replay_dir
        if dump is not None:
            check_folder(dump, "--dump_dir")
            # A run that was cut off is made again from its first step.
            if recorded_steps(dump) and not self._is_of_this_run():
                raise UsageError(f"--dump_dir {dump} holds recorded rollouts of another run; choose a new folder")
        if replay is None:
            return
        if dump is not None and dump.resolve() == replay.resolve():
            raise UsageError(f"--dump_dir {dump} is also --replay_dir; choose another folder")
        try:
            steps = len(check_steps(replay))
        except RolloutFileError as error:
            raise UsageError(f"--replay_dir {error}") from error
        if steps < self.settings.steps:
            raise UsageError(f"--replay_dir {replay} has {steps} steps; lower --steps {self.settings.steps}")

    def is_complete(self) -> bool:
        """Return True if its folder holds the complete run; damaged files are reported."""
        output: Path = self.args.output
        if not (output / RESULT_FILE).is_file() or not self._is_of_this_run():
            return False
        try:
            read_run(output, evaluated=self.settings.evaluated)
        except ValueError as error:
            say(f"{error}; the run is made again\n", sys.stderr)
            return False
        return True

    def is_another(self) -> bool:
        """Return True if its folder holds anything other than this run or a part of it."""
        output: Path = self.args.output
        there = output.exists() and any(not path.name.startswith(".") for path in output.iterdir())
        return there and not self._is_of_this_run()

    def _is_of_this_run(self) -> bool:
        """Return True if the folder holds this run."""
        return self._recorded() == self.record

    def _recorded(self) -> dict[str, Any] | None:
        """Return the settings of the run in its folder, None without one.

        Settings that the file lacks had what is the default now.
        """
        recorded = find_record(dict[str, Any], self.args.output / RUN_FILE)
        if recorded is None:
            return None
        recorded = {name: value for name, value in recorded.items() if not name.startswith("allow_")}
        return {**LabRequest.of(build_parser(), ["--output", "unused"]).record, **recorded}

    def _difference(self) -> str:
        """Return in brackets in which settings the run in the folder differs, "" if it holds no run."""
        recorded = self._recorded()
        if recorded is None:
            return ""
        names = sorted(name for name in recorded.keys() | self.record if recorded.get(name) != self.record.get(name))
        shown = [f"{_flag(name)} {recorded.get(name)} there, {self.record.get(name)} here" for name in names[:3]]
        return f" ({'; '.join(shown)}{'; …' if len(names) > 3 else ''})"


def _flag(name: str) -> str:
    """Return the flag of a setting of the lab or of the policy loss."""
    names = {entry.name: flag_of(entry) for config in (LabSettings, CovConfig) for entry in fields(config)}
    return f"--{names.get(name, name)}"


def configured(args: Any, given: Collection[str]) -> CovConfig:
    """Return the settings of the policy loss.

    Args:
        args: Parsed flags of the lab.
        given: Names in ``args`` of the flags that the command line has. Methods refuse some flags only when given.

    Raises:
        ValueError: A setting is out of range, a flag is not read by any chosen method, a method refuses another
            setting, or a method needs a process reward model, which the lab does not have.
    """
    known = {each.name: getattr(args, each.name) for each in fields(CovConfig) if hasattr(args, each.name)}
    config = CovConfig(**known)
    flags = {
        "actor.entropy_coef": args.entropy_coef,
        "actor.loss_agg_mode": config.aggregation or "token-mean",
        "rollout.n_samples_per_prompt": args.group,
    }
    for method in config.methods:
        if fills(method, ProcessEstimator):
            raise ValueError(
                f"{method.flag} needs a process reward model, which the lab does not have; use openrlhf-cov train"
            )
    # Methods refuse flags that they are given, and not the defaults of the lab.
    clip = {"actor.eps_clip_low_high": args.clip} if "clip" in given else {}
    refused = filter(None, (method.refuses(config, flags | clip) for method in config.methods))
    for reason in (*unread_method_flags(config, given), *unread_clip(config, clip), *refused):
        raise ValueError(reason)
    return config


def _check_micro_batches(settings: LabSettings, config: CovConfig) -> None:
    """Raise ValueError for micro-batches above an optimizer step, or as large with ``--cov_scope micro_batch``.

    The latter would be the run of ``--cov_scope global`` under another name.
    """
    samples = settings.prompts * settings.group // settings.updates
    if settings.micro_batch > samples:
        raise ValueError(
            f"--train.micro_batch_size {settings.micro_batch}: an optimizer step has {samples} samples; give at most "
            "that, or 0 for all of them"
        )
    if config.cov_scope == "micro_batch" and not 0 < settings.micro_batch < samples:
        raise ValueError(
            f"--cov_scope micro_batch has no effect with --train.micro_batch_size {settings.micro_batch}: one "
            f"micro-batch has all {samples} samples of an optimizer step; give 1 to {samples - 1}"
        )


def prepare(request: LabRequest) -> Any:
    """Return the ``Lab`` of a run, with the base policy made or read. Nothing is written to the run's folder.

    Raises:
        UsageError: The base policy cannot be written or read, or the vocabulary is too small for the target entropy.
    """
    cpu_host.install()
    import torch
    from transformers.utils.logging import disable_progress_bar

    from openrlhf_cov.experiments.lab.tasks import make_task

    with cpu_host.flash_attention_stand_in():
        from openrlhf_cov.experiments.lab.training import Lab

    torch.set_num_threads(request.args.threads)
    keep_freed_memory()
    disable_progress_bar()
    task = make_task(request.args.task, request.settings.shortcut_share)
    model, tokenizer = task.base_policy(request.base_policies, request.args.base_seed)
    try:
        request.config.check_reachable(len(tokenizer))
    except ValueError as error:
        raise UsageError(str(error)) from error
    folders = {"dump_dir": request.args.dump_dir, "replay_dir": request.args.replay_dir}
    return Lab(task, model, tokenizer, request.settings, request.config, **folders)


def measure(request: LabRequest, steps: int) -> dict[str, float]:
    """Measure the duration of a run, from a few of its steps, one evaluation and the test.

    Args:
        request: The run. Nothing is written to its folder.
        steps: Number of steps that are timed, after a first one that is not.

    Returns:
        Wall-clock seconds: ``step`` for a step, as the mean, and ``rest`` for all evaluations of the run and its test.
    """
    lab = prepare(request)
    # The first step also allocates the memory that later steps use again, so it is not timed.
    lab.step(1)
    clock = time.monotonic()
    for step in range(2, steps + 2):
        lab.step(step)
    a_step = (time.monotonic() - clock) / steps
    clock = time.monotonic()
    lab.evaluate()
    evaluation = time.monotonic() - clock
    clock = time.monotonic()
    lab.test()
    # About as many as ``LabSettings.evaluated`` has: those at intervals, and those at steps 0 and 1.
    evaluations = request.settings.steps // request.settings.eval_every + 2
    return {"step": a_step, "rest": evaluations * evaluation + time.monotonic() - clock}


def train(request: LabRequest) -> dict[str, float]:
    """Make a run and return its result; write ``metrics.jsonl``, ``eval.jsonl``, ``test.json`` and ``result.json``."""
    lab = prepare(request)
    with alone_in(request.args.output):
        return _train(lab, request)


def _train(lab: Any, request: LabRequest) -> dict[str, float]:
    output: Path = request.args.output
    write_json(output / RUN_FILE, request.record)
    write_command(output, ["openrlhf-cov", "lab", *request.words])
    write_settings(output, request.flags)
    for name in (METRICS_FILE, EVAL_FILE, RESULT_FILE):
        (output / name).unlink(missing_ok=True)  # of an interrupted run, which is made again: it takes a minute
    for message in one_update_messages(request):
        say(f"{message}\n")
    metrics = MetricsLog(output / METRICS_FILE)
    evaluations = MetricsLog(output / EVAL_FILE)
    trackers = Trackers(tracker_names(request.args.log_to), output, request.flags)
    before = lab.evaluate()
    evaluations.write(0, before)
    trackers.log(0, before)
    result: dict[str, float] = {}
    # Warnings of the run so far, each of which is printed once.
    warned: set[str] = set()
    step = 0
    clocks = time.monotonic(), time.process_time()
    for step, values, evaluation in lab.run():
        now = time.monotonic(), time.process_time()
        values = values | {STEP_TOTAL: now[0] - clocks[0], CPU_TIME: now[1] - clocks[1]}
        metrics.write(step, values)
        trackers.log(step, values | (evaluation or {}))
        for message in idle_messages(request, values):
            if message not in warned:
                warned.add(message)
                say(f"step {step}: {message}\n")
        if evaluation is not None:
            evaluations.write(step, evaluation)
            result = evaluation
            shown = {name: value for name, value in evaluation.items() if "/" not in name}
            line = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
            training = f"reward {values['reward']:.3f}, entropy {values['entropy/mean']:.3f}"
            say(f"step {step}: {training}; validation: {line}\n")
        clocks = time.monotonic(), time.process_time()
    test = test_record(lab)
    write_json(output / TEST_FILE, test)
    questions = len(test["greedy"])
    sampled = sum(test["right"]) / (questions * test["samples"])
    result |= {"test/greedy": sum(test["greedy"]) / questions, "test/sampled": sampled}
    # With --stop_early a complete run may have fewer steps; without the entry it would look interrupted.
    if step < request.settings.steps:
        result[STOPPED_AT] = step
    write_json(output / RESULT_FILE, result)
    trackers.close()
    return result


def one_update_messages(request: LabRequest) -> list[str]:
    """Return why methods or the PPO clip have no effect in a run with one update per rollout, a message for each."""
    if request.settings.updates > 1:
        return []
    found = [
        f"{method.flag} with one update per rollout: {method.one_update}; raise --updates"
        for method in request.config.methods
        if method.one_update
    ]
    low, high = request.settings.clip
    if low != high and request.config.at(0).ppo_clip is None:
        found.append(
            f"--actor.eps_clip_low_high {low:g} {high:g} with one update per rollout: nothing is clipped, the policy "
            "is still the one that sampled; raise --updates"
        )
    return found


def idle_messages(request: LabRequest, values: Mapping[str, float]) -> list[str]:
    """Return why methods of a run had no effect in a global step, a message for each such method.

    Args:
        request: The run.
        values: The metrics of the step, by name.
    """
    updates = request.settings.updates
    # What one update means is said before the first step.
    methods = [method for method in request.config.methods if updates > 1 or not method.one_update]
    found = [method.idle(values, updates) for method in methods]
    return [message.replace(MORE_UPDATES, "raise --updates") for message in found if message]


def test_record(lab: Any) -> dict[str, Any]:
    """Return the test of a ``Lab``: for each question the greedy answer and the number of correct samples."""
    greedy, drawn = lab.test()
    return {
        "prompts": [problem.prompt for problem in lab.task.test],
        "kinds": [lab.task.kind(problem) for problem in lab.task.test],
        "samples": drawn.shape[1],
        "greedy": greedy.int().tolist(),
        "right": drawn.sum(1).tolist(),
    }


def base_policies() -> Path:
    """Return the default folder of base policies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openrlhf_cov"
