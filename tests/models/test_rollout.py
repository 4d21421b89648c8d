import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.rollout import (
    RolloutTokens,
    accuracy_levels,
    entropy_covariance_metrics,
    group_sums,
    selection_metrics,
    token_sums,
)
from openrlhf_cov.utils.metrics import MetricBuffer

# Two prompts of two responses; masked entries are garbage. Means over the 6 action tokens: log-prob -12/6 = -2,
# advantage 0/6 = 0, so cov = (log_prob + 2) * advantage:
#   sample 0 (prompt 0, right)  -1 -3      A  1  1     cov  1 -1
#   sample 1 (prompt 0, wrong)  -4         A -2        cov  4
#   sample 2 (prompt 1, right)  -1 -1 -2   A  0  3 -3  cov  0  3  0
LOG_PROBS = torch.tensor([[-1.0, -3.0, 7.0], [-4.0, math.nan, 7.0], [-1.0, -1.0, -2.0], [math.nan] * 3])
ADVANTAGES = torch.tensor([[1.0, 1.0, 9.0], [-2.0, math.nan, 9.0], [0.0, 3.0, -3.0], [math.nan] * 3])
ENTROPY = torch.tensor([[0.5, 1.0, 9.0], [2.0, math.nan, 9.0], [0.0, 0.25, 1.5], [math.nan] * 3])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
SCORES = torch.tensor([1.0, 0.0, 1.0, 0.0])
ROLLOUT = RolloutTokens(LOG_PROBS, ENTROPY, ADVANTAGES, MASK, SCORES, torch.arange(4))


def logged(*rollouts, samples_per_prompt=2):
    """What a run logs whose ranks hold these rollouts."""
    groups = max(int(rollout.sample_ids.max()) for rollout in rollouts) // samples_per_prompt + 1
    sums = sum(token_sums(rollout) for rollout in rollouts)
    totals = sum(group_sums(rollout, samples_per_prompt, groups) for rollout in rollouts)
    buffer = MetricBuffer()  # adding up over ranks is adding up
    for rollout in rollouts:
        buffer.add(*entropy_covariance_metrics(rollout, sums, totals, samples_per_prompt))
    return buffer.reduce(lambda tensor, op: tensor)


def rows(rollout, *index):
    index = list(index)
    tensors = {name: each[index] for name, each in vars(rollout).items() if each is not None}
    return RolloutTokens(**tensors)


def test_entropy_by_hand():
    values = logged(ROLLOUT)
    assert values["entropy/mean"] == pytest.approx(5.25 / 6)  # 0.5 + 1 + 2 + 0 + 0.25 + 1.5
    assert values["entropy/correct"] == pytest.approx(3.25 / 5)
    assert values["entropy/wrong"] == 2.0
    # in order: 0, 0.25, 0.5, 1, 1.5, 2; the 1st, 3rd and 6th; 0 is read as the smallest bin
    assert values["entropy/p10"] == pytest.approx(math.exp(-16), rel=2e-3)
    assert values["entropy/p50"] == pytest.approx(0.5, rel=2e-3)
    assert values["entropy/p90"] == pytest.approx(2.0, rel=2e-3)


