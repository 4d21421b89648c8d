"""When a run of the lab may end before its last step (pure)."""

from collections.abc import Mapping
from typing import Literal

# Name of the entropy, in nats, of the token that decides between the answers of a task.
DECISION_ENTROPY = "decision_entropy"
# Accuracy from which the task is solved.
SOLVED_FROM = 0.95
# Entropy of the decision token in nats below which the policy has collapsed. At this entropy the most probable token
# has a probability of about 0.997, so that a group of 8 samples nearly never has a second answer.
COLLAPSED_BELOW = 0.02


def outcome_of(evaluation: Mapping[str, float]) -> Literal["solved", "collapsed"] | None:
    """Return what an evaluation says of the run.

    Args:
        evaluation: The numbers of ``openrlhf_cov.experiments.lab.training.Lab.evaluate``.

    Returns:
        "solved" from an accuracy of ``SOLVED_FROM`` on, on the questions that the habit of the base policy does not
        answer; else "collapsed" below ``COLLAPSED_BELOW``; else None.
    """
    if evaluation.get("greedy_hard", evaluation["greedy"]) >= SOLVED_FROM:
        return "solved"
    return "collapsed" if evaluation.get(DECISION_ENTROPY, COLLAPSED_BELOW) < COLLAPSED_BELOW else None
