"""The result of a study in a few sentences: a table of methods, a bisection, and a map of learning rates."""

import pytest

from openrlhf_cov.experiments.study.run_plan import REPORT, StudyRun
from openrlhf_cov.experiments.study.spec_file import spec_of
from openrlhf_cov.experiments.study.study_summary import summary


@pytest.fixture
def untuned():
    """Four methods without a grid, as parsed YAML."""
    names = ("GRPO", "a", "b", "c")
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
    accuracies = {"GRPO": [0.4, 0.5, 0.6], "a": [0.6, 0.7, 0.8], "b": [0.8, 0.9, 1.0], "c": [0.1, 0.2, 0.3]}
    assert summary(spec_of(untuned), runs_of(make_result, accuracies)) == (
        "B (+0.40) and a (+0.20) end with a higher accuracy than GRPO, and c (−0.30) ends with a lower one. "
        "B (+0.30) and a (+0.15) learn faster, by the area under the learning curve (AUC). "
        "Numbers in brackets are differences from GRPO; a difference counts if its 95 % interval over 3 seeds "
        "excludes zero."
    )


def test_a_difference_whose_interval_contains_zero_does_not_count(untuned, make_result):
    # Differences of a are 0.2, 0 and 0.1: mean 0.1, s 0.1, half width 4.303 * 0.1 / sqrt(3) = 0.248.
    accuracies = {"GRPO": [0.5, 0.6, 0.7], "a": [0.7, 0.6, 0.8], "b": [0.5, 0.6, 0.7], "c": [0.5]}
    assert summary(spec_of(untuned), runs_of(make_result, accuracies)) == (
        "No method differs from GRPO in final accuracy. "
        "No method learns faster, by the area under the learning curve (AUC). "
        "A difference counts if its 95 % interval over 3 seeds excludes zero."
    )


def test_controls_with_a_random_reward_are_left_out(untuned, make_result):
    untuned["arms"][3]["flags"] = "--random_reward"
    base = [0.5, 0.6, 0.7]
    accuracies = {"GRPO": base, "a": base, "b": base, "c": [0.1, 0.2, 0.3]}
    assert summary(spec_of(untuned), runs_of(make_result, accuracies)).startswith("No method differs from GRPO")


def test_without_two_seeds_there_is_no_result(untuned, make_result):
    spec = spec_of(untuned)
    assert summary(spec, []).startswith("Not enough data")
    some = runs_of(make_result, {"GRPO": [0.5, 0.6, 0.7], "a": [0.9]})
    assert summary(spec, some) == "No method has two finished seeds in common with GRPO, so no difference is shown."


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


def test_critical_values_are_compared_with_the_first(swept, make_result):
    spec = spec_of(swept({"grid": {"--shortcut_share": [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]}, "bisect": True}))
    # All seeds learn up to the value and none above it, so half learn at the geometric mean of it and the next one:
    # sqrt(0.15 * 0.2) = 0.173 and sqrt(0.05 * 0.1) = 0.0707. A method that always learns has no upper bound.
    last = {"GRPO": 0.15, "a": 0.5, "b": 0.05, "c": 0.15}
    found = summary(
        spec, swept_runs(spec, make_result, lambda method, configuration: float(configuration[1]) <= last[method])
    )
    assert found == (
        "Half of the runs of GRPO learn up to a --shortcut_share of 0.173. A (above 0.5) learns up to larger values. "
        "B (0.071) learns only up to smaller values. No difference from GRPO is shown for c: the 95 % intervals "
        "overlap."
    )
    assert summary(spec, []).startswith("Not enough data")


def test_the_widest_range_of_learning_rates_is_named_for_each_setting(swept, make_result):
    spec = spec_of(swept({"grid": {"--actor.adam.lr": ["1e-5", "1e-4", "1e-3"], "--updates": [1, 4]}}))
    # With one learning rate of three in the middle, half a decade on each side is above one half: 1.00. With a second
    # one, the decade between them counts, and the region reaches the end of the values: 1.50.
    learned = {
        ("a", "1"): {"1e-4"},
        ("b", "1"): {"1e-4"},
        ("GRPO", "4"): {"1e-4"},
        ("c", "4"): {"1e-4", "1e-3"},
    }
    found = summary(
        spec,
        swept_runs(
            spec,
            make_result,
            lambda method, configuration: configuration[1] in learned.get((method, configuration[3]), ()),
        ),
    )
    assert found.startswith(
        "The widest range of learning rates at which at least half of the seeds learn, in decades, is that of "
        "a and b with --updates 1 (1.00; GRPO 0.00), c with --updates 4 (at least 1.50; GRPO 1.00)."
    )
    assert summary(spec, []).startswith("Not enough data")
