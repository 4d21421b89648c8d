from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import missing

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.pairing import ComparedRun, compare, holm, incomparable, judge, parse_metric
from openrlhf_cov.evaluation.scores import PairedDifference, avg_at_k, paired_difference
from openrlhf_cov.utils.estimates import Interval

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@pytest.fixture
def make_run(make_evaluation):
    """Function (name, tables, settings of benchmarks, settings) -> a run."""

    def make(name, tables, settings_of=(), **settings):
        run = make_evaluation(tables, settings_of, **settings)
        return ComparedRun(name=name, settings=run.settings, samples=run.samples)

    return make


def only(comparison, run="b"):
    """The score of one run on the only benchmark."""
    (benchmark,) = comparison.benchmarks
    return next(score for score in benchmark.scores if score.run == run)


# --- Holm's correction


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.5 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.5
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06], rel=1e-15)
    assert holm([0.04, 0.03]) == [0.06, 0.06]  # 2 * 0.03; 1 * 0.04 is less than that of the smaller one
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(p_values)
def test_holm_is_between_the_value_and_bonferroni_and_keeps_the_order(values):
    corrected = holm(values)
    for value, new in zip(values, corrected, strict=True):
        assert value <= new <= min(1.0, len(values) * value)
    order = np.argsort(values, kind="stable")
    assert np.all(np.diff(np.array(corrected)[order]) >= 0)


@pytest.mark.parametrize(
    ("low", "high", "p_value", "noise"),
    [
        (0.01, 0.2, 0.05, False),
        (0.01, 0.2, 0.051, True),
        (-0.2, -0.01, 0.02, False),
        (0.0, 0.2, 0.02, True),
        (-0.2, 0.0, 0.02, True),
    ],
)
def test_noise(low, high, p_value, noise):
    pair = PairedDifference(Interval((low + high) / 2, low, high, 0.95), p_value)
    assert judge({("aime24", "b"): pair})["aime24", "b"].noise == noise


def test_noise_is_judged_after_the_correction_for_all():
    pair = PairedDifference(Interval(0.1, 0.05, 0.2, 0.95), 0.03)  # alone it is none
    judged = judge({("aime24", "b"): pair, ("gsm8k", "b"): pair})
    assert [(each.p_value, each.p_holm, each.noise) for each in judged.values()] == [(0.03, 0.06, True)] * 2


# --- what is compared


def test_differences_are_paired_and_against_the_first_run(make_run):
    tables = [["1 2"] * 8, ["1 1"] * 6 + ["1 2"] * 2, ["2 2"] * 8]
    runs = [make_run(name, {"aime24": rows}) for name, rows in zip("abc", tables, strict=True)]
    comparison = compare(runs)
    a, b, c = comparison.benchmarks[0].scores
    assert (a.score.estimate, a.difference, a.reason) == (0.5, None, None)
    # b: six of eight problems gain 1/2, so 3/8; c: all lose 1/2
    assert (b.score.estimate, b.difference.interval.estimate) == (0.875, 0.375)
    assert (c.score.estimate, c.difference.interval.estimate) == (0.0, -0.5)
    correct = [run.samples[0].correct for run in runs]
    pair = paired_difference(correct[1], correct[0], avg_at_k)
    assert (b.difference.interval, b.difference.p_value) == (pair.difference, pair.p_value)
    assert not c.difference.noise
    # p = 2^(1-6) = 1/32 at least for b and 2^(1-8) for c, which is corrected by 2
    assert (b.difference.p_value, b.difference.p_holm) == (1 / 32, 1 / 32)
    assert c.difference.p_holm == 2 * c.difference.p_value == 2 / 128


def test_pass_at_k(make_run):
    runs = [make_run("a", {"aime24": ["1 2 2 2", "2 2 2 2"]}), make_run("b", {"aime24": ["1 2", "1 2"]})]
    # a: (1 - C(3,2)/C(4,2)) / 2 = 1/4; b: 1
    assert only(compare(runs, "pass@2")).difference.interval.estimate == 0.75


def test_too_few_samples_are_named(make_run):
    runs = [make_run("a", {"aime24": ["1 2"], "gsm8k": ["1 2"]}), make_run("b", {"aime24": ["1"], "gsm8k": ["1 2"]})]
    aime, gsm8k = compare(runs, "pass@2").benchmarks
    assert (aime.scores[1].score, aime.scores[1].reason) == (None, "fewer than 2 samples")
    assert gsm8k.scores[1].difference is not None
    aime, _ = compare(runs[::-1], "pass@2").benchmarks
    assert (aime.scores[0].score, aime.scores[0].reason) == (None, "fewer than 2 samples")
    assert (aime.scores[1].score.estimate, aime.scores[1].reason) == (1.0, "the first run has no score")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"version": 2}, "version 2, the first run has version 1"),
        ({"sha256": "0"}, "other problems than in the first run (their sha256 differs)"),
        ({"problems": 3}, "3 problems, the first run has 4"),
        ({"problems": 3, "complete": False}, "3 problems, the first run has 4 (--limit)"),
        ({"complete": False}, None),  # the same problems
    ],
)
def test_only_the_same_problems_are_compared(make_run, change, reason):
    first = make_run("a", {"aime24": ["1"] * 4}).samples[0].settings
    assert incomparable(replace(first, **change), first, None) == reason


