"""Which evaluation is the best, and what a resumed run takes for the best."""

import math

import pytest
from run_flags import run_flags
from texts import missing

from openrlhf_cov.trainer.checkpoint.best_model import BestModel, evaluation_settings

METRICS = {"eval/math/avg@4": 0.25, "eval_b_pass1": 0.5, "eval_a_pass1": 0.75}


@pytest.mark.parametrize(
    ("key", "chosen", "value"),
    [
        ("eval/math/avg@4", "eval/math/avg@4", 0.25),
        ("", "eval_a_pass1", 0.75),  # --ckpt.best_metric_key auto: the first of these names in the alphabet
    ],
)
def test_the_metric_of_the_flag_counts(key, chosen, value):
    assert BestModel(key).after(METRICS) == BestModel(chosen, value, value)


def test_the_highest_value_stays():
    best, values = BestModel("accuracy"), []
    # better, worse, equal, NaN, better
    for value in (0.25, 0.125, 0.25, math.nan, 0.5):
        best = best.after({"accuracy": value})
        values.append(best.value)
    assert values == [0.25, 0.25, 0.25, 0.25, 0.5]
    assert best.latest == 0.5
    assert BestModel("accuracy", 0.5, 0.5).after({"accuracy": 0.25}).latest == 0.25


def test_without_a_metric_no_model_is_kept():
    assert BestModel("none").after(METRICS) == BestModel("none")


@pytest.mark.parametrize(("key", "named"), [("eval/maths", "eval/maths"), ("", "auto")])
def test_a_metric_that_no_evaluation_has_warns(log, key, named):
    assert BestModel(key).after({"eval/math/avg@4": 0.5}) == BestModel(key)
    assert missing(log.text, f"--ckpt.best_metric_key {named}", "eval/math/avg@4") == []


@pytest.mark.parametrize(
    ("own", "saved", "restored"),
    [
        ("eval/math/avg@4", "eval/math/avg@4", True),
        ("", "eval_a_pass1", True),  # auto, which chose this metric before
        ("eval/math/avg@4", "eval/aime24/avg@32", False),  # the flag has changed
        ("eval/math/avg@4", "none", False),
        ("none", "eval/math/avg@4", False),
        ("", "none", False),
    ],
)
def test_the_best_value_of_a_checkpoint_counts_for_its_own_metric(own, saved, restored):
    found = BestModel(own).restored(BestModel(saved, 0.5, 0.25).state_dict())
    assert found == (BestModel(saved, 0.5, 0.25) if restored else BestModel(own))


@pytest.mark.parametrize(
    ("changes", "comparable"),
    [
        ({}, True),
        ({"eval.steps": 7, "eval_at_start": True, "eval.dataset": "/moved/easy.jsonl"}, True),
        ({"eval.dataset": "/data/hard.jsonl"}, False),
        ({"eval.dataset": "bench:easy.jsonl"}, False),
        ({"eval.temperature": 1.0}, False),
        ({"eval.n_samples_per_prompt": 8}, False),
        ({"eval_max_tokens": 100}, False),
        ({"eval_limit": 10}, False),
        ({"eval_template": "none"}, False),
    ],
)
def test_a_value_of_another_evaluation_is_not_compared_with(log, changes, comparable):
    """An easy set gave 0.9; the first evaluation on a harder one is the best so far, at 0.3."""
    settings = evaluation_settings(run_flags({"eval.dataset": "/data/easy.jsonl"}))
    before = BestModel("accuracy", settings=settings).after({"accuracy": 0.9})
    resumed = evaluation_settings(run_flags({"eval.dataset": "/data/easy.jsonl", **changes}))
    found = BestModel("accuracy", settings=resumed).restored(before.state_dict())
    assert found.after({"accuracy": 0.3}).value == (0.9 if comparable else 0.3)
    assert all(f"--{name}" in log.text for name in changes) is not comparable or not changes
