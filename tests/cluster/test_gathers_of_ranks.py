"""Whole parameters of two gloo ranks, gathered as ZeRO-3 gathers them (``tests/helpers/gather_rank.py``)."""

import sys

import gather_rank
import pytest
from rank_group import RankGroup

pytestmark = pytest.mark.e2e


def test_the_last_gather_is_over_after_all_others(tmp_path):
    group = RankGroup([sys.executable, gather_rank.__file__], ranks=2, folder=tmp_path)
    try:  # some 40 without ``adapt_deepspeed``
        assert group(300) == ["0", "0"]
    finally:
        group.end()
