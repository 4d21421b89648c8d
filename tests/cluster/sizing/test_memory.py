import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, Qwen2Config

from openrlhf_cov.cluster.sizing import memory
from openrlhf_cov.cluster.sizing.memory import ENGINE_WORKSPACE, GIB, Engine, Pass, Sharding
from openrlhf_cov.cluster.sizing.model_shape import KNOWN, shape_of_config
from openrlhf_cov.models import token_head
from openrlhf_cov.trainer.model.actor_model import HeadScores, answering
from openrlhf_cov.utils.engine_limits import EngineLimits

QWEN_7B = KNOWN["Qwen/Qwen2.5-7B"]
# Parameters of it.
P = 7_615_616_512


@pytest.mark.parametrize(
    ("settings", "weights", "gradients", "optimizer", "gathered", "bucket", "update"),
    [
        # ZeRO-3 on 8 GPUs: 16 bytes per parameter over all; 1e9 gathered, 5e8 in the bucket, 2 bytes each;
        # an update flattens (2) and casts (4) the gradients of the whole part, which is below a sub-group of 1e9
        ({"world": 8, "stage": 3}, 2 * P / 8, 2 * P / 8, 12 * P / 8, 2e9, 1e9, 6 * P / 8),
        # on 4 GPUs the part of 1.9e9 is updated in sub-groups
        ({"world": 4, "stage": 3}, 2 * P / 4, 2 * P / 4, 12 * P / 4, 2e9, 1e9, 6e9),
        # ZeRO-2 keeps whole weights, ZeRO-1 whole gradients too, ZeRO-0 all
        ({"world": 8, "stage": 2}, 2 * P, 2 * P / 8, 12 * P / 8, 0, 1e9, 6 * P / 8),
        ({"world": 8, "stage": 1}, 2 * P, 2 * P, 12 * P / 8, 0, 1e9, 6 * P / 8),
        ({"world": 8, "stage": 0}, 2 * P, 2 * P, 12 * P, 0, 0, 6 * P),
        # fp32 weights, gradients in fp32
        ({"world": 8, "stage": 3, "element": 4}, 4 * P / 8, 4 * P / 8, 12 * P / 8, 4e9, 2e9, 4 * P / 8),
        # bf16 weights, gradients accumulated in fp32: a rank's part of the bucket is cast, and an update casts nothing
        ({"world": 8, "stage": 3, "grad_element": 4}, 2 * P / 8, 4 * P / 8, 12 * P / 8, 2e9, 1.25e9, 4 * P / 8),
        # stage 2 does not heed the type, stage 1 holds the gradients of the backward pass as well
        ({"world": 8, "stage": 2, "grad_element": 4}, 2 * P, 2 * P / 8, 12 * P / 8, 0, 1e9, 6 * P / 8),
        ({"world": 8, "stage": 1, "grad_element": 4}, 2 * P, 6 * P, 12 * P / 8, 0, 1e9, 4 * P / 8),
        # the optimizer on the CPU takes the gradients with it
        ({"world": 8, "stage": 3, "optimizer_on_cpu": True}, 2 * P / 8, 0, 0, 2e9, 1e9, 0),
        ({"world": 8, "stage": 1, "optimizer_on_cpu": True}, 2 * P, 2 * P, 0, 0, 1e9, 0),
        # weights on the CPU, in stage 3 alone
        ({"world": 8, "stage": 3, "weights_on_cpu": True}, 0, 2 * P / 8, 12 * P / 8, 2e9, 1e9, 6 * P / 8),
        ({"world": 8, "stage": 0, "weights_on_cpu": True}, 2 * P, 2 * P, 12 * P, 0, 0, 6 * P),
        # tensor parallelism of 2 halves what ZeRO leaves whole; a second copy over 4 GPUs
        ({"world": 8, "stage": 1, "tensor_parallel": 2}, P, P, 12 * P / 8, 0, 1e9, 6 * P / 8),
        ({"world": 8, "stage": 3, "secondary": 4}, 2 * P / 8 + 2 * P / 4, 2 * P / 8, 12 * P / 8, 2e9, 1e9, 6 * P / 8),
    ],
)
def test_states_by_stage(settings, weights, gradients, optimizer, gathered, bucket, update):
    sharding = Sharding(**settings)
    assert sharding.weights(QWEN_7B) == weights
    assert sharding.gradients(QWEN_7B) == gradients
    assert sharding.optimizer(QWEN_7B) == optimizer
    assert sharding.gathered(QWEN_7B) == gathered
    assert sharding.bucket(QWEN_7B) == bucket
    assert sharding.update(QWEN_7B) == update