def test_entropy_by_place_by_hand():
    values = logged(ROLLOUT)
    places = [values[f"entropy/position_{place}"] for place in range(8)]
    # first tokens 0.5, 2, 0; second 1, 0.25; third 1.5; no response has a fourth
    assert places == pytest.approx([2.5 / 3, 1.25 / 2, 1.5, *[math.nan] * 5], nan_ok=True)
    # what the environment says in between is no action and has no place; the ninth action and those behind it neither
    gaps = torch.tensor([[0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
    entropy = torch.arange(13.0).view(1, 13)
    whole = replace(rows(ROLLOUT, 0), log_probs=-entropy, advantages=entropy, entropy=entropy, action_mask=gaps)
    values = logged(whole)
    assert [values[f"entropy/position_{place}"] for place in range(8)] == [1, 4, 5, 6, 7, 8, 9, 10]


def test_covariance_by_hand():
    values = logged(ROLLOUT)
    assert values["cov/mean"] == pytest.approx(7 / 6)  # 1 - 1 + 4 + 0 + 3 + 0
    assert values["cov/positive_frac"] == 0.5  # 1, 4, 3
    assert values["cov/top_2e-4"] == values["cov/top_2e-3"] == values["cov/top_2e-2"] == 4.0  # at least one token
    assert values["cov/top_0.2"] == 4.0  # floor(1.2) = 1
    assert values["cov/top_0.5"] == pytest.approx(8 / 3)  # 4, 3, 1


def test_theorem_1_by_hand():
    # log-probs 0 and -log 2, advantages 1 and 4: pi * A = 1 and 2, both means half way: (log 2 / 2) * (-1 / 2) each
    rollout = RolloutTokens(
        log_probs=torch.tensor([[0.0, -math.log(2)]]),
        entropy=torch.zeros(1, 2),
        advantages=torch.tensor([[1.0, 4.0]]),
        action_mask=torch.ones(1, 2),
        scores=torch.ones(1),
        sample_ids=torch.zeros(1, dtype=torch.long),
    )
    values = logged(rollout)
    assert values["cov/prob_weighted_mean"] == pytest.approx(-math.log(2) / 4, rel=1e-6)
    assert values["cov/mean"] == pytest.approx(-math.log(2) / 4 * 3, rel=1e-6)  # advantages differ by 3, not by 1


def test_covariance_within_a_prompt_by_hand():
    values = logged(ROLLOUT)
    # prompt 0: length-normalised log-probs -2 and -4, advantages 1 and -2: (1 * 1.5 + (-1) * (-1.5)) / 2 = 1.5
    # prompt 1: one response with tokens, covariance 0; both prompts have 1 of 2 right
    assert values["cov/acc_mid"] == pytest.approx(0.75)
    assert values["cov/token_acc_mid"] == pytest.approx(7 / 6)
    assert values["cov/acc_low"] == values["cov/acc_mid"] == values["cov/acc_high"]  # with 2 samples all are 1 of 2


def test_equation_8_by_hand():
    # One prompt of two responses, all of whose tokens have one log-prob: length-normalised log pi 0 and -log 2, pi 1
    # and 1/2, A 1 and -2, so pi A 1 and -1. Deviations of log pi: +-log(2) / 2; of pi A: +-1; of A: +-1.5.
    # A second prompt of equal responses has covariance 0 and counts as a prompt.
    log_probs = torch.tensor([[0.0, 0.0], [-math.log(2), -math.log(2)], [-1.0, 9.0], [-1.0, 9.0]])
    advantages = torch.tensor([[1.0, 1.0], [-2.0, -2.0], [0.0, 9.0], [0.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0]])
    values = logged(
        RolloutTokens(log_probs, ENTROPY[:, :2], advantages, mask, torch.tensor([1.0, 0, 1, 1]), torch.arange(4))
    )
    assert values["cov/group_weighted_mean"] == pytest.approx(math.log(2) / 2 / 2)
    assert values["cov/group_mean"] == pytest.approx(1.5 * math.log(2) / 2 / 2)
    # of 1 of 2 right there is the first prompt alone
    assert values["cov/group_weighted_acc_mid"] == pytest.approx(math.log(2) / 2)
    assert values["cov/acc_mid"] == pytest.approx(1.5 * math.log(2) / 2)


def test_entropy_of_equation_5_by_hand():
    # 0.75, 2 and 1.75 / 3 are the means of the responses; the one without a token does not count
    assert logged(ROLLOUT)["entropy/response_mean"] == pytest.approx((0.75 + 2 + 1.75 / 3) / 3)


@pytest.mark.parametrize(
    ("samples", "low", "mid", "high"),
    [(2, 1, 1, 1), (3, 1, 1, 2), (4, 1, 2, 3), (8, 1, 4, 7), (12, 1, 6, 11), (16, 2, 8, 14), (32, 4, 16, 28)],
)
def test_accuracies_nearest_to_the_papers(samples, low, mid, high):
    assert accuracy_levels(samples) == {"low": low, "mid": mid, "high": high}


def test_prompts_are_told_apart_by_their_accuracy():
    # 8 samples per prompt; log-probs are 0 but for the first response, -1; advantages 0 but for the first, 8, and the
    # second, -8: in a prompt (-7/8 * 8 - 1/8 * 8) / 8 = -1 if the sign of the first is +, else +1
    def prompt(number, right, sign):
        log_probs, advantages = torch.zeros(8, 1), torch.zeros(8, 1)
        log_probs[0], advantages[0], advantages[1] = -1.0, 8.0 * sign, -8.0 * sign
        scores = (torch.arange(8) < right).float()
        ids = torch.arange(8) + 8 * number
        return RolloutTokens(log_probs, torch.zeros(8, 1), advantages, torch.ones(8, 1), scores, ids)

    prompts = [prompt(0, 1, 1), prompt(1, 4, -1), prompt(2, 7, 1), prompt(3, 7, -3), prompt(4, 8, 1), prompt(5, 0, 1)]
    values = logged(*prompts, samples_per_prompt=8)
    assert values["cov/acc_low"] == pytest.approx(-1.0)
    assert values["cov/acc_mid"] == pytest.approx(1.0)
    assert values["cov/acc_high"] == pytest.approx(1.0)  # (-1 + 3) / 2
    # all 48 tokens: mean log-prob -1/8, mean advantage 0; in a prompt (-7/8 * 8 + 1/8 * -8) / 8 = -1 per token
    assert values["cov/token_acc_low"] == pytest.approx(-1.0)
    assert values["cov/token_acc_high"] == pytest.approx(1.0)


def test_one_sample_per_prompt_has_no_covariance_and_no_accuracy():
    values = logged(ROLLOUT, samples_per_prompt=1)
    assert math.isnan(values["cov/group_mean"])
    assert math.isnan(values["cov/group_weighted_mean"])
    assert all(math.isnan(values[f"cov/{kind}_{level}"]) for kind in ("acc", "token_acc") for level in ("low", "high"))


def test_without_scores_nothing_is_right_or_wrong():
    values = logged(replace(ROLLOUT, scores=torch.full((4,), math.nan)))
    assert {name for name, value in values.items() if math.isnan(value)} == {
        "entropy/correct", "entropy/wrong", *(f"entropy/position_{place}" for place in range(3, 8)),
        "cov/acc_low", "cov/acc_mid", "cov/acc_high",
        "cov/group_weighted_acc_low", "cov/group_weighted_acc_mid", "cov/group_weighted_acc_high",
        "cov/token_acc_low", "cov/token_acc_mid", "cov/token_acc_high",
    }  # fmt: skip


def test_responses_of_a_prompt_may_lie_on_different_ranks():
    together = logged(ROLLOUT)
    for parts in ([(0, 2), (1, 3)], [(3, 1), (2,), (0,)]):
        assert logged(*(rows(ROLLOUT, *part) for part in parts)) == pytest.approx(together, rel=1e-12, nan_ok=True)


def test_no_token_at_all():
    values = logged(replace(ROLLOUT, action_mask=torch.zeros_like(MASK)))
    assert values.keys() == logged(ROLLOUT).keys()
    assert all(math.isnan(value) for value in values.values())


def test_entropy_of_selected_tokens_by_hand():
    buffer = MetricBuffer()
    selected = torch.tensor([[0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]).bool()  # two action tokens: 1 and 2
    buffer.add(*selection_metrics(ENTROPY, MASK, selected))
    expected = {"entropy/selected": 1.5, "entropy/unselected": 2.25 / 4}  # 0.5 + 0 + 0.25 + 1.5
    assert buffer.reduce(lambda tensor, op: tensor) == pytest.approx(expected)


numbers = st.floats(-8, 8, width=32)
tokens = st.tuples(st.floats(-20, 0, width=32), numbers, st.floats(0, 3, width=32), st.booleans())
samples = st.lists(st.tuples(st.lists(tokens, min_size=3, max_size=3), st.booleans()), min_size=1, max_size=8)


@pytest.mark.slow
@given(samples=samples, samples_per_prompt=st.integers(1, 4), split=st.integers(0, 8))
def test_against_plain_loops(samples, samples_per_prompt, split):
    columns = torch.tensor([token_rows for token_rows, _ in samples], dtype=torch.float32).unbind(2)
    scores = torch.tensor([float(right) for _, right in samples])
    rollout = RolloutTokens(columns[0], columns[2], columns[1], columns[3], scores, torch.arange(len(samples)))
    parts = [range(split), range(split, len(samples))] if 0 < split < len(samples) else [range(len(samples))]
    values = logged(*(rows(rollout, *part) for part in parts), samples_per_prompt=samples_per_prompt)
    expected = by_loops(samples, samples_per_prompt)
    # covariances of float32 terms up to 160, whose sum may cancel
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-4, nan_ok=True)


def by_loops(samples, samples_per_prompt):
    """The values that need no histogram, token by token."""
    kept = [(n, *token[:3]) for n, (row, _) in enumerate(samples) for token in row if token[3]]

    def mean(values):
        values = list(values)
        return sum(values) / len(values) if values else math.nan

    def covariance(pairs):
        x, y = mean(p[0] for p in pairs), mean(p[1] for p in pairs)
        return [(a - x) * (b - y) for a, b in pairs]

    cov = covariance([(lp, adv) for _, lp, adv, _ in kept])
    result = {
        "cov/mean": mean(cov),
        "cov/prob_weighted_mean": mean(covariance([(lp, math.exp(lp) * adv) for _, lp, adv, _ in kept])),
        "entropy/mean": mean(token[3] for token in kept),
        "entropy/correct": mean(token[3] for token in kept if samples[token[0]][1]),
        "entropy/wrong": mean(token[3] for token in kept if not samples[token[0]][1]),
    }
    by_response = [[token for token in kept if token[0] == n] for n in range(len(samples))]
    result["entropy/response_mean"] = mean(mean(t[3] for t in response) for response in by_response if response)
    within = []  # of each prompt with a token: its covariance with A, with pi A, and its correct responses
    for first in range(0, len(samples), samples_per_prompt):
        members = range(first, min(first + samples_per_prompt, len(samples)))
        pairs = [(mean(t[1] for t in by_response[n]), mean(t[2] for t in by_response[n]))
                 for n in members if by_response[n]]  # fmt: skip
        of_tokens = [c for c, token in zip(cov, kept, strict=True) if token[0] in members]
        if pairs:
            weighted = [(lp, math.exp(lp) * adv) for lp, adv in pairs]
            right = sum(samples[n][1] for n in members)
            within.append((mean(covariance(pairs)), mean(covariance(weighted)), right, of_tokens))
    of_all = within if samples_per_prompt > 1 else []
    result |= {"cov/group_mean": mean(p[0] for p in of_all), "cov/group_weighted_mean": mean(p[1] for p in of_all)}
    for level, number in accuracy_levels(samples_per_prompt).items():
        prompts = [prompt for prompt in within if prompt[2] == number]
        result[f"cov/acc_{level}"] = mean(prompt[0] for prompt in prompts)
        result[f"cov/group_weighted_acc_{level}"] = mean(prompt[1] for prompt in prompts)
        result[f"cov/token_acc_{level}"] = mean(c for prompt in prompts for c in prompt[3])
    return result
