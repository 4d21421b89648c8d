"""The controller: upstream's, which also announces each step to the actors and writes ``metrics.jsonl``."""

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer
from openrlhf.trainer.ppo_trainer import compute_eval_metrics as upstream_metrics
from openrlhf.trainer.ppo_trainer import prepare_datasets as upstream_datasets
from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor, TrainingActor
from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger, init_logger

from openrlhf_cov.config import RunConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.dynamics import RunningLaw
from openrlhf_cov.trainer.benchmark_evaluation import of_benchmarks, with_benchmarks
from openrlhf_cov.trainer.checkpoints import (
    BEST,
    ROLLOUTS,
    CheckpointedLoader,
    can_resume,
    checkpoint_folder,
    start_afresh_without_checkpoint,
)
from openrlhf_cov.trainer.engine_health import dead_engines, limited_transfer
from openrlhf_cov.trainer.experience_maker import CovExperienceMaker
from openrlhf_cov.trainer.old_rollouts import (
    check_reward_errors,
    check_rollout_log_probs,
    complete_logs,
    failed_rewards,
    fill_abstained,
    of_scores,
)
from openrlhf_cov.trainer.ray.engine_scores import score_texts
from openrlhf_cov.trainer.ray.seams import InstalledActor, plain_class
from openrlhf_cov.trainer.run_record import DATA_CHANGED
from openrlhf_cov.trainer.sample_info import SAMPLE_ID
from openrlhf_cov.trainer.shared_argument import share
from openrlhf_cov.trainer.stopping import Ending, ending, stop_requested
from openrlhf_cov.trainer.weight_check import WeightCheck
from openrlhf_cov.utils.metric_table import limit
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, MetricsLog
from openrlhf_cov.utils.redaction import redact_arguments

logger = init_logger(__name__)

KL_COEF, LAW = "kl_coef", "law"
"""Entries of a checkpoint's client states."""

CLIENT_STATES = ("episode", "global_step", "total_consumed_prompts", "data_loader_state_dict")
"""Upstream's entries of the client states."""


WANDB_RUN = "wandb_run_id"
"""File in ``--ckpt.output_dir`` with the id of the W&B run."""


