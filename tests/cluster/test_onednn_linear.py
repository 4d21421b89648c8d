"""Linear layers by oneDNN: equal to PyTorch's to rounding, forward and backward, and only where they are faster."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from openrlhf_cov.cluster import cpu_host, onednn_linear
from openrlhf_cov.cluster.onednn_linear import linear, plain_linear

sizes = st.integers(1, 40)


def uses_onednn(output):
    """True if an output, which the layer may have shaped, was computed by oneDNN."""
    return "OneDnn" in type(output.grad_fn.next_functions[0][0]).__name__


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


def test_fp32_matrices_are_multiplied_by_onednn():
    x = torch.ones(2, 5, 3)
    weight = nn.Parameter(torch.ones(4, 3))
    assert uses_onednn(linear(x, weight))
    assert uses_onednn(linear(x, weight, nn.Parameter(torch.ones(4))))
    assert not uses_onednn(plain_linear(x, weight))


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


def test_an_input_whose_rows_are_one_row_gives_the_gradient_of_the_weight():
    x = torch.randn(1, 3).expand(6, 3)
    weight = torch.randn(4, 3).requires_grad_()
    of_output = torch.randn(6, 4)
    torch.testing.assert_close(*(outcome(layer, x, weight, None, of_output) for layer in (linear, plain_linear)))


def test_only_what_the_backward_pass_needs_is_kept():
    x = torch.randn(2, 3, requires_grad=True)
    hidden = x * 1
    output = linear(hidden, torch.ones(4, 3))  # a frozen weight: its gradient would need ``hidden``
    hidden.mul_(2)
    output.sum().backward()
    # each of 4 outputs is the sum of a row
    torch.testing.assert_close(x.grad, torch.full((2, 3), 4.0))


ONES = torch.ones(2, 3)
WEIGHT = torch.ones(4, 3)


class OtherTensor(torch.Tensor):
    """Such as a tensor that is distributed over ranks."""


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        (ONES.bfloat16(), WEIGHT.bfloat16(), None),
        (ONES.double(), WEIGHT.double(), None),
        (torch.ones(3), WEIGHT, None),
        (torch.ones(0, 3), WEIGHT, None),
        (ONES, torch.ones(0, 3), None),
        (ONES.to("meta"), WEIGHT.to("meta"), None),
        (ONES, torch.ones(3), None),
        (ONES, WEIGHT, torch.ones(1)),
        (ONES, WEIGHT, torch.ones(1).expand(4)),
        (ONES, WEIGHT.as_subclass(OtherTensor), None),
    ],
    ids=["bf16", "fp64", "vector", "no rows", "no outputs", "meta", "one weight", "one bias", "strides", "subclass"],
)
def test_everything_but_fp32_matrices_goes_to_pytorch(monkeypatch, x, weight, bias):
    monkeypatch.setattr(onednn_linear, "_OneDnnLinear", None)
    found = linear(x, weight, bias)
    expected = plain_linear(x, weight, bias)
    assert (found.dtype, found.shape, found.device) == (expected.dtype, expected.shape, expected.device)
    assert found.device.type == "meta" or torch.equal(found, expected)


def test_autocast_still_chooses_the_type():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(ONES, WEIGHT).dtype == torch.bfloat16


def test_functions_of_functions_still_work():
    gradient = torch.func.grad(lambda weight: linear(ONES, weight).sum())(WEIGHT)
    torch.testing.assert_close(gradient, torch.full((4, 3), 2.0))  # of two rows of ones
    batches = torch.vmap(linear, in_dims=(0, None))(torch.ones(5, 2, 3), WEIGHT)
    torch.testing.assert_close(batches, torch.full((5, 2, 4), 3.0))


@pytest.mark.parametrize("of", ["x", "weight"])
def test_second_derivatives_are_those_of_pytorch(of):
    def second(layer):
        x, weight = torch.randn(2, 5, 3), torch.randn(4, 3)
        x.requires_grad_()
        weight.requires_grad_()
        (slope,) = torch.autograd.grad(layer(x, weight).square().sum(), x if of == "x" else weight, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, weight))

    torch.manual_seed(0)
    found = second(linear)
    torch.manual_seed(0)
    torch.testing.assert_close(found, second(plain_linear), rtol=1e-4, atol=1e-4)


def test_shapes_that_do_not_fit_get_the_message_of_pytorch():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(torch.ones(2, 3), torch.ones(4, 5))


@pytest.mark.parametrize(
    ("vendor", "family", "capability", "expected"),
    [
        ("AuthenticAMD", 26, "AVX512", True),  # Zen 5
        ("AuthenticAMD", 25, "AVX512", False),  # Zen 4
        ("AuthenticAMD", 26, "AVX2", False),  # as ATEN_CPU_CAPABILITY=avx2 makes it
        ("GenuineIntel", 26, "AVX512", False),
    ],
)
def test_onednn_is_faster_where_mkl_leaves_half_of_a_vector_unused(
    monkeypatch, tmp_path, vendor, family, capability, expected
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    processor = tmp_path / "cpuinfo"
    assert not cpu_host.onednn_is_faster(processor)  # as on a Mac
    processor.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 2\n")
    assert cpu_host.onednn_is_faster(processor) is expected


@pytest.mark.parametrize("is_cpu", [True, False])
@pytest.mark.parametrize("is_faster", [True, False])
def test_it_takes_the_place_of_pytorchs_on_cpu_hosts_where_it_is_faster(monkeypatch, is_cpu, is_faster):
    monkeypatch.setattr(functional, "linear", plain_linear)  # and puts back what was there
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: is_cpu)
    kept = []
    monkeypatch.setattr(cpu_host, "keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(cpu_host, "onednn_is_faster", lambda: is_faster)
    cpu_host.compute_faster()
    assert functional.linear is (linear if is_cpu and is_faster else plain_linear)
    assert kept == [True] * is_cpu
