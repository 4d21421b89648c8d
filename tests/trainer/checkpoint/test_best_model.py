"""Which evaluation is the best, and what a resumed run takes for the best."""

import json
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
    assert BestModel(key).after(METRICS) == BestModel(chosen, value)


def test_the_highest_value_stays():
    best, values = BestModel("accuracy"), []
    # better, worse, equal, NaN, better
    for value in (0.25, 0.125, 0.25, math.nan, 0.5):
        best = best.after({"accuracy": value})
        values.append(best.value)
    assert values == [0.25, 0.25, 0.25, 0.25, 0.5]


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
    found = BestModel(own).restored(BestModel(saved, 0.5).state_dict())
    assert found == (BestModel(saved, 0.5) if restored else BestModel(own))


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
        ({"rollout.max_new_tokens": 7}, False),
        ({"rollout.top_p": 0.5}, False),
        ({"data.max_samples": 7}, False),
        ({"data.max_len": 65}, False),
        ({"chat_template_kwargs": '{"enable_thinking": false}'}, False),
        ({"reward_keep_truncated": True}, False),
        ({"reward.remote_url": ["/moved/reward.py"]}, True),
        ({"thinking_opened": True}, False),
        ({"train.agent_func_path": "agent.py"}, False),
        ({"reward.remote_url": ["other.py"]}, False),
        ({"rollout.batch_size": 4, "reward_workers": 3, "actor.adam.lr": 0.5}, True),
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


def test_benchmarks_have_sampling_and_grading_of_their_own():
    changes = {"rollout.max_new_tokens": 7, "rollout.top_p": 0.5, "reward_keep_truncated": True}
    one = evaluation_settings(run_flags({"eval.dataset": "bench:math500"}))
    assert one == evaluation_settings(run_flags({"eval.dataset": "bench:math500", **changes}))
    assert json.loads(json.dumps(one)) == one


def test_a_metric_that_was_chosen_by_itself_is_chosen_anew_for_another_data_set():
    easy, hard = (evaluation_settings(run_flags({"eval.dataset": f"{name}.jsonl"})) for name in ("easy", "hard"))
    saved = BestModel("", settings=easy).after({"eval_easy_pass1": 0.9}).state_dict()
    found = BestModel("", settings=hard).restored(saved).after({"eval_hard_pass1": 0.25})
    assert (found.key, found.value) == ("eval_hard_pass1", 0.25)


def test_a_metric_that_was_chosen_by_itself_and_is_gone_is_chosen_anew():
    found = BestModel("", automatic=True).restored(BestModel("eval_None_pass1", 0.9).state_dict())
    assert found.after({"eval_None_pass1": 0.5}).value == 0.9
    assert found.after({"eval_default_pass1": 0.25}) == BestModel("eval_default_pass1", 0.25, automatic=True)


def test_a_checkpoint_without_a_setting_had_todays():
    settings = evaluation_settings(run_flags({"eval.dataset": "easy.jsonl"}))
    saved = BestModel("accuracy", 0.9, settings=settings).state_dict()
    del saved["best_eval_settings"]["rollout.top_p"]
    assert BestModel("accuracy", settings=settings).restored(saved).value == 0.9
