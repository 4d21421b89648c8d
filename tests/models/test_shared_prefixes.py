"""What a layout shows to each token is what a row of its own would show it, and it is taken where it is cheaper."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_cov.models.shared_prefixes import cost, shared_layout

# Cost of a token at which attention does not count.
PRODUCTS = 1e6


def padded(samples):
    """(sequences, attention mask, asked (B, T)) of samples (padding on the left, tokens, asked places)."""
    width = max(left + len(tokens) for left, tokens, _ in samples) + 1
    sequences, attention_mask = torch.zeros(2, len(samples), width, dtype=torch.long)
    asked = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, (left, tokens, places) in enumerate(samples):
        sequences[row, left : left + len(tokens)] = torch.tensor(tokens)
        attention_mask[row, left : left + len(tokens)] = 1
        asked[row, [left + place for place in places]] = True
    return sequences, attention_mask, asked


def seen(layout):
    """Of each asked token, in order, the (position, token) pairs that it attends to."""
    tokens, positions = layout.tokens.flatten(), layout.positions.flatten()
    width, found = layout.tokens.shape[1], []
    for place in layout.places.tolist():
        row = place // width
        visible = layout.visible[row, place % width].nonzero().flatten() + row * width
        found.append(list(zip(positions[visible].tolist(), tokens[visible].tolist(), strict=True)))
    return found


def test_a_prompt_with_two_responses():
    # prompt 7 8, responses 1 2 3 and 4 5; log-probs of all of them are asked at the tokens before
    layout = shared_layout(*padded([(1, [7, 8, 1, 2, 3], [1, 2, 3]), (0, [7, 8, 4, 5], [1, 2])]), PRODUCTS)
    # one row; the last tokens of the responses predict nothing and are left out
    assert layout.tokens.tolist() == [[7, 8, 1, 2, 4]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 2]]
    assert layout.places.tolist() == [1, 2, 3, 1, 4]
    assert layout.visible.int().tolist() == [
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]
    ]
    lowest = torch.finfo(torch.bfloat16).min
    mask = layout.additive(torch.bfloat16)
    assert (mask.shape, mask.dtype) == ((1, 1, 5, 5), torch.bfloat16)
    assert mask[0, 0, 4].tolist() == [0, 0, lowest, lowest, 0]


def test_responses_that_begin_alike():
    # after the prompt 7: 1 2 3, the same again, 1 2 4 5, 6, and 1 alone, whose place the others have; asked everywhere
    responses = [[1, 2, 3], [1, 2, 3], [1, 2, 4, 5], [6], [1]]
    samples = [(0, [7, *each, 9], range(1 + len(each))) for each in responses]
    layout = shared_layout(*padded(samples), PRODUCTS)
    # sorted by their tokens: 1, 1 2 3 twice, 1 2 4 5, 6
    assert layout.tokens.tolist() == [[7, 1, 2, 3, 4, 5, 6]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 3, 4, 1]]
    assert layout.places.tolist() == [0, 1, 2, 3, *(0, 1, 2, 3), *(0, 1, 2, 4, 5), *(0, 6), *(0, 1)]
    assert layout.visible[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 0, 1, 1, 0],
        [1, 0, 0, 0, 0, 0, 1],
    ]


def test_prompts_that_begin_alike():
    # the tokens 5 6 of a template, then the prompts
    samples = [(0, [5, 6, 1, 7, 8], [2, 3]), (0, [5, 6, 2, 9, 8], [2, 3])]
    layout = shared_layout(*padded(samples), PRODUCTS)
    assert layout.tokens.tolist() == [[5, 6, 1, 7, 2, 9]]
    assert seen(layout)[2] == [(0, 5), (1, 6), (2, 2)]


def test_prompts_that_differ_share_a_row_only():
    # nothing is shared, but a row of 3 + 1 tokens has no padding, and two rows of 4 have
    layout = shared_layout(*padded([(0, [1, 2, 3, 4], [2]), (0, [5, 6], [0])]), PRODUCTS)
    assert layout.tokens.tolist() == [[1, 2, 3, 5]]
    assert seen(layout) == [[(0, 1), (1, 2), (2, 3)], [(0, 5)]]


def test_attention_over_long_rows_costs_more_than_a_prompt_saves():
    samples = padded([(0, [7, 8, *range(20)], range(1, 21)), (0, [7, 8, *range(20, 40)], range(1, 21))])
    # rows of 23 tokens: 2 x 23 x (c + 23); one row of 2 + 2 x 19: 40 x (c + 40). Cheaper by a tenth from c = 216 on:
    # 40 c + 1600 = 0.9 (46 c + 1058) where c (41.4 - 40) = 1600 - 952.2
    assert shared_layout(*samples, 200.0) is None
    assert shared_layout(*samples, 500.0) is not None
    assert cost(2, 23, 200.0) == 2 * 23 * 223


def test_samples_without_an_asked_token_are_left_out():
    nothing = (0, [1, 2, 3], [])
    assert shared_layout(*padded([nothing, nothing]), PRODUCTS) is None
    layout = shared_layout(*padded([nothing, (0, [4, 5], [0]), nothing]), PRODUCTS)
    assert layout.tokens.tolist() == [[4]]


@st.composite
def batches(draw):
    """Samples of a few prompts; some tokens of a response may not be asked at, as those of a tool."""
    prompts = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=3))
    samples = []
    for _ in range(draw(st.integers(1, 7))):
        prompt, response = draw(st.sampled_from(prompts)), draw(st.lists(st.integers(1, 3), max_size=6))
        acts = [len(prompt) - 1 + place for place in range(len(response)) if draw(st.booleans())]
        samples.append((draw(st.integers(0, 2)), prompt + response, acts))
    return samples


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(batches(), st.sampled_from([0.0, 3.0, 50.0, PRODUCTS]))
def test_every_asked_token_sees_its_own_sample_only(samples, token_cost):
    sequences, attention_mask, asked = padded(samples)
    layout = shared_layout(sequences, attention_mask, asked, token_cost)
    if layout is None:
        return
    assert seen(layout) == [list(enumerate(tokens[: place + 1])) for _, tokens, places in samples for place in places]
    assert layout.visible.diagonal(dim1=1, dim2=2).all()  # padding, too: a token that sees nothing has no softmax
    assert cost(*layout.tokens.shape, token_cost) <= 0.9 * cost(*sequences.shape, token_cost)
    prefixes = {tuple(tokens[:end]) for _, tokens, places in samples if places for end in range(1, max(places) + 2)}
    if token_cost == PRODUCTS:
        assert layout.tokens.numel() == len(prefixes)  # each one is read once, without padding


@pytest.mark.parametrize("group", [1, 2, 8])
def test_tokens_of_a_group(group):
    # 4 prompts of 10 tokens, ``group`` responses of 5 that predict 5: without attention all prompts are read once
    samples = [(0, [prompt] * 10 + [20 + each] * 5, range(9, 14)) for prompt in range(1, 5) for each in range(group)]
    layout = shared_layout(*padded(samples), PRODUCTS)
    assert layout.tokens.numel() == 4 * (10 + group * 4)
