import pytest
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.utils.seqlen_balancing import get_seqlen_balanced_partitions

from openrlhf_cov.trainer.micro_batches import balanced_partitions


def test_parts_of_nearly_equal_sums():
    # 8 against 7 leaves 1, 6 against 5 leaves 1; 4 against the first 1, beside 7: 11 against 8 leaves 3;
    # 3 against the other 1, beside 5: 4 + 7 + 5 = 16 against 8 + 6 = 14
    assert balanced_partitions([8, 7, 6, 5, 4], 2) == [[1, 3, 4], [0, 2]]


@given(st.lists(st.integers(1, 9) | st.integers(1, 10_240), min_size=1, max_size=80), st.data())
def test_the_parts_are_those_of_upstream(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    assert balanced_partitions(lengths, count) == get_seqlen_balanced_partitions(lengths, count, equal_size=False)


def test_more_parts_than_samples_are_refused():
    with pytest.raises(ValueError, match="2 samples do not make 3 parts"):
        balanced_partitions([3, 4], 3)
