"""The roles of a training as Ray actors: one process per rank holds the model of one role.

The controller calls the methods through upstream's ``RayActorGroup``. All ranks of a role have to call ``load`` and
the methods of checkpoints and weights together, because these contain collectives. In all shapes B is the number of
samples of a call, T their number of tokens and A the number of predicted positions.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.trainer.ray.launcher import BaseModelActor
from openrlhf.utils.deepspeed.deepspeed_utils import offload_deepspeed_states, reload_deepspeed_states
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from torch import Tensor

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.cpu_adam import replay_bias_corrections
from openrlhf_cov.cluster.extension_locks import remove_stale_locks
from openrlhf_cov.cluster.sizing.flag_sizes import processes, scoring_processes, training_processes
from openrlhf_cov.errors import RunStopped, reason_of
from openrlhf_cov.trainer.checkpoint.best_model import evaluation_settings
from openrlhf_cov.trainer.checkpoint.checkpoints import (
    EVALUATION,
    LATEST,
    NO_LIMIT,
    ROLLOUTS,
    ROLLOUTS_FILE,
    SETTINGS,
    ClientStates,
    can_resume,
    checkpoint_folder,
    comparable_metric,
    describe_run,
    errors_at_the_end,
    export_best,
    point_back,
    pointed_to,
    prune,
    save_whole,
    uses_checkpoints,
)
from openrlhf_cov.trainer.checkpoint.run_record import RECORD
from openrlhf_cov.trainer.checkpoint.shared_storage import check_restored, check_shared
from openrlhf_cov.trainer.critic_update import update_critic
from openrlhf_cov.trainer.model.model_loading import (
    load_critic,
    load_policy,
    load_process_reward,
    load_reference,
    load_reward_model,
)
from openrlhf_cov.trainer.model.policy import Policy
from openrlhf_cov.trainer.model.strategy import CovStrategy
from openrlhf_cov.trainer.model.trained_model import TrainedModel
from openrlhf_cov.trainer.ports import reserve_port
from openrlhf_cov.trainer.process_reward_update import update_process_reward
from openrlhf_cov.trainer.ray.upstream_sender import WeightSender, make_upstream_sender
from openrlhf_cov.trainer.records import PolicyScores, RankSamples, StepResult, StepSettings
from openrlhf_cov.trainer.rollout.sampler_state_file import read_state, write_state
from openrlhf_cov.trainer.update import update_policy
from openrlhf_cov.trainer.weights.weight_transfer import GlooWeightSender, transfer_weights
from openrlhf_cov.utils import garbage_collection


def share_over_ranks(value: Any) -> list[Any]:
    """Return the argument of every rank in the order of the ranks; called on every rank."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


class ModelRole(BaseModelActor):
    """One rank of a model. A subclass has ``load``, which calls ``setup`` first, and ``score``."""

    strategy: CovStrategy

    def __init__(self, world_size: int, rank: int, master_addr: str | None, master_port: int | None) -> None:
        # Rank 0 chooses the port of its process group, and keeps it until the group listens on it (``setup``).
        self._reserved = None if master_port else reserve_port()
        if self._reserved is not None:
            master_port = self._reserved.getsockname()[1]
        super().__init__(world_size, rank, master_addr, master_port)
        garbage_collection.resume()  # ``prepare_worker`` has paused it

    def setup(self, strategy: CovStrategy) -> None:
        """Join the process group of the role and prepare this process for loading its model."""
        cpu_host.adapt_deepspeed()
        # A lock that a killed process left would keep DeepSpeed from loading its compiled extensions.
        remove_stale_locks()
        # Upstream's loaders refuse fp32. Roles alone load models, so that other workers need not import upstream.
        cpu_host.accept_fp32()
        self._setup_distributed(strategy)
        if self._reserved is not None:
            self._reserved.close()

    @property
    def device(self) -> Any:
        """The device on which the model of this rank computes."""
        return cpu_host.training_device()

    def share_of_threads(self, computing: int) -> Any:
        """Return a context in which this process has its part of the cores of a CPU host.

        Args:
            computing: Number of processes of models that compute at the same time, this one included. In asynchronous
                training the engines generate meanwhile, with the other half of the cores. The reference, which scores
                the next rollout during updates there, is not counted.
        """
        return cpu_host.share_of_threads(computing * (2 if self.strategy.args.train.async_enable else 1))


