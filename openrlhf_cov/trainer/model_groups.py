"""The models of a training, each a group of Ray actors, as the controller calls them.

Only this module calls the groups, so it shows which calls a training makes and in which order: scoring, updates with
the states of the optimizers on and off the GPU, sending of weights, and checkpoints.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ray
from torch import Tensor

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.batches.rank_batches import shares_of_ranks
from openrlhf_cov.trainer.checkpoint.checkpoints import ROLLOUTS
from openrlhf_cov.trainer.records import (
    Calls,
    PendingScores,
    PolicyScores,
    RankSamples,
    StepResult,
    StepSettings,
    TrainSample,
)


@dataclass(frozen=True)
class ModelScores:
    """The outputs of the models for the batches of a step, batch by batch; None without a model."""

    policy: Sequence[PolicyScores]
    reference: Sequence[Tensor] | None
    critic: Sequence[Tensor] | None
    # (B,)
    reward: Sequence[Tensor] | None


@dataclass(frozen=True)
class ModelGroups:
    """The groups of a run, upstream's ``RayActorGroup`` each; None without that model."""

    args: SimpleNamespace
    policy: Any
    reference: Any = None
    critic: Any = None
    reward: Any = None
    process_reward: Any = None

    @property
    def policy_ranks(self) -> int:
        """The number of data-parallel ranks of the policy."""
        return _ranks(self.policy)

    @property
    def trained(self) -> list[Any]:
        """The groups that are trained and have checkpoints."""
        return [group for group in (self.policy, self.critic, self.process_reward) if group is not None]

    @property
    def free_models(self) -> dict[str, Any]:
        """The models that can score a rollout while it is generated, by their fields of ``PendingScores``.

        The weights of the reference never change. If the policy trains meanwhile (``--train.async_enable``), it is not
        free, and neither is a reference that shares its GPUs. With ``--train.colocate_all`` the engines need the GPUs.
        Batches are dealt to the ranks of the policy, so the reference has to have as many ranks, or a divisor.
        """
        train = self.args.train
        free: dict[str, Any] = {}
        if not train.async_enable and not self._shares_gpu():
            free["policy"] = self.policy
        divides = self.reference is not None and self.policy_ranks % _ranks(self.reference) == 0
        if divides and not self._shares_gpu(train.colocate_actor_ref):
            free["reference"] = self.reference
        return free

    def score(
        self,
        tokens: list[Tensor],
        attention_mask: list[Tensor],
        action_mask: list[Tensor],
        image_inputs: list[Sequence[Any]],
        with_reward: bool,
        pending: PendingScores,
    ) -> ModelScores:
        """Let every model score the batches of a step.

        Models on GPUs of their own score side by side. Where two models share a GPU, one waits for the other and frees
        its memory first; on a CPU host there is no such memory.

        Args:
            tokens: Of each batch, (B, T).
            attention_mask: Of each batch, (B, T).
            action_mask: Of each batch, (B, A).
            image_inputs: Of each batch, what a vision-language model reads of its images.
            with_reward: Whether the reward model is to score.
            pending: The answers of models that score these batches already.

        Raises:
            RunStopped: Samples have no reward, and the run has no reward model.
        """
        train = self.args.train
        texts = {"tokens": tokens, "attention_mask": attention_mask}
        action = texts | {"action_mask": action_mask}
        seen = action | {"image_inputs": image_inputs}
        rewards = None
        if with_reward:
            if self.reward is None:
                raise RunStopped(
                    "a response came without a reward; have the agent return one, or give a reward model with "
                    "--reward.model_name_or_path"
                )
            rewards = self._dispatch(self.reward, texts, self._shares_gpu())
        shares_with_reference = self._shares_gpu(train.colocate_actor_ref)
        policy = self._dispatch(self.policy, seen, shares_with_reference, pending.policy)
        values = None
        if self.critic is not None:
            if train.colocate_critic_reward and rewards is not None:
                _free_gpu(self.reward, rewards)
            values = self._dispatch(self.critic, action, self._shares_gpu(train.colocate_critic_reward))
        base = None
        if self.reference is not None:
            base = self._dispatch(self.reference, seen, shares_with_reference, pending.reference)
        return ModelScores(*(self._results(calls) for calls in (policy, base, values, rewards)))

    def update_process_reward(self, settings: StepSettings, samples: Sequence[TrainSample]) -> StepResult:
        """Train the process reward model on the samples of a step, each rank on its share."""
        group = self.process_reward
        shares = self._shares(group, settings, samples)
        if self.args.ds.enable_sleep:
            ray.get(group.async_run_method(method_name="reload_states"))
        result = ray.get(_update(group, settings, shares))[0]
        if self.args.ds.enable_sleep:
            ray.get(group.async_run_method(method_name="offload_states"))
        return result

    def score_process_reward(
        self, tokens: list[Tensor], attention_mask: list[Tensor], action_mask: list[Tensor]
    ) -> Sequence[Tensor]:
        """Return the log-probs of the process reward model, one tensor (B, A) for each batch.

        Args:
            tokens: Of each batch, int64 (B, T).
            attention_mask: Of each batch, 1 where a token is no padding, (B, T).
            action_mask: Of each batch, True where a token is an action, (B, A).
        """
        action = {"tokens": tokens, "action_mask": action_mask, "attention_mask": attention_mask}
        shares_gpu = self._shares_gpu(self.args.train.colocate_actor_ref)
        return self._results(self._dispatch(self.process_reward, action, shares_gpu))

    def _shares_gpu(self, shares_with_one: bool = False) -> bool:
        """Return True if a model shares its GPUs with all other models, or with one of them; False on a CPU host.

        Args:
            shares_with_one: True if a flag places the model on the GPUs of one other model.
        """
        return (self.args.train.colocate_all or shares_with_one) and not cpu_host.is_cpu_host()

    def _dispatch(self, group: Any, batches: Mapping[str, Any], shares_gpu: bool, pending: Calls = ()) -> Calls:
        """Let a model score batches, unless it does so already; if it shares its GPU, wait and free it."""
        calls = pending or [group.async_run_method_batch(method_name="score", **batches)]
        if shares_gpu:
            _free_gpu(group, calls)
        return calls

    def _results(self, calls: Calls | None) -> Any:
        """Return the answers batch by batch; ranks that share the tokens of a batch give it alike."""
        if calls is None:
            return None
        # Ranks that share the tokens of a batch follow one another, so every copies-th answer is one of each group.
        copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        # All ranks are waited for, so that the error of any rank is raised.
        answers = [answer for refs in calls for answer in ray.get(list(refs))[::copies]]
        return list(itertools.chain.from_iterable(answers))

    def update(self, settings: StepSettings, samples: Sequence[TrainSample]) -> StepResult:
        """Train the critic and the policy on the samples of a step, each rank on its share.

        During ``--critic.freezing_steps`` the critic alone is trained. With ``--ds.enable_sleep`` one model after the
        other has its optimizer states on the GPU; otherwise both are trained at once.
        """
        trains_policy = settings.step > self.args.critic.freezing_steps
        groups = [group for group in (self.critic, self.policy if trains_policy else None) if group is not None]
        # Critic and policy with equally many ranks train on the same shares, which are put into Ray's store once.
        by_ranks: dict[int, list[Any]] = {}
        for group in groups:
            if _ranks(group) not in by_ranks:
                by_ranks[_ranks(group)] = self._shares(group, settings, samples)
        shares = [by_ranks[_ranks(group)] for group in groups]
        results: list[StepResult] = []
        if self.args.ds.enable_sleep:
            for group, of_ranks in zip(groups, shares, strict=True):
                ray.get(group.async_run_method(method_name="reload_states"))
                results.append(ray.get(_update(group, settings, of_ranks))[0])
                ray.get(group.async_run_method(method_name="offload_states"))
        else:
            running = [_update(group, settings, of_ranks) for group, of_ranks in zip(groups, shares, strict=True)]
            # One call waits for all ranks: it raises the first error, whichever model has it.
            ray.get([ref for refs in running for ref in refs])
            results = [ray.get(refs[0]) for refs in running]
        metrics: dict[str, float] = {}
        for result in results:
            metrics |= result.metrics
        if not trains_policy:
            return StepResult(metrics)
        policy = results[-1]
        return StepResult(metrics, policy.mean_entropy, policy.updates, policy.learning_rate)

    def _shares(self, group: Any, settings: StepSettings, samples: Sequence[TrainSample]) -> list[Any]:
        """Put the share of each data-parallel rank into Ray's store."""
        shares = shares_of_ranks(samples, self.args, ranks=_ranks(group), step=settings.step)
        return [ray.put(RankSamples.of(share)) for share in shares]

    def send_weights(self) -> None:
        """Send the weights of the policy to the vLLM engines; all ranks take part."""
        ray.get(self.policy.async_run_method(method_name="send_weights"))

    def score_texts(self, texts: list[list[int]]) -> list[float]:
        """Return the policy's log-probs of all tokens but the first of each text, at temperature 1."""
        return ray.get(self.policy.async_run_method(method_name="score_texts", texts=texts))[0]

    def restored(self) -> list[str | None]:
        """Return the tag of the checkpoint that each trained model continues from, None after a fresh start."""
        return [ray.get(group.async_run_method(method_name="get_restored"))[0] for group in self.trained]

    def client_states(self) -> Mapping[str, Any]:
        """Return what the checkpoint of the policy holds for the controller."""
        return ray.get(self.policy.async_run_method(method_name="get_checkpoint_states"))[0]

    def save(self, tag: str, client_states: Mapping[str, Any]) -> None:
        """Write checkpoints of the trained models, and exported models as the flags say.

        The state of the rollouts lies in Ray's store until one rank fetches it, so that not every rank gets it.

        Args:
            tag: Name of the checkpoints.
            client_states: The states of the run beside the models, which the checkpoint of the policy takes.

        Raises:
            RunStopped: The disk of a rank refuses a checkpoint.
        """
        # Only the rollouts are large: waiting groups and their tokens. The other states are numbers.
        states = dict(client_states)
        if ROLLOUTS in states:
            states[ROLLOUTS] = ray.put(states[ROLLOUTS])
        refs = self.policy.async_run_method(method_name="save_checkpoint", tag=tag, client_states=states)
        for group in self.trained[1:]:
            refs += group.async_run_method(method_name="save_checkpoint", tag=tag)
        ray.get(refs)

    def record_metric(self, tag: str, metric_value: float, metric_key: str) -> None:
        """Give the checkpoints of a step, if there are any, the metric of the evaluation after it.

        Args:
            tag: Name of the checkpoints.
            metric_value: Value of the metric by which checkpoints are kept.
            metric_key: Name of that metric.

        Raises:
            RunStopped: A disk refuses the file.
        """
        named = {"tag": tag, "metric_value": metric_value, "metric_key": metric_key}
        ray.get(
            [ref for group in self.trained for ref in group.async_run_method(method_name="record_metric", **named)]
        )

    def export_best(self, record: Mapping[str, Any]) -> None:
        """Replace the exported model of the best evaluation by the policy."""
        ray.get(self.policy.async_run_method(method_name="export_best", record=dict(record)))

    @property
    def senders(self) -> list[Any]:
        """The actors that take part in sending weights."""
        return list(self.policy._actor_handlers)


def _free_gpu(group: Any, calls: Calls) -> None:
    """Wait for the answers of a model, then free the memory of its GPU."""
    ray.get([ref for refs in calls for ref in refs])
    ray.get(group.async_run_method(method_name="empty_cache"))


def _ranks(group: Any) -> int:
    return len(group._actor_handlers) // group.duplicate_actors


def _update(group: Any, settings: StepSettings, shares: Sequence[Any]) -> list[Any]:
    """Start the updates of all ranks; those that share the tokens of a batch get the same samples."""
    return [
        actor.update.remote(settings, shares[number // group.duplicate_actors])
        for number, actor in enumerate(group._actor_handlers)
    ]
