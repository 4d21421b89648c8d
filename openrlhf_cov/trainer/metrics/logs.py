"""Write the metrics of a training to ``metrics.jsonl``, ``eval.jsonl`` and trackers."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger, init_logger

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.checkpoint.checkpoints import can_resume
from openrlhf_cov.utils.command import SETTINGS_FILE, read_settings
from openrlhf_cov.utils.metric_table import limit
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, MetricsLog
from openrlhf_cov.utils.redaction import redact_arguments
from openrlhf_cov.utils.trackers import Trackers, tracker_names

logger = init_logger(__name__)

# File in ``--ckpt.output_dir`` with the id of the W&B run.
WANDB_RUN = "wandb_run_id"


class CovWandbLogger(WandbLogger):
    """Upstream's logger, which records the flags: here without secrets. A resumed run goes on in its W&B run.

    Upstream starts a new W&B run at every start. ``wandb.init`` also reads environment variables, and upstream does
    not pass the settings that they give: the id of the run, and that a run of this id is continued.
    """

    def __init__(self, args: SimpleNamespace) -> None:
        os.environ["WANDB_RUN_ID"] = wandb_run_id(args)
        os.environ["WANDB_RESUME"] = "allow"
        import wandb

        if not wandb.api.api_key:
            os.environ["WANDB_API_KEY"] = args.logger.wandb.key
        super().__init__(redact_arguments(args))


def wandb_run_id(args: SimpleNamespace) -> str:
    """Return the id of the W&B run: that of the run which these flags resume, or a new one.

    The id is kept in the folder of the run. The variable ``WANDB_RUN_ID`` goes before.
    """
    path = Path(args.ckpt.output_dir) / WANDB_RUN
    if run_id := os.environ.get("WANDB_RUN_ID"):
        return run_id
    run_id = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    if not (run_id and args.ckpt.load_enable and can_resume(args)):
        run_id = uuid.uuid4().hex[:8]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(run_id, encoding="utf-8")
    return run_id


def without_prefix(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics without ``eval/`` in front of their names, which upstream's trackers add themselves."""
    return {name.removeprefix("eval/"): value for name, value in metrics.items()}


class TrainingLogs:
    """The logs of one run.

    Args:
        args: The flags of the run.
        resumed_step: The step that the run continues from, 0 for a fresh start. Lines after that step are dropped: a
            fresh start keeps no line of an earlier attempt, nor its evaluation at step 0, because without a checkpoint
            nothing tells whether that attempt had this model and these settings.
    """

    def __init__(self, args: SimpleNamespace, resumed_step: int) -> None:
        folder = Path(args.ckpt.output_dir)
        self.every = args.logger.logging_steps
        self.metrics = MetricsLog(folder / METRICS_FILE, resumed_step or -1)
        self.evaluations = MetricsLog(folder / EVAL_FILE, resumed_step or -1)
        settings = read_settings(folder / SETTINGS_FILE)
        self.adapters = Trackers(tracker_names(args.log_to), folder, settings)
        # Upstream's own loggers, chosen by its flags.
        self.trackers: list[Any] = []
        if args.logger.wandb.key:
            self.trackers.append(CovWandbLogger(args))
        if args.logger.tensorboard_dir:
            self.trackers.append(TensorboardLogger(args))

    def write_step(self, step: int, metrics: Mapping[str, float], example: tuple[str, float]) -> None:
        """Write the line of a global step (from 1).

        Args:
            step: The number of the step.
            metrics: Its numbers.
            example: The text of one sample and its reward, for the trackers.

        Raises:
            RunStopped: The disk refuses the line.
        """
        _on_disk(self.metrics, step, metrics)
        logger.info(f"✨ Global step {step}: {dict(metrics)}")
        logger.info(f"Sample: {list(example)}")
        if step % self.every == 0:
            self.adapters.log(step, metrics)
            for tracker in self.trackers:
                tracker.log_train(step, {**metrics, "generated_samples": list(example)})
        warn_of_large_ratios(metrics)

    def write_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the line of an evaluation after a global step.

        Args:
            step: The number of completed global steps; 0 for an evaluation before the first one.
            metrics: The numbers of the evaluation.

        Raises:
            RunStopped: The disk refuses the line.
        """
        _on_disk(self.evaluations, step, metrics)
        self.adapters.log(step, metrics)
        for tracker in self.trackers:
            tracker.log_eval(step, without_prefix(metrics))

    def evaluation_of(self, step: int) -> dict[str, float] | None:
        """Return the evaluation that was written for a step, None without one."""
        return self.evaluations.values_of(step)

    def close(self) -> None:
        """Close the trackers."""
        for tracker in (*self.trackers, self.adapters):
            tracker.close()


def warn_of_large_ratios(metrics: Mapping[str, float]) -> None:
    """Warn if the policy moved far from the one that was sampled."""
    if metrics.get("ppo/ratio_p99", 0.0) > limit("ppo/ratio_p99"):
        logger.warning(
            f"the policy runs away from its rollouts: ppo/ratio_p99 {metrics['ppo/ratio_p99']:.3g}, ppo/ratio_max "
            f"{metrics['ppo/ratio_max']:.3g}. Lower --actor.adam.lr, use fewer updates per rollout, or keep the "
            "PPO clip (--actor.eps_clip_low_high 0.2 0.2, or the flag of the method that keeps it)"
        )


def _on_disk(log: MetricsLog, step: int, values: Mapping[str, float]) -> None:
    try:
        log.write(step, dict(values))
    except OSError as error:
        raise RunStopped(f"{log.path} cannot be written at global step {step}: {error.strerror}") from error
