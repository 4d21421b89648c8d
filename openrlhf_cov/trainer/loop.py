"""The training loop. One global step is one rollout and all its updates:

    prompts -> Rollout of Samples -> Scores -> advantages -> updates -> new weights -> log, checkpoint, evaluation

``TrainingLoop.run`` has the complete loop, and ``TrainingLoop.train_step`` the stages of a step in their order. Both
run in one process, the controller. With ``--train.async_enable``, a thread of this process samples the next rollouts.
Models and vLLM engines are Ray actors, which ``ModelGroups`` and ``BatchStream`` call.
"""

import time
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.config import RunConfig
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages
from openrlhf_cov.trainer.checkpoint.checkpoints import BEST, ROLLOUTS, checkpoint_tag
from openrlhf_cov.trainer.checkpoint.resuming import restored_states
from openrlhf_cov.trainer.checkpoint.stopping import ending, stop_requested
from openrlhf_cov.trainer.evaluation import Evaluation
from openrlhf_cov.trainer.intervals import is_due
from openrlhf_cov.trainer.loop_state import LoopState
from openrlhf_cov.trainer.metrics.logs import TrainingLogs
from openrlhf_cov.trainer.metrics.step_metrics import Clock, rollout_statistics, sample_means, source_metrics
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.process_reward_scores import reward_tokens
from openrlhf_cov.trainer.records import Rollout, StepSettings
from openrlhf_cov.trainer.rollout.batch_stream import BatchStream, RolloutSource
from openrlhf_cov.trainer.rollout.recorded import RolloutRecorder
from openrlhf_cov.trainer.rollout.rollouts import checked_samples
from openrlhf_cov.trainer.rollout.sampler import max_staleness_of
from openrlhf_cov.trainer.scoring import padded_batches, score
from openrlhf_cov.trainer.weights.weight_check import WeightCheck
from openrlhf_cov.trainer.weights.weight_delivery import deliver_weights, have_other_weights

logger = init_logger(__name__)


