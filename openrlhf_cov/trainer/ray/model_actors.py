"""What the model actors have in common: a node on which DeepSpeed loads, and checkpoints."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from openrlhf.trainer.ray.launcher import ReferenceModelActor, RewardModelActor

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.checkpoints import (
    LATEST,
    NO_LIMIT,
    ROLLOUTS_FILE,
    SETTINGS,
    checkpoint_folder,
    describe_run,
    errors_at_the_end,
    point_back,
    pointed_to,
    prune,
    save_whole,
    start_afresh_without_checkpoint,
    uses_checkpoints,
)
from openrlhf_cov.trainer.cpu_adam import replay_bias_corrections
from openrlhf_cov.trainer.extension_locks import remove_stale_locks
from openrlhf_cov.trainer.ray.seams import InstalledActor, plain_class
from openrlhf_cov.trainer.run_record import RECORD
from openrlhf_cov.trainer.shared_storage import check_restored, check_shared


def share_over_ranks(value: Any) -> list[Any]:
    """The argument of every rank, in their order; all ranks call it."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


class PreparedNode(InstalledActor):
    """Mixin over upstream's model actors: no lock of a killed process keeps DeepSpeed from loading; on a CPU host the
    models that score the rollouts share its cores."""

    def _setup_distributed(self, strategy) -> None:
        cpu_host.adapt_deepspeed()
        remove_stale_locks()
        super()._setup_distributed(strategy)

    def forward(self, *args, **kwargs) -> torch.Tensor:
        """Upstream's."""
        with cpu_host.share_of_threads(scoring_models(self.strategy.args)):
            return super().forward(*args, **kwargs)


def scoring_models(args: SimpleNamespace) -> int:
    """How many models of a run look at its rollouts side by side."""
    others = args.algo.kl.init_coef > 0, bool(args.critic.model_name_or_path), not args.reward.remote_url
    return 1 + sum(others)


class CovReferenceActor(PreparedNode, plain_class(ReferenceModelActor)):
    """Upstream's."""


class CovRewardActor(PreparedNode, plain_class(RewardModelActor)):
    """Upstream's."""


def read_rollouts(checkpoint: Path) -> Any:
    """What ``save_deepspeed`` was given as ``rollouts``. Raises RunStopped if it cannot be read."""
    path = checkpoint / ROLLOUTS_FILE
    try:
        return torch.load(path, weights_only=False)
    except OSError as error:
        raise RunStopped(
            f"--ckpt.load_enable: {path}, with the place in the data, cannot be read: {error.strerror or error}; "
            f"restore it, or write the name of another checkpoint into {checkpoint.parent / LATEST}"
        ) from error


class CheckpointedActor(PreparedNode):
    """Mixin over upstream's actors that train: all ranks write and restore one and the same checkpoint."""

    model_name: str
    """The model's in flags and folders: actor or critic."""
    engine: Any
    """The model's in DeepSpeed."""
    restored: str | None = None
    """Tag of the checkpoint from which this rank started; None after a fresh start."""

    def _setup_distributed(self, strategy) -> None:
        super()._setup_distributed(strategy)
        if uses_checkpoints(strategy.args):
            folder = checkpoint_folder(strategy.args, self.model_name)
            check_shared(folder.parent, folder / LATEST, share_over_ranks, first=strategy.is_rank_0())

    def init_model_from_pretrained(self, strategy, *args, **kwargs) -> None:
        """Upstream's; a restored Adam counts its steps again, and ``latest`` names what was restored.

        Raises RunStopped, on every rank alike, if they restored different checkpoints.
        """
        resumes = strategy.args.ckpt.load_enable
        start_afresh_without_checkpoint(strategy.args)
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        description = None
        if strategy.restored:
            self.restored, step = strategy.restored
            description = f"{self.restored} (global step {step}, {self.engine.global_steps} updates)"
        if resumes:
            check_restored(Path(strategy.args.ckpt.path), description, share_over_ranks)
        if self.restored:
            replay_bias_corrections(self.engine.basic_optimizer)
            if strategy.is_rank_0():
                point_back(checkpoint_folder(strategy.args, self.model_name), self.restored)

    def get_restored(self) -> str | None:
        """``restored``, for the controller."""
        return self.restored

    def save_deepspeed(self, tag, metric_value, metric_key, states: dict, rollouts: Any = None) -> None:
        """Upstream's DeepSpeed checkpoint, with the rollouts' state in a file of its own, written by the first rank.

        It appears under its name when it is complete (``save_whole``). Raises RunStopped, on every rank alike, if a
        disk refuses one of them.
        """
        strategy, ckpt, first = self.strategy, self.strategy.args.ckpt, self.strategy.is_rank_0()
        folder = checkpoint_folder(strategy.args, self.model_name)
        engine = self.engine

        def save(name: str) -> None:
            files = (engine.checkpoint_engine, "save"), (engine, "_copy_recovery_script")
            with errors_at_the_end(*files) as noting:
                strategy.save_ckpt(
                    engine, str(folder), name, NO_LIMIT, NO_LIMIT, states, False, metric_value, metric_key
                )
                if first and rollouts is not None:
                    noting(_write_rollouts)(folder / name / ROLLOUTS_FILE, rollouts)

        run = describe_run(strategy.args, engine.module.config, self.model_name)
        run[SETTINGS] = getattr(strategy.args, RECORD, None)
        save_whole(save, folder, tag, run, first=first, share=share_over_ranks)
        if first:
            prune(folder, pointed_to(folder), ckpt.max_num, ckpt.max_mem, strategy._read_ckpt_metric)


def _write_rollouts(path: Path, state: Any) -> None:
    torch.save(ray.get(state) if isinstance(state, ray.ObjectRef) else state, path)
