"""Compute what ``--record_mechanism`` records: probabilities of the names of skills, and predicted entropy changes.

Where each prompt of a task belongs to a skill, the decision token is the name of a skill. *Own* prompts of a name are
those of its skill, for which the name is correct. *Other* prompts are all others.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from openrlhf_cov.models.entropy_change import EntropyDrop

OWN = "own"
OTHER = "other"
# Beginnings of the columns of a step, by name of a skill; see ``decision_metrics``.
SAMPLED = "decision/sampled"
SELECTED = "decision/selected"
ADVANTAGE = "decision/advantage"
SELECTED_ADVANTAGE = "decision/selected_advantage"
# Of an evaluation; see ``name_probabilities``.
PROBABILITY = "probability"
# Of a step: predictions of the fall of the entropy, and the fall that was measured.
DROP = "drop"
MEASURED = f"{DROP}/measured"


def decision_metrics(
    names: Sequence[str], asked: Sequence[str], said: Sequence[str], advantages: Tensor, selected: Tensor
) -> dict[str, float]:
    """Return what one step does with the decision tokens.

    Args:
        names: Names of all skills.
        asked: Skill of the prompt of each sample (B).
        said: Decision token of each sample (B), as a word; a word that is no name is left out.
        advantages: Advantages (B,) of these tokens.
        selected: True (B,) for decision tokens that the method acts on: those that Clip-Cov drops, for example.

    Returns:
        For each name, on its own and on other prompts: how often the name was sampled and selected, and the sums of
        the advantages of all its tokens and of the selected ones.
    """
    values: dict[str, float] = {}
    for name in names:
        for side in (OWN, OTHER):
            is_side = [skill == name if side == OWN else skill != name for skill in asked]
            among = torch.tensor([word == name and here for word, here in zip(said, is_side, strict=True)])
            taken = among & selected
            values[f"{SAMPLED}_{side}/{name}"] = among.sum().item()
            values[f"{SELECTED}_{side}/{name}"] = taken.sum().item()
            values[f"{ADVANTAGE}_{side}/{name}"] = advantages[among].sum().item()
            values[f"{SELECTED_ADVANTAGE}_{side}/{name}"] = advantages[taken].sum().item()
    return values


def name_probabilities(names: Sequence[str], asked: Sequence[str], probabilities: Tensor) -> dict[str, float]:
    """Return ``probability/NAME/on_SKILL``: the mean probability of each name on the prompts of each skill.

    Args:
        names: Names of all skills.
        asked: Skill of each prompt (N).
        probabilities: Probability (N, len(names)) of each name as the decision token.
    """
    values: dict[str, float] = {}
    for skill in names:
        rows = torch.tensor([each == skill for each in asked])
        means = probabilities[rows].mean(0).tolist() if rows.any() else [float("nan")] * len(names)
        values |= {probability_column(name, skill): mean for name, mean in zip(names, means, strict=True)}
    return values


def probability_column(name: str, skill: str) -> str:
    """Return the column of an evaluation that has the probability of a name on the prompts of a skill.

    Args:
        name: Name of a skill, as the decision token of a response.
        skill: Name of the skill to which the prompts belong: ``name`` for own prompts, another one for other prompts.
    """
    return f"{PROBABILITY}/{name}/on_{skill}"


def drop_metrics(predicted: EntropyDrop, before: Tensor, after: Tensor, action_mask: Tensor) -> dict[str, float]:
    """Return the predicted falls of the entropy beside the measured one.

    Args:
        predicted: The predictions of the step.
        before: Entropy (B, A) at the tokens of the rollout, before the first update of the step.
        after: The same after the last update, at the same tokens: no other prompt or sample adds to the difference.
        action_mask: True (B, A) for the action tokens.
    """
    values = {f"{DROP}/{name}": value.item() for name, value in vars(predicted).items()}
    mask = action_mask.bool()
    return values | {MEASURED: (before[mask].double() - after[mask].double()).mean().item()}
