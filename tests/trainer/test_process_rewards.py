"""The stage of the process reward model: it is trained, then scores; what it says joins the rewards of the tokens."""

import math
from dataclasses import replace

import pytest
import torch
from played_models import PlayedGroup, log_probs_of
from scored_samples import flags, sample

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.process_reward_scores import agreement, labelled_samples, prompt_tokens, reward_tokens
from openrlhf_cov.trainer.records import Scores, StepResult, StepSettings
from openrlhf_cov.trainer.scoring import padded_batches

pytestmark = pytest.mark.usefixtures("played_ray")

PRIME = CovConfig(method="prime", prime_beta=0.5, prime_norm="none", prime_process_coef=2.0, prime_outcome_coef=1.0)
ORDER = StepSettings(4, PRIME, 0.0)


def scores_of(samples, *rows):
    """Return scores whose reference log-probs are ``rows``."""
    zeros = [torch.zeros(len(each.action_mask)) for each in samples]
    return [
        Scores(log_probs=zero, entropy=zero, base_log_probs=zero if row is None else torch.tensor(row))
        for zero, row in zip(zeros, rows or [None] * len(samples), strict=True)
    ]


def test_a_step_is_trained_on_before_it_is_scored():
    calls = []
    prm = PlayedGroup("prm", 2, calls=calls, update=StepResult({"prm/loss": 0.7}))
    args = flags("rloo", group=2)
    samples = [sample(number, float(number % 2), 3, abstained=number == 3) for number in range(4)]
    scores = scores_of(samples)
    groups = ModelGroups(args, PlayedGroup("policy", 2), process_reward=prm)
    found, numbers = reward_tokens(samples, scores, padded_batches(samples, groups, 99), groups, ORDER)
    assert [method for _, method, _ in calls] == ["update", "update", "score"]

    # Each rank got two samples with their labels; an abstention has no action token.
    shares = [arguments[2].samples() for _, method, arguments in calls if method == "update"]
    assert [[(each.sample_id, each.score) for each in share] for share in shares] == [
        [(0, 0), (1, 1)],
        [(2, 0), (3, 1)],
    ]
    assert [int(each.action_mask.sum()) for share in shares for each in share] == [3, 3, 3, 0]

    # q are the played log-probs, as those of the reference are 0: r = q / 2 without the last token, 2 (2 r - mean sum)
    ratios = [log_probs_of(each.tokens[None], each.action_mask[None])[0] for each in samples]
    first, second = (0.5 * row * torch.tensor([1.0, 1.0, 0.0]) for row in ratios[:2])
    baseline = first.mean() + second.mean()
    torch.testing.assert_close(found[0].token_rewards, 2 * (2 * first - baseline))
    torch.testing.assert_close(found[1].token_rewards, 2 * (2 * second - baseline))
    # the prompt with one graded response has no process reward
    assert found[2].token_rewards.tolist() == found[3].token_rewards.tolist() == [0.0] * 3
    totals = torch.stack([row.sum() for row in ratios])
    assert numbers == {
        "prm/loss": 0.7,
        "prm/reward_mean": pytest.approx(0.5 * float(totals[:3].mean())),
        "prm/accuracy": float(totals[1] > totals[0]),
    }


def test_optimizer_states_are_on_the_gpu_during_the_updates_alone():
    calls = []
    groups = ModelGroups(
        flags(ds__enable_sleep=True),
        PlayedGroup("policy"),
        process_reward=PlayedGroup("prm", calls=calls, update=StepResult({})),
    )
    samples = [sample(number) for number in range(4)]
    groups.update_process_reward(ORDER, labelled_samples(samples, scores_of(samples)))
    assert [method for _, method, _ in calls] == ["reload_states", "update", "offload_states"]


def test_agreement_is_of_pairs_within_a_prompt():
    def of(*totals, graded=None):
        samples = [sample(number, response=1, prompt=1) for number in range(len(totals))]
        made = prompt_tokens(samples, scores_of(samples), [torch.tensor([total]) for total in totals])
        return made if graded is None else replace(made, graded=torch.tensor(graded))

    prompts = [of(3.0, 1.0), of(-1.0, 2.0), of(9.0, 9.0)]
    correct = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    # one of two pairs is in order; the mean of the sums is 23 / 6
    assert agreement(prompts, correct, beta=0.5) == {"prm/accuracy": 0.5, "prm/reward_mean": pytest.approx(23 / 12)}
    # without a pair there is no accuracy
    without = {"prm/reward_mean": 9.0, "prm/accuracy": pytest.approx(math.nan, nan_ok=True)}
    assert agreement(prompts[2:], correct[2:], beta=1.0) == without
    only = [of(4.0, 7.0, graded=[True, False])]
    assert agreement(only, torch.tensor([[1.0, 0.0]]), beta=1.0) == without | {"prm/reward_mean": 4.0}


def test_advantages_are_whitened_returns_of_process_and_outcome_rewards():
    args = flags("rloo", group=2)
    args.actor.eps_clip_low_high = (0.2, 0.2)
    samples = [sample(0, 1.0, 2), sample(1, 0.0, 1), sample(2, 1.0, 1), sample(3, 1.0, 1, abstained=True)]
    scores = scores_of(samples)
    tokens = [[0.25, -0.75], [0.5], [0.0], [0.0]]
    scores = [replace(each, token_rewards=torch.tensor(row)) for each, row in zip(scores, tokens, strict=True)]
    batch = estimate_advantages(samples, scores, AdvantageSettings.of(args), ORDER, args)
    # outcomes 1 and -1 at the last tokens; sums to the end: 0.25 + 0.25, 0.25 and -0.5. The prompt with one graded
    # response is left out.
    assert [each.returns.tolist() for each in batch.samples] == [[0.5, 0.25], [-0.5], [0.0], [0.0]]
    # mean (0.5 + 0.25 - 0.5) / 3 = 1/12, variance (0.25 + 0.0625 + 0.25) / 3 - 1/144 = 26/144
    deviation = (26 / 144) ** 0.5
    expected = [(0.5 - 1 / 12) / deviation, (0.25 - 1 / 12) / deviation, (-0.5 - 1 / 12) / deviation]
    found = [value for each in batch.samples for value in each.advantages.tolist()]
    assert found == pytest.approx([*expected, 0.0, 0.0])
