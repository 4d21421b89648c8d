"""Samples of a step: made from responses, checked, completed and numbered."""

import math

import pytest
import torch

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.records import Sample
from openrlhf_cov.trainer.rollout.prompts import Prompt
from openrlhf_cov.trainer.rollout.rollouts import (
    check_reward_errors,
    checked_samples,
    failed_rewards,
    fill_abstained,
    number_samples,
    sample_of,
    scores_of,
)

PROMPT = Prompt(7, "1+1=", {"answer": "2", "source": "sums"}, source="default")

RESPONSE = {
    "prompt": "1+1=",
    "label": PROMPT.label,
    "observation_tokens": [5, 6, 7, 8, 9, 10],
    "action_ranges": [(2, 4), (5, 6)],  # an environment wrote token 4
    "rollout_log_probs": [0.0, 0.0, -1.0, -2.0, 0.0, -3.0],
    "reward": 0.5,
    "scores": 1.0,
    "truncated": True,
    "extra_logs": {"reward/no_answer_frac": torch.tensor([[1.0]]), "length": 3},
}


def test_a_response_becomes_a_sample():
    sample = sample_of(RESPONSE, PROMPT, max_len=100)
    assert sample.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    # entry t is about token t + 1: tokens 2, 3 and 5 were sampled
    assert sample.action_mask.tolist() == [False, True, True, False, True]
    assert sample.rollout_log_probs.tolist() == [0.0, -1.0, -2.0, 0.0, -3.0]
    assert sample.response_length == 4  # from token 2 to token 5
    assert (sample.prompt, sample.label, sample.source) == ("1+1=", PROMPT.label, "sums")
    assert (sample.reward, sample.score, sample.truncated, sample.abstained) == (0.5, 1.0, True, False)
    assert sample.metrics == {"response_clip_ratio": 0.0, "reward/no_answer_frac": 1.0, "length": 3.0}
    assert (sample.tokens.dtype, sample.rollout_log_probs.dtype) == (torch.int64, torch.float32)


@pytest.mark.parametrize("field", ["reward", "scores"])
@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor([-math.inf])])
def test_a_reward_that_is_no_number_has_failed(log, field, value):
    sample = sample_of(RESPONSE | {field: value}, PROMPT, max_len=100)
    assert (sample.reward, sample.score, sample.metrics["reward/error_frac"]) == (0.0, 0.0, 1.0)
    assert PROMPT.text in log.text
    with pytest.raises(RunStopped, match="reward of 1 of 1 responses failed"):
        checked_samples([sample], CovConfig(), max_error_share=0.05)


def test_a_reward_that_a_model_gives_stays_missing_where_the_score_is_no_number():
    sample = sample_of(RESPONSE | {"reward": None, "scores": math.nan}, PROMPT, max_len=100)
    assert (sample.reward, sample.score, sample.metrics["reward/error_frac"]) == (None, 0.0, 1.0)


def test_an_abstention_has_no_score_and_has_not_failed():
    logs = {"reward/abstained_frac": 1.0}
    sample = sample_of(RESPONSE | {"reward": 0.0, "scores": math.nan, "extra_logs": logs}, PROMPT, max_len=100)
    assert sample.abstained
    assert "reward/error_frac" not in sample.metrics


def test_tokens_beyond_the_limit_are_cut_off():
    sample = sample_of(RESPONSE, PROMPT, max_len=4)
    assert sample.tokens.tolist() == [5, 6, 7, 8]
    assert sample.action_mask.tolist() == [False, True, True]
    assert sample.rollout_log_probs.tolist() == [0.0, -1.0, -2.0]
    assert sample.response_length == 2
    assert sample.metrics["response_clip_ratio"] == 1.0
    assert sample_of(RESPONSE, PROMPT, max_len=6).metrics["response_clip_ratio"] == 1.0  # it fills the context


def make(prompt="p", label="l", **values) -> Sample:
    values = {"reward": 1.0, "rollout_log_probs": torch.zeros(2)} | values
    mask = torch.tensor([False, True])
    return Sample(tokens=torch.tensor([1, 2, 3]), action_mask=mask, prompt=prompt, label=label, **values)