def test_a_small_model_is_gathered_as_a_whole(tiny):
    assert Sharding(world=2, stage=3).gathered(tiny) == 2 * tiny.parameters


def test_adam_keeps_twelve_bytes_per_parameter(tiny):
    # what DeepSpeed gives its optimizer: an fp32 copy of the weights
    master = torch.nn.Parameter(torch.zeros(tiny.parameters))
    adam = torch.optim.AdamW([master])
    master.grad = torch.ones_like(master)
    adam.step()
    kept = [master, *(value for value in adam.state[master].values() if value.numel() > 1)]
    assert sum(value.nbytes for value in kept) == Sharding(world=1, stage=3).optimizer(tiny)


def test_logits_by_hand():
    # one token of a vocabulary of 152,064: fp32 logits, their gradient in fp32 and in bf16: 4 + 4 + 2 bytes
    assert Pass(tokens=1, whole_logits=True).logits(QWEN_7B, 2) == 10 * 152_064
    assert Pass(tokens=1, whole_logits=True, element=4).logits(QWEN_7B, 2) == 8 * 152_064
    assert Pass(tokens=1, whole_logits=True, head=False).logits(QWEN_7B, 2) == 0
    assert Pass(tokens=1).logits(QWEN_7B, 2) == 0


def test_a_checkpointed_micro_batch_by_hand():
    # outputs of 28 layers of 3,584 numbers in bf16, the last norm with 8 bytes per number, the logits
    expected = 20_480 * (28 * 3584 * 2 + 8 * 3584 + 10 * 152_064)
    assert Pass(tokens=20_480, checkpointing=True, whole_logits=True).training(QWEN_7B) == expected
    # without them the peak is in the backward of a layer: what it keeps, and two of its widest tensors and outputs
    one = 2 * 8 * 3584 + 2 * 2 * (3584 + 512) + 4 * 2 * 18_944
    expected = 20_480 * (28 * 3584 * 2 + one + (2 * 18_944 + 2 * 3584) * 2)
    assert Pass(tokens=20_480, checkpointing=True).training(QWEN_7B) == expected


def test_a_head_in_blocks_by_hand():
    # of 1,000 tokens a copy (2 bytes per number) and two blocks of 2^25 logits in fp32; in the backward pass a block
    # in bf16, the gradient of the weight of 152,064 x 3,584, and that of the tokens, in fp32 and bf16
    scoring = 1000 * 2 * 3584 + 8 * 2**25
    batch = Pass(tokens=1000)
    assert batch.head_in_blocks(QWEN_7B, training=False) == scoring
    training = scoring + 2 * 2**25 + 2 * 152_064 * 3584 + 1000 * 6 * 3584
    assert batch.head_in_blocks(QWEN_7B, training=True) == training
    # 100 tokens have 15.2 million logits, less than a block
    assert Pass(tokens=100).head_in_blocks(QWEN_7B, training=False) == 100 * 2 * 3584 + 8 * 100 * 152_064
    # a block has 256 columns at least: 200,000 tokens make 51.2 million
    assert Pass(tokens=200_000).head_in_blocks(QWEN_7B, training=False) == 200_000 * 2 * 3584 + 8 * 256 * 200_000
    assert Pass(tokens=100, head=False).head_in_blocks(QWEN_7B, training=True) == 0
    assert Pass(tokens=100, whole_logits=True).head_in_blocks(QWEN_7B, training=True) == 0
    assert (memory.HEAD_BLOCK, memory.HEAD_COLUMNS) == (token_head.BLOCK, token_head.COLUMN_STEP)


