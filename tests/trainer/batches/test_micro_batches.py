import pytest
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.utils.seqlen_balancing import get_seqlen_balanced_partitions

from openrlhf_cov.trainer.batches.micro_batches import balanced_partitions


@given(st.lists(st.integers(1, 9) | st.integers(1, 10_240), min_size=1, max_size=80), st.data())
def test_the_parts_are_those_of_upstream(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    assert balanced_partitions(lengths, count) == get_seqlen_balanced_partitions(lengths, count, equal_size=False)


def test_more_parts_than_samples_are_refused():
    with pytest.raises(ValueError, match="2 samples do not make 3 parts"):
        balanced_partitions([3, 4], 3)