class ReferenceRole(ModelRole):
    """The frozen reference policy, with which KL terms compare the policy and PRIME its process reward model."""

    def load(self, strategy: CovStrategy, pretrain: str) -> None:
        """Load the model; called on every rank.

        Args:
            strategy: The strategy of the run.
            pretrain: Name or folder of the model.
        """
        self.setup(strategy)
        self.model = load_reference(strategy, pretrain)

    @torch.no_grad()
    def score(
        self, tokens: Tensor, action_mask: Tensor, attention_mask: Tensor, image_inputs: Sequence[Any] | None = None
    ) -> Tensor:
        """Return the log-probs of the action tokens.

        Args:
            tokens: Token ids, int64 (B, T).
            action_mask: True where a token is an action, (B, A).
            attention_mask: 1 where a token is no padding, (B, T).
            image_inputs: What the processor made of the images of each sample that has images.

        Returns:
            float32 (B, A) on the CPU, 0 where no token is an action.
        """
        merged = {}
        if image_inputs and self.model.is_vlm:
            merged = merge_mm_train_inputs(image_inputs, self.device)
        with self.share_of_threads(scoring_processes(self.strategy.args)):
            log_probs = self.model(
                tokens.to(self.device),
                action_mask.to(self.device),
                attention_mask.to(self.device),
                ring_attn_group=self.strategy.ring_attn_group,
                **merged,
            )
        return log_probs.float().cpu()