def test_a_layer_by_hand():
    # two norms of 8 bytes per number; queries, keys, values and the output of attention; four tensors of the MLP
    one = 2 * 8 * 3584 + 2 * 2 * (3584 + 512) + 4 * 2 * 18_944
    assert Pass(tokens=1).kept(QWEN_7B) == one
    assert Pass(tokens=1, score_length=100).kept(QWEN_7B) == one + 6 * 28 * 100
    # without checkpointing all 28 stay
    expected = 28 * one + 8 * 3584 + 10 * 152_064
    assert Pass(tokens=1, whole_logits=True).training(QWEN_7B) == expected


def test_an_entropy_bonus_adds_a_gradient_of_the_logits():
    common = {"tokens": 1, "checkpointing": True}
    plain, bonus = (Pass(**common, whole_logits=True, entropy_gradient=on) for on in (False, True))
    assert bonus.training(QWEN_7B) - plain.training(QWEN_7B) == 4 * 152_064
    plain, bonus = (Pass(**common, entropy_gradient=on) for on in (False, True))
    assert bonus.training(QWEN_7B) == plain.training(QWEN_7B)


def test_without_a_head_a_layer_is_the_peak():
    headless = Pass(tokens=1, checkpointing=True, head=False)
    backward = (2 * 18_944 + 2 * 3584) * 2
    assert headless.training(QWEN_7B) == 28 * 3584 * 2 + headless.kept(QWEN_7B) + backward
    assert headless.scoring(QWEN_7B) == (3 * 18_944 + 5 * 3584) * 2


class LiveBytes(TorchDispatchMode):
    """Bytes of the tensors that are made while it is on, now and at their peak; those of ``outside`` do not count."""

    def __init__(self, outside):
        super().__init__()
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in outside}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.note, result)
        return result

    def note(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.sizes:
            self.sizes[key] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key, size):
        del self.sizes[key]
        self.now -= size


class FusedCrossEntropy(torch.autograd.Function):
    """flash-attn's, as far as memory goes: keeps the logits, writes their gradient beside them."""

    @staticmethod
    def forward(context, logits):
        context.save_for_backward(logits)
        return logits.new_empty(logits.shape[0])

    @staticmethod
    def backward(context, gradient):
        return torch.empty_like(context.saved_tensors[0])


def without_a_mask(module, query, key, value, attention_mask, **settings):
    """Attention that keeps what flash attention keeps: queries, keys, values and output."""
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return output.transpose(1, 2), None


TOKENS = 20_480


