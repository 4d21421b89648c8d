"""Linear layers by oneDNN: equal to PyTorch's to rounding, forward and backward, and only where they are faster."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.onednn_linear import linear, plain_linear

sizes = st.integers(1, 40)


def outcome(layer, x, weight, bias, of_output):
    """The output of a layer and its gradients; None for a tensor that needs none."""
    given = (x, weight, bias)
    tensors = [None if each is None else each.detach().requires_grad_(each.requires_grad) for each in given]
    output = layer(*tensors)
    if output.requires_grad:
        output.backward(of_output)
    return [output.detach(), *(None if each is None else each.grad for each in tensors)]


@given(
    st.lists(sizes, min_size=1, max_size=3),
    sizes,
    sizes,
    st.booleans(),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 2**32),
)
def test_output_and_gradients_are_those_of_pytorch(rows, inputs, outputs, biased, needs, seed):
    random = torch.Generator().manual_seed(seed)
    x, weight, bias, of_output = (
        torch.randn(*shape, generator=random)
        for shape in ((*rows, inputs), (outputs, inputs), (outputs,), (*rows, outputs))
    )
    for tensor, need in zip((x, weight, bias), needs, strict=True):
        tensor.requires_grad_(need)
    given = (x, weight, bias if biased else None, of_output)
    # sums of at most 64,000 products of standard normals: float32 keeps 7 digits
    torch.testing.assert_close(outcome(linear, *given), outcome(plain_linear, *given), rtol=1e-4, atol=1e-3)


def test_views_that_are_not_contiguous_are_read_as_they_are():
    x = torch.randn(7, 5, 3).transpose(0, 2).requires_grad_()  # (3, 5, 7)
    weight = torch.randn(7, 4).T.requires_grad_()  # (4, 7)
    for of_output in (torch.randn(4, 5, 3).transpose(0, 2), torch.tensor(2.0).expand(3, 5, 4)):
        expected = outcome(plain_linear, x, weight, None, of_output)
        torch.testing.assert_close(outcome(linear, x, weight, None, of_output), expected)


def test_the_output_may_be_changed_in_place():
    x = torch.randn(2, 5, 3)
    weight = torch.randn(4, 3)
    of_output = torch.randn(2, 5, 4)

    def halved(layer):
        return lambda *tensors: layer(*tensors).div_(2)  # as upstream divides logits by the temperature

    found, expected = (
        outcome(halved(layer), x, weight.requires_grad_(), None, of_output) for layer in (linear, plain_linear)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(4, 3, dtype=torch.bfloat16)),
        (torch.ones(2, 3, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64)),
        (torch.ones(3), torch.ones(4, 3)),
        (torch.ones(0, 3), torch.ones(4, 3)),
        (torch.ones(2, 3, device="meta"), torch.ones(4, 3, device="meta")),
        (torch.ones(2, 3), torch.ones(3)),
    ],
    ids=["bf16", "fp64", "a vector", "no rows", "no data", "a vector as weight"],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_everything_but_fp32_matrices_goes_to_pytorch(x, weight, autocast):
    with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
        expected = plain_linear(x, weight)
        found = linear(x, weight)
    assert (found.dtype, found.shape, found.device) == (expected.dtype, expected.shape, expected.device)
    assert found.device.type == "meta" or torch.equal(found, expected)


def test_autocast_still_chooses_the_type():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.ones(2, 3), torch.ones(4, 3)).dtype == torch.bfloat16


def test_shapes_that_do_not_fit_get_the_message_of_pytorch():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(torch.ones(2, 3), torch.ones(4, 5))


PROCESSORS = {"AuthenticAMD": True, "HygonGenuine": True, "GenuineIntel": False}


@pytest.mark.parametrize("capability", ["AVX512", "AVX2"])
@pytest.mark.parametrize("vendor", PROCESSORS)
def test_onednn_is_faster_where_mkl_leaves_half_of_a_vector_unused(monkeypatch, tmp_path, vendor, capability):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    processor = tmp_path / "cpuinfo"
    assert not cpu_host.onednn_is_faster(processor)  # as on a Mac
    processor.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu avx2 avx512f\n")
    assert cpu_host.onednn_is_faster(processor) is (capability == "AVX512" and PROCESSORS[vendor])


@pytest.mark.parametrize("is_cpu", [True, False])
@pytest.mark.parametrize("is_faster", [True, False])
def test_it_takes_the_place_of_pytorchs_on_cpu_hosts_where_it_is_faster(monkeypatch, is_cpu, is_faster):
    monkeypatch.setattr(functional, "linear", plain_linear)  # and puts back what was there
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: is_cpu)
    monkeypatch.setattr(cpu_host, "onednn_is_faster", lambda: is_faster)
    cpu_host.compute_faster()
    assert functional.linear is (linear if is_cpu and is_faster else plain_linear)