@pytest.mark.parametrize(("failed", "limit", "stops"), [(1, 0.05, False), (2, 0.05, True), (0, 0.0, False)])
def test_a_run_stops_above_the_share_of_failed_rewards(failed, limit, stops):
    # 5 % of 20 samples is one
    samples = [make(metrics={"reward/error_frac": float(place < failed)}) for place in range(20)]
    assert failed_rewards(samples) == failed
    if not stops:
        check_reward_errors(failed, 20, limit)
        assert len(checked_samples(samples, CovConfig(), limit)) == 20
        return
    with pytest.raises(RunStopped, match=r"reward of 2 of 20 responses failed .* --reward_max_error_frac 0.05"):
        checked_samples(samples, CovConfig(), limit)


def test_means_of_a_step_are_those_of_graded_samples():
    samples = fill_abstained([make(reward=1.0), make(reward=0.0, score=math.nan, abstained=True), make(reward=0.5)])
    assert [sample.reward for sample in samples] == [1.0, 0.75, 0.5]
    assert math.isnan(samples[1].score)


def test_scores_of_a_group_are_those_of_its_graded_samples():
    assert scores_of([make(score=1.0), make(score=math.nan, abstained=True), make(score=0.0)]) == [1.0, 0.0]
    with pytest.raises(RunStopped, match=r"--algo\.dynamic_filtering_enable: a response came without a score"):
        scores_of([make(score=1.0), make(score=None)])


def test_numbers_follow_text_and_label_wherever_a_group_stands():
    groups = [("b", "2"), ("a", {"x": 1}), ("b", "1"), ("a", {"x": 1})]
    samples = [make(prompt, label, reward=float(k)) for prompt, label in groups for k in range(2)]
    numbered = number_samples(samples)
    # a, {x: 1} twice in their order; then b with label 1, b with label 2
    assert [sample.sample_id for sample in numbered] == [6, 7, 0, 1, 4, 5, 2, 3]
    assert [(sample.prompt, sample.reward) for sample in numbered] == [(s.prompt, s.reward) for s in samples]


def test_a_group_has_consecutive_numbers_whatever_texts_an_agent_gave_its_prompts():
    texts = ["tone B: q2", "tone A: q2", "tone A: q1", "tone C: q1"]
    samples = [make(text, prompt_number=place // 2) for place, text in enumerate(texts)]
    assert [sample.sample_id for sample in number_samples(samples)] == [2, 3, 0, 1]


def test_samples_are_checked_completed_and_numbered():
    samples = [
        make("b", reward=1.0, metrics={"n": 1.0, "reward/error_frac": 0.0}),
        make("b", reward=0.0, score=math.nan, abstained=True, metrics={"reward/abstained_frac": 1.0}),
        make("a", reward=0.5, metrics={}),
    ]
    checked = checked_samples(samples, CovConfig(), max_error_share=0.05)
    assert [(sample.sample_id, sample.reward) for sample in checked] == [(1, 1.0), (2, 0.75), (0, 0.5)]
    # Shares of all samples are completed; a metric of some samples stays theirs.
    counts = {"reward/error_frac": 0.0, "reward/abstained_frac": 0.0}
    assert [sample.metrics for sample in checked] == [
        {**counts, "n": 1.0},
        {**counts, "reward/abstained_frac": 1.0},
        counts,
    ]
    assert [sample.sample_id for sample in samples] == [-1, -1, -1]  # records do not change


def test_an_anchor_on_the_rollout_needs_the_log_probs_of_the_engine():
    anchored = CovConfig(method="dppo", dppo_anchor="rollout")
    assert anchored.rollout_anchor
    assert len(checked_samples([make(rollout_log_probs=None)] * 2, CovConfig(), 0.05)) == 2
    samples = [make(), make(rollout_log_probs=None)]
    with pytest.raises(RunStopped, match=rf"^--{anchored.rollout_anchor} rollout: a response came without the log-pr"):
        checked_samples(samples, anchored, 0.05)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("field", ["reward", "rollout_log_probs"])
def test_a_field_that_some_responses_lack_ends_the_run_with_one_line(field, place):
    samples = [make(), make()]
    samples[place] = make("the prompt", **{field: None})
    with pytest.raises(RunStopped, match=rf"1 of 2 responses came without {field}, .* \(prompt 'the prompt'\)$"):
        checked_samples(samples, CovConfig(), 0.05)
    assert len(checked_samples([make(**{field: None})] * 2, CovConfig(), 0.05)) == 2
