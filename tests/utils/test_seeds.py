import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openrlhf_cov.utils.seeds import seed_of

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"))
# Run seed, benchmark (the stem of a file name has no slash), problem id and sample number.
KEYS = st.tuples(st.integers(), NAMES, st.text(), st.integers(0))


@pytest.mark.parametrize(
    ("parts", "seed"),
    [
        ((0, "aime24", "p0", 0), 0x7AB9FAD1C242F91A >> 1),  # printf 0/aime24/p0/0 | sha256sum
        ((0, "math500", "test/algebra/1.json", 0), 3542656609401437569),
        ((1, 5, "Wieviel ist 二加二?", 3), 3423213462485586442),
    ],
)
def test_seeds_of_earlier_runs_stay_as_they_are(parts, seed):
    # a run that another version began can be resumed only as long as these hold
    assert seed_of(*parts) == seed


@given(KEYS, KEYS)
@example((0, "a", "b/0", 1), (0, "a", "b", 1))
@example((1, "1", "1", 11), (1, "1", "11", 1))
@example((1, "1", "1", 1), (11, "1", "1", 1))
def test_another_key_has_another_seed(one, other):
    assert (seed_of(*one) == seed_of(*other)) == (one == other)
    assert 0 <= seed_of(*one) < 2**63  # what PyTorch and vLLM take
