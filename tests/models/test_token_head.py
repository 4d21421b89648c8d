"""Log-probs and entropies without the matrix of logits: by hand, against upstream's, and at the limits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.models.utils import compute_entropy, log_probs_from_logits
from torch.nn import functional

from openrlhf_cov.models import token_head
from openrlhf_cov.models.token_head import EXCLUDED, min_p_scores, min_p_scores_of_logits, token_scores

# Of gradients, as a part of the largest term that goes into one; in bfloat16 a number has 8 bits, and parts of ours
# are rounded block by block.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Upstream compiles its entropy, anew for every shape; the least width of a block is for speed."""
    monkeypatch.setattr(token_head, "COLUMN_STEP", 1)
    with torch.compiler.set_stance("force_eager"):
        yield


def upstreams(hidden, weight, bias, targets, temperature):
    """What upstream's policy computes from the logits of its model."""
    logits = functional.linear(hidden, weight, bias).float() / temperature
    return log_probs_from_logits(logits, targets), compute_entropy(logits)


def largest(tensor):
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def test_the_probable_tokens_by_hand():
    # probabilities (0.1, 0.3, 0.6): at 0.4 of the largest, 0.24, the last two stay and share all, 1/3 and 2/3; at 0.6
    # the last alone; in blocks of one token and all at once
    hidden, weight = torch.tensor([[1.0]]).expand(3, 1), torch.tensor([[1.0], [3.0], [6.0]]).log()
    targets = torch.tensor([0, 1, 2])
    for block in (3, 100):
        found = min_p_scores(hidden, weight, None, targets, 1.0, 0.4, block)
        assert found.tolist() == pytest.approx([EXCLUDED, math.log(1 / 3), math.log(2 / 3)])
        found = min_p_scores(hidden, weight, None, targets, 1.0, 0.6, block)
        assert found.tolist() == pytest.approx([EXCLUDED, EXCLUDED, 0.0], abs=1e-6)
    # at temperature 0.5 they are as their squares, 1 : 9 : 36, and 9 is below 0.4 of 36
    found = min_p_scores(hidden, weight, torch.zeros(3), targets, 0.5, 0.4)
    assert found.tolist() == pytest.approx([EXCLUDED, EXCLUDED, 0.0], abs=1e-6)
    found = min_p_scores(hidden, weight, None, targets, 1.0, 1e-9)  # nothing is left out
    assert found.tolist() == pytest.approx([math.log(0.1), math.log(0.3), math.log(0.6)])


@settings(deadline=None)
@given(
    tokens=st.integers(0, 9),
    vocabulary=st.integers(1, 40),
    width=st.integers(1, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    temperature=st.sampled_from([1.0, 0.6, 2.5]),
    scale=st.sampled_from([0.1, 1.0, 8.0]),
    with_bias=st.booleans(),
    asked=st.sampled_from(["log_probs", "entropy", "both"]),
    block=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_as_upstream(tokens, vocabulary, width, dtype, temperature, scale, with_bias, asked, block, seed):
    draw = torch.Generator().manual_seed(seed)
    hidden = (scale * torch.randn(tokens, width, generator=draw)).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=draw).to(dtype).requires_grad_()
    bias = torch.randn(vocabulary, generator=draw).to(dtype).requires_grad_() if with_bias else None
    targets = torch.randint(0, vocabulary, (tokens,), generator=draw)
    weights = [torch.randn(tokens, generator=draw) * (asked in (name, "both")) for name in ("log_probs", "entropy")]
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]

    found = token_scores(hidden, weight, bias, targets, temperature, with_entropy=True, block=block)
    expected = upstreams(hidden, weight, bias, targets, temperature)
    top = 1 + largest(functional.linear(hidden, weight, bias)) / temperature
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6 * top)
    used = [result for result, name in zip(found, ("log_probs", "entropy"), strict=True) if asked in (name, "both")]
    kept = [weight for weight, name in zip(weights, ("log_probs", "entropy"), strict=True) if asked in (name, "both")]
    ours = torch.autograd.grad(sum((r * w).sum() for r, w in zip(used, kept, strict=True)), leaves)
    theirs = torch.autograd.grad(sum((r * w).sum() for r, w in zip(expected, weights, strict=True)), leaves)
    slope = (1 + (asked != "log_probs") * top) * max(map(largest, weights)) / temperature  # of a logit, at most
    other_factor = {id(hidden): largest(weight), id(weight): tokens**0.5 * largest(hidden), id(bias): tokens**0.5}
    for leaf, one, other in zip(leaves, ours, theirs, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=0, atol=ROUNDING[dtype] * slope * other_factor[id(leaf)] + 1e-30)


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_extreme_logits(block):
    # fp32 holds 1e4 to 1e-3, so that is how well upstream's and ours agree with the truth, taken in fp64
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4 - 1, -1e4], [3.0, 1.0, -1e4]])
    hidden, weight = torch.eye(4, requires_grad=True), logits.T.contiguous().requires_grad_()
    targets = torch.tensor([1, 0, 1, 2])
    log_probs, entropy = token_scores(hidden, weight, None, targets, with_entropy=True, block=block)
    truth = logits.double().log_softmax(-1)
    torch.testing.assert_close(log_probs.double(), truth[range(4), targets], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(truth.exp() * truth).sum(-1), rtol=1e-6, atol=1e-5)
    (log_probs.sum() + entropy.sum()).backward()
    expected = functional.one_hot(targets, 3) - truth.exp() - truth.exp() * (truth + entropy[:, None])
    torch.testing.assert_close(weight.grad.T.double(), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [1, 2, 1000])
