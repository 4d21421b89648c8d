import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.utils.metrics import Distribution, LogHistogram, Max, Mean, MetricBuffer, Sum, TopHistogram

HISTOGRAM = LogHistogram(-8.0, 8.0)


def alone(tensor, op):
    """The all-reduce of one rank."""
    return tensor


def buffer_of(*metrics):
    buffer = MetricBuffer()
    buffer.add(*metrics)
    return buffer


def reduce_over(*buffers):
    """The value every rank logs, by reducing the tensors of all ranks as a process group would."""
    sent = []
    for buffer in buffers:
        calls = []
        buffer.reduce(lambda tensor, op, calls=calls: calls.append((op, tensor)) or tensor)
        sent.append(calls)
    results = {}
    for (op, first), *others in zip(*sent, strict=True):
        for other_op, tensor in others:
            assert (other_op, tensor.shape) == (op, first.shape), "a collective would hang"
            first = first + tensor if op == "sum" else torch.maximum(first, tensor)
        results[op] = first
    return results


def values_over(*metrics_by_rank):
    """What rank 0 logs when each rank has recorded its list of metrics."""
    results = reduce_over(*(buffer_of(*metrics) for metrics in metrics_by_rank))
    return buffer_of(*metrics_by_rank[0]).reduce(lambda tensor, op: results[op])


def logs(*values):
    return torch.tensor(values).log()


def quantile(name, log_values, mask, level):
    return Distribution({name: level}, HISTOGRAM, log_values, mask)


def test_mean_is_weighted_over_micro_batches():
    # (3 * 2 + 1 * 10) / 4, not (2 + 10) / 2
    buffer = buffer_of(Mean("a", torch.tensor(6.0), torch.tensor(3)), Mean("a", 10.0, 1))
    assert buffer.reduce(alone) == {"a": 4.0}


def test_a_sum_adds_up_over_micro_batches_and_ranks():
    assert buffer_of(Sum("s", 2), Sum("s", torch.tensor(3))).reduce(alone) == {"s": 5.0}
    assert values_over([Sum("s", 2), Sum("s", 3)], [Sum("s", 4)]) == {"s": 9.0}


def test_reducing_over_two_ranks_by_hand():
    rank_0 = [
        Mean("a", 6.0, 3), Mean("b", 0.0, 0), Max("m", 1.0), Max("n", -5.0),
        quantile("p", logs(1.0, 2.0), torch.ones(2), 0.5), quantile("q", logs(8.0), torch.ones(1), 0.99),
    ]  # fmt: skip
    rank_1 = [
        Mean("a", 10.0, 1), Mean("b", 5.0, 2), Max("m", 4.0), Max("n", -7.0),
        quantile("p", logs(4.0), torch.ones(1), 0.5), quantile("q", logs(3.0), torch.zeros(1), 0.99),
    ]  # fmt: skip
    values = values_over(rank_0, rank_1)
    # a (6 + 10) / 4, b (0 + 5) / 2; p the second of 1 2 4; q the only value that counts
    assert values == pytest.approx({"a": 4.0, "b": 2.5, "m": 4.0, "n": -5.0, "p": 2.0, "q": 8.0}, rel=2e-3)
    assert (values["a"], values["b"], values["m"], values["n"]) == (4.0, 2.5, 4.0, -5.0)
    assert values_over(rank_1, rank_0) == values


def test_the_order_of_recording_does_not_pair_names_wrongly():
    assert values_over([Mean("x", 1.0, 1), Mean("y", 20.0, 1)], [Mean("y", 40.0, 1), Mean("x", 3.0, 1)]) == {
        "x": 2.0,
        "y": 30.0,
    }


def test_a_log_costs_two_collectives():
    calls = []
    buffer = buffer_of(
        *(Mean(f"mean{i}", 1.0, 1) for i in range(5)),
        *(Max(f"max{i}", 1.0) for i in range(5)),
        *(quantile(f"q{i}", torch.zeros(2), torch.ones(2), 0.5) for i in range(3)),
    )
    assert len(buffer.reduce(lambda tensor, op: calls.append(op) or tensor)) == 13
    assert calls == ["sum", "max"]


