"""Bytes that are taken on one GPU in each phase of a step (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_cov.cluster.sizing.memory import ENGINE_ASLEEP, FRAGMENTATION, PROCESS, Engine, Pass, Sharding
from openrlhf_cov.cluster.sizing.model_shape import ModelShape

# vLLM makes rollouts; every model scores them; policy and critic train, or before them the process reward model; the
# policy's weights go to vLLM.
PHASES = ("generate", "score", "train", "send")


@dataclass(frozen=True, kw_only=True)
class Role:
    """A model that DeepSpeed holds."""

    name: str
    shape: ModelShape
    sharding: Sharding
    scoring: Pass
    # None: it does not train.
    training: Pass | None = None
    # True with ``--train.enable_ema``: a second model holds the average of the weights, which is exported.
    averaged: bool = False

    @property
    def weights(self) -> float:
        """Bytes of the weights, which are always there."""
        return self.sharding.weights(self.shape)

    @property
    def average(self) -> float:
        """Bytes of the model with the averaged weights. DeepSpeed does not offload it in stages below 3."""
        return self.weights if self.averaged and self.sharding.stage < 3 else 0.0

    @property
    def states(self) -> float:
        """Bytes that training needs between updates; ``--ds.enable_sleep`` moves them to the host."""
        if self.training is None:
            return 0.0
        parts = (self.sharding.optimizer, self.sharding.gradients, self.sharding.bucket)
        return sum(part(self.shape) for part in parts)

    @property
    def left_over(self) -> float:
        """Bytes that stay on the GPU, free for this model, while ``--ds.enable_sleep`` has its states on the host."""
        return 0.0 if self.training is None else self.sharding.left_over(self.shape)

    @property
    def scores(self) -> float:
        """Bytes that the model takes only while it scores."""
        return self.sharding.gathered(self.shape) + (1 + FRAGMENTATION) * self.scoring.scoring(self.shape)

    @property
    def trains(self) -> float:
        """Bytes that the model takes only while it trains, in a micro-batch or in the update after the last one."""
        if self.training is None:
            return 0.0
        batch = self.sharding.gathered(self.shape) + (1 + FRAGMENTATION) * self.training.training(self.shape)
        return max(batch, self.sharding.update(self.shape))

    @property
    def sends(self) -> float:
        """Bytes of a gathered matrix and its copy while weights go to vLLM; 0 for models other than the policy."""
        return 2.0 * self.shape.embedding * self.sharding.element if self.name == "actor" else 0.0


@dataclass(frozen=True)
class Need:
    """Bytes of one kind, in every phase."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Budget:
    """The rows of one GPU."""

    rows: tuple[Need, ...]

    @property
    def totals(self) -> tuple[float, ...]:
        """Bytes of each phase."""
        return tuple(sum(row.values[i] for row in self.rows) for i in range(len(PHASES)))


def budget(
    roles: Sequence[Role],
    engine: Engine | None = None,
    engine_shape: ModelShape | None = None,
    *,
    engine_sleeps: bool = False,
    states_sleep: bool = False,
) -> Budget:
    """Return the bytes of a GPU that models and one process of an engine share, kind by kind and phase by phase.

    Upstream lets models that share GPUs score one after the other, and with ``--ds.enable_sleep`` train so, too.

    Args:
        roles: The models that have a process on the GPU.
        engine: The engine that has a process on the GPU, if one does.
        engine_shape: Shape of the model in the engine; None to count its whole share in every phase.
        engine_sleeps: True with ``--vllm.enable_sleep``: the engine frees its memory outside of generation.
        states_sleep: True with ``--ds.enable_sleep``: optimizer and gradients are on the GPU only while they train.
    """
    trained = [role for role in roles if role.training]
    awake = trained
    if states_sleep and trained:
        # Only one model has its states on the GPU at a time: the largest one decides.
        awake = [max(trained, key=lambda role: role.states + role.trains)]
    rows = [Need(f"{role.name}: weights", (role.weights,) * len(PHASES)) for role in roles]
    rows += [Need(f"{role.name}: average", (role.average,) * len(PHASES)) for role in roles if role.average]
    for role in trained:
        at_rest = role.left_over if states_sleep else role.states
        while_training = role.states if role in awake else at_rest
        if while_training:
            # (generate, score, train, send)
            rows.append(Need(f"{role.name}: optimizer, gradients", (at_rest, at_rest, while_training, at_rest)))
    if roles:
        # While its states sleep, a model scores in the memory that they have left.
        free = [role.left_over if states_sleep else 0.0 for role in roles]
        scoring = max(max(0.0, role.scores - there) for role, there in zip(roles, free, strict=True))
        sending = max(role.sends for role in roles)
        # The process reward model trains alone, before policy and critic do.
        alone = max((role.trains for role in awake if role.name == "prm"), default=0.0)
        together = sum(role.trains for role in awake if role.name != "prm")
        rows.append(Need("micro-batch, gathered weights", (0.0, scoring, max(alone, together), sending)))
    if engine:
        rows.append(_engine_row(engine, engine_shape, engine_sleeps))
    processes = len(roles) + (1 if engine else 0)
    rows.append(Need("CUDA, NCCL", (float(PROCESS * processes),) * len(PHASES)))
    return Budget(tuple(rows))


def _engine_row(engine: Engine, shape: ModelShape | None, sleeps: bool) -> Need:
    if shape is None or not sleeps:
        return Need("engine", (engine.share,) * len(PHASES))
    # An engine wakes its weights alone while it gets new ones; its KV cache comes back for generation.
    asleep = float(ENGINE_ASLEEP)
    return Need("engine, asleep outside generation", (engine.share, asleep, asleep, asleep + engine.weights(shape)))