def test_tokens_that_cannot_be_have_no_part(block):
    """A bias of -inf, as of rows that only fill a vocabulary up; upstream's entropies are NaN there."""
    hidden = torch.tensor([[1.0], [0.5]], requires_grad=True)
    weight, bias = torch.randn(5, 1, generator=torch.Generator().manual_seed(0)), torch.zeros(5)
    few, many = weight[[0, 2, 3]].clone().requires_grad_(), weight.clone().requires_grad_()
    bias[[1, 4]] = -math.inf
    expected = token_scores(hidden, few, torch.zeros(3), torch.tensor([1, 2]), 0.7, True)
    found = token_scores(hidden, many, bias, torch.tensor([2, 3]), 0.7, True, block)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    theirs, ours = (
        torch.autograd.grad(sum(pair).sum(), (hidden, rows)) for pair, rows in ((expected, few), (found, many))
    )
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1][[0, 2, 3]], theirs[1])
    assert not ours[1][[1, 4]].any()


def test_tokens_of_no_weight_move_nothing():
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 3, generator=draw, requires_grad=True), torch.randn(11, 3, generator=draw)
    log_probs, entropy = token_scores(hidden, weight, None, torch.arange(5), with_entropy=True, block=9)
    counts = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0])
    ((log_probs + entropy) * counts).sum().backward()
    assert (hidden.grad.abs().sum(1) > 0).tolist() == [True, False, True, False, False]


def test_only_what_is_trained_gets_a_gradient():
    hidden, weight = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)
    token_scores(hidden, weight, None, torch.tensor([0, 1]))[0].sum().backward()
    assert weight.grad is None
    assert hidden.grad.shape == (2, 3)


def test_without_entropies_there_are_none():
    hidden, weight = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)
    assert token_scores(hidden, weight, None, torch.tensor([0, 1]))[1] is None


def test_no_tensor_holds_more_logits_than_a_block():
    """Neither forward nor backward, by the largest tensor that any operation of either makes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, torch.Tensor):
                    self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
            return result

    hidden, weight = torch.randn(64, 2, requires_grad=True), torch.randn(500, 2, requires_grad=True)
    with Largest() as seen:
        log_probs, entropy = token_scores(hidden, weight, None, torch.arange(64), with_entropy=True, block=1024)
        (log_probs.sum() + entropy.sum()).backward()
    assert seen.numbers <= 1024


def test_scores_among_the_probable_tokens_are_the_same_from_whole_rows_of_logits():
    torch.manual_seed(0)
    hidden, weight = torch.randn(20, 4), torch.randn(9, 4)
    targets = torch.randint(9, (20,))
    found = min_p_scores_of_logits(hidden @ weight.T, targets, 0.7, 0.2)
    expected = min_p_scores(hidden, weight, None, targets, 0.7, 0.2)
    assert (expected == EXCLUDED).any()
    assert (expected != EXCLUDED).any()
    torch.testing.assert_close(found, expected)