class TrainingLoop:
    """Everything that one training run does after its actors were placed and loaded.

    Args:
        args: The flags of the run.
        groups: The models, which are loaded by the time ``run`` is called.
        sampler: Makes the rollouts, with the vLLM engines, or reads recorded ones.
        evaluation: Evaluates the weights that the engines have; None without ``--eval.dataset``.
        weight_check: Checks that new weights reach the engines; None with ``--train.check_weight_update off``.
        tokenizer: The tokenizer of the policy.
        recorder: Writes the samples of each step to files; None without ``--rollout.dump_dir``.
    """

    stream: BatchStream
    logs: TrainingLogs

    def __init__(
        self,
        args: SimpleNamespace,
        groups: ModelGroups,
        sampler: RolloutSource,
        evaluation: Evaluation | None,
        weight_check: WeightCheck | None,
        tokenizer: Any,
        recorder: RolloutRecorder | None = None,
    ) -> None:
        self.args = args
        self.groups = groups
        self.sampler = sampler
        self.evaluation = evaluation
        self.weight_check = weight_check
        self.tokenizer = tokenizer
        self.recorder = recorder
        self.config = CovConfig.from_args(args)
        self.advantage_settings = AdvantageSettings.of(args)

    def run(self) -> None:
        """Train until the stream of rollouts ends: at the end of the data, or after ``--rollout_limit`` rollouts.

        Raises:
            RunStopped: The run cannot go on, or a signal asked it to stop; all complete steps are logged.
        """
        state = self.start()
        try:
            while True:
                clock = Clock()  # a step begins with the wait for its rollout
                rollout = self.stream.next(state.step)
                if rollout is None:
                    break
                metrics, example = self.train_step(rollout, state, clock)
                # From here on state.step counts the completed steps, this one included.
                self.logs.write_step(state.step, metrics, example)  # the line comes before the checkpoint of the step
                saved = self.save_checkpoint(rollout, state)
                self.stop_if_asked(rollout, state, saved)
                if is_due(state.step, self.args.eval.steps):
                    self.evaluate(state)
        finally:
            self.stream.close()
            self.logs.close()

    def start(self) -> LoopState:
        """Return the state before the next step: that of a checkpoint, or a fresh one."""
        state = LoopState.fresh(self.args, self.config)
        if states := restored_states(self.args, self.groups):
            state.load_state_dict(states)
            self.sampler.restore(states[ROLLOUTS])
        self.logs = TrainingLogs(self.args, resumed_step=state.step)
        if self.recorder is not None:
            self.recorder.set_aside_after(state.step)
        # The engines may be this many weight versions behind when a rollout begins (0 without --train.async_enable).
        # Groups kept from earlier rollouts can be older.
        self.stream = BatchStream(self.sampler, max_staleness_of(self.args), first_step=state.step)

        # Engines start with the weights of the model's files. A checkpoint has other weights, and so may engines that
        # an earlier run of a study has left.
        if state.step or have_other_weights(self.sampler.engines.engines, self.args.vllm_no_progress_timeout):
            self.send_weights(state, is_start=True)

        # If the run was interrupted before an evaluation that was due, evaluate now.
        evaluates = self.args.eval_at_start if state.step == 0 else is_due(state.step, self.args.eval.steps)
        if evaluates:
            self.evaluate(state)
        return state

    def train_step(
        self, rollout: Rollout, state: LoopState, clock: Clock
    ) -> tuple[dict[str, float], tuple[str, float]]:
        """Train on one rollout, and move ``state`` to the next step.

        Returns:
            The metrics of the step, and the text and reward of one of its samples.
        """
        # The settings of this step, with the current values of schedules and of the closed loop.
        config = self.config.at(state.step, state.control)

        # Check the samples and number them by the text and label of their prompts. Tie-breaking and random choices
        # are seeded by sample number, so the result does not depend on the rank that trains a sample.
        samples = checked_samples(rollout.samples, config, self.args.reward_max_error_frac)
        if self.recorder is not None:
            self.recorder.write(state.step + 1, rollout, samples)
        if self.weight_check is not None:
            self.weight_check.start_step(samples, self.args.data.max_len, state.step + 1)

        # Policy, reference, critic and reward model score the samples; ``rollout.pending`` has what some of them began
        # during the generation (``ScoredAhead``). A process reward model trains on the samples before it scores them.
        # Advantages follow from rewards and scores. The clock measures phases under upstream's names, from which the
        # metrics ``timing/...`` follow.
        settings = StepSettings(state.step, config, state.kl.value)
        with clock("make_experience"):
            padded = padded_batches(samples, self.groups, self.tokenizer.pad_token_id)
            scores = score(samples, padded, self.groups, rollout.pending)
            scores, prm_metrics = reward_tokens(samples, scores, padded, self.groups, settings)
            batch = estimate_advantages(samples, scores, self.advantage_settings, settings, self.args)

        # All updates of this step, on the ranks of policy and critic. With --algo.kl.use_loss, the KL coefficient
        # applies here, in the loss; otherwise it applied above, in the rewards.
        with clock("ppo_train"):
            result = self.groups.update(settings, batch.samples)

        # The metrics of the step.
        metrics = {
            **sample_means(samples, batch.numbers),
            **prm_metrics,
            **result.metrics,
            **rollout_statistics(samples, batch.numbers["reward"]),
            **source_metrics(samples, batch.samples, batch.numbers["reward"]),
            **rollout.metrics,
        }
        samples_per_step = self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt
        # The KL coefficient and the closed loop move here, for the next step.
        metrics |= state.finish_step(metrics, result, config, samples_per_step)
        # Rollouts that begin from now on are sampled with the new weights.
        with clock("broadcast"):
            self.send_weights(state)

        if rollout.pass_rate is not None:
            metrics["dynamic_filtering_pass_rate"] = rollout.pass_rate
        text = self.tokenizer.decode(samples[0].tokens, skip_special_tokens=True)
        return metrics | clock.seconds(rollout.seconds), (text, float(batch.numbers["reward"][0]))

    def send_weights(self, state: LoopState, *, is_start: bool = False) -> None:
        """Send the weights of the policy to the engines.

        If an engine died, no engine gets them, and ``stop_if_asked`` ends the run after this step.
        """
        state.dead_engines = deliver_weights(
            self.args,
            self.stream,
            self.groups.send_weights,
            version=state.step,
            ranks=self.groups.senders,
            weight_check=None if is_start else self.weight_check,
            is_start=is_start,
        )

    def save_checkpoint(self, rollout: Rollout, state: LoopState, *, now: bool = False) -> bool:
        """Write a checkpoint if one is due after this step, or ``now``; return True if a run can continue from it."""
        ckpt = self.args.ckpt
        if not (now or is_due(state.step, ckpt.save_steps)):
            return False
        self.groups.save(checkpoint_tag(state.step), state.state_dict(rollout.sampler_state))
        return not ckpt.disable_ds

    def evaluate(self, state: LoopState) -> None:
        """Evaluate the weights after a step, and keep the model if it is the best so far.

        An evaluation waits for the rollout that is being sampled. If the log already has an evaluation of this step,
        for example after a resume, it is not repeated, and not compared with later ones if it had other settings.
        """
        if self.evaluation is None:
            return
        metrics = self.logs.evaluation_of(state.step)
        if metrics is not None and state.step == state.other_evaluation:
            return
        if metrics is None:
            started = time.monotonic()
            with self.stream.exclusive():
                metrics = self.evaluation.run(self.sampler.engines)
            if not metrics:  # the evaluation has no prompts
                return
            self.logs.write_evaluation(state.step, metrics)
            logger.info(
                f"✨ Evaluation after global step {state.step} in {time.monotonic() - started:.0f} s: {metrics}"
            )
        before = state.best
        state.best = before.after(metrics)
        if state.best is not before and state.step and is_due(state.step, self.args.ckpt.save_steps):
            # The checkpoint of this step was written before the evaluation.
            self.groups.record_metric(checkpoint_tag(state.step), metrics[state.best.key], state.best.key)
        if state.best.value > before.value:
            record = {"global_step": state.step, "metric": state.best.key, "value": state.best.value}
            self.groups.export_best(record)
            logger.info(
                f"best model so far, {state.best.key} {state.best.value:.4f} at global step {state.step}: "
                f"{self.args.ckpt.path}/{BEST}"
            )

    def stop_if_asked(self, rollout: Rollout, state: LoopState, saved: bool) -> None:
        """Raise RunStopped after a signal or an engine's death, with a checkpoint as ``--ckpt.on_signal`` says."""
        reason = ending(stop_requested(), state.dead_engines, rollout.is_last)
        if reason is None:
            return
        ckpt = self.args.ckpt
        if not (saved or ckpt.disable_ds) and RunConfig.from_args(self.args).on_signal == "checkpoint":
            saved = self.save_checkpoint(rollout, state, now=True)
        how = f"continue with --ckpt.load_enable from {ckpt.path}" if saved else "no checkpoint was asked for"
        raise reason.error(f"{reason.cause}: stopped after global step {state.step}; {how}")
