"""The widths of the blocks in which the output head is computed, read from the matrix products of a real call."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from openrlhf_cov.models.token_head import BLOCK, min_p_scores, token_scores


class Products(TorchDispatchMode):
    """Notes the shapes of the results of matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function._schema.name in ("aten::mm", "aten::addmm"):
            self.shapes.append(tuple(result.shape))
        return result


def widths(tokens, vocabulary, hidden_size, block, score=token_scores):
    """Columns of the blocks of logits, in order; on the meta device, where a shape costs no memory."""
    hidden = torch.empty(tokens, hidden_size, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(vocabulary, hidden_size, dtype=torch.bfloat16, device="meta")
    targets = torch.empty(tokens, dtype=torch.long, device="meta")
    with Products() as products:
        if score is token_scores:
            token_scores(hidden, weight, None, targets, block=block)
        else:
            min_p_scores(hidden, weight, None, targets, 1.0, 0.1, block)
    assert {rows for rows, _ in products.shapes} == {tokens}
    return [columns for _, columns in products.shapes]


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 300_000),
    vocabulary=st.integers(1, 60_000),  # the recipes below have a larger one
    hidden_size=st.sampled_from([1, 64, 576, 896, 3584, 5120]),
    block=st.integers(2**20, 2**27),
)
def test_blocks_are_aligned_and_within_their_budget(tokens, vocabulary, hidden_size, block):
    found = widths(tokens, vocabulary, hidden_size, block)
    assert sum(found) == vocabulary  # every column once, none beyond the vocabulary
    *whole, last = found
    assert len(set(whole)) <= 1
    for columns in whole:
        assert columns % 256 == 0
        assert columns * 2 % 16 == 0  # bytes of a row in bf16
    assert 0 < last <= (whole[0] if whole else vocabulary)
    # a block is not larger than asked for, unless 256 columns are
    assert all(columns * tokens <= max(block, 256 * tokens) for columns in found)
    if vocabulary % 8 == 0:
        assert last * 2 % 16 == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "columns"),
    [
        # 2^25 / 40,960 = 819.2 and 2^25 / 60,000 = 559.2 columns, the widths before they were rounded
        (60_000, 512),
        (131_072, 256),
        (200_000, 256),  # 2^25 / 200,000 = 167.8: at least 256
        (40_960, 768),
    ],
)
@pytest.mark.parametrize("score", [token_scores, min_p_scores])
def test_the_widths_of_the_recipes(tokens, columns, score):
    # a tenth of the vocabulary of Qwen2.5, 15,360 = 60 x 256, divides into whole blocks of 256 columns, as all of it
    found = widths(tokens, 15_360, 8, BLOCK, score)
    passes = 1 if score is token_scores else 2
    assert set(found[:-1]) - {15_360 % columns} == {columns}
    assert sum(found) == passes * 15_360


def test_the_gradients_have_the_same_blocks():
    hidden = torch.empty(40_960, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weight = torch.empty(2000, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
    targets = torch.empty(40_960, dtype=torch.long, device="meta")
    log_probs, _ = token_scores(hidden, weight, None, targets)
    with Products() as products:
        log_probs.sum().backward()
    logits = [shape[1] for shape in products.shapes if shape[0] == 40_960 and shape[1] != 8]
    of_weight = [shape[0] for shape in products.shapes if shape[0] != 40_960]
    assert logits == of_weight == [768, 768, 464]
