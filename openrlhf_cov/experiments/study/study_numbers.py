"""The numbers and the figure of docs/study.md, from however many runs of its studies are finished (pure)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openrlhf_cov.analysis.entropy_drop import PREDICTIONS
from openrlhf_cov.analysis.pages.chart import STEPS, Axis, Chart, Look, Mark, Panel, bands, look_of
from openrlhf_cov.experiments.study.answer import Runs, finished_runs, listed
from openrlhf_cov.experiments.study.document import Document, Section
from openrlhf_cov.experiments.study.headroom import (
    ACCURACY,
    BASE_POLICY,
    ENTROPY,
    LEARNED,
    MOST_PASS,
    decision_column,
    headroom_answer,
)
from openrlhf_cov.experiments.study.mechanism_page import EARLY_STEPS, name_at, peak_ratio, removed_share, spread
from openrlhf_cov.experiments.study.run_plan import has_learned, number_of_runs
from openrlhf_cov.experiments.study.run_results import Result, hard_accuracy, score_of
from openrlhf_cov.experiments.study.seed_estimates import share_of_seeds
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.sweeps import (
    bounded,
    by_setting,
    color_of_share,
    critical_fits,
    critical_panel,
    learning_rates_of,
    nearest,
    outcomes_of,
    settings_of,
    width_of,
)

# Rows of the tables and curves: the baseline, methods that drop or penalise tokens, and estimators.
METHODS = ("GRPO", "KL-Cov", "Clip-Cov", "Clip_V", "MaxRL", "pass@k training")
BASELINE = METHODS[0]
# The rows of the map that the figure and the table show.
MAP_SETTING = "--updates 4"
# Decades from which on a difference of two widths is named: the learning rates of the map are half a decade apart.
NAMED_DIFFERENCE = 0.5
HEAD = (
    "method",
    "critical share",
    "learning rates, decades",
    "learned",
    ACCURACY,
    MOST_PASS,
    "decision-token entropy, nats",
)
NONE = "–"


@dataclass(frozen=True)
class Finished:
    """A study and the runs of it that are finished; none if nothing was published yet."""

    name: str
    spec: Spec
    results: Sequence[Result]

    @property
    def progress(self) -> str:
        """The number of finished runs, as words."""
        return f"{len(self.results)} of {number_of_runs(self.spec)} runs"

    @property
    def runs(self) -> Runs:
        """The reported runs of a study without a sweep, by method and seed."""
        return finished_runs(self.spec, self.results)


def table(shortcut: Finished, learning_rates: Finished) -> Section:
    """Return a row for the base policy and for each of ``METHODS``; a number without a finished run is a dash.

    Args:
        shortcut: Study of the critical shares. All columns but the widths are of it, and those from "learned" on of
            the runs with which every search begins.
        learning_rates: Map of the learning rates.
    """
    known = shares_and_widths(shortcut, learning_rates)
    ends = headroom_answer(shortcut.spec, shortcut.results)
    found = {row[0]: dict(zip(ends.head, row, strict=True)) for row in ends.rows} if ends else {}
    rows = []
    for method in (BASE_POLICY, *METHODS):
        end = found.get(method, {})
        cells = (end.get(name, "") for name in (LEARNED, ACCURACY, MOST_PASS, ENTROPY))
        # The other table writes a missing number as a hyphen, or not at all.
        cells = (NONE if cell in ("", "-") else cell for cell in cells)
        rows.append((method, *known.get(method, (NONE, NONE)), *cells))
    return Section("", (), HEAD, tuple(rows))


def shares_and_widths(shortcut: Finished, learning_rates: Finished) -> dict[str, tuple[str, str]]:
    """Return the critical share and the width of the learning rates of each method, as words; a dash for none.

    Args:
        shortcut: Study of the critical shares.
        learning_rates: Map of the learning rates. The widths are those of ``MAP_SETTING``.

    Returns:
        Method -> its critical share and its width, in the order of the critical shares. Methods without a critical
        share come last.
    """
    widths = widths_of(learning_rates)
    tried = shares(shortcut.spec)
    fits = critical_fits(shortcut.spec, shortcut.results)
    found = {}
    for method in dict.fromkeys((*fits, *widths)):
        share = bounded(fits[method].value, tried) if method in fits else NONE
        found[method] = (share, widths.get(method, NONE))
    return found


def widths_of(learning_rates: Finished) -> dict[str, str]:
    """Return the width of the learning rates at which each method learns, in decades.

    Methods without a finished run at one of the learning rates are left out.

    Args:
        learning_rates: Map of the learning rates, of which the rows with ``MAP_SETTING`` are read.
    """
    rates = learning_rates_of(learning_rates.spec)
    widths = {}
    for method in learning_rates.spec.methods:
        outcomes = by_setting(outcomes_of(learning_rates.spec, method, learning_rates.results))[MAP_SETTING]
        width = width_of(rates, [outcomes[rate] for rate in rates])
        if width:
            widths[method.name] = width
    return widths


def shares(spec: Spec) -> list[float]:
    """Return the values of the one flag of a sweep."""
    assert spec.sweep is not None
    return [
        float(value) for configuration in spec.sweep.configurations for value in settings_of(configuration).values()
    ]


def answer(shortcut: Finished, learning_rates: Finished) -> str:
    """Return the answer in three sentences: GRPO's critical share, larger ones, and widths of learning rates.

    Args:
        shortcut: Study of the critical shares.
        learning_rates: Map of the learning rates.
    """
    known = {method: fit.value for method, fit in critical_fits(shortcut.spec, shortcut.results).items()}
    baseline = known.get(BASELINE)
    if baseline is None or not set(METHODS) <= set(known):
        first = "Critical shares are not known yet, because their runs are not finished for all six methods."
    else:
        tried = shares(shortcut.spec)
        above = [
            f"{method} ({nearest(each.estimate, tried)})" for method, each in known.items() if each.low > baseline.high
        ]
        below = [
            f"{method} ({nearest(each.estimate, tried)})" for method, each in known.items() if each.high < baseline.low
        ]
        first = f"GRPO's critical share is {bounded(baseline, tried)}. It is larger with {listed(above)}."
        if below:
            first += f" It is smaller with {listed(below)}."
    return f"{first} {_said_of_widths(learning_rates)}".rstrip()


def _said_of_widths(learning_rates: Finished) -> str:
    widths = widths_of(learning_rates)
    if BASELINE not in widths:
        return ""
    # A width that reaches the end of the values is "at least 1.24".
    numbers = {method: float(width.split()[-1]) for method, width in widths.items()}
    wider = sorted(
        (method for method in widths if numbers[method] >= numbers[BASELINE] + NAMED_DIFFERENCE),
        key=lambda name: -numbers[name],
    )
    said = listed([f"{method} ({widths[method]})" for method in wider])
    # A width is that of the learning rates at which at least half of the seeds learn.
    if numbers[BASELINE]:
        baseline = f"most seeds of GRPO learn over {widths[BASELINE]} decades of learning rates"
    else:
        baseline = "there is no learning rate at which most seeds of GRPO learn"
    return (
        f"Untuned, with four updates at a share of 0.15, {baseline}. The range of learning rates at which most seeds "
        f"learn is at least half a decade wider with {said}."
    )


def said_of_figure(shortcut: Finished, learning_rates: Finished, mechanism: Finished) -> str:
    """Return the caption of the figure, with how many runs each panel has.

    Args:
        shortcut: The sweep of the shortcut's share, for the critical shares.
        learning_rates: The sweep of the learning rate, for the map.
        mechanism: The untuned runs, for the curves.
    """
    parts = []
    if shortcut.results:
        parts.append(f"Dots: critical shares with 95 % intervals ({shortcut.progress}).")
    if learning_rates.results:
        parts.append(f"Map: untuned, four updates, a share of 0.15 ({learning_rates.progress}).")
    parts.append(f"Curves: untuned, at a share of 0.2, mean, lowest and highest seed ({mechanism.progress}).")
    if not learning_rates.results:
        parts.append(f"The map of learning rates has no run yet ({learning_rates.progress}).")
    return " ".join(parts)


def said_of_drops(content: Document) -> str:
    """Return one sentence on how well the theorems predict the fall of the entropy, over the rows of their page."""
    [section] = content.sections
    parts = []
    for prediction in list(PREDICTIONS.values())[:2]:
        column = section.head.index(prediction)
        found = [float(row[column].split()[0]) for row in section.rows if row[column] != "-"]
        if found:
            parts.append(f"{prediction} {signed(min(found))} to {signed(max(found))}")
    return f"Rank correlations with the measured fall over {len(section.rows)} groups of runs: {'; '.join(parts)}."


def signed(value: float) -> str:
    """Return a number with its sign and two digits; 0.00 has none."""
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0.00"


def mechanism_numbers(mechanism: Finished) -> Section:
    """Return the table behind the explanation: rare names on own and other prompts, and what a method removes."""
    rows = []
    for method in METHODS:
        found = list(mechanism.runs.get(method, {}).values())
        if found:
            ratios = [peak_ratio(each) for each in found]
            rows.append(
                (
                    method,
                    f"{sum(has_learned(mechanism.spec, score_of(each)) for each in found)} of {len(found)}",
                    spread([name_at(each, EARLY_STEPS) for each in found], 3),
                    spread(ratios, 0),
                    spread([removed_share(each, -1) for each in found]),
                )
            )
    head = (
        "method",
        "learned",
        f"probability of a rare name, own, step {EARLY_STEPS}",
        "largest ratio, own to other",
        "share of the push down on selected tokens",
    )
    return Section("", (), head, tuple(rows))


def figure(shortcut: Finished, learning_rates: Finished, mechanism: Finished) -> Chart:
    """Return the figure: critical shares and the map of learning rates, if they have runs, and two curves.

    Args:
        shortcut: The sweep of the shortcut's share, for the critical shares.
        learning_rates: The sweep of the learning rate, for the map.
        mechanism: The untuned runs, for the curves.
    """
    runs = {method: mechanism.runs.get(method, {}) for method in METHODS}
    order = list(critical_fits(shortcut.spec, shortcut.results)) or [
        method.name for method in learning_rates.spec.methods
    ]
    critical = critical_panel(shortcut.spec, shortcut.results)
    if critical:
        x = replace(critical.x, title="share of prompts with the shortcut")
        critical = replace(critical, title="critical share: half of the runs learn", x=x)
    of_sweeps = (critical, map_panel(learning_rates, order))
    panels = [panel for panel in of_sweeps if panel]
    panels += [
        Panel(_curves(runs, hard_accuracy), STEPS, Axis(share=True), "accuracy on hard questions"),
        Panel(_curves(runs, _decision_entropy), STEPS, Axis(), "entropy of the decision token (nats)"),
    ]
    note = "Curves: mean, lowest and highest of the finished seeds at a share of 0.2."
    description = f"{'; '.join(panel.title for panel in panels)}. {note}"
    columns = 2 if len(panels) > 3 else len(panels)
    # High enough for the names of all methods.
    row = max(3.0, 1.0 + 0.165 * len(order))
    return Chart("headroom", "", tuple(panels), description, note, columns=columns, row=row)


def _decision_entropy(result: Result) -> np.ndarray:
    return result.evaluations.column(decision_column(result))


def _curves(runs: Mapping[str, Mapping[int, Result]], number: Callable[[Result], np.ndarray]) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    for place, (method, of_method) in enumerate(runs.items()):
        found = list(of_method.values())
        if not found:
            continue
        steps = found[0].evaluations.steps
        values = np.array([number(each) for each in found])
        look = look_of(place, marker="")
        marks += bands(steps, values.min(0), values.max(0), Look(look.color, opacity=0.12), group=method)
        marks.append(Mark("line", look, steps, values.mean(0), name=method))
    return tuple(marks)


def map_panel(study: Finished, methods: Sequence[str]) -> Panel | None:
    """Return methods by learning rates with four updates, colored by the share of the seeds that learn.

    Args:
        study: Map of the learning rates.
        methods: Rows from the top. A method that the map lacks has an empty row, so that a panel with the same rows
            can stand beside this one.

    Returns:
        The panel; None without a finished run. A learning rate without a run has no square.
    """
    rates = learning_rates_of(study.spec)
    places = {method: float(len(methods) - row) for row, method in enumerate(methods)}
    marks = []
    for method in study.spec.methods:
        if method.name not in places:
            continue
        for rate, learned in by_setting(outcomes_of(study.spec, method, study.results))[MAP_SETTING].items():
            if not learned:
                continue
            share = share_of_seeds(sum(learned), len(learned)).estimate
            look = Look(color_of_share(share), marker="square", size=11.0)
            marks.append(Mark("dots", look, [math.log10(rate)], [places[method.name]]))
    if not marks:
        return None
    y = Axis(ticks={place: method for method, place in places.items()}, ends=(0.4, len(methods) + 0.6))
    x = Axis("learning rate", ticks={math.log10(rate): text for rate, text in rates.items()})
    return Panel(tuple(marks), x, y, "seeds that learn: none (grey) to all (blue)")