def measured_peak(vocab, layers, checkpointing, training, whole_logits):
    """Bytes at the peak of forward and backward, of layers as wide as those of the 7B model; upstream's or ours."""
    config = Qwen2Config(
        hidden_size=3584, intermediate_size=18_944, num_attention_heads=28, num_key_value_heads=28, vocab_size=vocab,
        num_hidden_layers=layers, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    AttentionInterface.register("without_a_mask", without_a_mask)
    AttentionMaskInterface.register("without_a_mask", lambda *args, **kwargs: None)
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="without_a_mask", dtype=torch.bfloat16)
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        ids = torch.zeros((1, TOKENS), dtype=torch.long)
        outside = [ids, *model.parameters(), *(parameter.grad for parameter in model.parameters())]
        scores = HeadScores(model.get_output_embeddings(), torch.arange(TOKENS), ids[0], 1.0, with_entropy=True)
        with LiveBytes(outside) as live, torch.set_grad_enabled(training):
            if whole_logits:
                output = model(ids)
                output["logits"] = output["logits"].to(torch.float32)
                results = [FusedCrossEntropy.apply(output["logits"].flatten(0, 1))] if training else []
            else:
                with answering(model.get_output_embeddings(), scores.answer):
                    output = model(ids)
                results = [output["logits"], scores.entropy]
            if training:  # upstream holds ``output`` until the step is over
                sum(result.sum() for result in results).backward()
    return live.peak, shape_of_config({**config.to_dict(), "model_type": "qwen2"})


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [128, 40_000, 152_064], ids=["no logits", "layer", "logits"])
@pytest.mark.parametrize(
    ("checkpointing", "training"),
    [(True, True), (False, True), (False, False)],
    ids=["checkpointed", "whole", "scoring"],
)
@pytest.mark.parametrize("whole_logits", [True, False], ids=["upstream", "ours"])
def test_the_estimate_is_the_peak_of_a_real_model(vocab, checkpointing, training, whole_logits):
    """On fake tensors: the sizes and lifetimes are those of the real run, the numbers are not computed."""
    peak, shape = measured_peak(vocab, 3, checkpointing, training, whole_logits)
    batch = Pass(tokens=TOKENS, checkpointing=checkpointing, whole_logits=whole_logits)
    estimate = batch.training(shape) if training else batch.scoring(shape)
    assert estimate == pytest.approx(peak, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("width", [896, 3584])
def test_the_head_takes_less_than_an_eighth_of_upstreams(width):
    """Of forward and backward of the output head, with entropies and their gradient; upstream's without either."""
    peaks = {}
    for whole_logits in (True, False):
        with FakeTensorMode():
            head = torch.nn.Linear(width, 151_936, bias=False, dtype=torch.bfloat16)
            head.weight.grad = torch.empty_like(head.weight)
            hidden = torch.empty(1, TOKENS, width, dtype=torch.bfloat16, requires_grad=True)
            rows, targets = torch.arange(TOKENS), torch.zeros(TOKENS, dtype=torch.long)
            scores = HeadScores(head, rows, targets, 0.9, with_entropy=True)
            with LiveBytes([hidden, head.weight, head.weight.grad, rows, targets]) as live:
                if whole_logits:
                    logits = head(hidden).to(torch.float32)
                    FusedCrossEntropy.apply(logits.flatten(0, 1)).sum().backward()
                else:
                    log_probs = scores.answer(hidden)
                    (log_probs.sum() + scores.entropy.sum()).backward()
        peaks[whole_logits] = live.peak
    assert peaks[True] > 10 * 151_936 * TOKENS * 0.99  # logits in fp32 and their gradient, in fp32 and bf16
    assert peaks[False] <= peaks[True] / 8


def test_an_engine_by_hand():
    engine = Engine(tensor_parallel=4, utilization=0.8, gpu_bytes=80 * GIB)
    shape = KNOWN["Qwen/Qwen2.5-32B"]
    assert engine.share == 64 * GIB
    assert engine.weights(shape) == 32_763_876_352 * 2 / 4
    # 64 layers, keys and values, 8 / 4 heads of 128 numbers in bf16
    assert engine.kv_bytes_per_token(shape) == 2 * 64 * 2 * 128 * 2 == 65_536
    # graphs; the logits of 1,024 sequences in bf16 and twice in fp32, which are more than the activations of 8,192
    # tokens in a layer: (3 x 27,648 / 4 + 5 x 5,120) x 2 bytes
    assert engine.workspace(shape) == ENGINE_WORKSPACE + 1024 * 10 * 152_064 > 8192 * 92_672
    assert engine.kv_tokens(shape) == int((64 * GIB - 32_763_876_352 / 2 - engine.workspace(shape)) / 65_536)
    assert engine.sequences(shape, 10_240) == engine.kv_tokens(shape) // 10_240 == 72


def test_more_gpus_than_heads_of_keys_hold_copies():
    engine = Engine(tensor_parallel=8, utilization=0.8, gpu_bytes=80 * GIB)
    assert engine.kv_bytes_per_token(QWEN_7B) == 2 * 28 * 1 * 128 * 2  # 4 heads on 8 GPUs


def test_an_engine_runs_as_many_sequences_as_it_is_told():
    engine = Engine(tensor_parallel=1, utilization=0.8, gpu_bytes=80 * GIB, limits=EngineLimits(128, 2048))
    assert engine.sequences(QWEN_7B, 1024) == 128
    # a layer of 65,536 tokens, (3 x 18,944 + 5 x 3,584) x 2 bytes each, is more than the logits of 128 sequences
    many = Engine(tensor_parallel=1, utilization=0.8, gpu_bytes=80 * GIB, limits=EngineLimits(128, 65_536))
    assert many.workspace(QWEN_7B) == ENGINE_WORKSPACE + 65_536 * 149_504
    assert many.kv_tokens(QWEN_7B) < engine.kv_tokens(QWEN_7B)