def test_what_cannot_be_compared_is_named_with_its_score(make_run):
    runs = [make_run("a", {"aime24": ["1", "2"]}), make_run("b", {"aime24": ["1"]}, {"aime24": {"complete": False}})]
    comparison = compare(runs)
    assert (only(comparison).score.estimate, only(comparison).difference) == (1.0, None)
    assert missing(only(comparison).reason, "1 problems", "2", "--limit") == []
    assert comparison.notes == ("b: aime24: the first 1 problems only",)


def test_equal_parts_are_compared_and_named(make_run):
    part = {"aime24": {"complete": False}}
    runs = [make_run(name, {"aime24": ["1", "2"]}, part) for name in "ab"]
    assert only(compare(runs)).difference.p_value == 1.0
    assert compare(runs).notes == tuple(f"{run}: aime24: the first 2 problems only" for run in "ab")


def test_benchmarks_of_one_run_only_are_named(make_run):
    runs = [make_run("a", {"aime24": ["1"]}), make_run("b", {"gsm8k": ["1"]})]
    comparison = compare(runs)
    assert [[score.run for score in each.scores] for each in comparison.benchmarks] == [["a"], ["b"]]
    assert comparison.benchmarks[1].scores[0].reason == "the first run has no score"
    assert comparison.notes == ("a: did not evaluate gsm8k", "b: did not evaluate aime24")


def test_settings_that_move_scores_are_named(make_run):
    first = make_run("a", {"aime24": ["1"]})
    other = make_run(
        "b", {"aime24": ["1"]}, {"aime24": {"temperature": 1.0, "max_tokens": 9}}, template="chat", template_text="?"
    )
    assert compare([first, other]).notes == (
        "b: another prompt template: chat, where a has qwen-boxed",
        "b: aime24: temperature: 1.0, where a has 0.0",
        "b: aime24: max_tokens: 9, where a has 8192",
    )


def test_other_arguments_of_the_chat_template_are_named(make_run):
    # a server writes the template, so that the text is the same
    first = make_run("a", {"aime24": ["1"]})
    other = make_run("b", {"aime24": ["1"]}, chat_template_kwargs={"enable_thinking": False})
    assert compare([first, other]).notes == ("b: chat_template_kwargs: {'enable_thinking': False}, where a has {}",)


def test_other_limits_of_grading_and_another_grader_are_named(make_run):
    first = make_run("a", {"aime24": ["1"]}, code_timeout=6.0, reward_timeout=3.0, packages={"openrlhf-cov": "0.42"})
    other = make_run("b", {"aime24": ["1"]}, code_timeout=30.0, reward_timeout=3.0, packages={"openrlhf-cov": "0.43"})
    assert compare([first, other]).notes == (
        "b: code_timeout: 30.0, where a has 6.0",
        "b: graded by another version of openrlhf-cov: 0.43, where a has 0.42",
    )
    # Versions are compared only if both runs have recorded them.
    unknown = make_run("c", {"aime24": ["1"]}, packages={"vllm": "1"})
    assert compare([first, unknown]).notes == ()


@pytest.mark.parametrize("metric", ["pass@0", "pass@2.0", "avg@32", "", "pass@1234567"])
def test_an_unknown_metric_is_refused(metric):
    with pytest.raises(UsageError, match=f"^--metric {metric}: a metric is avg or, for example, pass@8$"):
        parse_metric(metric)


# --- the paper


def test_the_rows_of_the_paper_stand_beside_one_run(make_run):
    run = make_run("a", {"math500": ["1", "2"], "gsm8k": ["1"]})
    comparison = compare([run], against="paper-7b")
    math500, gsm8k = comparison.benchmarks
    assert math500.published == {"GRPO": 0.788, "clip-higher": 0.792, "Clip-Cov": 0.804, "KL-Cov": 0.808}
    assert gsm8k.published == {}
    assert "arXiv 2505.22617, Table 2; it gives no intervals" in comparison.notes[0]
    graded = "paper: it was graded more leniently than by the grader strict; add --grader published"
    assert comparison.notes[1:] == (graded,)
    assert compare([run], against="paper-7b", grader="published").notes == comparison.notes[:1]


def test_what_differs_from_the_paper_is_named(make_run):
    run = make_run("a", {"aime24": ["1 2"], "amc23": [" ".join(["1"] * 32)]}, {"amc23": {"complete": False}})
    notes = compare([run], against="paper-7b", grader="published").notes
    facts = [
        ("a: amc23", "first 1 problems"),
        ("a: aime24: 2 samples at temperature 0.6", "paper", "32 at 0.6"),
        ("paper: ", "AMC", "83 problems", "amc_2022_2023", "amc23", "40"),
    ]
    for note, of_note in zip(notes[:1] + notes[2:], facts, strict=True):
        assert missing(note, *of_note) == []


def test_other_lengths_samplers_and_prompts_than_the_papers_are_named(make_run):
    # math500 is greedy, so that its top_p does not matter.
    sampling = {"math500": {"max_tokens": 256, "top_p": 0.95}, "aime24": {"top_p": 0.95}}
    run = make_run("a", {"math500": ["1"], "aime24": [" ".join(["1"] * 32)]}, sampling, template="plain")
    assert compare([run], against="paper-7b", grader="published").notes[1:] == (
        "a: prompt template plain, the protocol paper has qwen-boxed",
        "a: math500: at most 256 tokens, the paper has 8,192",
        "a: aime24: top_p 0.95, the paper has 1",
    )


def test_a_file_of_ones_own_is_not_the_benchmark_of_its_name(make_run):
    comparison = compare([make_run("a", {"math500": ["1"]}, {"math500": {"version": 0}})], against="paper-7b")
    assert comparison.benchmarks[0].published == {}
