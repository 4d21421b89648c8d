import pytest
import torch
from example import gradients, worked_out
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.window import Window, WindowItem, plan_step

FIXED = (0.2, 0.28)


def top_entropy(fraction, **settings):
    return CovConfig(method="top_entropy", top_entropy_frac=fraction, **settings)


def test_gradients_of_the_example():
    # floor(0.4 * 5) = 2 tokens, those of 2.0 and 1.5 nats, train. Their ratios are 1.491825, which PPO clips at 1.28,
    # and 0.606531: the loss is -(1.28 + 0.606531) / 2, the gradient of the second token -0.606531 / 2
    assert gradients(top_entropy(0.4)) == worked_out(-0.943265, [0, -0.303265, 0, 0, 0])


def test_gradients_of_the_example_where_all_tokens_count():
    # the same over 5 tokens
    assert gradients(top_entropy(0.4, top_entropy_mean="all")) == worked_out(-0.377306, [0, -0.121306, 0, 0, 0])


def test_nearly_every_token_kept_is_ppo():
    # all tokens but the one of 0.2 nats, whose 1.221403 / 5 goes; four count instead of five
    value, gradient = gradients(CovConfig())
    assert value == pytest.approx(-0.194060, abs=1e-6)
    assert gradients(top_entropy(0.99))[1] == pytest.approx([*(g * 5 / 4 for g in gradient[:3]), 0, 0], abs=1e-6)


def item(entropy, mask, keys):
    return WindowItem(TokenBatch(*(torch.zeros(mask.shape) for _ in range(3)), mask), keys << 31, entropy=entropy)


def test_the_quota_is_of_the_whole_step_and_padding_never_counts():
    # 5 tokens in two micro-batches; floor(0.6 * 5) = 3 are kept: 3, 2 and of the two 1s the one of the higher key
    items = [
        item(torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[1, 1, 0]]), torch.arange(3).view(1, 3)),
        item(torch.tensor([[0.5, 2.0], [1.0, 99.0]]), torch.tensor([[1, 1], [1, 0]]), torch.arange(4).view(2, 2)),
    ]
    first, second = plan_step(top_entropy(0.6), Window(items, FIXED))
    assert first[0].tokens.tolist() == [[True, False, False]]  # dropped
    assert second[0].tokens.tolist() == [[True, False], [False, False]]
    assert float(first[0].weight) == pytest.approx(5 / 3)


@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8), min_size=1, max_size=4
    ),
    fraction=st.floats(0.01, 0.99),
)
def test_exactly_the_quota_is_kept_wherever_the_tokens_lie(rows, fraction):
    width = max(map(len, rows))
    values = torch.tensor([[float(h) for h, _ in row] + [9.0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[int(real) for _, real in row] + [0] * (width - len(row)) for row in rows])
    keys = torch.arange(mask.numel()).view(mask.shape)

    def dropped(parts):
        window = Window([item(values[rows], mask[rows], keys[rows]) for rows in parts], FIXED)
        return torch.cat([plan.tokens for (plan,) in plan_step(top_entropy(fraction), window)])

    together = dropped([list(range(len(rows)))])
    apart = dropped([[row] for row in range(len(rows))])
    count = int(mask.sum())
    assert torch.equal(together, apart)
    assert int(together.sum()) == count - min(count, max(1, int(count * fraction)))
    kept = values[mask.bool() & ~together]
    assert not together.any() or values[together].max() <= kept.min()
