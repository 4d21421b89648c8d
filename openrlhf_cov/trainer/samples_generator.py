"""Rollouts on top of upstream's generator: fair dynamic sampling with bounds, and a state for checkpoints."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.config import SamplingConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.benchmark_evaluation import BenchmarkEvaluation
from openrlhf_cov.trainer.dynamic_sampling import (
    Group,
    GroupBuffer,
    PassRate,
    SamplingCounts,
    groups_to_add,
    keep_group,
    sampling_metrics,
    usable_groups,
)
from openrlhf_cov.trainer.generation import EngineGroup, Prompt, SeededEngine, generate_groups, sample_seeds
from openrlhf_cov.trainer.rollouts import check_reward_errors, failed_rewards

logger = init_logger(__name__)


class Rollout(list):
    """The samples of one global step, and the ``sampling/*`` metrics of how they came about."""

    def __init__(self, samples: list, metrics: dict[str, float]) -> None:
        super().__init__(samples)
        self.metrics = metrics

    def __reduce__(self):
        return Rollout, (list(self), self.metrics)


class CovSamplesGenerator(SamplesGenerator):
    """Upstream's generator with three differences.

    Groups come back in the order of their prompts, each whole, from engines that answer (``generate_groups``). With
    ``--algo.dynamic_filtering_enable`` each step gets exactly ``--rollout.batch_size`` groups whose mean score is
    inside ``--algo.dynamic_filtering_range``: prompts are dispatched by the running pass rate, more of them as soon as
    those under way will probably not do, accepted in the order in which they were drawn, and what is beyond the batch
    waits for the next one. The state of all this goes into checkpoints.
    """

    def __init__(self, strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines) -> None:
        super().__init__(strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines)
        self.config = SamplingConfig.from_args(self.args)
        self.engines = EngineGroup(self.vllm_engines)
        self.buffer, self.pass_rate, self.counts = GroupBuffer(), PassRate(), SamplingCounts()
        self.prompts_drawn = self.eval_prompts_drawn = self.batches = self.episode = 0
        self.at_end = self.resumed_at_end = False

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list, float | None, int, bool]:
        """Samples of one step, pass rate in percent, prompts drawn, and whether this episode's data is used up.

        No samples and used-up data: what was kept waits for the next episode. Raises RunStopped as
        ``--sampling_on_exhausted`` says.
        """
        if self.resumed_at_end:  # the checkpoint was written after the last step of an episode
            self.resumed_at_end = False
            return [], None, 0, True
        if not self.args.algo.dynamic_filtering_enable:
            samples, rate, drawn, exhausted = super().generate_samples(**generate_kwargs)
        else:
            samples, rate, drawn, exhausted = self._dynamic_batch(**generate_kwargs)
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
    def is_over(self) -> bool:
        """True if no step will follow: the prompts that are left and the groups that wait make no update."""
        left = len(self.prompts_dataloader) * self.args.train.num_episodes - self.prompts_drawn
        if not self.args.algo.dynamic_filtering_enable:
            return not left and not getattr(self, "_sample_buffer", None)
        count = len(self.buffer) + left  # if all of them are kept
        return not usable_groups(count, self.args.rollout.n_samples_per_prompt, self._samples_of_an_update())

    def state_dict(self) -> dict[str, Any]:
        """All that the next batch depends on, besides the data loader; and, for the controller, if there is one."""
        return {
            "groups": list(self.buffer.groups),
            "pass_rate": list(self.pass_rate.rounds),
            "counts": asdict(self.counts),
            "numbers": (self.prompts_drawn, self.batches, self.episode),
            "samples": list(getattr(self, "_sample_buffer", None) or []),
            "reading": getattr(self, "_dataloader_iter", None) is not None,
            "at_end": self.at_end,
            "is_over": self.is_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.buffer.groups = list(state["groups"])
        self.pass_rate.rounds.extend(state["pass_rate"])
        self.counts = SamplingCounts(**state["counts"])
        self.prompts_drawn, self.batches, self.episode = state["numbers"]
        self.resumed_at_end = state["at_end"]
        if state["samples"]:
            self._sample_buffer = list(state["samples"])
            self._dataloader_iter = iter(self.prompts_dataloader) if state["reading"] else None
        all_drawn = self.prompts_drawn >= len(self.prompts_dataloader) * self.args.train.num_episodes
        if all_drawn and self.args.algo.dynamic_filtering_enable:
            self._dataloader_iter = iter(())  # the loader, whose pass has ended, would begin another one

    def _dynamic_batch(self, **generate_kwargs) -> tuple[list, float | None, int, bool]:
        """What ``generate_samples`` returns, with groups that pass the filter alone."""
        if getattr(self, "_dataloader_iter", None) is None:
            self._dataloader_iter = iter(self.prompts_dataloader)
        self._call_engines("wake_up")
        try:
            drawn, exhausted = self._fill(**generate_kwargs)
        finally:
            with suppress(ray.exceptions.RayActorError):  # a dead engine is what ended the round, if one did
                self._call_engines("sleep")
        rate = 100.0 * self.pass_rate.value if self.counts.tried else None
        samples = self._batch(exhausted)
        last = self.episode + 1 >= self.args.train.num_episodes
        exhausted = exhausted and not (last and samples and self.buffer.groups)  # another step trains on the rest
        if exhausted:
            self._dataloader_iter = None
        return samples, rate, drawn, exhausted

    def _fill(self, **generate_kwargs) -> tuple[int, bool]:
        """Rounds until the buffer holds a batch, the data ends or the bound is hit: (prompts drawn, end of data).

        A round is what had been asked for when the one before was judged. What is asked for depends on the groups
        judged so far, which are the first ones in the order of the data, and not on what has finished.
        """
        for group in self.buffer.drop_stale(self.batches, self.config.sampling_max_staleness):
            self.counts.add_stale(group)
        if not self.counts.rounds:
            self.counts.missing = max(0, self._missing())
        prompts, exhausted = self._more(under_way=0, rounds=self.counts.rounds)
        in_round: list[bool] = []
        round_end = len(prompts)
        for judged, samples in enumerate(self._generate(prompts, **generate_kwargs), start=1):
            in_round.append(self._judge(samples))
            round_is_over = judged == round_end
            if round_is_over:
                self._check_rewards()
                self.pass_rate.add(sum(in_round), len(in_round))
                self.counts.rounds += 1
                in_round = []
            if not exhausted:
                more, exhausted = self._more(len(prompts) - judged, self.counts.rounds + bool(in_round))
                prompts.extend(more)
            if round_is_over:
                round_end = len(prompts)
        return len(prompts), exhausted

    def _check_rewards(self) -> None:
        """Raises RunStopped if too many rewards of this step failed; less than a batch counts as a whole one."""
        samples = self.args.rollout.n_samples_per_prompt
        responses = max(self.counts.tried, self.args.rollout.batch_size) * samples
        check_reward_errors(self.counts.failed_rewards, responses, self.args.reward_max_error_frac)

    def _missing(self) -> int:
        return self.args.rollout.batch_size - len(self.buffer)

    def _more(self, under_way: int, rounds: int) -> tuple[list[Prompt], bool]:
        """The prompts to ask for beside those under way, after so many rounds were begun; and the end of the data."""
        count = groups_to_add(self._missing(), under_way, self.pass_rate.value, self.config.sampling_oversample_max)
        if not count or rounds >= self.config.sampling_max_rounds:
            return [], False
        return self._draw(self._dataloader_iter, count)

    def _judge(self, samples: list) -> bool:
        """Keep or count out one group; True if it is kept."""
        scores = [float(sample.scores[0]) for sample in samples]
        tokens = sum(int(sample.response_length[0]) for sample in samples)
        group = Group(samples, scores, tokens, self.batches)
        keep = keep_group(scores, *self.args.algo.dynamic_filtering_range)
        self.counts.add(group, keep)
        self.counts.failed_rewards += failed_rewards(samples)
        if keep:
            self.buffer.groups.append(group)
        return keep

    def _batch(self, exhausted: bool) -> list:
        """The samples of the next step; none if the groups wait for the next episode."""
        target = count = self.args.rollout.batch_size
        if len(self.buffer) < target:
            if exhausted and self.episode + 1 < self.args.train.num_episodes:
                return []
            count = self._smaller_batch(exhausted)
        groups = self.buffer.take(count)
        if not groups:
            return []
        metrics = sampling_metrics(self.counts, groups, len(self.buffer), self.batches)
        self.counts = SamplingCounts()
        self.batches += 1
        return Rollout([sample for group in groups for sample in group.samples], metrics)

    def _smaller_batch(self, exhausted: bool) -> int:
        """How many groups train although a batch is not full: whole updates on every rank, the rest waits.

        Raises RunStopped as ``--sampling_on_exhausted`` says, and where not one update can be made; at the end of the
        data of a run that has trained, the rest is left out with a warning.
        """
        reason = "the data ended" if exhausted else f"--sampling_max_rounds {self.config.sampling_max_rounds} was hit"
        message = f"{reason} with {len(self.buffer)} of {self.args.rollout.batch_size} groups ({self.counts})"
        count = usable_groups(len(self.buffer), self.args.rollout.n_samples_per_prompt, self._samples_of_an_update())
        if not count and exhausted and self.batches:
            logger.warning(f"dynamic sampling: {message}; they make no whole update, the run ends without them")
        elif not count or (self.config.sampling_on_exhausted == "stop" and not exhausted):
            advice = "the data is too easy or too hard for this policy, or --algo.dynamic_filtering_range too narrow"
            raise RunStopped(f"dynamic sampling: {message}: {advice}")
        else:
            logger.warning(f"dynamic sampling: {message}; this step trains on {count} groups")
        return count

    def _samples_of_an_update(self) -> int:
        """Samples that make whole updates, in whole chunks of rollouts for every rank."""
        ds, actor = self.args.ds, self.args.actor
        ranks = actor.num_nodes * actor.num_gpus_per_node // (ds.ring_attn_size * ds.tensor_parallel_size)
        return math.lcm(self.args.train.batch_size, self.args.rollout.micro_batch_size * ranks)

    def _generate_vllm(
        self, dataloader_iter: Iterator, num_prompts: int, dynamic_filtering: bool, **generate_kwargs
    ) -> tuple[list, int, bool]:
        """Upstream's hook for a batch without filtering, also of an evaluation: (samples, prompts, end of data)."""
        prompts, exhausted = self._draw(dataloader_iter, num_prompts)
        samples = [sample for group in self._generate(prompts, **generate_kwargs) for sample in group]
        return samples, len(prompts), exhausted

    def _draw(self, dataloader_iter: Iterator, count: int) -> tuple[list[Prompt], bool]:
        """Up to ``count`` prompts, and whether the data ended; prompts of an evaluation are counted on their own."""
        evaluating = dataloader_iter is getattr(self, "_eval_dataloader_iter", None)
        first = self.eval_prompts_drawn if evaluating else self.prompts_drawn
        prompts: list[Prompt] = []
        for _, texts, labels, images in dataloader_iter:
            for text, label, image in zip(texts, labels, images, strict=True):
                prompts.append(Prompt(first + len(prompts), text, label, image))
            if len(prompts) >= count:
                break
        exhausted = len(prompts) < count
        if evaluating:
            self.eval_prompts_drawn = 0 if exhausted else first + len(prompts)
        else:
            self.prompts_drawn += len(prompts)
        return prompts, exhausted

    def _generate(self, prompts: list[Prompt], **generate_kwargs) -> Iterator[list]:
        """One group of experiences for each prompt, also for those that are appended meanwhile."""

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

        for group in generate_groups(prompts, self.engines, dispatch):
            yield [self._process_response_into_experience(response, **generate_kwargs) for response in group]
        self.vllm_engines = self.engines.alive  # upstream puts these to sleep and wakes them

    def _call_engines(self, method: str) -> None:
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.engines.alive, method)
