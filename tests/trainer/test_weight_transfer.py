from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from openrlhf_cov.trainer.weights import weight_transfer
from openrlhf_cov.trainer.weights.weight_receiver import Bucket, GlooWeightTransferEngine
from openrlhf_cov.trainer.weights.weight_transfer import (
    GlooWeightSender,
    buckets,
    pack,
    transfer_weights,
    unpack,
)


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
        ((9,), 16, [["0"]]),
        ((9, 9), 16, [["0"], ["1"]]),
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


def metas(originals):
    return [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in originals]


@given(originals=st.lists(tensors(), min_size=1, max_size=6))
def test_unpack_undoes_pack(originals):
    buffer = pack(originals)
    assert buffer.dtype == torch.uint8
    assert buffer.numel() == sum(tensor.numel() * tensor.element_size() for tensor in originals)
    received = unpack(buffer, metas(originals))
    for original, copy in zip(originals, received, strict=True):
        assert copy.dtype == original.dtype
        assert torch.equal(copy, original)


def test_bytes_survive_off_the_alignment():
    # one byte first, so that everything behind it starts at an odd address; NaN and -0.0 keep their bits
    originals = [
        torch.tensor([True]),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor([float("nan"), -0.0, 3.0]),
        torch.empty(0, 3),
        torch.tensor(-2.0, dtype=torch.float64),
    ]
    received = unpack(pack(originals), metas(originals))
    assert [tensor.shape for tensor in received] == [tensor.shape for tensor in originals]
    for original, copy in zip(originals, received, strict=True):
        assert torch.equal(copy.reshape(-1).view(torch.uint8), original.reshape(-1).view(torch.uint8))


class Wire:
    """A process group of one sender and one receiver: what the sender broadcasts, the receiver gets."""

    sent = None

    def broadcast(self, tensors, options):
        assert (options.rootRank, options.rootTensor) == (0, 0)
        (buffer,) = tensors
        if self.sent is None:
            self.sent = buffer.clone()
        else:
            buffer.copy_(self.sent)
            self.sent = None
        return SimpleNamespace(wait=lambda: None)


@pytest.fixture
def connected(monkeypatch):
    """A sender and what its engine has loaded, as (name, tensor), with a wire in place of Ray and gloo."""
    wire, loaded = Wire(), []
    receiver = object.__new__(GlooWeightTransferEngine)
    receiver._group, receiver.model = wire, SimpleNamespace(load_weights=loaded.extend)
    # a remote call runs when its result is awaited, i.e. after the sender's broadcast
    later = lambda call: SimpleNamespace(remote=lambda *args: lambda: call(*args))  # noqa: E731
    engine = SimpleNamespace(
        start_weight_update=later(lambda: loaded.append("start")),
        update_weights=later(lambda info: receiver.receive_weights(Bucket(**info))),
        finish_weight_update=later(lambda: loaded.append("finish")),
    )
    monkeypatch.setattr(weight_transfer, "ray", SimpleNamespace(get=lambda calls: [call() for call in calls]))
    sender = object.__new__(GlooWeightSender)
    sender.engines, sender._group = [engine], wire
    return sender, loaded


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