class RewardRole(ModelRole):
    """A reward model."""

    def load(self, strategy: CovStrategy, pretrain: str) -> None:
        """Load the model; called on every rank.

        Args:
            strategy: The strategy of the run.
            pretrain: Name or folder of the model.
        """
        self.setup(strategy)
        self.model = load_reward_model(strategy, pretrain)

    @torch.no_grad()
    def score(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the rewards of samples, float32 (B,) on the CPU.

        Args:
            tokens: Token ids, int64 (B, T).
            attention_mask: 1 where a token is no padding, (B, T).
        """
        with self.share_of_threads(scoring_processes(self.strategy.args)):
            rewards = self.model(
                tokens.to(self.device),
                attention_mask.to(self.device),
                ring_attn_group=self.strategy.ring_attn_group,
                pad_sequence=True,
            )
        return rewards.float().cpu()


class TrainedRole(ModelRole):
    """A model that is trained: its ranks write and restore the same checkpoint.

    ``restored`` is the tag of the checkpoint that this rank started from, None after a fresh start.
    """

    # Name of the model in flags and folders: actor, critic or prm.
    model_name: str
    restored: str | None = None

    @property
    def engine(self) -> Any:
        """The DeepSpeed engine of the model; a subclass returns it. Raises NotImplementedError here."""
        raise NotImplementedError

    def setup(self, strategy: CovStrategy) -> None:
        """Prepare as ``ModelRole.setup``, then check that all ranks see the same folder of checkpoints."""
        super().setup(strategy)
        if uses_checkpoints(strategy.args):
            folder = checkpoint_folder(strategy.args, self.model_name)
            check_shared(folder.parent, folder / LATEST, share_over_ranks, first=strategy.is_rank_0())

    def restore(self) -> dict[str, Any]:
        """Load the newest checkpoint that all trained models have, with ``--ckpt.load_enable``.

        Returns:
            The client states that the checkpoint was saved with; {} if the run starts afresh.

        Raises:
            RunStopped: The ranks restored different checkpoints; on every rank alike.
        """
        strategy = self.strategy
        args = self.strategy.args
        if not args.ckpt.load_enable:
            return {}
        folder = checkpoint_folder(args, self.model_name)
        states: dict[str, Any] = {}
        # A run that was killed before its first save has nothing to continue from: it starts afresh.
        if can_resume(args):
            strategy.print(f"Loading the checkpoint: {folder}")
            _, states = strategy.load_ckpt(self.engine, str(folder))
        description = None
        if strategy.restored:
            self.restored, step = strategy.restored
            description = f"{self.restored} (global step {step}, {self.engine.global_steps} updates)"
        check_restored(Path(args.ckpt.path), description, share_over_ranks)
        if self.restored:
            replay_bias_corrections(self.engine.basic_optimizer)
            if strategy.is_rank_0():
                point_back(folder, self.restored)
        return states

    def get_restored(self) -> str | None:
        """Return ``restored``; the controller compares it between the models."""
        return self.restored

    def reload_states(self) -> None:
        """Bring the optimizer states to the GPU before the updates of a step (``--ds.enable_sleep``)."""
        reload_deepspeed_states(self.engine)

    def offload_states(self) -> None:
        """Move the optimizer states to the host after the updates of a step (``--ds.enable_sleep``)."""
        offload_deepspeed_states(self.engine)

    def save_deepspeed(self, tag: str, states: dict, rollouts: Any = None) -> None:
        """Write a DeepSpeed checkpoint, which gets its name when it is complete (``save_whole``).

        It has no metric until its weights are evaluated (``record_metric``).

        Args:
            tag: Name of the checkpoint.
            states: The client states; every rank writes them.
            rollouts: The state of the sampler, or a Ray reference to it. The first rank alone writes it, into a file
                of its own, because it may have megabytes.

        Raises:
            RunStopped: The disk of a rank refuses the checkpoint; on every rank alike.
        """
        strategy = self.strategy
        ckpt = self.strategy.args.ckpt
        first = self.strategy.is_rank_0()
        folder = checkpoint_folder(strategy.args, self.model_name)
        engine = self.engine

        def save(name: str) -> None:
            writers = (engine.checkpoint_engine, "save"), (engine, "_copy_recovery_script")
            with errors_at_the_end(*writers) as noting:
                # ``prune`` removes old checkpoints below, after this one is complete: upstream removes them first.
                strategy.save_ckpt(engine, str(folder), name, NO_LIMIT, NO_LIMIT, states, False)
                if first and rollouts is not None:
                    noting(_write_rollouts)(folder / name / ROLLOUTS_FILE, rollouts)

        run = describe_run(strategy.args, engine.module.config, self.model_name)
        run[SETTINGS] = getattr(strategy.args, RECORD, None)
        run[EVALUATION] = evaluation_settings(strategy.args) | {"ckpt.best_metric_key": ckpt.best_metric_key}
        save_whole(save, folder, tag, run, first=first, share=share_over_ranks)
        if first:
            metric_of = partial(comparable_metric, run, strategy._read_ckpt_metric)
            prune(folder, pointed_to(folder) or tag, ckpt.max_num, ckpt.max_mem, metric_of)

    def save_checkpoint(self, tag: str) -> None:
        """Write a DeepSpeed checkpoint, unless ``--ckpt.disable_ds`` is given; called on every rank.

        Args:
            tag: Name of the checkpoint.

        Raises:
            RunStopped: The disk of a rank refuses the checkpoint; on every rank alike.
        """
        if not self.strategy.args.ckpt.disable_ds:
            self.save_deepspeed(tag, {})

    def record_metric(self, tag: str, metric_value: float, metric_key: str) -> None:
        """Give a checkpoint the metric of its own weights, which are evaluated after it is written.

        Called on every rank. A checkpoint that does not exist needs none.

        Args:
            tag: Name of the checkpoint.
            metric_value: Value of the metric by which checkpoints are kept.
            metric_key: Name of that metric.

        Raises:
            RunStopped: The disk refuses the file.
        """
        place = checkpoint_folder(self.strategy.args, self.model_name) / tag
        if self.strategy.is_rank_0() and place.is_dir():
            try:
                self.strategy._write_ckpt_metric(str(place), metric_value, metric_key=metric_key)
            except OSError as error:
                raise RunStopped(f"{place} cannot get the metric of its evaluation: {reason_of(error)}") from error


class PolicyRole(TrainedRole):
    """The policy: it scores rollouts, is updated on them, and sends its weights to the vLLM engines."""

    model_name = "actor"
    # Joined to the engines on rank 0 with --vllm.sync_backend gloo; upstream's sender with any other backend.
    gloo_sender: GlooWeightSender | None = None
    upstream_sender: WeightSender | None = None

    @property
    def engine(self) -> Any:
        """The DeepSpeed engine of the policy."""
        return self.policy.actor.model

    def load(self, strategy: CovStrategy, pretrain: str, max_steps: int, vllm_engines: list[Any] | None) -> None:
        """Load the policy and its checkpoint, and join the engines.

        Args:
            strategy: The strategy of the run.
            pretrain: Name or folder of the model.
            max_steps: Number of optimizer steps of the run.
            vllm_engines: Handles of the engines that the weights are sent to; None or empty where there is none.
        """
        args = strategy.args
        self.setup(strategy)
        loaded = load_policy(strategy, pretrain, max_steps)
        self.policy = Policy.of(strategy, loaded.actor, loaded.scheduler, loaded.ema_model, loaded.tokenizer)
        self.client_states = self.restore()
        if args.ds.enable_sleep:
            self.offload_states()
        if not vllm_engines:
            return
        if args.vllm.sync_backend != "gloo":
            self.upstream_sender = make_upstream_sender(strategy, loaded, vllm_engines)
        elif strategy.is_rank_0():
            self.gloo_sender = GlooWeightSender(vllm_engines, args.vllm.tensor_parallel_size)

    def score(
        self, tokens: Tensor, action_mask: Tensor, attention_mask: Tensor, image_inputs: Sequence[Any] | None = None
    ) -> PolicyScores:
        """Return the outputs of the policy for the action tokens before the updates of a step.

        Args:
            tokens: Token ids, int64 (B, T).
            action_mask: True where a token is an action, (B, A).
            attention_mask: 1 where a token is no padding, (B, T).
            image_inputs: What the processor made of the images of each sample that has images.

        Returns:
            Log-probs, entropies in nats and, where a method of the run uses them, proxy log-probs and means of the
            discriminator; each float32 (B, A) on the CPU.

        Raises:
            RunStopped: A method uses one of the last two and this model cannot compute it.
        """
        tokens, action_mask, attention_mask = (each.to(self.device) for each in (tokens, action_mask, attention_mask))
        with self.share_of_threads(scoring_processes(self.strategy.args)):
            scores = self.policy.score(
                tokens, action_mask, attention_mask, image_inputs, with_entropy=True, with_vocabulary_scores=True
            )
        assert scores.entropy is not None  # it was asked for
        proxy = scores.proxy
        mean = scores.discriminator_mean
        return PolicyScores(
            log_probs=scores.log_probs.float().cpu(),
            entropy=scores.entropy.float().cpu(),
            proxy=None if proxy is None else proxy.float().cpu(),
            discriminator_mean=None if mean is None else mean.float().cpu(),
        )

    def score_texts(self, texts: list[list[int]]) -> list[float]:
        """Return the log-probs of all tokens but the first of each text, one text after another; on every rank.

        The temperature is 1, as vLLM has it for the tokens of a prompt.
        """
        actor = self.policy.actor
        temperature = actor.temperature
        # The temperature of the rollouts is part of the actor's forward pass.
        actor.temperature = 1.0
        log_probs: list[float] = []
        try:
            with self.share_of_threads(processes(self.strategy.args.actor)):
                for text in texts:
                    tokens = torch.tensor([text], device=self.device)
                    ones = torch.ones_like(tokens)
                    scores = self.policy.score(tokens, ones[:, 1:], ones, None, with_entropy=False)
                    # One text at a time, without padding: the numbers are compared with those of the engine.
                    log_probs += scores.log_probs[0].float().tolist()
        finally:
            actor.temperature = temperature
        return log_probs

    def update(self, settings: StepSettings, share: RankSamples) -> StepResult:
        """Train the policy on the samples of this rank: all updates of one global step; called on every rank.

        Args:
            settings: The settings of the step.
            share: The samples of this rank.

        Returns:
            See ``update_policy``.

        Raises:
            RunStopped: See ``update_policy``.
        """
        self.empty_cache()
        with self.share_of_threads(training_processes(self.strategy.args)):
            result = update_policy(self.policy, settings, share.samples())
        self.empty_cache()
        return result

    def send_weights(self) -> None:
        """Send the current weights to every engine; called on every rank."""
        args = self.strategy.args
        if self.upstream_sender is not None:
            self.upstream_sender.broadcast_to_vllm()
            return
        transfer_weights(self.engine.module, self.gloo_sender, args.ds.zero_stage)
        # Without ZeRO-3 the other ranks gather nothing. They wait, so that none goes on while the first rank sends.
        torch.distributed.barrier()

    def save_model(self) -> None:
        """Export the policy, or its average, into ``--ckpt.output_dir`` at the end; called on every rank."""
        self._export(self.strategy.args.ckpt.output_dir)

    def export_best(self, record: dict[str, Any]) -> None:
        """Replace the folder ``best`` by an export of the policy, which vLLM and transformers load.

        With ``--train.enable_ema`` it is the policy, too, and not its average: the policy is what was evaluated.
        Called on every rank.

        Args:
            record: The global step and its metric, which are kept beside the model.

        Raises:
            RunStopped: A disk refuses the export; on every rank alike.
        """

        def export(folder: str) -> None:
            self.strategy.save_model(self.policy.actor, self.policy.tokenizer, folder)

        parent = Path(self.strategy.args.ckpt.path)
        export_best(export, parent, record, first=self.strategy.is_rank_0(), share=share_over_ranks)

    def save_checkpoint(self, tag: str, client_states: dict[str, Any] | None = None) -> None:
        """Save the policy under a tag: the DeepSpeed checkpoint, and with ``--ckpt.save_hf`` an export.

        Called on every rank.

        Args:
            tag: Name of the checkpoint; the export has the name ``TAG_hf``.
            client_states: The states of the run beside the model. ``get_checkpoint_states`` returns them in a run that
                continues from the checkpoint.

        Raises:
            RunStopped: The disk of a rank refuses the checkpoint; on every rank alike.
        """
        ckpt = self.strategy.args.ckpt
        states = dict(client_states or {})
        rollouts = states.pop(ROLLOUTS, None)
        if not ckpt.disable_ds:
            self.save_deepspeed(tag, states, rollouts)
        if ckpt.save_hf:
            self._export(os.path.join(ckpt.path, f"{tag}_hf"))
        torch_dist_barrier_and_cuda_sync()

    def get_checkpoint_states(self) -> ClientStates:
        """Return the client states of the restored checkpoint; {} after a fresh start.

        The first rank adds the state of the sampler, because the controller takes the answer of that rank.

        Raises:
            RunStopped: The state of the sampler cannot be read.
        """
        states = ClientStates(self.client_states)
        states.pop("optimizer", None)  # without ZeRO, DeepSpeed returns its own state, too
        if not self.strategy.is_rank_0():
            states.pop(ROLLOUTS, None)
        elif self.restored:
            states[ROLLOUTS] = _read_rollouts(checkpoint_folder(self.strategy.args, "actor") / self.restored)
        return states

    def _export(self, folder: str) -> None:
        model = self.policy.ema_model if self.strategy.args.train.enable_ema else self.policy.actor
        self.strategy.save_model(model, self.policy.tokenizer, folder)


class CriticRole(TrainedRole):
    """The critic (``--algo.advantage.estimator gae``)."""

    model_name = "critic"
    critic: TrainedModel

    @property
    def engine(self) -> Any:
        """The DeepSpeed engine of the critic."""
        return self.critic.engine

    def load(self, strategy: CovStrategy, pretrain: str, max_steps: int) -> None:
        """Load the critic and its checkpoint; called on every rank.

        Args:
            strategy: The strategy of the run.
            pretrain: Name or folder of the model.
            max_steps: Number of optimizer steps of the run, from which the learning rate is scheduled.

        Raises:
            RunStopped: The ranks do not share one folder of checkpoints, or restored different ones; on every rank
                alike.
        """
        self.setup(strategy)
        loaded = load_critic(strategy, pretrain, max_steps)
        self.tokenizer = loaded.tokenizer
        self.critic = TrainedModel.of("critic", "critic", strategy, loaded.engine, loaded.engine, loaded.scheduler)
        self.restore()
        if strategy.args.ds.enable_sleep:
            self.offload_states()

    @torch.no_grad()
    def score(self, tokens: Tensor, action_mask: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the values of the states, float32 (B, A) on the CPU, 0 where no token is an action.

        Args:
            tokens: Token ids, int64 (B, T).
            action_mask: True where a token is an action, (B, A).
            attention_mask: 1 where a token is no padding, (B, T).
        """
        self.engine.eval()
        with self.share_of_threads(scoring_processes(self.strategy.args)):
            values = self.engine(
                tokens.to(self.device),
                action_mask.to(self.device),
                attention_mask.to(self.device),
                ring_attn_group=self.strategy.ring_attn_group,
            )
        self.engine.train()
        return values.float().cpu()

    def update(self, settings: StepSettings, share: RankSamples) -> StepResult:
        """Train the critic on the samples of this rank; see ``PolicyRole.update`` and ``update_critic``."""
        self.empty_cache()
        with self.share_of_threads(training_processes(self.strategy.args)):
            result = update_critic(self.critic, settings, share.samples())
        self.empty_cache()
        return result

    def save_model(self) -> None:
        """Export the critic at the end of the run, with ``--critic.save_value_network``; called on every rank."""
        if self.tokenizer is not None:
            self.strategy.save_model(self.engine, self.tokenizer, f"{self.strategy.args.ckpt.output_dir}_critic")


class ProcessRewardRole(TrainedRole):
    """The process reward model, a language model that is trained on correct and incorrect responses.

    Its log-probs, less those of the reference, reward the tokens of a response.
    """

    model_name = "prm"
    prm: TrainedModel

    @property
    def engine(self) -> Any:
        """The DeepSpeed engine of the model."""
        return self.prm.engine

    def load(self, strategy: CovStrategy, pretrain: str, max_steps: int) -> None:
        """Load the model and its checkpoint; called on every rank.

        Args:
            strategy: The strategy of the run.
            pretrain: Name or folder of the model.
            max_steps: Number of optimizer steps of the run.

        Raises:
            RunStopped: The ranks do not share one folder of checkpoints, or restored different ones; on every rank
                alike.
        """
        self.setup(strategy)
        loaded = load_process_reward(strategy, pretrain, max_steps)
        self.prm = TrainedModel.of(
            "prm", "process reward model", strategy, loaded.actor, loaded.actor.model, loaded.scheduler
        )
        self.restore()
        if strategy.args.ds.enable_sleep:
            self.offload_states()

    @torch.no_grad()
    def score(self, tokens: Tensor, action_mask: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the log-probs of the action tokens, float32 (B, A) on the CPU, 0 where no token is an action.

        Args:
            tokens: Token ids, int64 (B, T).
            action_mask: True where a token is an action, (B, A).
            attention_mask: 1 where a token is no padding, (B, T).
        """
        self.prm.model.eval()
        # The other models have scored before.
        with self.share_of_threads(processes(self.strategy.args.actor)):
            log_probs = self.prm.model(
                tokens.to(self.device),
                action_mask.to(self.device),
                attention_mask.to(self.device),
                ring_attn_group=self.strategy.ring_attn_group,
            )
        return log_probs.float().cpu()

    def update(self, settings: StepSettings, share: RankSamples) -> StepResult:
        """Train on the samples of this rank, once; see ``PolicyRole.update`` and ``update_process_reward``."""
        self.empty_cache()
        with self.share_of_threads(processes(self.strategy.args.actor)):
            result = update_process_reward(self.prm, settings, share.samples())
        self.empty_cache()
        return result


def _write_rollouts(path: Path, state: Any) -> None:
    try:
        write_state(path, ray.get(state) if isinstance(state, ray.ObjectRef) else state)
    except TypeError as error:  # all ranks end the checkpoint together after an error of this kind
        raise RuntimeError(f"{path.name}: {error}") from error


def _read_rollouts(checkpoint: Path) -> Any:
    path = checkpoint / ROLLOUTS_FILE
    try:
        return read_state(path)
    except ValueError as error:
        raise RunStopped(
            f"--ckpt.load_enable: {path}, with the place in the data: {error}; write the name of another checkpoint "
            f"into {checkpoint.parent / LATEST}"
        ) from error
    except OSError as error:
        raise RunStopped(
            f"--ckpt.load_enable: {path}, with the place in the data, cannot be read: {error.strerror or error}; "
            f"restore it, or write the name of another checkpoint into {checkpoint.parent / LATEST}"
        ) from error