def test_reducing_empties_the_buffer():
    buffer = buffer_of(Mean("a", 6.0, 3), Max("m", 1.0), quantile("q", torch.zeros(1), torch.ones(1), 0.5))
    buffer.reduce(alone)
    assert buffer.reduce(alone) == {}
    buffer.add(Mean("a", 1.0, 1), Max("m", -1.0))
    assert buffer.reduce(alone) == {"a": 1.0, "m": -1.0}


def test_sums_do_not_lose_small_terms():
    # 2**24 + 1 + 1 is 2**24 in float32
    metrics = [Mean("a", torch.tensor(value), 1) for value in (2.0**24, 1.0, 1.0)]
    assert buffer_of(*metrics).reduce(alone)["a"] * 3 == pytest.approx(2**24 + 2, rel=1e-12)


log_values = st.lists(st.floats(-7.875, 7.875, width=32, allow_subnormal=False), min_size=1, max_size=60)


@given(values=log_values, level=st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99, 1.0]))
def test_quantile_is_right_to_two_thousandths(values, level):
    counts = HISTOGRAM.of(torch.tensor(values), torch.ones(len(values)))
    expected = np.exp(np.quantile(np.array(values, dtype=np.float64), level, method="inverted_cdf"))
    assert HISTOGRAM.read(counts, level) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("log_value", "logged"), [(12.0, 8.0), (math.inf, 8.0), (math.nan, 8.0), (-12.0, -8.0), (-math.inf, -8.0)]
)
def test_values_outside_count_in_the_outermost_bin(log_value, logged):
    counts = HISTOGRAM.of(torch.tensor([log_value]), torch.ones(1))
    assert math.log(HISTOGRAM.read(counts, 0.5)) == pytest.approx(logged, abs=1 / 256)


def top_mean(values, fraction, mask=None):
    values = torch.tensor(values)
    histogram = TopHistogram()
    return histogram.read(histogram.of(values, torch.ones(len(values)) if mask is None else mask), fraction)


def test_top_means_by_hand():
    values = [4.0, -1.0, 2.0, 0.5, -8.0]
    assert top_mean(values, 0.4) == 3.0  # 2 of 5: (4 + 2) / 2
    assert top_mean(values, 0.99) == 1.375  # floor(4.95) = 4: (4 + 2 + 0.5 - 1) / 4
    assert top_mean(values, 1.0) == -0.5  # (4 + 2 + 0.5 - 1 - 8) / 5
    assert top_mean(values, 1e-6) == 4.0  # at least one
    assert top_mean(values, 0.5, torch.tensor([0, 1, 1, 0, 1])) == 2.0  # floor(1.5) = 1 of 2, -1, -8


def test_a_bin_that_is_taken_in_part_counts_with_its_mean():
    # 1 + 1/512 and 1 share the bin [1, 1 + 1/128): the top one of three is their mean, not 1 + 1/512
    assert top_mean([1.0, 1 + 1 / 512, -3.0], 0.4) == 1 + 1 / 1024


signed = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


@given(
    parts=st.lists(st.lists(st.tuples(signed, st.booleans()), min_size=1, max_size=40), min_size=1, max_size=3),
    fraction=st.sampled_from([2e-4, 0.02, 0.2, 0.5, 1.0]),
)
def test_top_means_over_ranks_agree_with_sorting(parts, fraction):
    def metric(part):
        values, mask = zip(*part, strict=True)
        return [Distribution({"t": fraction}, TopHistogram(), torch.tensor(values), torch.tensor(mask))]

    logged = values_over(*map(metric, parts))["t"]
    kept = np.array(sorted((value for part in parts for value, keep in part if keep), reverse=True))
    if not len(kept):
        assert math.isnan(logged)
        return
    quota = max(1, int(len(kept) * fraction))
    assert logged == pytest.approx(kept[:quota].mean(), rel=1e-6, abs=abs(kept[quota - 1]) / 128 + 1e-30)


@given(values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=60))
def test_bins_keep_the_order_of_the_values(values):
    histogram = TopHistogram()
    bins = [histogram.of(torch.tensor([value]), torch.ones(1))[: histogram.BINS].argmax() for value in values]
    for (x, i), (y, j) in zip(zip(values, bins, strict=True), zip(values[1:], bins[1:], strict=True), strict=False):
        assert (x <= y) <= (i <= j)
