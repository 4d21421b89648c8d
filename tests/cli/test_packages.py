import pytest

from openrlhf_cov.cli.packages import ENGINES, require
from openrlhf_cov.errors import UsageError


def test_what_is_here_is_not_complained_of():
    require()
    require(("json", "numpy"))


def test_what_is_missing_is_named_and_nothing_else():
    with pytest.raises(UsageError, match=r"^not installed: no_such_engine, nor_this; .*requirements-cpu\.txt"):
        require((ENGINES[0], "no_such_engine", "nor_this"))
