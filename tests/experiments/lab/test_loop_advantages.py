"""From the same rewards the laboratory and the trainer make the same advantages, of every estimator and of none."""

import sys

import pytest
import torch
from active import ESTIMATORS, IN_THE_LAB, active_flags
from torch.nn.utils.rnn import pad_sequence

from openrlhf_cov.cli import lab as command
from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.experiments.lab.lab_policy import Samples
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.training import Lab
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages
from openrlhf_cov.trainer.records import Sample, Scores, StepSettings

GROUP, TOKENS = 8, 5
# Mean over all action tokens. With what stands behind them, or as a mean over responses, it is above every band.
ENTROPY = 0.65
# Flags of a run.
CASES = {
    "none": "",
    **{name: " ".join(active_flags(name)) for name in IN_THE_LAB if name in ESTIMATORS},
    "qae, easy prompts": "--method qae --qae_quantile 0.6",
    "qae, interpolated": "--method qae --qae_baseline linear",
    "lite_ppo, about the means of groups": "--method lite_ppo --lite_ppo_std centred",
    "ucpo, shares inverse to probabilities": "--method ucpo --ucpo_tau 1",
    "pass@k, larger sets": "--method passk --passk_k 4",
    "w_reinforce, both alike": "--method w_reinforce --w_reinforce_lambda 1",
    "entrocraft, below its band": "--method entrocraft --entrocraft_low 0.66 --entrocraft_high 0.7",
    "entrocraft, above its band": "--method entrocraft --entrocraft_low 0.6 --entrocraft_high 0.64",
}
MIXED = "every number of right ones"
GROUPS = {
    MIXED: [[place < right for place in range(GROUP)] for right in range(GROUP + 1)],
    "all right": [[True] * GROUP] * 2,
    "all wrong": [[False] * GROUP] * 2,
}
# Of right and of wrong responses; a mean of eight times 0.7 or -0.1 is none of these, by rounding.
REWARDS = [(1.0, 0.0), (1.0, -1.0), (0.7, -0.1)]
# Methods that take rewards of exactly 0 and 1 alone.
OF_0_AND_1 = ("maxrl",)


@pytest.mark.parametrize("right_and_wrong", REWARDS)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("case", CASES)
def test_advantages_are_those_of_the_trainer(task, policy, monkeypatch, case, groups, right_and_wrong):
    is_right = torch.tensor(GROUPS[groups]).flatten()
    rewards = torch.tensor(right_and_wrong[1]).where(~is_right, torch.tensor(right_and_wrong[0]))
    lengths = torch.arange(len(rewards)) % TOKENS + 1
    mask = torch.arange(TOKENS) < lengths[:, None]
    entropy = entropies(mask)

    flags = CASES[case].split()
    if case in OF_0_AND_1 and not set(rewards.tolist()) <= {0.0, 1.0}:
        with pytest.raises(RunStopped, match=f"--method {case}: all rewards must be 0 or 1"):
            of_the_laboratory(task, policy, flags, lengths, entropy, rewards)
        with pytest.raises(RunStopped, match=f"--method {case}: all rewards must be 0 or 1"):
            of_the_trainer(monkeypatch, flags, mask, entropy, rewards)
        return
    found = of_the_laboratory(task, policy, flags, lengths, entropy, rewards)
    expected = of_the_trainer(monkeypatch, flags, mask, entropy, rewards)
    assert found.action_mask.equal(mask)
    torch.testing.assert_close(found.advantages, expected, rtol=0, atol=0)
    assert found.advantages.any() or groups != MIXED
    if case in ("psr", "nsr"):  # those of the other kind are left out
        assert (found.advantages[:, 0] != 0).equal(is_right == (case == "psr"))


def entropies(mask):
    """(B, A) of the mean ``ENTROPY``: 3 in responses of one token, and in all others what makes up for that."""
    short = mask & (mask.sum(1, keepdim=True) == 1)
    others = (ENTROPY * mask.sum() - 3.0 * short.sum()) / (mask & ~short).sum()
    return torch.where(short, torch.tensor(3.0), others).masked_fill(~mask, 9.0)


def of_the_laboratory(task, policy, flags, lengths, entropy, rewards):
    """The ``RolloutTokens`` of responses of these lengths, of which those of full length have no end."""
    config = command.LabRequest.of(command.build_parser(), ["--output", "unused", "--task", "addition", *flags]).config
    lab = Lab(task, *policy, LabSettings(prompts=len(rewards) // GROUP, group=GROUP), config)
    responses = torch.full(entropy.shape, 7)
    for row, length in zip(responses, lengths.tolist(), strict=True):
        row[length:] = lab.pad
        row[length - 1] = lab.eos if length < TOKENS else 7
    return lab.rollout_tokens(Samples(responses, -entropy, entropy), rewards, config.at(0))


def of_the_trainer(monkeypatch, flags, mask, entropy, rewards):
    """Return the advantages (B, A) of samples with these rewards, 0 outside of the responses."""
    method = next((METHODS[name] for name in METHODS if name in flags), None)
    words = f"""
        --actor.model_name_or_path none --data.prompt_dataset none --reward.remote_url reward.py --vllm.num_engines 1
        --algo.kl.use_loss --rollout.n_samples_per_prompt {GROUP}
        --algo.advantage.estimator {method.slot.stands_for if method else "group_norm"}
    """.split()
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *words, *flags])
    args = train_ppo_ray.parse_args()
    samples, scores = [], []
    for row, entropies_of_row, reward in zip(mask, entropy, rewards.tolist(), strict=True):
        count = int(row.sum())
        samples.append(Sample(torch.zeros(count + 1, dtype=torch.long), row[:count], prompt="", reward=reward))
        scores.append(Scores(-entropies_of_row[:count], entropies_of_row[:count]))
    config = CovConfig.from_args(args).at(0)
    batch = estimate_advantages(samples, scores, AdvantageSettings.of(args), StepSettings(0, config, 0.0), args)
    return pad_sequence([each.advantages for each in batch.samples], batch_first=True)
