"""Summarise a sweep: the critical value of each method, or the region of settings in which it learns (pure)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from openrlhf_cov.analysis.pages.chart import Axis, Chart, Look, Mark, Panel
from openrlhf_cov.experiments.study.answer import NOT_ENOUGH, Answer, shown
from openrlhf_cov.experiments.study.critical import CriticalValue, fit_critical_value
from openrlhf_cov.experiments.study.run_plan import REPORT, chosen, has_learned
from openrlhf_cov.experiments.study.run_results import Result, score_of
from openrlhf_cov.experiments.study.seed_estimates import share_of_seeds
from openrlhf_cov.experiments.study.spec import Configuration, Spec, StudyMethod
from openrlhf_cov.utils.estimates import Interval

LEARNING_RATE = "--actor.adam.lr"
# Share of the seeds that must learn in the region of learning rates.
HALF = 0.5
# Colors of a configuration with which no seed learns, and of one with which all do.
NONE_LEARNS = (224, 224, 224)
ALL_LEARN = (0, 68, 136)

# Configuration of a sweep -> seed -> True if the run learned the task.
Outcomes = Mapping[Configuration, Mapping[int, bool]]


def sweep_answer(spec: Spec, results: Sequence[Result]) -> Answer:
    """Return the table of a sweep: critical values of a bisection, else the share that learns by configuration.

    Args:
        spec: The study, which has a sweep.
        results: Its finished runs, from none to all.
    """
    assert spec.sweep is not None
    return critical_values(spec, results) if spec.sweep.bisect else learned_regions(spec, results)


def runs_of(spec: Spec, method: StudyMethod, results: Sequence[Result]) -> dict[Configuration, dict[int, Result]]:
    """Return the finished runs of a method, by the configuration of the sweep and the seed.

    Args:
        spec: The study, which has a sweep.
        method: The method. Only runs with the configuration that tuning selected for it count.
        results: Finished runs of the study.

    Returns:
        Every configuration of the sweep -> seed -> run. There is no seed while tuning is not finished.
    """
    assert spec.sweep is not None
    selected = chosen(spec, method, {each.run: score_of(each) for each in results if each.run.stage != REPORT})
    found: dict[Configuration, dict[int, Result]] = {configuration: {} for configuration in spec.sweep.configurations}
    if selected is None:
        return found
    for each in results:
        run = each.run
        swept = run.configuration[len(selected) :]
        has_selected = run.configuration[: len(selected)] == selected
        # Other runs of the method are those of tuning.
        if run.method == method.name and run.stage == REPORT and has_selected and swept in found:
            found[swept][run.seed] = each
    return found


def outcomes_of(spec: Spec, method: StudyMethod, results: Sequence[Result]) -> dict[Configuration, dict[int, bool]]:
    """Return whether each finished run of a method learned the task; see ``runs_of``."""
    return {
        configuration: {seed: has_learned(spec, score_of(run)) for seed, run in found.items()}
        for configuration, found in runs_of(spec, method, results).items()
    }


def critical_values(spec: Spec, results: Sequence[Result]) -> Answer:
    """Return a row for each method: the value at which half of its runs still learn, and what was run.

    Args:
        spec: The study, with a sweep over one flag.
        results: Its finished runs. A method without any has a row without a value.
    """
    assert spec.sweep is not None
    [flag] = settings_of(spec.sweep.configurations[0])
    values = {configuration: settings_of(configuration)[flag] for configuration in spec.sweep.configurations}
    question = f"Up to which {flag} does each method learn?"
    tried = [float(value) for value in values.values()]
    policies = range(spec.base_policies) if spec.base_policies > 1 else ()
    rows = []
    for method in spec.methods:
        outcomes = outcomes_of(spec, method, results)
        runs = [
            (seed, float(values[configuration]), learned)
            for configuration, found in outcomes.items()
            for seed, learned in found.items()
        ]
        counts = [f"{sum(found.values())}/{len(found)}" if found else "" for found in outcomes.values()]
        of_policies = []
        for policy in policies:
            own = [run for run in runs if run[0] % spec.base_policies == policy]
            of_policies.append(nearest(_fit(own).value.estimate, tried) if own else "")
        if runs:
            fit = _fit(runs)
            slope = f"{fit.slope:.1f}" if 0.0 < fit.value.estimate < math.inf else ""
            rows.append((method.name, str(len(runs)), bounded(fit.value, tried), slope, *of_policies, *counts))
        else:
            rows.append((method.name, "0", "", "", *of_policies, *counts))
    text = (
        f"The critical value is that of {flag} at which half of the runs learn the task: a logistic fit on the "
        "logarithm of the value with the 95 % interval of the profile likelihood. A run has learned the task from an "
        f"accuracy of {spec.learned:g} on, on the validation questions that the habit of the base policy does not "
        "answer. Each seed runs the values that its bisection needs; the columns on the right count runs that learned "
        "among those that were run. The fit takes the runs as independent given the value, although a seed and a base "
        "policy have several; the critical value of each base policy alone shows how much they differ."
    )
    head = (
        "method",
        "runs",
        "critical value",
        "slope",
        *(f"base policy {each}" for each in policies),
        *values.values(),
    )
    return Answer(question, text, head, tuple(rows))


def _fit(runs: Sequence[tuple[int, float, bool]]) -> CriticalValue:
    """Return the fit of runs with a seed, a value and an outcome each."""
    return fit_critical_value([value for _, value, _ in runs], [learned for *_, learned in runs])


def critical_fits(spec: Spec, results: Sequence[Result]) -> dict[str, CriticalValue]:
    """Return the critical value of each method of a bisection that has a finished run.

    Args:
        spec: The study, with a sweep over one flag.
        results: Its finished runs.

    Returns:
        Method -> critical value. The method with the largest one comes first; methods with the same one keep the order
        of the spec.
    """
    fits = {}
    for method in spec.methods:
        runs = [
            (seed, float(value), learned)
            for configuration, by_seed in outcomes_of(spec, method, results).items()
            for value in settings_of(configuration).values()
            for seed, learned in by_seed.items()
        ]
        if runs:
            fits[method.name] = _fit(runs)
    return dict(sorted(fits.items(), key=lambda item: -item[1].value.estimate))


def critical_panel(spec: Spec, results: Sequence[Result]) -> Panel | None:
    """Return the critical value of each method as a dot with its interval, the largest on top.

    Dots and intervals are clipped to the range of the values that were run.

    Args:
        spec: The study, with a sweep over one flag.
        results: Its finished runs.

    Returns:
        The panel; None without a finished run.
    """
    fits = critical_fits(spec, results)
    if not fits:
        return None
    assert spec.sweep is not None
    tried = [value for configuration in spec.sweep.configurations for value in settings_of(configuration).values()]
    numbers = [float(value) for value in tried]
    [flag] = settings_of(spec.sweep.configurations[0])
    places = list(range(len(fits), 0, -1))
    middle, low, high = (
        np.clip([getattr(fit.value, end) for fit in fits.values()], min(numbers), max(numbers))
        for end in ("estimate", "low", "high")
    )
    look = Look("#0072b2", marker="circle", size=9.0)
    # The logarithm is taken here, because the ticks are the values that were run.
    mark = Mark("dots", look, np.log(middle), places, np.log(low), np.log(high), whiskers="x")
    x = Axis(flag, ticks=dict(zip(np.log(numbers).tolist(), tried, strict=True)))
    y = Axis(ticks=dict(zip(places, fits, strict=True)), ends=(0.4, len(fits) + 0.6))
    return Panel((mark,), x, y, "critical value: half of the runs learn")


def bounded(value: Interval, values: Sequence[float]) -> str:
    """Return a critical value with its interval; an end beyond the values that were run is an inequality.

    An interval that lies beyond them as a whole is one inequality.

    Args:
        value: The critical value with its interval; an end may be 0 or infinity.
        values: The values that were run, in any order.
    """
    estimate, low, high = (nearest(end, values) for end in (value.estimate, value.low, value.high))
    return estimate if estimate == low == high else f"{estimate} [{low}, {high}]"


def nearest(value: float, values: Sequence[float]) -> str:
    """Return a critical value with three decimals, or an inequality such as "above 0.5".

    Args:
        value: The critical value, from 0 to infinity.
        values: The values that were run, beyond which nothing is known of it.
    """
    if value < min(values):
        return f"below {min(values):g}"
    return f"above {max(values):g}" if value > max(values) else f"{value:.3f}"


def learned_regions(spec: Spec, results: Sequence[Result]) -> Answer:
    """Return a row for each method and setting beside the learning rate: how many seeds learn at each learning rate.

    Args:
        spec: The study, with a sweep over the learning rate and perhaps other flags.
        results: Its finished runs.

    Returns:
        The table. Its last column is the width of the learning rates at which half of the seeds learn, in decades.
        With fewer than two learning rates the answer is ``NOT_ENOUGH``.
    """
    question = "In which region of settings does each method learn?"
    rates = learning_rates_of(spec)
    if len(rates) < 2:
        return Answer(question, f"{NOT_ENOUGH}: the sweep has fewer than two values of {LEARNING_RATE}.")
    rows = []
    most = 0
    for method in spec.methods:
        for other, by_rate in by_setting(outcomes_of(spec, method, results)).items():
            found = [by_rate.get(rate, []) for rate in rates]
            most = max(most, *map(len, found))
            cells = [f"{sum(each)} of {len(each)}" if each else "" for each in found]
            rows.append((method.name, other, *cells, width_of(rates, found)))
    text = (
        "The columns of learning rates have the number of seeds that learned the task. A run has learned it from an "
        f"accuracy of {spec.learned:g} on, on the validation questions that the habit of the base policy does not "
        "answer. "
    )
    if most:
        text += (
            "The exact 95 % interval of their share (Clopper and Pearson) is "
            f"{shown(share_of_seeds(0, most))} for 0 of {most} and {shown(share_of_seeds(most, most))} for {most} of "
            f"{most}. "
        )
    text += (
        "The width is that of all learning rates at which at least half of the seeds learn, in decades, with "
        "straight lines between the values that were run; it is at least so wide where the region reaches the end of "
        "the values."
    )
    head = ("method", "setting", *(f"lr {text}" for text in rates.values()), "width, decades")
    return Answer(question, text, head, tuple(rows))


def width_of(rates: Mapping[float, str], found: Sequence[Sequence[bool]]) -> str:
    """Return the width in decades of the learning rates at which at least half of the seeds learn.

    Args:
        rates: Learning rates in increasing order, with how the spec writes them.
        found: For each of them, whether each finished run learned.

    Returns:
        The width, as a lower bound if the region reaches an end of the rates; empty if a rate has no finished run.
    """
    if not all(found):
        return ""
    width, reaches_end = solved_width(list(rates), [float(np.mean(each)) for each in found])
    return f"at least {width:.2f}" if reaches_end else f"{width:.2f}"


def solved_width(rates: Sequence[float], shares: Sequence[float], level: float = HALF) -> tuple[float, bool]:
    """Return how many decades of learning rates are solved, and whether the region reaches an end of the rates.

    Args:
        rates: Learning rates that increase.
        shares: Share of the seeds that learn at each of them, which is linear in the logarithm of the rate in between.
        level: Share from which on a rate is solved.

    Returns:
        The width in decades, and True if the region reaches the smallest or the largest rate.

    Raises:
        ValueError: There are fewer than two rates, or not as many shares as rates.
    """
    if len(rates) != len(shares) or len(rates) < 2:
        raise ValueError(f"a width needs two rates with a share each; got {len(rates)} and {len(shares)}")
    places = np.log10(np.asarray(rates, dtype=np.float64))
    width = 0.0
    for number in range(len(places) - 1):
        left = shares[number]
        right = shares[number + 1]
        length = float(places[number + 1] - places[number])
        if min(left, right) >= level:
            width += length
        elif max(left, right) >= level:
            # The line from one share to the other is above the level for this part of the way.
            width += length * (max(left, right) - level) / abs(right - left)
    return width, shares[0] >= level or shares[-1] >= level


def learning_rates_of(spec: Spec) -> dict[float, str]:
    """Return the learning rates of a sweep in increasing order, each with how the spec writes it."""
    configurations = spec.sweep.configurations if spec.sweep else ()
    texts = [
        found[LEARNING_RATE]
        for configuration in configurations
        if LEARNING_RATE in (found := settings_of(configuration))
    ]
    return {float(text): text for text in sorted(texts, key=float)}


def by_setting(outcomes: Outcomes) -> dict[str, dict[float, list[bool]]]:
    """Return the outcomes by the settings beside the learning rate, as words, and then by the learning rate."""
    found: dict[str, dict[float, list[bool]]] = {}
    for configuration, learned in outcomes.items():
        settings = settings_of(configuration)
        rate = float(settings.pop(LEARNING_RATE))
        other = " ".join(f"{flag} {value}" for flag, value in settings.items())
        found.setdefault(other, {}).setdefault(rate, []).extend(learned.values())
    return found


def settings_of(configuration: Configuration) -> dict[str, str]:
    """Return flag -> value of a configuration, such as {"--updates": "4"}."""
    found: dict[str, list[str]] = {}
    for word in configuration:
        if word.startswith("--"):
            found[word] = []
        else:
            next(reversed(found.values())).append(word)
    return {flag: " ".join(words) for flag, words in found.items()}


def maps(spec: Spec, results: Sequence[Result]) -> list[Chart]:
    """Return the map of the learning rate: a panel for each method, a colored dot for each configuration.

    Args:
        spec: The study.
        results: Its finished runs; a configuration without any has no dot.

    Returns:
        A list with the map; empty for a bisection, a sweep with fewer than two learning rates, or no finished run.
    """
    rates = learning_rates_of(spec)
    if spec.sweep is None or spec.sweep.bisect or len(rates) < 2 or not results:
        return []
    panels = []
    said = []
    for method in spec.methods:
        settings = by_setting(outcomes_of(spec, method, results))
        marks = []
        for place, (other, by_rate) in enumerate(settings.items()):
            for rate, learned in by_rate.items():
                if not learned:
                    continue
                share = sum(learned) / len(learned)
                text = f"{method.name}, {other} {LEARNING_RATE} {rates[rate]}: {sum(learned)} of {len(learned)} learn"
                said.append(text)
                look = Look(color_of_share(share), marker="square", size=16.0)
                marks.append(Mark("dots", look, [math.log10(rate)], [place], hover=f"{text}<extra></extra>"))
        y = Axis(ticks=dict(enumerate(settings)), ends=(-0.6, len(settings) - 0.4))
        x = Axis("learning rate", ticks={math.log10(rate): text for rate, text in rates.items()})
        panels.append(Panel(tuple(marks), x, y, title=method.name))
    note = "Share of the seeds that learn the task: from light grey (none) to dark blue (all)."
    return [Chart("map", "Where each method learns", tuple(panels), "; ".join(said), note, columns=2, row=2.0)]


def color_of_share(share: float) -> str:
    """Return a color between that of no seed and that of all seeds."""
    parts = [round(low + share * (high - low)) for low, high in zip(NONE_LEARNS, ALL_LEARN, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in parts)