class CovWandbLogger(WandbLogger):
    """Upstream's, which records the flags: here without secrets, of which the key is one. A resume goes on in its run.

    Upstream starts a new W&B run at every start. ``wandb.init`` also reads environment variables, and upstream does
    not pass the settings that they give: the id of the run, and that a run of this id is continued.
    """

    def __init__(self, args: Any) -> None:
        os.environ["WANDB_RUN_ID"] = wandb_run_id(args)
        os.environ["WANDB_RESUME"] = "allow"
        import wandb

        if not wandb.api.api_key:
            os.environ["WANDB_API_KEY"] = args.logger.wandb.key
        super().__init__(redact_arguments(args))

    def log_eval(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Upstream's, with each name once under ``eval/``."""
        super().log_eval(global_step, without_prefix(logs_dict))


class CovTensorboardLogger(TensorboardLogger):
    """Upstream's, with each metric of an evaluation once under ``eval/``."""

    def log_eval(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Upstream's."""
        super().log_eval(global_step, without_prefix(logs_dict))


def without_prefix(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics without ``eval/`` in front of their names, which upstream's trackers add themselves."""
    return {name.removeprefix("eval/"): value for name, value in metrics.items()}


def wandb_run_id(args: Any) -> str:
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


def number_samples(samples: list, first: int) -> None:
    """Number the samples of a rollout from ``first`` on, prompt by prompt in the order of the prompts' text and label.

    ``samples`` come as prompts finish, which differs from run to run; responses to one prompt lie together, in the
    order in which they were asked for. Equal prompts with equal labels keep their order.
    """
    ordered = sorted(samples, key=lambda sample: (sample.prompts[0], repr(sample.labels[0])))
    for number, sample in enumerate(ordered, start=first):
        sample.info[SAMPLE_ID] = torch.tensor([number])


class StepLogging(InstalledActor):
    """Mixin over upstream's ``BasePPOTrainer``: one line of ``metrics.jsonl`` per global step."""

    experience_maker: CovExperienceMaker
    """Made by upstream, of the class that stands in for its own."""
    untrained = 0
    """Samples that wait in the actors' buffers: upstream trains on none during ``--critic.freezing_steps``."""
    dead_engines: Sequence[int] = ()
    """Places of the vLLM engines that did not get the newest weights because they died."""
    restored: dict | None = None
    """The client states that this process starts from, until its first step."""
    weight_check: WeightCheck | None = None

    def init_checkpoint_states(self) -> dict:
        """Upstream's; the metrics file continues after the step that was restored.

        Raises RunStopped if policy, critic and this process do not continue from the same checkpoint.
        """
        self._check_restored()
        start_afresh_without_checkpoint(self.args)
        states = super().init_checkpoint_states()
        self.kl_ctl.value = states.get(KL_COEF, self.kl_ctl.value)
        self.law = RunningLaw()
        self.law.load_state_dict(states.get(LAW))
        if getattr(self.args, DATA_CHANGED, False):  # the new data has all of its episodes
            states["episode"] = states["total_consumed_prompts"] = 0
        self.restored = {name: states[name] for name in CLIENT_STATES}
        folder = Path(self.args.ckpt.output_dir)
        # A fresh start keeps no line of an earlier attempt, nor its evaluation at step 0: without a checkpoint nothing
        # tells whether that attempt had this model and these settings.
        resumed_step = states["global_step"] or -1
        self.metrics_log = MetricsLog(folder / METRICS_FILE, resumed_step)
        self.eval_log = MetricsLog(folder / EVAL_FILE, resumed_step)
        return states

    def _check_restored(self) -> None:
        if not self.args.ckpt.load_enable:
            return
        tag = ray.get(self.actor_model_group.async_run_method(method_name="get_restored"))[0]
        folder = checkpoint_folder(self.args, "actor")
        if can_resume(self.args) != (tag is not None):
            raise RunStopped(
                f"--ckpt.load_enable: the policy continues from {tag or 'no checkpoint'}, but {folder} has "
                f"{'none' if tag else 'one'} on host {socket.gethostname()}, where the controller runs; name a "
                "--ckpt.path on a file system that all hosts mount at this path"
            )
        if self.critic_model_group is None:
            return
        other = ray.get(self.critic_model_group.async_run_method(method_name="get_restored"))[0]
        if other != tag:
            raise RunStopped(
                f"--ckpt.load_enable: the policy continues from {tag or 'no checkpoint'}, the critic from "
                f"{other or 'none'}; write the name of one that both have into the files latest in "
                f"{folder} and {checkpoint_folder(self.args, 'critic')}"
            )

    def train_step(self, rollout_samples, global_step: int) -> tuple[dict, int]:
        """Upstream's, after every sample got its number: selection breaks ties by it, wherever the sample goes."""
        check_reward_errors(failed_rewards(rollout_samples), len(rollout_samples), self.args.reward_max_error_frac)
        config = self.experience_maker.config = CovConfig.from_args(self.args).at(global_step)
        if config.rollout_anchor:
            check_rollout_log_probs(rollout_samples, config.rollout_anchor)
        complete_logs(rollout_samples)
        fill_abstained(rollout_samples)
        number_samples(rollout_samples, first=self.untrained)
        self.untrained += len(rollout_samples)
        self._start_weight_check(rollout_samples, global_step)
        self.args.global_step = global_step  # for balanced_in_parts: upstream calls it with the flags alone
        status, global_step = super().train_step(rollout_samples, global_step)
        if "entropy/mean" in status:
            status |= self.law.add(status["entropy/mean"], status["reward"])
        status |= getattr(self.experience_maker, "source_metrics", {})
        return status | getattr(rollout_samples, "metrics", {}), global_step

    def _start_weight_check(self, rollout_samples: list, global_step: int) -> None:
        if self.args.check_weight_update == "off":
            return
        if self.weight_check is None:
            self.weight_check = WeightCheck(self.args.check_weight_update, self._score_policy, self._score_engines)
        plain = [
            SimpleNamespace(tokens=each.sequences[0], images=each.images[0], image_inputs=each.mm_train_inputs[0])
            for each in rollout_samples
        ]
        self.weight_check.start_step(plain, self.args.data.max_len, global_step + 1)

    def _score_policy(self, texts: list[list[int]]) -> torch.Tensor:
        ranks = self.actor_model_group.async_run_method(method_name="score_texts", texts=texts)
        return torch.tensor(ray.get(ranks)[0], dtype=torch.float64)

    def _score_engines(self, texts: list[list[int]]) -> list[torch.Tensor] | None:
        return score_texts(self.vllm_engines, texts, asleep=self.args.vllm.enable_sleep)

    def ppo_train(self, global_steps: int) -> dict:
        """Upstream's, after every actor has been told which step this is."""
        self.restored = None
        for group in filter(None, (self.actor_model_group, self.critic_model_group)):
            ray.get(group.async_run_method(method_name="start_step", global_step=global_steps))
        status = super().ppo_train(global_steps)
        status.pop(SAMPLE_ID, None)
        if "entropy/mean" in status:  # from CovPolicyActor.fit, which empties the buffers
            self.untrained = 0
        if status.get("ppo/ratio_p99", 0.0) > limit("ppo/ratio_p99"):
            logger.warning(
                f"the policy runs away from its rollouts: ppo/ratio_p99 {status['ppo/ratio_p99']:.3g}, ppo/ratio_max "
                f"{status['ppo/ratio_max']:.3g}. Lower --actor.adam.lr, use fewer updates per rollout, or keep the "
                "PPO clip (--actor.eps_clip_low_high 0.2 0.2, or the flag of the method that keeps it)"
            )
        return status

    def save_logs_and_checkpoints(self, global_step: int, logs_dict=None, client_states=None) -> None:
        """Write the metrics line first, then upstream's logs and checkpoints.

        Raises RunStopped after a signal and after the death of a vLLM engine, when the step and, as
        ``--ckpt.on_signal`` says, a checkpoint are on disk.
        """
        _on_disk(self.metrics_log, global_step, logs_dict or {})
        client_states = self._own_states(client_states)
        saves = global_step % self.args.ckpt.save_steps == 0
        states = _for_actors(client_states) if saves else client_states
        super().save_logs_and_checkpoints(global_step, logs_dict, states)
        is_over = client_states[ROLLOUTS]["generator"]["is_over"]
        reason = ending(stop_requested(), self.dead_engines, is_over)
        if reason is not None:
            self._stop(reason, global_step, client_states)

    def _stop(self, reason: Ending, global_step: int, client_states: dict) -> None:
        ckpt = self.args.ckpt
        saved = global_step % ckpt.save_steps == 0 and not ckpt.disable_ds
        if not (saved or ckpt.disable_ds) and RunConfig.from_args(self.args).on_signal == "checkpoint":
            ckpt.save_steps, save_steps = 1, ckpt.save_steps
            super().save_logs_and_checkpoints(global_step, None, _for_actors(client_states))
            ckpt.save_steps, saved = save_steps, True
        for tracker in (self.wandb_logger, self.tensorboard_logger):
            if tracker:
                tracker.close()
        how = f"continue with --ckpt.load_enable from {ckpt.path}" if saved else "no checkpoint was asked for"
        raise reason.error(f"{reason.cause}: stopped after global step {global_step}; {how}")

    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None) -> None:
        """Write the line of this evaluation to ``eval.jsonl``, unless it is there, and export a better model.

        Upstream writes a whole DeepSpeed checkpoint at every better evaluation, which is seven times the size of the
        weights. Here the best model is a Hugging Face export, and only if ``--ckpt.best_metric_key`` asks for it.
        """
        if not eval_metrics:
            return
        if self.eval_log.values_of(global_step) is None:
            _on_disk(self.eval_log, global_step, eval_metrics)
        if self.best_eval_metric_key == "none":
            return
        key = self._detect_eval_metric_key(eval_metrics)
        if key is None:
            logger.warning(
                f"--ckpt.best_metric_key {self.best_eval_metric_key or 'auto'}: the evaluation has no such metric; "
                f"choose one of {', '.join(sorted(eval_metrics))}"
            )
            return
        value = self._latest_eval_metric_value = eval_metrics[key]
        if not value > self.best_eval_metric_value:
            return
        self.best_eval_metric_value = value
        record = {"global_step": global_step, "metric": key, "value": value}
        ray.get(self.actor_model_group.async_run_method(method_name="export_best", record=record))
        logger.info(f"best model so far, {key} {value:.4f} at global step {global_step}: {self.args.ckpt.path}/{BEST}")

    def restore_best_checkpoint_state(self, checkpoint_states) -> None:
        """Upstream's, unless ``--ckpt.best_metric_key`` has changed since the checkpoint.

        Upstream takes the key of the checkpoint, so the flag would have no effect.
        """
        saved = (checkpoint_states or {}).get("best_eval_metric_key") or "none"
        own = self.best_eval_metric_key
        if own == saved or (own == "" and saved != "none"):  # empty: upstream chose the key by itself
            super().restore_best_checkpoint_state(checkpoint_states)

    def _own_states(self, client_states: dict | None) -> dict:
        return (client_states or {}) | {KL_COEF: self.kl_ctl.value, LAW: self.law.state_dict()}


def _for_actors(client_states: dict) -> dict:
    """The client states, of which what the controller alone needs lies in Ray's store, for one actor to fetch."""
    if ROLLOUTS not in client_states:
        return client_states
    return client_states | {ROLLOUTS: ray.put(client_states[ROLLOUTS])}


def _on_disk(log: MetricsLog, step: int, values: dict) -> None:
    try:
        log.write(step, values)
    except OSError as error:
        raise RunStopped(f"{log.path} cannot be written at global step {step}: {error.strerror}") from error


class CheckpointedRollouts(InstalledActor):
    """Mixin over upstream's owners of a samples generator: its state is saved with that of the data loader.

    The order of the data follows from ``--train.seed``; upstream's differs from run to run. The tokenizer, which goes
    to an engine with every prompt, is pickled once: 0.4 s and 8 MB where the vocabulary has 150,000 entries.
    """

    def __init__(self, pretrain, strategy, *args, **kwargs) -> None:
        torch.manual_seed(strategy.args.train.seed)  # the data loader draws the seed of its order when it is made
        super().__init__(pretrain, strategy, *args, **kwargs)
        self.samples_generator.tokenizer = share(self.samples_generator.tokenizer)
        restart = getattr(strategy.args, DATA_CHANGED, False)
        self.prompts_dataloader = CheckpointedLoader(self.prompts_dataloader, self.samples_generator, restart)


class CheckedBroadcast(BasePPOTrainer):
    """Stands between upstream's trainers and their base class, where the asynchronous one holds its lock on vLLM."""

    weight_check: WeightCheck | None

    def broadcast_to_vllm(self) -> None:
        """Upstream's, unless a vLLM engine died: the broadcast would wait for it.

        The step in flight is then finished without (``dead_engines``). Raises RunStopped if there is none, and if the
        engines take longer than ``--vllm.no_progress_timeout``.
        """
        self.dead_engines = dead_engines(self.vllm_engines)
        if not self.dead_engines:
            actors = getattr(self.actor_model_group, "_actor_handlers", ())
            limited = limited_transfer(self.vllm_engines, actors, self.args.vllm_no_progress_timeout)
            paused = self.args.train.partial_rollout_enable  # CovTrainingActor checks when engines answer again
            with limited, nullcontext() if paused else self.weights_checked():
                super().broadcast_to_vllm()
            return
        message = f"vLLM engine {', '.join(map(str, self.dead_engines))} died; look for the cause in its log above"
        if self.restored is not None:
            raise RunStopped(f"{message}; no step was made")
        logger.warning(f"{message}; no engine gets the new weights, and the run ends after this step")

    @contextmanager
    def weights_checked(self) -> Iterator[None]:
        """Run the weight check around a transfer. Raises RunStopped as ``WeightCheck`` does."""
        if self.weight_check is None:  # off, or no step was made yet
            yield
            return
        self.weight_check.before_transfer()
        yield
        if not self.dead_engines:
            self.weight_check.after_transfer()


class CovPPOTrainer(StepLogging, CheckpointedRollouts, plain_class(PPOTrainer), CheckedBroadcast):
    """Synchronous training."""

    def init_checkpoint_states(self) -> dict:
        """Upstream's; an engine that another run has used gets the weights with which this one begins."""
        states = super().init_checkpoint_states()
        if not states["global_step"] and any(ray.get([each.needs_weights.remote() for each in self.vllm_engines])):
            super().broadcast_to_vllm()
        return states

    def restore_best_checkpoint_state(self, checkpoint_states) -> None:
        """Upstream's; a fresh start evaluates its policy first, with ``--eval.at_start``."""
        super().restore_best_checkpoint_state(checkpoint_states)
        if self.args.eval_at_start and self.restored is not None and not self.restored["global_step"]:
            self._evaluate(self.restored)

    def broadcast_to_vllm(self) -> None:
        """Upstream's; on resuming, what upstream does between the checkpoint of a step and the next step follows."""
        super().broadcast_to_vllm()
        if self.restored is not None:
            self._evaluate(self.restored)

    def _evaluate(self, restored: dict) -> None:
        """The evaluation that was due at the restored step, made now or taken from ``eval.jsonl``."""
        step, evaluation = restored["global_step"], self.args.eval
        if not self.eval_dataloader or step % evaluation.steps:
            return
        settings = {"temperature": evaluation.temperature, "n_samples_per_prompt": evaluation.n_samples_per_prompt}
        logs = self.eval_log.values_of(step) or self.evaluate(step, **self.generate_kwargs | settings)
        self.save_best_checkpoint(logs, step, restored)


class CovTrainingActor(StepLogging, plain_class(TrainingActor), CheckedBroadcast):
    """The training side of ``--train.async_enable``."""

    def broadcast_to_vllm(self) -> None:
        """Upstream's; engines that it pauses meanwhile are asked for the weight check before and after that."""
        with self.weights_checked() if self._partial_rollout else nullcontext():
            super().broadcast_to_vllm()


class CovGenerateSamplesActor(CheckpointedRollouts, plain_class(GenerateSamplesActor)):
    """The generating side of ``--train.async_enable``."""


prepare_datasets = with_benchmarks(upstream_datasets)
compute_eval_metrics = of_benchmarks(of_scores(upstream_metrics))
