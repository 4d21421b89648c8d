"""The rollouts that a run generates: which prompts are sampled, and which groups are kept."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.cluster.sizing.updates import update_unit, usable_groups
from openrlhf_cov.config import SamplingConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.checkpoint.run_record import DATA_CHANGED
from openrlhf_cov.trainer.records import Group, Rollout, Sample
from openrlhf_cov.trainer.rollout.batch_stream import Watch
from openrlhf_cov.trainer.rollout.dynamic_sampling import (
    GroupBuffer,
    PassRate,
    SamplingCounts,
    first_rate,
    groups_to_add,
    keep_group,
    sampling_metrics,
    staleness,
)
from openrlhf_cov.trainer.rollout.generation import EngineGroup, awake, in_order
from openrlhf_cov.trainer.rollout.prompts import Prompt, PromptOrder
from openrlhf_cov.trainer.rollout.requests import RolloutRequests
from openrlhf_cov.trainer.rollout.rollouts import check_reward_errors, failed_rewards, scores_of

logger = init_logger(__name__)


def max_staleness_of(args: SimpleNamespace) -> int:
    """Return how many versions the weights of the engines may be behind those of the policy."""
    return args.train.async_queue_size if args.train.async_enable else 0


class Sampler:
    """Makes the rollouts of a run, one after the other.

    A rollout has ``--rollout.batch_size`` groups. It has fewer only if the data or the rounds of dynamic sampling run
    out, and then still makes whole updates on every rank. Surplus groups wait for the next step. With
    ``--algo.dynamic_filtering_enable`` only groups are kept whose mean score is inside
    ``--algo.dynamic_filtering_range``. The running pass rate decides how many prompts are sent; more are sent as soon
    as those in flight are unlikely to suffice. Groups are accepted in the order in which their prompts were drawn.
    ``state_dict`` has all that the next rollout depends on.

    Args:
        args: The parsed flags.
        prompts: The training data.
        engines: The engines that answer; an evaluation shares them.
        requests: Sends prompts to engines.
    """

    def __init__(
        self, args: SimpleNamespace, prompts: Sequence[Prompt], engines: EngineGroup, requests: RolloutRequests
    ) -> None:
        self.args = args
        self.config = SamplingConfig.from_args(args)
        self.prompts = prompts
        self.engines = engines
        self.requests = requests
        self.order = PromptOrder(len(prompts), args.train.seed)
        self.buffer = GroupBuffer()
        self.pass_rate = PassRate()
        self.counts = SamplingCounts()
        # Number of the step that the next rollout is for: the number of rollouts given out so far.
        self.step = 0

    @property
    def filters(self) -> bool:
        """True with dynamic sampling."""
        return self.args.algo.dynamic_filtering_enable

    @property
    def is_over(self) -> bool:
        """True if no rollout can follow: the limit is reached, or what is left is too little for an update."""
        # Prompts of this and of later episodes that were not drawn yet.
        left = max(0, len(self.prompts) * self.args.train.num_episodes - self.order.drawn)
        return self._limit_is_reached or not usable_groups(len(self.buffer) + left, self.args)

    def next_batch(self, version: int, watch: Watch | None = None) -> Rollout | None:
        """Generate the next rollout; return None if the data is used up or the limit of rollouts is reached.

        Args:
            version: Version of the weights that the engines have: the number of steps before them.
            watch: Is told which groups the rollout has so far, whenever it gets another one.

        Raises:
            RunStopped: ``--sampling_on_exhausted stop`` applies, the whole data is too small for one update, too many
                rewards failed, or no engine answers.
        """
        started = time.monotonic()
        while not self._limit_is_reached and self.order.episode < self.args.train.num_episodes:
            with awake(self.engines, self.args.vllm.enable_sleep):
                fill = self._fill_filtered if self.filters else self._fill
                is_exhausted = fill(version, watch)
            pass_rate = self.pass_rate.value if self.counts.tried else None
            groups = self._take_groups(is_exhausted)
            # What still waits at the end of the last episode may make another update.
            if is_exhausted and not (self._in_last_episode and self._another_step()):
                self.order.move_to(self.order.episode + 1)
            if groups:
                return self._rollout(groups, pass_rate, version, time.monotonic() - started)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next rollout depends on, and whether there can be one (``is_over``)."""
        return {
            "groups": list(self.buffer.groups),
            "pass_rate": list(self.pass_rate.rounds),
            "counts": asdict(self.counts),
            "step": self.step,
            "episode": self.order.episode,
            "place": self.order.place,
            "is_over": self.is_over,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.buffer.groups = self._of_fitting_size(state["groups"])
        self.pass_rate.rounds.clear()
        self.pass_rate.rounds.extend(state["pass_rate"])
        self.counts = SamplingCounts(**state["counts"])
        self.step = state["step"]
        self.order.move_to(state["episode"], state["place"])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``state_dict`` of a checkpoint, or with new data where the data of the run has changed.

        Raises:
            RunStopped: The checkpoint is that of a run with recorded rollouts, which has no place in the data.
        """
        if getattr(self.args, DATA_CHANGED, False):
            self.restart(state)
        elif "groups" not in state:
            raise RunStopped(
                "--ckpt.load_enable: the checkpoint was made with --rollout.replay_dir and has no place in the data; "
                "continue with that flag, or start from the exported model"
            )
        else:
            self.load_state_dict(state)

    def restart(self, state: Mapping[str, Any]) -> None:
        """Begin with the first prompt of data that is not the data of ``state``; only the number of steps stays."""
        self.step = state["step"]
        if waiting := len(state.get("groups", ())):
            logger.warning(
                f"rollouts: {waiting} waiting groups are dropped; their prompts belong to the previous data"
            )

    @property
    def _limit_is_reached(self) -> bool:
        return 0 < self.config.rollout_limit <= self.step

    @property
    def _in_last_episode(self) -> bool:
        return self.order.episode + 1 >= self.args.train.num_episodes

    def _of_fitting_size(self, groups: Sequence[Group]) -> list[Group]:
        """Leave out groups if ``--rollout.n_samples_per_prompt`` has changed (``--ckpt.allow_changed``).

        Advantages are computed from the n samples of a group, so a group of another size would be mixed with others.
        """
        size = self.args.rollout.n_samples_per_prompt
        fitting = [group for group in groups if len(group.samples) == size]
        if left_out := len(groups) - len(fitting):
            logger.warning(
                f"rollouts: {left_out} groups that waited are left out; they do not have "
                f"--rollout.n_samples_per_prompt {size} samples"
            )
        return fitting

    def _fill(self, version: int, watch: Watch | None) -> bool:
        """Keep every group until the buffer holds a batch; return True if the episode's data ended."""
        missing = self._missing()
        if missing <= 0:
            return False
        # --rollout.vllm_generate_batch_size may ask for several batches at once (with --train.async_enable alone). The
        # groups of the later batches wait for their steps, so their weights are one version older with every step.
        ahead = self.args.rollout.vllm_generate_batch_size or 0
        prompts, is_exhausted = self._draw(ahead if ahead > self.args.rollout.batch_size else missing)
        for _, samples in in_order(self._generate(prompts)):
            self._add(Group(samples, scores=(), tokens=_tokens_of(samples), version=version), watch)
        return is_exhausted

    def _add(self, group: Group, watch: Watch | None) -> None:
        """Let a group wait behind all others."""
        self.buffer.groups.append(group)
        if watch is not None:
            watch(self.buffer.groups[: self.args.rollout.batch_size])

    def _fill_filtered(self, version: int, watch: Watch | None) -> bool:
        """Run rounds until the buffer holds a batch, the data ends or the bound is hit; return True if the data ended.

        The number of prompts sent depends on the groups that have finished, wherever they stand in the order of the
        data, so that engines do not idle behind one long response. With ``--rollout_seeded`` a group counts when all
        before it have finished, so that this number does not depend on timing. Groups are kept in the order of the
        data either way, and all that were sent are waited for: none is left out because it is long. A round consists
        of the prompts that were sent before the end of the round before it.
        """
        allowed = max_staleness_of(self.args) + self.config.sampling_max_staleness
        for group in self.buffer.drop_stale(self.step, allowed):
            self.counts.add_stale(group)
        missing = self._missing()
        if not self.counts.rounds:
            self.counts.missing = max(0, missing)
        # Place of the prompt in the order of the data -> its group, None if it was not kept. Engines answer in another
        # order, so groups wait here for those before them.
        early: dict[int, Group | None] = {}
        next_place = 0
        kept = 0
        # Whether each group that finished in this round was kept: the pass rate of a round.
        in_round: list[bool] = []
        prompts, is_exhausted = self._more(missing, 0, self.counts.rounds, self.pass_rate.value)
        round_end = len(prompts)
        generated = self._generate(prompts)
        if self.config.rollout_seeded:
            generated = in_order(generated)
        for finished, (place, samples) in enumerate(generated, start=1):
            group = Group(samples, scores_of(samples), _tokens_of(samples), version)
            is_kept = keep_group(group.scores, *self.args.algo.dynamic_filtering_range)
            self.counts.add(group, is_kept)
            self.counts.failed_rewards += failed_rewards(samples)
            in_round.append(is_kept)
            kept += is_kept
            early[place] = group if is_kept else None
            while next_place in early:
                if (settled := early.pop(next_place)) is not None:
                    self._add(settled, watch)
                next_place += 1
            round_is_over = finished == round_end
            if round_is_over:
                # The share of failed rewards is of at least one full batch.
                tried = max(self.counts.tried, self.args.rollout.batch_size)
                responses = tried * self.args.rollout.n_samples_per_prompt
                check_reward_errors(self.counts.failed_rewards, responses, self.args.reward_max_error_frac)
                self.pass_rate.add(sum(in_round), len(in_round))
                self.counts.rounds += 1
                in_round = []
            if not is_exhausted:
                # The first rollout of a run has no earlier round to estimate the pass rate from.
                rate = first_rate(in_round, missing) if self.pass_rate.value is None else self.pass_rate.value
                # The round that is under way counts as begun, so that --sampling_max_rounds bounds it as well.
                rounds = self.counts.rounds + (not round_is_over)
                more, is_exhausted = self._more(missing - kept, len(prompts) - finished, rounds, rate)
                prompts.extend(more)
            if round_is_over:
                round_end = len(prompts)
        return is_exhausted

    def _missing(self) -> int:
        return self.args.rollout.batch_size - len(self.buffer)

    def _more(self, missing: int, under_way: int, rounds: int, rate: float | None) -> tuple[list[Prompt], bool]:
        """Return the prompts to send in addition to those in flight, and True if the data of the episode ended.

        Args:
            missing: Groups that are to be kept.
            under_way: Groups in flight.
            rounds: Rounds that were begun.
            rate: Share of the groups that are kept; None if it is not known yet.
        """
        count = groups_to_add(missing, under_way, rate, self.config.sampling_oversample_max)
        if not count or rounds >= self.config.sampling_max_rounds:
            return [], False
        return self._draw(count)

    def _draw(self, count: int) -> tuple[list[Prompt], bool]:
        """Return up to ``count`` prompts, and True if the episode has fewer left."""
        first = self.order.drawn
        places = self.order.draw(count)
        prompts = [replace(self.prompts[place], number=first + drawn) for drawn, place in enumerate(places)]
        return prompts, len(prompts) < count

    def _generate(self, prompts: list[Prompt]) -> Iterator[tuple[int, list[Sample]]]:
        rollout = self.args.rollout
        return self.requests.groups(
            prompts, self.engines, samples_per_prompt=rollout.n_samples_per_prompt, temperature=rollout.temperature
        )

    def _take_groups(self, is_exhausted: bool) -> list[Group]:
        """Take the groups of this step from the buffer; none if they wait for the next episode."""
        count = self.args.rollout.batch_size
        if len(self.buffer) < count:
            if is_exhausted and self.filters and not self._in_last_episode:
                return []
            count = self._smaller_batch(is_exhausted)
        return self.buffer.take(count)

    def _rollout(self, groups: list[Group], pass_rate: float | None, version: int, seconds: float) -> Rollout:
        """Return the rollout of these groups, after it has been counted."""
        metrics: dict[str, float] = {}
        if self.filters:
            metrics |= sampling_metrics(self.counts, groups, len(self.buffer))
        if self.filters or self.args.train.async_enable:
            metrics |= staleness(groups, self.step)
        self.counts = SamplingCounts()
        self.step += 1
        return Rollout(
            samples=[sample for group in groups for sample in group.samples],
            metrics=metrics,
            seconds=seconds,
            pass_rate=None if pass_rate is None else 100.0 * pass_rate,
            sampler_state=self.state_dict(),
            version=version,
        )

    def _smaller_batch(self, is_exhausted: bool) -> int:
        """Return how many groups train although a batch is not full: whole updates on every rank, the rest waits.

        Raises RunStopped as ``--sampling_on_exhausted`` says, and where not one update can be made in the whole run.
        """
        count = usable_groups(len(self.buffer), self.args)
        reason = (
            "the data ended" if is_exhausted else f"--sampling_max_rounds {self.config.sampling_max_rounds} was hit"
        )
        found = f"{reason} with {len(self.buffer)} of {self.args.rollout.batch_size} groups"
        if self.filters:
            found += f" ({self.counts})"
        makes_no_update = not count and (not is_exhausted or (self._in_last_episode and not self.step))
        if makes_no_update or (self.config.sampling_on_exhausted == "stop" and not is_exhausted):
            advice = "the data is too easy or too hard for this policy, or --algo.dynamic_filtering_range too narrow"
            small = f"a whole update on every rank takes {update_unit(self.args)} samples"
            raise RunStopped(f"rollouts: {found}: {advice if self.filters else small}")
        if count:
            logger.warning(f"rollouts: {found}; this step trains on {count} groups")
        return count

    def _another_step(self) -> bool:
        """Return True if the groups left at the end of the data make an update; otherwise warn and drop them."""
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


def _tokens_of(samples: Sequence[Sample]) -> int:
    return sum(sample.response_length for sample in samples)
