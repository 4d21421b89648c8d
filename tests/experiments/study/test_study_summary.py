"""The result of a study in a few sentences: a table of methods, a bisection, and a map of learning rates."""

import pytest
from texts import missing

from openrlhf_cov.experiments.study.run_plan import REPORT, StudyRun
from openrlhf_cov.experiments.study.spec_file import spec_of
from openrlhf_cov.experiments.study.study_summary import summary


@pytest.fixture
def untuned():
    """Four methods without a grid, as parsed YAML."""
    names = ("GRPO", "Alpha", "Beta", "Gamma")
    return {"title": "T", "task": "commands", "seeds": [0, 1, 2], "arms": [{"name": name} for name in names]}


def runs_of(make_result, accuracies):
    """A run for each seed of each method: method -> accuracy by seed."""
    return [
        make_result(StudyRun(method, REPORT, (), seed), accuracy)
        for method, by_seed in accuracies.items()
        for seed, accuracy in enumerate(by_seed)
    ]


def test_methods_that_differ_are_named_with_the_largest_difference_first(untuned, make_result):
    """The accuracy of a run is also its validation accuracy y at steps 20 and 40, after 0.4 at step 0.

    Its area is the mean of (0.4 + y) / 2 and y, which is 0.1 + 0.75 y, so that a difference d of y is one of 0.75 d.
    """
    # Differences of Alpha are 0.3, 0.3 and 0.2: mean 0.267, s 0.0577, half width 4.303 * 0.0577 / sqrt(3) = 0.143.
    accuracies = {"GRPO": [0.4, 0.5, 0.5], "Alpha": [0.7, 0.8, 0.7], "Beta": [0.9, 1.0, 0.9], "Gamma": [0.1, 0.2, 0.1]}
    found = summary(spec_of(untuned), runs_of(make_result, accuracies))
    final = ("Beta (+0.47)", "Alpha (+0.27)", "higher accuracy", "GRPO", "Gamma (−0.33)", "lower")
    assert missing(found, *final, "Beta (+0.35)", "Alpha (+0.20)", "faster", "AUC", "95 %", "3 seeds") == []


def test_a_difference_that_is_equal_in_all_seeds_has_no_interval(untuned, make_result):
    accuracies = {"GRPO": [0.4, 0.5, 0.6], "Alpha": [0.6, 0.7, 0.8], "Beta": [0.4, 0.5, 0.6], "Gamma": [0.4, 0.6, 0.5]}
    found = summary(spec_of(untuned), runs_of(make_result, accuracies))
    sentence = "Alpha (+0.20) differs from GRPO by the same accuracy in every seed, so there is no interval."
    assert missing(found, "No method differs from GRPO in final accuracy.", sentence) == []
    assert "Beta" not in found


def test_a_difference_whose_interval_contains_zero_does_not_count(untuned, make_result):
    # Differences of a are 0.2, 0 and 0.1: mean 0.1, s 0.1, half width 4.303 * 0.1 / sqrt(3) = 0.248.
    accuracies = {"GRPO": [0.5, 0.6, 0.7], "Alpha": [0.7, 0.6, 0.8], "Beta": [0.5, 0.6, 0.7], "Gamma": [0.5]}
    found = summary(spec_of(untuned), runs_of(make_result, accuracies))
    assert missing(found, "No method", "accuracy", "No method", "AUC", "95 %", "3 seeds") == []
    assert not any(name in found for name in ("Alpha", "Beta", "Gamma"))
    # The rule has the threshold of ``differs``, too.
    assert found.endswith("its 95 % interval over 3 seeds excludes zero and its size is at least 0.005.")


def test_controls_with_a_random_reward_are_left_out(untuned, make_result):
    untuned["arms"][3]["flags"] = "--random_reward"
    base = [0.5, 0.6, 0.7]
    accuracies = {"GRPO": base, "Alpha": base, "Beta": base, "Gamma": [0.1, 0.2, 0.3]}
    assert "Gamma" not in summary(spec_of(untuned), runs_of(make_result, accuracies))


def test_without_two_seeds_there_is_no_result(untuned, make_result):
    spec = spec_of(untuned)
    assert summary(spec, []).startswith("Not enough data")
    one_seed = summary(spec, runs_of(make_result, {"GRPO": [0.5, 0.6, 0.7], "Alpha": [0.9]}))
    assert missing(one_seed, "No method", "two finished seeds", "GRPO") == []
    assert "Alpha" not in one_seed


@pytest.fixture
def swept(untuned):
    """Function: the same methods with a sweep and four seeds, as parsed YAML."""

    def make(sweep):
        return untuned | {"task": "shortcut", "seeds": [0, 1, 2, 3], "learned": 0.5, "sweep": sweep}

    return make


def swept_runs(spec, make_result, learns):
    """A run of every method, configuration and seed, which learns if ``learns(method, configuration)``."""
    return [
        make_result(
            StudyRun(method.name, REPORT, configuration, seed), 0.9 if learns(method.name, configuration) else 0.1
        )
        for method in spec.methods
        for configuration in spec.sweep.configurations
        for seed in method.seeds
    ]


@pytest.mark.slow
def test_critical_values_are_compared_with_the_first(swept, make_result):
    spec = spec_of(swept({"grid": {"--shortcut_share": [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]}, "bisect": True}))
    # All seeds learn up to the value and none above it, so half learn at the geometric mean of it and the next one:
    # sqrt(0.15 * 0.2) = 0.173 and sqrt(0.05 * 0.1) = 0.0707. A method that always learns has no upper bound.
    last = {"GRPO": 0.15, "Alpha": 0.5, "Beta": 0.05, "Gamma": 0.15}
    found = summary(
        spec, swept_runs(spec, make_result, lambda method, configuration: float(configuration[1]) <= last[method])
    )
    same = ("No difference", "Gamma", "95 %")
    reference = ("GRPO", "--shortcut_share", "0.173")
    assert missing(found, *reference, "Alpha (above 0.5)", "larger", "Beta (0.071)", "smaller", *same) == []
    assert summary(spec, []).startswith("Not enough data")


def test_the_widest_range_of_learning_rates_is_named_for_each_setting(swept, make_result):
    spec = spec_of(swept({"grid": {"--actor.adam.lr": ["1e-5", "1e-4", "1e-3"], "--updates": [1, 4]}}))
    # With one learning rate of three in the middle, half a decade on each side is above one half: 1.00. With a second
    # one, the decade between them counts, and the region reaches the end of the values: 1.50.
    learned = {
        ("Alpha", "1"): {"1e-4"},
        ("Beta", "1"): {"1e-4"},
        ("GRPO", "4"): {"1e-4"},
        ("Gamma", "4"): {"1e-4", "1e-3"},
    }
    found = summary(
        spec,
        swept_runs(
            spec,
            make_result,
            lambda method, configuration: configuration[1] in learned.get((method, configuration[3]), ()),
        ),
    )
    few_updates = ("decades", "Alpha", "Beta", "--updates 1", "1.00", "GRPO 0.00")
    assert missing(found, *few_updates, "Gamma", "--updates 4", "at least 1.50", "GRPO 1.00") == []
    assert summary(spec, []).startswith("Not enough data")
