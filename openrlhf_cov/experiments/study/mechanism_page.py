"""Write the figure and the table of what each method does to the names of rare skills (pure)."""

from collections.abc import Sequence

import numpy as np

from openrlhf_cov.analysis.pages.chart import STEPS, Axis, Chart, Look, Mark, Panel
from openrlhf_cov.experiments.lab.mechanism import (
    ADVANTAGE,
    OTHER,
    OWN,
    SELECTED,
    SELECTED_ADVANTAGE,
    probability_column,
)
from openrlhf_cov.experiments.study.answer import Runs
from openrlhf_cov.experiments.study.document import Section
from openrlhf_cov.experiments.study.run_results import Floats, Result, hard_accuracy
from openrlhf_cov.experiments.tiny_task.hidden_skills import HABIT, SKILLS

# The half of the skills that the base policy names least.
RARE = tuple(SKILLS)[len(SKILLS) // 2 :]
# The part of a run that decides: later, the policy has chosen its names.
EARLY_STEPS = 100
OWN_LOOK = Look("#009e73", dash="solid", width=2.0)
OTHER_LOOK = Look("#d55e00", dash="dash", width=1.6)
HABIT_LOOK = Look("#777777", dash="dot", width=1.4)
# Places of the marks for selected tokens, above the highest probability.
OWN_PLACE = 3.0
OTHER_PLACE = 10.0
LOWEST_SHOWN = 1e-4
# The axis of probabilities; the two rows of marks above it are labelled, too.
TICKS = {1e-4: "0.0001", 1e-3: "0.001", 1e-2: "0.01", 0.1: "0.1", 1.0: "1", OWN_PLACE: "own", OTHER_PLACE: "other"}
QUESTION = "Which names survive, and what does each method do to them?"
HEAD = (
    "method",
    "runs",
    f"rare names on own prompts, step {EARLY_STEPS}",
    "largest ratio, own to other",
    "rare names on own prompts, end",
    "rare names on other prompts, end",
    "habit on other prompts, end",
    "accuracy on hard questions",
    f"push down removed, first {EARLY_STEPS} steps",
    f"push up removed, first {EARLY_STEPS} steps",
)


def name_probability(result: Result, own: bool, names: Sequence[str] = RARE) -> Floats:
    """Return the mean probability (n,) of names at each evaluation.

    Args:
        result: A run with ``--record_mechanism``.
        own: On the prompts of the name's own skill; otherwise on the prompts of all other skills.
        names: The names over which the mean is.
    """
    columns = [probability_column(name, skill) for name in names for skill in SKILLS if (name == skill) == own]
    return np.mean([result.evaluations.column(column) for column in columns], axis=0)


def name_at(result: Result, step: int) -> float:
    """Return the mean probability of the rare names on their own prompts at the evaluation of a step.

    Args:
        result: A run with ``--record_mechanism``.
        step: A step that has an evaluation.
    """
    [place] = np.nonzero(result.evaluations.steps == step)[0]
    return float(name_probability(result, own=True)[place])


def peak_ratio(result: Result) -> float:
    """Return the largest ratio of a rare name's probability on its own prompts to that on other prompts."""
    return float((name_probability(result, own=True) / name_probability(result, own=False)).max())


def removed_share(result: Result, sign: int, steps: int = EARLY_STEPS) -> float:
    """Return the share of the advantages on rare names that the method removed in the first steps.

    Args:
        result: A run with ``--record_mechanism``.
        sign: -1 for the sum of the advantages on other prompts, where rare names are incorrect and are pushed down. 1
            for the sum on own prompts, where they are pushed up.
        steps: Number of steps.

    Returns:
        The sum of the advantages of selected decision tokens over that of all; NaN if the latter is 0.
    """
    side = OWN if sign > 0 else OTHER
    removed = sum(result.metrics.column(f"{SELECTED_ADVANTAGE}_{side}/{name}")[:steps].sum() for name in RARE)
    total = sum(result.metrics.column(f"{ADVANTAGE}_{side}/{name}")[:steps].sum() for name in RARE)
    return float(removed / total) if total else float("nan")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the lowest and the highest value, such as "0.66–1.00"; one number if both are equal after rounding.

    Args:
        values: At least one number.
        digits: Digits after the decimal point.
    """
    # Adding 0 turns a rounded -0.0 into 0.0.
    low, high = (f"{round(float(end), digits) + 0.0:.{digits}f}" for end in (min(values), max(values)))
    found = low if low == high else f"{low}–{high}"
    return found.replace("-", "−")


def mechanism_section(runs: Runs) -> Section:
    """Return the table: a row for each method with a finished run."""
    rows = []
    for method, of_method in runs.items():
        found = list(of_method.values())
        if not found:
            continue
        numbers = [
            [name_at(each, EARLY_STEPS) for each in found],
            [peak_ratio(each) for each in found],
            [name_probability(each, own=True)[-1] for each in found],
            [name_probability(each, own=False)[-1] for each in found],
            [name_probability(each, own=False, names=(HABIT,))[-1] for each in found],
            [hard_accuracy(each)[-1] for each in found],
            [removed_share(each, -1) for each in found],
            [removed_share(each, 1) for each in found],
        ]
        rows.append((method, str(len(found)), *(spread(values, 3) for values in numbers)))
    text = (
        f"Rare names are {', '.join(RARE)}, the four that the base policy says least. Own prompts of a name are "
        "those for which it is correct. The largest ratio is that of the probability on own prompts to that on other "
        "prompts, over all evaluations of a run. The hard questions are those that the habit does not answer. The "
        "push down is the sum of the advantages of rare names on other prompts, and the push up the sum on own "
        "prompts. What is removed is the share of that sum on tokens that the method selects: Clip-Cov, Clip_V and "
        "random drop mask their gradient, and KL-Cov adds a KL penalty instead, so its share is not removed in full. "
        "Numbers are the lowest and the highest value over seeds."
    )
    return Section(QUESTION, (text,), HEAD, tuple(rows))


def mechanism_chart(runs: Runs) -> Chart:
    """Return a panel for each method: probabilities of names over the steps, a line for each seed.

    Marks at the top are the steps at which the method selected the decision token of a rare name.
    """
    panels = []
    for method, of_method in runs.items():
        marks: list[Mark] = []
        for place, result in enumerate(of_method.values()):
            steps = result.evaluations.steps
            lines = (
                ("rare name, own prompts", OWN_LOOK, name_probability(result, own=True)),
                ("rare name, other prompts", OTHER_LOOK, name_probability(result, own=False)),
                ("habit, other prompts", HABIT_LOOK, name_probability(result, own=False, names=(HABIT,))),
            )
            for name, look, values in lines:
                marks.append(
                    Mark(
                        "line",
                        look,
                        steps,
                        # A logarithmic axis has no place for 0.
                        np.maximum(values, LOWEST_SHOWN),
                        name=name if not place else "",
                        group=name,
                    )
                )
            for name, look, side, height in (
                ("selected on own prompts", OWN_LOOK, OWN, OWN_PLACE),
                ("selected on other prompts", OTHER_LOOK, OTHER, OTHER_PLACE),
            ):
                chosen = selected_steps(result, side)
                if len(chosen):
                    rug = Look(look.color, marker="circle", size=2.2, opacity=0.35)
                    marks.append(
                        Mark(
                            "dots",
                            rug,
                            chosen,
                            np.full(len(chosen), height),
                            name=name if not place else "",
                            group=name,
                        )
                    )
        if marks:
            y = Axis("probability", log=True, ticks=TICKS, ends=(LOWEST_SHOWN / 2, 2 * OTHER_PLACE))
            panels.append(Panel(tuple(marks), STEPS, y, title=method))
    note = (
        "Probability of the names of the four rare skills, mean over names, on the prompts of their own skill and "
        "on all other prompts; and of the habit on prompts of other skills. A line for each seed. Dots at the top: "
        "steps at which the method selected a decision token with a rare name."
    )
    return Chart("names", "Names of rare skills", tuple(panels), note, note, linked=True, columns=2, row=2.3)


def selected_steps(result: Result, side: str) -> Floats:
    """Return the steps at which the method selected a decision token with a rare name.

    Args:
        result: A run with ``--record_mechanism``.
        side: ``OWN`` for tokens on prompts of the name's own skill, ``OTHER`` for tokens on all other prompts.
    """
    counts = sum((result.metrics.column(f"{SELECTED}_{side}/{name}") for name in RARE), np.zeros(len(result.metrics)))
    return result.metrics.steps[counts > 0].astype(np.float64)
