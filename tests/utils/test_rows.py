import pytest

from openrlhf_cov.utils.rows import value_at

ROW = {"reward_model": {"ground_truth": "34", "style": {"name": "rule"}}, "a.b": "literal", "a": {"b": "nested"}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reward_model.ground_truth", "34"),
        ("reward_model.style.name", "rule"),
        ("a.b", "literal"),  # a key of the row itself comes first
    ],
)
def test_dots_lead_into_nested_values(key, value):
    assert value_at(ROW, key) == value


@pytest.mark.parametrize("key", ["b", "reward_model.answer", "reward_model.ground_truth.x", "a.b.c", "", "."])
def test_a_key_that_is_not_there(key):
    with pytest.raises(KeyError):
        value_at(ROW, key)
    assert value_at(ROW, key, default=None) is None
