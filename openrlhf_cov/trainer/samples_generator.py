"""Rollouts on top of upstream's generator: fair dynamic sampling with bounds, and a state for checkpoints."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.config import SamplingConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.sizing.updates import update_unit, usable_groups
from openrlhf_cov.trainer.benchmark_evaluation import BenchmarkEvaluation
from openrlhf_cov.trainer.dynamic_sampling import (
    Group,
    GroupBuffer,
    PassRate,
    SamplingCounts,
    first_rate,
    groups_to_add,
    keep_group,
    sampling_metrics,
)
from openrlhf_cov.trainer.engine_health import end_unanswered
from openrlhf_cov.trainer.generation import EngineGroup, Prompt, SeededEngine, generate_groups, in_order, sample_seeds
from openrlhf_cov.trainer.old_rollouts import check_reward_errors, failed_rewards, scores_of

logger = init_logger(__name__)


class StepSamples(list):
    """The samples of one global step, and the ``sampling/*`` metrics of how they came about."""

    def __init__(self, samples: list, metrics: dict[str, float]) -> None:
        super().__init__(samples)
        self.metrics = metrics

    def __reduce__(self):
        return StepSamples, (list(self), self.metrics)


class CovSamplesGenerator(SamplesGenerator):
    """Upstream's generator with four differences.

    Groups come back in the order of their prompts, each whole, from engines that answer (``generate_groups``). Every
    step gets whole updates on every rank: ``--rollout.batch_size`` groups, fewer only where the data or the rounds of
    dynamic sampling end; groups beyond wait for the next step. With ``--algo.dynamic_filtering_enable`` only those are
    kept whose mean score is inside ``--algo.dynamic_filtering_range``: prompts are dispatched by the running pass
    rate, more of them as soon as those under way will probably not do, and accepted in the order in which they were
    drawn. The state of all this goes into checkpoints. Responses are samples of the policy alone (``_generate``).
    """

    def __init__(self, strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines) -> None:
        super().__init__(strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines)
        self.config = SamplingConfig.from_args(self.args)
        self.engines = EngineGroup(self.vllm_engines, self.args.vllm_no_progress_timeout)
        self.buffer, self.pass_rate, self.counts = GroupBuffer(), PassRate(), SamplingCounts()
        self.prompts_drawn = self.eval_prompts_drawn = self.batches = self.episode = 0
        self.at_end = self.resumed_at_end = False

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list, float | None, int, bool]:
        """Samples of one step, pass rate in percent, prompts drawn, and whether this episode's data is used up.

        No samples and used-up data: what was kept waits for the next episode. Raises RunStopped as
        ``--sampling_on_exhausted`` says, and where the whole data makes no update.
        """
        if self.resumed_at_end:  # the checkpoint was written after the last step of an episode
            self.resumed_at_end = False
            return [], None, 0, True
        if self._limit_is_reached:
            return [], None, 0, True
        if getattr(self, "_dataloader_iter", None) is None:
            self._dataloader_iter = iter(self.prompts_dataloader)
        self._call_engines("wake_up")
        try:
            fill = self._fill_filtered if self.filters else self._fill
            drawn, exhausted = fill(**generate_kwargs)
        finally:
            with suppress(ray.exceptions.RayActorError):  # a dead engine is what ended the round, if one did
                self._call_engines("sleep")
        rate = 100.0 * self.pass_rate.value if self.counts.tried else None
        samples = self._batch(exhausted)
        if exhausted and self._in_last_episode:
            exhausted = not self._another_step()
        if exhausted:
            self._dataloader_iter = None
        self.at_end = exhausted
        self.episode += exhausted
        return samples, rate, drawn, exhausted

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs) -> list:
        """Upstream's; the responses of a ``BenchmarkEvaluation``.

        Raises RunStopped if too many rewards failed: an accuracy without them would be wrong.
        """
        if isinstance(self.eval_dataloader, BenchmarkEvaluation):
            self._call_engines("wake_up")
            try:
                return self.eval_dataloader.respond(self.engines)
            finally:
                self._call_engines("sleep")
        samples = super().generate_eval_samples(**generate_kwargs)
        check_reward_errors(failed_rewards(samples), len(samples), self.args.reward_max_error_frac)
        return samples

    @property
    def filters(self) -> bool:
        """True with dynamic sampling."""
        return self.args.algo.dynamic_filtering_enable

    @property
    def is_over(self) -> bool:
        """True if no step will follow: the limit is reached, or what is left and what waits make no update."""
        left = len(self.prompts_dataloader) * self.args.train.num_episodes - self.prompts_drawn
        return self._limit_is_reached or not usable_groups(len(self.buffer) + left, self.args)  # if all are kept

    @property
    def _limit_is_reached(self) -> bool:
        return 0 < self.config.rollout_limit <= self.batches

    def state_dict(self) -> dict[str, Any]:
        """All that the next batch depends on, besides the data loader; and, for the controller, if there is one."""
        return {
            "groups": list(self.buffer.groups),
            "pass_rate": list(self.pass_rate.rounds),
            "counts": asdict(self.counts),
            "numbers": (self.prompts_drawn, self.batches, self.episode),
            "at_end": self.at_end,
            "is_over": self.is_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.buffer.groups = list(state["groups"])
        self.pass_rate.rounds.extend(state["pass_rate"])
        self.counts = SamplingCounts(**state["counts"])
        self.prompts_drawn, batches, self.episode = state["numbers"]
        self.batches = max(1, batches)  # a checkpoint follows a step; earlier versions did not count all of them
        size, waiting = self.args.rollout.n_samples_per_prompt, state.get("samples", [])  # of earlier versions
        for first in range(0, len(waiting), size):
            self.buffer.groups.append(Group(waiting[first : first + size], scores=[], tokens=0, version=self.batches))
        self._leave_out_groups_of_another_size()
        self.resumed_at_end = state["at_end"]
        if self.prompts_drawn >= len(self.prompts_dataloader) * self.args.train.num_episodes:
            self._dataloader_iter = iter(())  # the loader, whose pass has ended, would begin another one

    def _leave_out_groups_of_another_size(self) -> None:
        """Drop waiting groups if ``--rollout.n_samples_per_prompt`` has changed (``--ckpt.allow_changed``).

        The advantages of a group are computed from n consecutive samples, so such a group would be mixed with another.
        """
        size = self.args.rollout.n_samples_per_prompt
        fitting = [group for group in self.buffer.groups if len(group.samples) == size]
        if left_out := len(self.buffer) - len(fitting):
            logger.warning(
                f"rollouts: {left_out} groups that waited are left out; they do not have "
                f"--rollout.n_samples_per_prompt {size} samples"
            )
        self.buffer.groups = fitting

    def restart(self, state: dict[str, Any]) -> None:
        """Begin with the first prompt of data that is not that of ``state_dict``; only the count of rollouts stays."""
        _, batches, _ = state["numbers"]
        self.batches = max(1, batches)
        if waiting := len(state["groups"]):
            logger.warning(
                f"rollouts: {waiting} groups that waited are left out; their prompts are of the former data"
            )

    def _fill(self, **generate_kwargs) -> tuple[int, bool]:
        """Every group that is drawn, until the buffer holds a batch: (prompts drawn, end of data)."""
        if self._missing() <= 0:
            return 0, False
        batch, ahead = self.args.rollout.batch_size, self.args.rollout.vllm_generate_batch_size or 0
        count = ahead if ahead > batch else self._missing()  # with --train.async_enable several batches at once
        prompts, exhausted = self._draw(self._dataloader_iter, count)
        for _, samples in in_order(self._generate(prompts, **generate_kwargs)):
            self.buffer.groups.append(Group(samples, scores=[], tokens=0, version=self.batches))
        return len(prompts), exhausted

    def _fill_filtered(self, **generate_kwargs) -> tuple[int, bool]:
        """Rounds until the buffer holds a batch, the data ends or the bound is hit: (prompts drawn, end of data).

        What is asked for depends on the groups that have finished, wherever they stand in the order of the data, so
        that engines do not idle behind one long response. With ``--rollout_seeded`` a group counts when all before it
        have finished, so that what is asked for does not depend on timing. Groups are kept in the order of the data
        either way, and all that were asked for are waited for: none is left out because it is long. A round is what
        had been asked for when the one before it was over.
        """
        for group in self.buffer.drop_stale(self.batches, self.config.sampling_max_staleness):
            self.counts.add_stale(group)
        missing = self._missing()
        if not self.counts.rounds:
            self.counts.missing = max(0, missing)
        kept: dict[int, Group] = {}
        in_round: list[bool] = []
        prompts, exhausted = self._more(missing, 0, self.counts.rounds, self.pass_rate.value)
        round_end = len(prompts)
        groups = self._generate(prompts, **generate_kwargs)
        if self.config.rollout_seeded:
            groups = in_order(groups)
        for finished, (place, samples) in enumerate(groups, start=1):
            group, keep = self._judge(samples)
            in_round.append(keep)
            if keep:
                kept[place] = group
            round_is_over = finished == round_end
            if round_is_over:
                self._check_rewards()
                self.pass_rate.add(sum(in_round), len(in_round))
                self.counts.rounds += 1
                in_round = []
            if not exhausted:
                rate = first_rate(in_round, missing) if self.pass_rate.value is None else self.pass_rate.value
                rounds = self.counts.rounds + (not round_is_over)
                more, exhausted = self._more(missing - len(kept), len(prompts) - finished, rounds, rate)
                prompts.extend(more)
            if round_is_over:
                round_end = len(prompts)
        self.buffer.groups.extend(kept[place] for place in sorted(kept))
        return len(prompts), exhausted

    def _check_rewards(self) -> None:
        """Raises RunStopped if too many rewards of this step failed; less than a batch counts as a whole one."""
        samples = self.args.rollout.n_samples_per_prompt
        responses = max(self.counts.tried, self.args.rollout.batch_size) * samples
        check_reward_errors(self.counts.failed_rewards, responses, self.args.reward_max_error_frac)

    def _missing(self) -> int:
        return self.args.rollout.batch_size - len(self.buffer)

    def _more(self, missing: int, under_way: int, rounds: int, rate: float | None) -> tuple[list[Prompt], bool]:
        """The prompts to ask for beside those under way, after so many rounds were begun; and the end of the data."""
        count = groups_to_add(missing, under_way, rate, self.config.sampling_oversample_max)
        if not count or rounds >= self.config.sampling_max_rounds:
            return [], False
        return self._draw(self._dataloader_iter, count)

    def _judge(self, samples: list) -> tuple[Group, bool]:
        """Count one group; true if it is kept."""
        scores = scores_of(samples)
        tokens = sum(int(sample.response_length[0]) for sample in samples)
        group = Group(samples, scores, tokens, self.batches)
        keep = keep_group(scores, *self.args.algo.dynamic_filtering_range)
        self.counts.add(group, keep)
        self.counts.failed_rewards += failed_rewards(samples)
        return group, keep

    @property
    def _in_last_episode(self) -> bool:
        return self.episode + 1 >= self.args.train.num_episodes

    def _batch(self, exhausted: bool) -> list:
        """The samples of the next step; none if the groups wait for the next episode."""
        target = count = self.args.rollout.batch_size
        if len(self.buffer) < target:
            if exhausted and self.filters and not self._in_last_episode:
                return []
            count = self._smaller_batch(exhausted)
        groups = self.buffer.take(count)
        if not groups:
            return []
        metrics = sampling_metrics(self.counts, groups, len(self.buffer), self.batches) if self.filters else {}
        self.counts = SamplingCounts()
        self.batches += 1
        return StepSamples([sample for group in groups for sample in group.samples], metrics)

    def _smaller_batch(self, exhausted: bool) -> int:
        """How many groups train although a batch is not full: whole updates on every rank, the rest waits.

        Raises RunStopped as ``--sampling_on_exhausted`` says, and where not one update can be made in the whole run.
        """
        count = usable_groups(len(self.buffer), self.args)
        reason = "the data ended" if exhausted else f"--sampling_max_rounds {self.config.sampling_max_rounds} was hit"
        found = f"{reason} with {len(self.buffer)} of {self.args.rollout.batch_size} groups"
        if self.filters:
            found += f" ({self.counts})"
        nothing = not count and (not exhausted or (self._in_last_episode and not self.batches))
        if nothing or (self.config.sampling_on_exhausted == "stop" and not exhausted):
            advice = "the data is too easy or too hard for this policy, or --algo.dynamic_filtering_range too narrow"
            small = f"a whole update on every rank takes {update_unit(self.args)} samples"
            raise RunStopped(f"rollouts: {found}: {advice if self.filters else small}")
        if count:
            logger.warning(f"rollouts: {found}; this step trains on {count} groups")
        return count

    def _another_step(self) -> bool:
        """True if what waits at the end of the data makes an update; what makes none is left out, with a warning."""
        waiting = len(self.buffer)
        if usable_groups(waiting, self.args):
            return True
        if waiting:
            samples = waiting * self.args.rollout.n_samples_per_prompt
            logger.warning(
                f"rollouts: the run ends without the last {waiting} groups ({samples} samples): a whole update on "
                f"every rank takes {update_unit(self.args)} samples"
            )
        return False

    def _generate_vllm(
        self, dataloader_iter: Iterator, num_prompts: int, dynamic_filtering: bool, **generate_kwargs
    ) -> tuple[list, int, bool]:
        """Upstream's hook for a part of an evaluation: (samples, prompts, end of data)."""
        prompts, exhausted = self._draw(dataloader_iter, num_prompts)
        groups = in_order(self._generate(prompts, **generate_kwargs))
        samples = [sample for _, group in groups for sample in group]
        return samples, len(prompts), exhausted

    def _draw(self, dataloader_iter: Iterator, count: int) -> tuple[list[Prompt], bool]:
        """Up to ``count`` prompts, and whether the data ended; prompts of an evaluation are counted on their own."""
        evaluating = dataloader_iter is getattr(self, "_eval_dataloader_iter", None)
        first = self.eval_prompts_drawn if evaluating else self.prompts_drawn
        prompts: list[Prompt] = []
        for sources, texts, labels, images in dataloader_iter:
            for source, text, label, image in zip(sources, texts, labels, images, strict=True):
                prompts.append(Prompt(first + len(prompts), text, label, image, source))
            if len(prompts) >= count:
                break
        exhausted = len(prompts) < count
        if evaluating:
            self.eval_prompts_drawn = 0 if exhausted else first + len(prompts)
        else:
            self.prompts_drawn += len(prompts)
        return prompts, exhausted

    def _generate(self, prompts: list[Prompt], **generate_kwargs) -> Iterator[tuple[int, list]]:
        """(Place, group of experiences) of each prompt as they finish, also of those that are appended meanwhile.

        Differs from upstream: the first token may end the response. Upstream forbids that, so that samples are not the
        policy's: what a policy puts on an early end no sample shows, and every response that is pushed down feeds it.
        """
        generate_kwargs = {"min_new_tokens": 0} | generate_kwargs

        def dispatch(engine: Any, batch: list[Prompt]) -> list:
            if self.config.rollout_seeded:
                count = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
                engine = SeededEngine(engine, [sample_seeds(self.args.train.seed, p, count) for p in batch])
            everyone, self.vllm_engines = self.vllm_engines, [engine]  # upstream's dispatch spreads over these
            try:
                return self._dispatch_prompts_to_vllm(
                    [prompt.text for prompt in batch],
                    [prompt.label for prompt in batch],
                    images=[prompt.images for prompt in batch],
                    **generate_kwargs,
                )
            finally:
                self.vllm_engines = everyone

        for place, group in generate_groups(prompts, self.engines, dispatch):
            samples = [self._process_response_into_experience(response, **generate_kwargs) for response in group]
            for sample in samples:
                sample.datasource = prompts[place].source
            yield place, samples
        self.vllm_engines = self.engines.alive  # upstream puts these to sleep and wakes them

    def _call_engines(self, method: str) -> None:
        if not self.args.vllm.enable_sleep:
            return
        places = list(self.engines.unfinished)
        for hung in end_unanswered(self.engines.alive, method, self.engines.no_progress_timeout):
            self.engines.lose(places[hung])
