import pytest

from openrlhf_cov.experiments.tiny_task.two_peaks import (
    BETTER_ARMS,
    MEANS,
    OPTIMUM,
    REPLICA_WORDS,
    initial_policy,
    is_better_arm,
    mean_reward,
)


def test_the_peaks_by_hand():
    assert len(MEANS) == 100
    assert MEANS[25] == pytest.approx(0.5)
    assert OPTIMUM == MEANS[75] == pytest.approx(0.9)
    # one width (5 arms) from a peak exp(-1/2) = 0.6065 of its height is left
    assert MEANS[20] == MEANS[30] == pytest.approx(0.5 * 0.60653, abs=1e-5)
    assert MEANS[80] == pytest.approx(0.9 * 0.60653, abs=1e-5)  # 0.546, above the lower peak
    # seven arms from the peak 0.9 exp(-49/50) = 0.9 * 0.37531
    assert MEANS[82] == pytest.approx(0.9 * 0.37531, abs=1e-5)
    assert sorted(BETTER_ARMS) == list(range(70, 81))


def test_the_reward_of_a_response():
    assert mean_reward("a75") == pytest.approx(0.9)
    assert mean_reward("<eos>") == 0.0
    assert mean_reward("r000") == 0.0
    assert is_better_arm("a70")
    assert not is_better_arm("a25")
    assert not is_better_arm("")


def test_the_base_policy_sits_on_the_lower_peak():
    policy = initial_policy(0.3)
    assert sum(policy) == pytest.approx(1.0)
    assert max(range(100), key=policy.__getitem__) == 25
    # far from the lower peak only the uniform part is left: 0.3 / 100 for each of 11 better arms
    assert sum(policy[arm] for arm in BETTER_ARMS) == pytest.approx(11 * 0.003, rel=1e-3)
    assert len(set(REPLICA_WORDS)) == 256
