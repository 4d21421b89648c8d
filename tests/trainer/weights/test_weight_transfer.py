import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from played_ray import Now, PlayedActor
from torch import nn
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading

from openrlhf_cov.trainer.weights import weight_transfer
from openrlhf_cov.trainer.weights.weight_receiver import GlooInitInfo, GlooWeightTransferEngine
from openrlhf_cov.trainer.weights.weight_transfer import GlooWeightSender, buckets, pack, transfer_weights, unpack


def parameters(*sizes, dtype=torch.float32):
    """("0", parameter of sizes[0] elements), ("1", ...), ..."""
    return [(str(i), nn.Parameter(torch.zeros(size, dtype=dtype))) for i, size in enumerate(sizes)]


def names(split):
    return [[name for name, _ in bucket] for bucket in split]


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "expected"),
    [
        ((2, 2, 2), 16, [["0", "1"], ["2"]]),  # 8 bytes each: two fill a bucket exactly
        ((2, 2, 2), 15, [["0"], ["1"], ["2"]]),
        ((1, 9, 1), 16, [["0"], ["1"], ["2"]]),  # 36 bytes fit nowhere: alone
        ((0, 4, 0, 1), 16, [["0", "1", "2"], ["3"]]),
        ((), 16, []),
    ],
)
def test_buckets_by_hand(sizes, max_bytes, expected):
    assert names(buckets(parameters(*sizes), max_bytes)) == expected


def test_a_bucket_counts_bytes_not_elements():
    named = parameters(4, 4, dtype=torch.bfloat16)  # 8 bytes each
    assert names(buckets(named, 16)) == [["0", "1"]]
    assert names(buckets(named, 15)) == [["0"], ["1"]]


def test_a_shard_counts_with_its_full_size():
    named = parameters(0, 0, 0)  # what ZeRO-3 leaves on a rank
    for _, param in named:
        param.ds_numel = 2
    assert names(buckets(named, 16)) == [["0", "1"], ["2"]]


@given(sizes=st.lists(st.integers(0, 12), max_size=15), max_bytes=st.integers(1, 60))
def test_buckets_lose_nothing_and_keep_the_order(sizes, max_bytes):
    named = parameters(*sizes)
    split = list(buckets(named, max_bytes))
    assert [pair for bucket in split for pair in bucket] == named
    num_bytes = [sum(4 * param.numel() for _, param in bucket) for bucket in split]
    for i, bucket in enumerate(split):
        assert bucket
        filled = [param for _, param in bucket if param.numel()]
        assert num_bytes[i] <= max_bytes or len(filled) == 1
        if i:  # no bucket is closed before it is full
            assert num_bytes[i - 1] + 4 * bucket[0][1].numel() > max_bytes


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool]


@st.composite
def tensors(draw):
    """A tensor of any of the dtypes, of up to three axes, some of length 0; some are transposed or have gaps."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    seed = draw(st.integers(0, 2**16))
    values = torch.randint(0, 255, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if len(shape) == 2 and draw(st.booleans()):
        return values.T
    strided = values[..., ::2] if shape else values
    return strided if not strided.is_contiguous() and draw(st.booleans()) else values


@given(originals=st.lists(tensors(), min_size=1, max_size=6))
def test_unpack_undoes_pack(originals):
    buffer = pack(originals)
    assert buffer.dtype == torch.uint8
    assert buffer.numel() == sum(tensor.numel() * tensor.element_size() for tensor in originals)
    metas = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in originals]
    for original, copy in zip(originals, unpack(buffer, metas), strict=True):
        assert copy.dtype == original.dtype
        assert torch.equal(copy, original)


class Model(nn.Module):
    """Notes what an engine loads."""

    def __init__(self):
        super().__init__()
        self.loaded = []

    def load_weights(self, weights):
        self.loaded += weights


@pytest.fixture
def connected(played_ray):
    """A sender, its engine, and the model of the engine; the engine works in a thread, as it does in its process."""
    model = Model()
    receiver = GlooWeightTransferEngine(WeightTransferConfig(), VllmConfig(), torch.device("cpu"), model)
    with ThreadPoolExecutor(1) as thread:

        def method(work):
            return Now(lambda *given: thread.submit(work, *given))

        engine = PlayedActor()
        engine.init_weight_transfer = method(lambda info: receiver.init_transfer_engine(GlooInitInfo(**info)))
        engine.start_weight_update = method(lambda: model.loaded.append("start"))
        engine.update_weights = method(receiver.update_weights)
        engine.finish_weight_update = method(lambda: model.loaded.append("finish"))
        yield GlooWeightSender([engine], tensor_parallel_size=1), model.loaded


class Odd(nn.Module):
    """Parameters of several dtypes and shapes; one shares its storage through a transposed view."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.5, dtype=torch.bfloat16))
        self.weight = nn.Parameter(torch.arange(6.0).view(2, 3).t())
        self.bias = nn.Parameter(torch.tensor([1.0, -0.0, 3.0], dtype=torch.float16))


@pytest.mark.parametrize("bucket_bytes", [1, 10, 10**6])
def test_the_engine_loads_what_the_trainer_has(connected, monkeypatch, bucket_bytes):
    sender, loaded = connected
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", bucket_bytes)
    model = Odd()
    transfer_weights(model, sender, zero_stage=2)
    assert (loaded[0], loaded[-1]) == ("start", "finish")
    expected = list(model.named_parameters())
    assert [name for name, _ in loaded[1:-1]] == [name for name, _ in expected]
    for (_, received), (_, param) in zip(loaded[1:-1], expected, strict=True):
        assert received.dtype == param.dtype
        assert torch.equal(received, param)


class MRotaryEmbeddingInterleaved(nn.Module):
    """A layer whose table is computed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cos_sin_cache", torch.ones(3))


class ParallelLMHead(nn.Module):
    """A layer with a weight, of the name that vLLM's output heads have."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


class Projection(ParallelLMHead):
    """A layer with a weight."""


@pytest.mark.parametrize("is_tied", [True, False])
def test_vllm_warns_of_missing_weights_but_not_where_none_are_sent(caplog, is_tied):
    model = nn.Sequential(MRotaryEmbeddingInterleaved(), ParallelLMHead(), Projection())
    receiver = GlooWeightTransferEngine(WeightTransferConfig(), VllmConfig(), torch.device("cpu"), model)
    receiver.model_config = SimpleNamespace(hf_config=SimpleNamespace(tie_word_embeddings=is_tied))
    record_metadata_for_reloading(model)
    initialize_layerwise_reload(model)  # no weights follow
    receiver.finish_weight_update()
    layers = ["Projection"] if is_tied else ["ParallelLMHead", "Projection"]
    name = "vllm.model_executor.model_loader.reload.layerwise"
    warnings = [record.getMessage() for record in caplog.records if record.name == name]
    assert warnings == [f"{layer}: Failed to load weights" for layer in layers]
    assert not logging.getLogger(name).filters
