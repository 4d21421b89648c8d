"""The result of a study in two or three sentences, from the numbers of its table (pure)."""

import math
from collections.abc import Sequence

from openrlhf_cov.experiments.study.answer import NOT_ENOUGH, differs, lacks_interval, rule
from openrlhf_cov.experiments.study.questions import words_of
from openrlhf_cov.experiments.study.run_results import Result
from openrlhf_cov.experiments.study.seed_estimates import FEWEST
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.sweeps import (
    by_setting,
    critical_fits,
    learning_rates_of,
    nearest,
    outcomes_of,
    settings_of,
    width_of,
)
from openrlhf_cov.experiments.study.table_rows import MethodRow, main_rows

NOTHING_FINISHED = f"{NOT_ENOUGH}: the runs that a comparison needs are not finished."


def summary(spec: Spec, results: Sequence[Result]) -> str:
    """Return sentences on which methods are better than the first one of the spec, as far as the intervals show it.

    Args:
        spec: The study.
        results: Its finished runs.
    """
    if spec.sweep is None:
        return summary_of_rows(spec, main_rows(spec, results))
    if spec.sweep.bisect:
        return summary_of_critical_values(spec, results)
    return summary_of_widths(spec, results)


def summary_of_rows(spec: Spec, rows: Sequence[MethodRow]) -> str:
    """Return which methods end with a higher accuracy than the first one, and which learn faster."""
    baseline, *others = rows
    if not baseline.seeds:
        return NOTHING_FINISHED
    # Methods with a random reward are controls.
    compared = [row for row in others if row.method in words_of(spec) and row.pairs >= FEWEST]
    if not compared:
        return f"No method has two finished seeds in common with {baseline.method}, so no difference is shown."
    higher = differing(compared, "accuracy", sign=1)
    lower = differing(compared, "accuracy", sign=-1)
    faster = differing(compared, "area", sign=1)
    if higher or lower:
        first = f"{joined(higher)} {_verb('end', higher)}" if higher else "No method ends"
        second = f", and {joined(lower)} {_verb('end', lower)} with a lower one" if lower else ""
        sentences = [f"{first} with a higher accuracy than {baseline.method}{second}."]
    else:
        sentences = [f"No method differs from {baseline.method} in final accuracy."]
    equal = without_interval(compared, "accuracy")
    if equal:
        sentences.append(
            f"{joined(equal)} {_verb('differ', equal)} from {baseline.method} by the same accuracy in every seed, "
            "so there is no interval."
        )
    # A study through Ray evaluates a policy only before and after its training, so it has no learning curve.
    if any(math.isfinite(row.differences["area"].estimate) for row in compared):
        who = f"{joined(faster)} {_verb('learn', faster)}" if faster else "No method learns"
        sentences.append(f"{who} faster, by the area under the learning curve (AUC).")
    pairs = sorted({row.pairs for row in compared})
    seeds = str(pairs[0]) if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    counts = f"difference counts if {rule(f'{seeds} seeds')}."
    if higher or lower or faster:
        sentences.append(f"Numbers in brackets are differences from {baseline.method}; a {counts}")
    else:
        sentences.append(f"A {counts}")
    return " ".join(map(capitalized, sentences))


def differing(rows: Sequence[MethodRow], number: str, sign: int) -> list[str]:
    """Return the methods whose difference has this sign and counts, the largest first, each with its difference."""
    found = [row for row in rows if differs(row.differences[number]) and row.differences[number].estimate * sign > 0]
    return _with_differences(found, number)


def without_interval(rows: Sequence[MethodRow], number: str) -> list[str]:
    """Return the methods with the same difference in every seed that a table shows, each with its difference."""
    return _with_differences([row for row in rows if lacks_interval(row.differences[number])], number)


def _with_differences(found: list[MethodRow], number: str) -> list[str]:
    """Return the methods with their differences, the largest first."""
    found.sort(key=lambda row: -abs(row.differences[number].estimate))
    return [f"{row.method} ({row.differences[number].estimate:+.2f})".replace("(-", "(−") for row in found]


def summary_of_critical_values(spec: Spec, results: Sequence[Result]) -> str:
    """Return the critical value of the first method, and which methods have larger or smaller ones."""
    assert spec.sweep is not None
    baseline = spec.methods[0].name
    known = {method: fit.value for method, fit in critical_fits(spec, results).items()}
    if baseline not in known or len(known) < 2:
        return NOTHING_FINISHED
    settings = [settings_of(configuration) for configuration in spec.sweep.configurations]
    [flag] = settings[0]
    tried = [float(each[flag]) for each in settings]
    own = known.pop(baseline)
    shown = {method: f"{method} ({nearest(value.estimate, tried)})" for method, value in known.items()}
    larger = [shown[method] for method, value in known.items() if value.low > own.high]
    smaller = [shown[method] for method, value in known.items() if value.high < own.low]
    same = [method for method in known if shown[method] not in (*larger, *smaller)]
    sentences = [f"Half of the runs of {baseline} learn up to a {flag} of {nearest(own.estimate, tried)}."]
    if larger:
        sentences.append(f"{joined(larger)} {_verb('learn', larger)} up to larger values.")
    if smaller:
        sentences.append(f"{joined(smaller)} {_verb('learn', smaller)} only up to smaller values.")
    if same:
        sentences.append(f"No difference from {baseline} is shown for {joined(same)}: the 95 % intervals overlap.")
    return " ".join(map(capitalized, sentences))


def summary_of_widths(spec: Spec, results: Sequence[Result]) -> str:
    """Return which method learns over the widest range of learning rates, for each setting of the sweep."""
    baseline = spec.methods[0].name
    rates = learning_rates_of(spec)
    widths: dict[str, dict[str, str]] = {}
    for method in spec.methods:
        for setting, by_rate in by_setting(outcomes_of(spec, method, results)).items():
            # A width needs a finished run at each learning rate.
            width = width_of(rates, [by_rate.get(rate, []) for rate in rates]) if len(rates) > 1 else ""
            if width:
                widths.setdefault(setting, {})[method.name] = width
    parts = []
    for setting, of_setting in widths.items():
        if baseline not in of_setting or len(of_setting) < 2:
            continue
        widest = max(of_setting.values(), key=decades)
        best = [method for method, width in of_setting.items() if width == widest]
        where = f" with {setting}" if setting else ""
        parts.append(f"{joined(best)}{where} ({widest}; {baseline} {of_setting[baseline]})")
    if not parts:
        return NOTHING_FINISHED
    return (
        "The widest range of learning rates at which at least half of the seeds learn, in decades, is that of "
        f"{', '.join(parts)}. A width that differs by less than the spacing of the learning rates shows nothing."
    )


def decades(width: str) -> float:
    """Return the number of a width such as "0.38" or "at least 1.26"."""
    return float(width.split()[-1])


def joined(names: Sequence[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def capitalized(sentence: str) -> str:
    """Return a sentence with a capital first letter; names of methods inside it stay as they are."""
    return sentence[:1].upper() + sentence[1:]


def _verb(verb: str, names: Sequence[str]) -> str:
    return f"{verb}s" if len(names) == 1 else verb
