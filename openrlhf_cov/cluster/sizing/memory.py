"""Bytes on a GPU: what DeepSpeed, upstream's forward and backward passes, and vLLM keep there (pure).

docs/sizing.md has the main formulas and what they leave out. Estimates; one run on a GPU was compared with them.
"""

from dataclasses import dataclass

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.sizing.model_shape import ModelShape
from openrlhf_cov.utils.engine_limits import GPU_LIMITS, EngineLimits

GIB = 2**30

# DeepSpeed's stage3_max_live_parameters: parameters that a rank holds gathered at once.
LIVE_PARAMETERS = 10**9

# DeepSpeed's reduce_bucket_size, in gradients. On a CPU host stages 1 and 2 have that of ``cpu_host.training_config``.
REDUCE_BUCKET = 5 * 10**8

# DeepSpeed's sub_group_size: parameters that ZeRO-3 updates at once.
SUB_GROUP = 10**9

# Assumed: share of what comes and goes that torch's allocator holds beyond it.
FRAGMENTATION = 0.1

# Assumed: CUDA context, NCCL and cuBLAS of one process.
PROCESS = 1 * GIB

# Assumed: CUDA graphs of vLLM and workspaces of its kernels, inside of its share, beside activations and logits.
ENGINE_WORKSPACE = 2 * GIB

# Assumed: what a sleeping engine keeps beside its process, mainly CUDA graphs.
ENGINE_ASLEEP = 1 * GIB

