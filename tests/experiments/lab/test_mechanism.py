"""``--record_mechanism``: names of skills on their own and on other prompts, and the fall of the entropy."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from openrlhf_cov.experiments.lab.lab_policy import log_probs_and_entropy, until_end
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.mechanism import (
    decision_metrics,
    drop_metrics,
    name_probabilities,
    probability_column,
)
from openrlhf_cov.experiments.lab.tasks import TASKS
from openrlhf_cov.experiments.lab.training import Lab, frozen
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.entropy_change import EntropyDrop

SMALL = dict(steps=2, prompts=8, group=4, updates=4, learning_rate=1e-2, eval_every=2, eval_samples=2, test_samples=4)


def test_decision_tokens_are_counted_by_name_and_side():
    # Two prompts of skill a, three of skill b; the last sample says no name.
    asked = ["a", "a", "b", "b", "b"]
    said = ["a", "b", "b", "b", "7"]
    advantages = torch.tensor([1.0, -0.5, 2.0, 0.25, 8.0])
    selected = torch.tensor([False, True, True, False, True])
    found = decision_metrics(("a", "b"), asked, said, advantages, selected)
    by_hand = {
        "decision/sampled_own/a": 1,
        "decision/selected_own/a": 0,
        "decision/advantage_own/a": 1.0,
        "decision/selected_advantage_own/a": 0.0,
        "decision/sampled_other/a": 0,
        "decision/selected_other/a": 0,
        "decision/advantage_other/a": 0.0,
        "decision/selected_advantage_other/a": 0.0,
        "decision/sampled_own/b": 2,
        "decision/selected_own/b": 1,
        "decision/advantage_own/b": 2.25,
        "decision/selected_advantage_own/b": 2.0,
        "decision/sampled_other/b": 1,
        "decision/selected_other/b": 1,
        "decision/advantage_other/b": -0.5,
        "decision/selected_advantage_other/b": -0.5,
    }
    assert found == pytest.approx(by_hand)


def test_probabilities_are_means_over_the_prompts_of_a_skill():
    probabilities = torch.tensor([[0.6, 0.1], [0.2, 0.3], [0.5, 0.4]])
    found = name_probabilities(("a", "b"), ["a", "a", "b"], probabilities)
    # Prompts of a: (0.6 + 0.2) / 2 and (0.1 + 0.3) / 2; the one of b as it is.
    by_hand = {
        "probability/a/on_a": 0.4,
        "probability/b/on_a": 0.2,
        "probability/a/on_b": 0.5,
        "probability/b/on_b": 0.4,
    }
    assert found == pytest.approx(by_hand)
    assert probability_column("b", "a") in found


def test_a_skill_without_prompts_has_no_probability():
    found = name_probabilities(("a", "b"), ["a"], torch.tensor([[0.6, 0.1]]))
    assert math.isnan(found["probability/a/on_b"])


def test_the_measured_fall_is_the_mean_over_action_tokens():
    before = torch.tensor([[1.0, 0.5], [2.0, 9.0]])
    after = torch.tensor([[0.7, 0.6], [1.1, 0.0]])
    mask = torch.tensor([[True, True], [True, False]])
    zero = torch.zeros(())
    found = drop_metrics(EntropyDrop(zero + 3, zero, zero, zero, zero), before, after, mask)
    # (0.3 - 0.1 + 0.9) / 3
    assert found["drop/measured"] == pytest.approx(1.1 / 3)
    assert found["drop/theorem1"] == 3.0


@pytest.fixture
def lab(task, policy):
    """Function (settings) -> a lab with a policy of its own, and the policy that it started from."""

    def make(config=None, **settings):
        model, tokenizer = policy
        trained = copy.deepcopy(model)
        return Lab(task, trained, tokenizer, LabSettings(**(SMALL | settings)), config or CovConfig(), frozen(model))

    return make


CLIP_COV = CovConfig(cov_type="clip_cov", clip_cov_lb=0.0, clip_cov_ub=1e9, clip_cov_ratio=0.05)


@pytest.mark.slow
def test_recording_changes_nothing_else(lab):
    plain = lab(CLIP_COV)
    recorded = lab(CLIP_COV, record_mechanism=True)
    for (_, values, found), (_, more, found_more) in zip(plain.run(), recorded.run(), strict=True):
        assert str(values) == str({name: more[name] for name in values})
        assert found is None or str(found) == str({name: found_more[name] for name in found})
    for first, second in zip(plain.model.parameters(), recorded.model.parameters(), strict=True):
        assert first.equal(second)


def test_a_step_records_what_it_did(lab):
    run = lab(CLIP_COV, record_mechanism=True)
    before = frozen(run.model)
    rollouts = []
    roll_out = run.roll_out
    run.roll_out = lambda: rollouts.append(roll_out()) or rollouts[-1]
    values = run.step(1)
    prompts, samples, _ = rollouts[0]
    mask = until_end(samples.responses, run.eos)
    entropies = [log_probs_and_entropy(model, prompts, samples.responses)[1] for model in (before, run.model)]
    fall = (entropies[0] - entropies[1])[mask].mean().item()
    assert values["drop/measured"] == pytest.approx(fall, abs=1e-6)
    # Every response that begins with a name is counted once.
    names = [run.words[token] for token in samples.responses[:, 0].tolist()]
    counted = sum(value for name, value in values.items() if name.startswith("decision/sampled"))
    assert counted == sum(name in "abcd" for name in names) > 0
    # As many decision tokens were selected as are among all selected tokens, at most.
    selected = sum(value for name, value in values.items() if name.startswith("decision/selected_o"))
    assert 0 <= selected <= counted


def test_an_evaluation_has_the_probabilities_of_all_names(lab):
    found = lab(record_mechanism=True).evaluate()
    columns = {name: value for name, value in found.items() if name.startswith("probability/")}
    assert len(columns) == len(TASKS["commands"]().skills) ** 2
    # The untrained policy hardly knows the letter: every name has about one in 47 words.
    assert all(0.0 < value < 0.2 for value in columns.values())
    assert not any(name.startswith("probability/") for name in lab().evaluate())


def test_a_task_without_skills_records_the_fall_of_the_entropy_alone(task, policy):
    model, tokenizer = policy
    run = Lab(
        replace(task, skill_of=None),
        copy.deepcopy(model),
        tokenizer,
        LabSettings(**SMALL, record_mechanism=True),
        CovConfig(),
    )
    values = run.step(1)
    assert math.isfinite(values["drop/measured"])
    assert not any(name.startswith("decision/") for name in values)