HEAD_BLOCK = 2**25
# ``BLOCK`` and ``COLUMN_STEP`` of ``openrlhf_cov/models/token_head.py``: logits that are there at once.
HEAD_COLUMNS = 256


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """The way in which one group of processes holds a model."""

    # Processes, one per GPU; ZeRO partitions over those that tensor parallelism leaves.
    world: int
    stage: int
    tensor_parallel: int = 1
    # Bytes of a weight.
    element: int = 2
    # Bytes of an accumulated gradient; None for those of a weight.
    grad_element: int | None = None
    # ``--ds.zpg``: GPUs over which ZeRO++ keeps a second copy of the weights; 1 for none.
    secondary: int = 1
    optimizer_on_cpu: bool = False
    # ``--ref.offload`` and ``--reward.offload``; DeepSpeed heeds them in stage 3 alone.
    weights_on_cpu: bool = False
    # Parameters that are trained, those of LoRA adapters; None for all of the model.
    trained: int | None = None
    # False on a CPU host: memory that nothing is written to does not count, and the bucket of stages 1 and 2 is small.
    whole_buffers: bool = True

    def trained_parameters(self, shape: ModelShape) -> int:
        """Return how many parameters have gradients and a state of the optimizer."""
        return shape.parameters if self.trained is None else self.trained

    def weights(self, shape: ModelShape) -> float:
        """Return the bytes of the weights that a GPU holds all the time."""
        whole = (shape.parameters + (self.trained or 0)) * self.element
        if self.stage < 3:
            return whole / self.tensor_parallel
        second = whole / self.secondary if self.secondary > 1 else 0.0
        return (0.0 if self.weights_on_cpu else whole / self.world) + second

    @property
    def accumulated(self) -> int:
        """Bytes of an accumulated gradient: those of ``grad_element``, which DeepSpeed's stage 2 does not heed."""
        return self.element if self.stage == 2 else self.grad_element or self.element

    def gradients(self, shape: ModelShape) -> float:
        """Return the bytes of accumulated gradients; stages 2 and 3 partition them.

        Stage 1 with gradients in fp32 also holds those of the backward pass, in the type of the weights.
        """
        if self.optimizer_on_cpu and self.stage >= 2:
            return 0.0
        ranks = self.world if self.stage >= 2 else self.tensor_parallel
        size = self.accumulated
        if self.stage == 1 and size != self.element and not self.optimizer_on_cpu:
            size += self.element
        return self.trained_parameters(shape) * size / ranks

    def optimizer(self, shape: ModelShape) -> float:
        """Return the bytes of AdamW in fp32: master weights and two moments; stages 1 to 3 partition them."""
        if self.optimizer_on_cpu:
            return 0.0
        return 12.0 * self.trained_parameters(shape) / (self.world if self.stage >= 1 else self.tensor_parallel)

    def gathered(self, shape: ModelShape) -> float:
        """Return the bytes of the parameters that ZeRO-3 gathers for the layers at work."""
        return self.element * min(LIVE_PARAMETERS, shape.parameters) if self.stage == 3 else 0.0

    def bucket(self, shape: ModelShape) -> float:
        """Return the bytes of the buffer in which gradients are reduced, in the type of the weights.

        Stage 3 casts a rank's part of the buffer where gradients accumulate in another type.
        """
        if self.stage == 0:
            return 0.0
        size = REDUCE_BUCKET
        if not self.whole_buffers:
            most = REDUCE_BUCKET if self.stage == 3 else cpu_host.REDUCE_BUCKET
            size = min(most, self.trained_parameters(shape))
        casts = self.stage == 3 and self.accumulated != self.element and not self.optimizer_on_cpu
        return float(self.element * size) + (self.accumulated * size / self.world if casts else 0.0)

    def left_over(self, shape: ModelShape) -> float:
        """Return the bytes that PyTorch holds on a GPU while ``--ds.enable_sleep`` has the optimizer on the host.

        DeepSpeed's ZeRO-3 allocates a sub-group of gradients in fp32 at its start and frees it. Accumulated gradients
        take its place if they fit there. Where they did not, the memory stayed with the process, free for other
        tensors of it (docs/gpu.md).
        """
        if self.optimizer_on_cpu or self.stage != 3 or not self.whole_buffers:
            return 0.0
        buffer = 4.0 * min(self.trained_parameters(shape) / self.world, SUB_GROUP)
        return buffer if self.gradients(shape) > buffer else 0.0

    def update(self, shape: ModelShape) -> float:
        """Return what the optimizer needs while it updates: the gradients of a sub-group, flattened.

        Gradients that are not in fp32 are there a second time, in fp32.
        """
        if self.optimizer_on_cpu:
            return 0.0
        part = self.trained_parameters(shape) / (self.world if self.stage >= 1 else self.tensor_parallel)
        size = self.accumulated if self.accumulated == 4 else self.accumulated + 4
        return float(size) * (min(part, SUB_GROUP) if self.stage == 3 else part)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One micro-batch through the model on one GPU."""

    # Tokens that this GPU computes.
    tokens: int
    element: int = 2
    checkpointing: bool = False
    # It ends in an output head over the vocabulary; critics and reward models do not.
    head: bool = True
    # All logits stand side by side, as upstream has them; ours come in blocks
    # (``openrlhf_cov/trainer/model/actor_model.py``).
    whole_logits: bool = False
    # With ``whole_logits``: flash-attn's cross entropy is there.
    fused_loss: bool = True
    # With ``whole_logits``: the loss has a part in the entropies.
    entropy_gradient: bool = False
    # Longest sequence, where attention scores are written out (``eager``); 0 where they are not.
    score_length: int = 0

    def kept(self, shape: ModelShape) -> float:
        """Return the bytes per token that autograd keeps of one layer."""
        # Two norms of a layer each keep their input in fp32 and two tensors of the model's type.
        norms = 2 * (4 + 2 * self.element) * shape.hidden
        attention = 2 * self.element * (shape.query_width + shape.kv_width)
        scores = (4 + self.element) * shape.heads * self.score_length
        return norms + attention + scores + 4 * self.element * shape.intermediate

    def logits(self, shape: ModelShape, factor: float, cast: int = 1) -> float:
        """Return the bytes per token of whole logits; 0 without an output head, and where logits come in blocks.

        Args:
            shape: Shape of the model.
            factor: Number of tensors of logits in fp32 that exist at once.
            cast: Number of further tensors in the type of the model; they count where that is narrower than fp32.
        """
        if not (self.head and self.whole_logits):
            return 0.0
        return (4 * factor + (self.element * cast if self.element < 4 else 0)) * shape.vocab

    def head_in_blocks(self, shape: ModelShape, training: bool) -> float:
        """Return the bytes of the output head that gives log-probs in blocks, for all tokens of the micro-batch.

        The forward pass takes the tokens that the head answers for, and a block of logits twice. The backward pass
        takes a third block in the model's type, the gradient of the head's weight, and that of the tokens, in fp32 and
        once more in the model's type.

        Args:
            shape: Shape of the model.
            training: True to count the backward pass as well.
        """
        if not self.head or self.whole_logits:
            return 0.0
        block = min(max(HEAD_BLOCK, HEAD_COLUMNS * self.tokens), shape.vocab * self.tokens)
        cast = self.element if self.element < 4 else 0
        forward = self.tokens * self.element * shape.hidden + 8 * block
        if not training:
            return forward
        tokens = self.tokens * (4 + self.element) * shape.hidden
        return forward + cast * block + self.element * shape.embedding + tokens

    def training(self, shape: ModelShape) -> float:
        """Return the bytes at the peak of forward and backward.

        Either at the head and the loss, where whole fp32 logits, their gradient and its cast would stand side by side,
        or in the backward of a layer, with whole fp32 logits still held by upstream's ``output``.
        """
        one = self.kept(shape)
        backward = (2 * shape.intermediate + 2 * shape.hidden) * self.element
        outputs = shape.layers * shape.hidden * self.element
        kept = outputs if self.checkpointing else shape.layers * one
        last_norm = (4 + 2 * self.element) * shape.hidden
        tensors = (2 if self.fused_loss else 3.5) + self.entropy_gradient
        at_loss = self.logits(shape, tensors) + last_norm
        in_layer = self.logits(shape, 1, 0) + backward + (one if self.checkpointing else 0.0)
        at_head = self.tokens * at_loss + self.head_in_blocks(shape, training=True)
        return self.tokens * kept + max(at_head, self.tokens * in_layer)

    def scoring(self, shape: ModelShape) -> float:
        """Return the bytes at the peak of a forward pass without gradient."""
        # Without autograd only the tensors of the layer at work exist: three of the MLP's width, five of the hidden
        # size.
        layer = (3 * shape.intermediate + 5 * shape.hidden) * self.element
        layer += (4 + self.element) * shape.heads * self.score_length
        return max(self.tokens * max(self.logits(shape, 1), layer), self.head_in_blocks(shape, training=False))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A vLLM engine: ``tensor_parallel`` GPUs, of each of which it takes a share."""

    tensor_parallel: int
    utilization: float
    gpu_bytes: float
    element: int = 2
    limits: EngineLimits = GPU_LIMITS
    # False on a CPU host, where the share of vLLM is weights and KV cache alone
    has_workspace: bool = True

    @property
    def share(self) -> float:
        """Bytes of a GPU that the engine takes for weights, KV cache and workspace."""
        return self.utilization * self.gpu_bytes

    def weights(self, shape: ModelShape) -> float:
        """Return the bytes of the weights on one GPU."""
        return shape.parameters * self.element / self.tensor_parallel

    def kv_bytes(self, shape: ModelShape) -> float:
        """Return the bytes of a GPU that are left for the KV cache; below 0 if the weights do not fit."""
        return self.share - self.weights(shape) - self.workspace(shape)

    def workspace(self, shape: ModelShape) -> float:
        """Return the bytes that vLLM keeps free for a step: graphs, and the larger of a layer and the sampler.

        A layer has the activations of ``batched_tokens``, of which tensor parallelism splits those of the MLP. The
        sampler has the logits of ``sequences`` in the model's type, in fp32, and a second time in fp32.
        """
        if not self.has_workspace:
            return 0.0
        layer = (3 * shape.intermediate / self.tensor_parallel + 5 * shape.hidden) * self.element
        logits = (self.element + 8) * shape.vocab
        return ENGINE_WORKSPACE + max(self.limits.batched_tokens * layer, self.limits.sequences * logits)

    def kv_bytes_per_token(self, shape: ModelShape) -> float:
        """Return the bytes of keys and values of one token on one GPU; more GPUs than heads of keys hold copies."""
        heads = max(1.0, shape.kv_heads / self.tensor_parallel)
        return 2.0 * shape.layers * heads * shape.head_dim * self.element

    def kv_tokens(self, shape: ModelShape) -> int:
        """Return the tokens that the KV cache of the engine holds."""
        return max(0, int(self.kv_bytes(shape) / self.kv_bytes_per_token(shape)))

    def sequences(self, shape: ModelShape, length: int) -> int:
        """Return how many sequences run at once.

        Args:
            shape: Shape of the model.
            length: Tokens of a sequence, prompt and response together.
        """
        return min(self.limits.sequences, self.kv_tokens(shape) // length)
