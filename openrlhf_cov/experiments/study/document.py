"""A study in words and tables, as a page of HTML and as Markdown (pure); every number comes from the runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from openrlhf_cov.analysis.pages.chart import Chart
from openrlhf_cov.analysis.pages.html import Cell, render
from openrlhf_cov.analysis.pages.plot import figure
from openrlhf_cov.cluster.sizing.prose import counted
from openrlhf_cov.experiments.study.answer import AGAINST, finished_runs, shown
from openrlhf_cov.experiments.study.headroom import headroom_answer, pass_rate_answer
from openrlhf_cov.experiments.study.questions import answers
from openrlhf_cov.experiments.study.run_plan import StudyRun, number_of_runs
from openrlhf_cov.experiments.study.run_results import DIGITS, Result
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.study_charts import charts
from openrlhf_cov.experiments.study.study_summary import summary, summary_of_rows
from openrlhf_cov.experiments.study.sweeps import maps, sweep_answer
from openrlhf_cov.experiments.study.table_rows import MethodRow, main_rows, tuning_rows

# Number of a row -> heading of the main table.
MAIN = {
    "accuracy": "accuracy",
    "worst kind": "worst kind",
    "pass@1": "pass@1",
    "pass@8": "pass@8",
    "pass@32": "pass@32",
    "half-way": "accuracy at 50 %",
    "area": "AUC",
    "mean first-token entropy": "mean first-token entropy",
    "entropy": "mean entropy",
    "length": "length",
    "seconds": "s/step",
}
# Number of a row -> heading of the table of what the updates did.
UPDATES = {
    "selected": "selected tokens, %",
    "positive mass": "positive mass",
    "negative mass": "negative mass",
    "no gradient": "tokens without gradient, %",
    "norm": "gradient norm",
    "truncated": "truncated responses, %",
    "frozen entropy": "final entropy",
    "base kl": "final KL to the base policy",
}
HOW = (
    "Accuracy is greedy. It, pass@k (unbiased) and pass@1 are measured on the test split after the last step; no "
    "choice used this split. Worst kind is the lowest accuracy over the kinds of questions. Accuracy at 50 % is "
    "greedy accuracy on the validation split in the middle of the run, and AUC the area under its learning curve. "
    "Entropies are means over the run in nats, of all tokens and of the first token of a response, which is the "
    "decision token. Seconds per step are CPU seconds in the lab, wall-clock seconds through Ray.",
    "Brackets are 95 % intervals over seeds (Student's t), cut at 0 and 1 for shares such as accuracy, and at 0 and "
    "100 for percentages. Differences are paired by seed; one that is equal in all seeds has no interval. "
    "The intervals describe other seeds of the same task and base policy. They are not corrected for the number of "
    "methods, so one of twenty true ties shows a difference. "
    "The interval over questions resamples the test questions of the same runs.",
)
WHAT = (
    "Means over the steps: selected tokens (a quota selects at least one token), the gradient weights that raise and "
    "lower probabilities after all weights and clips (docs/metrics.md), tokens without gradient, the gradient norm "
    "and truncated responses. The last two columns are measured on frozen prompts after the last step, in nats "
    "per token; older runs lack some of them."
)
TUNING = (
    "Validation accuracy after the last step for each tuning seed. Among the configurations with all tuning seeds, "
    "the highest mean accuracy decides, and the larger mean AUC if means agree to four decimals. An asterisk marks "
    "the selected configuration."
)
TUNING_HEAD = ("method", "configuration", "accuracy", "mean accuracy", "mean AUC")
UNTUNED = "Nothing was tuned: each method has one configuration. No checkpoint was selected."
SWEPT = (
    "Nothing was tuned: each method has one main setting, and all have the same other values of the sweep. "
    "No checkpoint was selected."
)


@dataclass(frozen=True)
class Section:
    """Paragraphs and a table."""

    title: str
    paragraphs: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Document:
    """The title, text, tables and charts of a study."""

    title: str
    about: str
    sections: tuple[Section, ...]
    charts: tuple[Chart, ...]
    # The result in a few sentences.
    summary: str = ""


def document(spec: Spec, results: Sequence[Result]) -> Document:
    """Return the document of a study.

    Args:
        spec: The study.
        results: Its finished runs, from none to all. The text says how many are missing.
    """
    if spec.sweep:
        return sweep_document(spec, results)
    rows = main_rows(spec, results)
    runs = finished_runs(spec, results)
    tuning = tuple(tuning_table(spec, results))
    head = ("method", "seeds", "configuration", *MAIN.values(), "accuracy over questions")
    begun = (progress(spec, results), *mixed(spec, results))
    sections = [
        *of_headroom(spec, results),
        Section("Results", (*begun, *HOW, how_tuned(spec)), head, tuple(map(main_cells, rows))),
        Section(
            AGAINST,
            (f"Each method minus {rows[0].method}, on the seeds that both have.",),
            ("method", "seeds", *(MAIN[name] for name in DIFFERENCES), "accuracy over questions"),
            tuple(map(difference_cells, rows[1:])),
        ),
        Section(
            "What the updates did", (WHAT,), ("method", "seeds", *UPDATES.values()), tuple(map(update_cells, rows))
        ),
        *(Section(each.question, (each.text,), each.head, each.rows) for each in answers(spec, results, rows)),
    ]
    if tuning:
        sections.append(Section("Tuning", (TUNING,), TUNING_HEAD, tuning))
    return Document(spec.title, spec.about, tuple(sections), tuple(charts(rows, runs)), summary_of_rows(spec, rows))


def sweep_document(spec: Spec, results: Sequence[Result]) -> Document:
    """Return the document of a study with a sweep.

    It has no table of runs, because each method has runs with many settings.

    Args:
        spec: The study, which has a sweep.
        results: Its finished runs, from none to all.
    """
    answer = sweep_answer(spec, results)
    about = (progress(spec, results), *mixed(spec, results), how_tuned(spec), answer.text)
    sections = [Section(answer.question, about, answer.head, answer.rows), *of_headroom(spec, results)]
    tuning = tuple(tuning_table(spec, results))
    if tuning:
        sections.append(Section("Tuning", (TUNING,), TUNING_HEAD, tuning))
    return Document(spec.title, spec.about, tuple(sections), tuple(maps(spec, results)), summary(spec, results))


def of_headroom(spec: Spec, results: Sequence[Result]) -> list[Section]:
    """Return the tables of a study whose spec says when a task is learned; none for another study.

    Args:
        spec: The study.
        results: Its finished runs, from none to all.
    """
    found = (headroom_answer(spec, results), pass_rate_answer(spec, results))
    return [Section(each.question, (each.text,), each.head, each.rows) for each in found if each]


# Number of runs that are named.
SOME = 3


def mixed(spec: Spec, results: Sequence[Result]) -> list[str]:
    """Return a sentence if runs do not start from the base policies of the spec, by their entropy on frozen prompts.

    A base policy is made where it is missing, and another machine makes another one. Seeds with different base
    policies by the spec are compared among themselves.

    Args:
        spec: The study, by whose ``base_policies`` seeds are grouped.
        results: Finished runs. Those without an evaluation before the first step cannot be checked.

    Returns:
        A list with the sentence; empty if all runs that should share a base policy do.
    """
    for policy in range(spec.base_policies):
        found = _mixed([each for each in results if each.run.seed % spec.base_policies == policy])
        if found:
            return found
    return []


def _mixed(results: Sequence[Result]) -> list[str]:
    """Return the sentence on runs that should all start from one base policy; nothing if they do."""
    beginnings: dict[str, list[StudyRun]] = {}
    for each in results:
        if each.evaluations.steps[0] == 0 and "entropy" in each.evaluations.columns:
            # Rounded as packed runs are, so that a run from a file agrees with one from a folder.
            entropy = f"{each.evaluations.column('entropy')[0]:.{DIGITS}g}"
            beginnings.setdefault(entropy, []).append(each.run)
    if len(beginnings) < 2:
        return []
    fewest = min(beginnings.values(), key=len)
    names = ", ".join(f"{run.method} with seed {run.seed}" for run in fewest[:SOME])
    if fewest[SOME:]:
        names += ", ..."
    return [
        f"The runs start from {len(beginnings)} different base policies, so means and differences mix policies: "
        f"{len(fewest)} of {len(results)} runs start from another policy than the rest ({names})."
    ]


SHORT = ("accuracy", "area", "mean first-token entropy")


def in_short(spec: Spec, results: Sequence[Result]) -> str:
    """Return the main numbers for a terminal: of each method, then the differences from the first one.

    Args:
        spec: The study. Of a study with a sweep, the table of the sweep is returned.
        results: Its finished runs, from none to all.
    """
    if spec.sweep:
        answer = sweep_answer(spec, results)
        table = [answer.head, *answer.rows] if answer.rows else []
        return "\n".join(["  ".join(cells).rstrip() for cells in table] or [answer.text]) + "\n"
    rows = main_rows(spec, results)
    first = rows[0].method
    width = max(len(row.method) for row in rows)

    def line(name: str, cells: Iterable[str]) -> str:
        return "  ".join([name.ljust(width), *(cell.ljust(20) for cell in cells)]).rstrip()

    lines = [line("", (MAIN[name] for name in SHORT))]
    lines += [line(row.method, (shown(row.numbers[name]) for name in SHORT)) for row in rows]
    lines += ["", f"minus {first}"]
    lines += [line(row.method, (shown(row.differences[name], signed=True) for name in SHORT)) for row in rows[1:]]
    seeds = ", ".join(dict.fromkeys(str(len(row.seeds)) for row in rows))
    lines.append(f"\n95 % intervals over {seeds} seeds, differences paired by seed\n")
    lines += [f"{sentence}\n" for sentence in mixed(spec, results)]
    return "\n".join(lines)


def how_tuned(spec: Spec) -> str:
    """Return how the configuration of each method was chosen."""
    tuned = [method for method in spec.methods if len(method.configurations) > 1 and method.at is None]
    if not tuned:
        return SWEPT if spec.sweep else UNTUNED
    counts = Counter(len(method.configurations) for method in tuned)
    counted_methods = ", ".join(
        f"{counted(number, 'method')} with {counted(count, 'configuration')}" for count, number in counts.items()
    )
    again = (
        ""
        if not spec.tuning.final_seeds
        else f"; the best {spec.tuning.finalists} ran again with {counted(len(spec.tuning.final_seeds), 'other seed')}"
    )
    return (
        f"Tuned: {counted_methods}, each configuration with {counted(len(spec.tuning.seeds), 'tuning seed')}{again}. "
        "The criterion is validation accuracy after the last step. No checkpoint was selected."
    )


DIFFERENCES = ("accuracy", "pass@1", "pass@8", "pass@32", "half-way", "area", "mean first-token entropy")


def progress(spec: Spec, results: Sequence[Result]) -> str:
    """Return the sentences on how many runs are finished, and on the flags of all runs.

    Args:
        spec: The study.
        results: Its finished runs, those of tuning included.
    """
    total = number_of_runs(spec)
    rest = "" if len(results) >= total else "; each row says how many seeds it has"
    return f"{len(results)} of {total} runs are finished{rest}. Flags of all runs: {' '.join(spec.words) or 'none'}."


def main_cells(row: MethodRow) -> tuple[str, ...]:
    """Return one method as a row of the main table."""
    selected = "not chosen yet" if row.selected is None else " ".join(row.selected)
    numbers = (shown(row.numbers[name]) for name in MAIN)
    return (row.method, str(len(row.seeds)), selected, *numbers, shown(row.questions))


def difference_cells(row: MethodRow) -> tuple[str, ...]:
    """Return one method as a row of differences."""
    numbers = (shown(row.differences[name], signed=True) for name in DIFFERENCES)
    return (row.method, str(row.pairs), *numbers, shown(row.apart, signed=True))


def update_cells(row: MethodRow) -> tuple[str, ...]:
    """Return one method as a row of what its updates did."""
    return (row.method, str(len(row.seeds)), *(shown(row.numbers[name], 3) for name in UPDATES))


def tuning_table(spec: Spec, results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return the table of tuning, with the columns ``TUNING_HEAD``.

    Args:
        spec: The study.
        results: Its finished runs.

    Returns:
        A row for each configuration of a tuned method with a finished run; an asterisk marks the selected one.
    """
    table = []
    for row in tuning_rows(spec, results):
        if row.scores:
            found = row.scores.values()
            ends = ", ".join(f"{each.last:.2f}" for each in found)
            # The digits by which ``merit`` selects.
            accuracy = sum(each.last for each in found) / len(found)
            area = sum(each.area for each in found) / len(found)
            configuration = " ".join(row.configuration) + (" *" if row.is_chosen else "")
            table.append((row.method, configuration, ends, f"{accuracy:.4f}", f"{area:.4f}"))
    return table


def page(content: Document) -> str:
    """Return the study as one HTML file."""
    sections = [
        {
            "title": section.title,
            "name": f"part-{number}",
            "paragraphs": section.paragraphs,
            "head": section.head,
            "rows": [[Cell(text) for text in row] for row in section.rows],
        }
        for number, section in enumerate(content.sections)
    ]
    drawn = {chart.name: figure(chart) for chart in content.charts}
    return render(
        "study.html",
        {"charts": drawn},
        ("study.js",),
        title=content.title,
        summary=content.summary,
        about=content.about,
        sections=sections,
        charts=content.charts,
    )


def markdown(content: Document) -> str:
    """Return the study as a Markdown page without charts."""
    lines = [f"# {content.title}", ""]
    lines += [line for paragraph in (content.summary, content.about) if paragraph for line in (paragraph, "")]
    for section in content.sections:
        lines += markdown_section(section)
    return "\n".join(lines)


def markdown_section(section: Section) -> list[str]:
    """Return the lines of a section with its title, paragraphs and table; the last line is empty."""
    lines = [f"## {section.title}", ""]
    lines += [line for paragraph in section.paragraphs for line in (paragraph, "")]
    lines += [*markdown_table(section), ""] if section.rows else []
    return lines


def markdown_table(section: Section) -> list[str]:
    """Return the lines of the table of a section."""
    table = [section.head, ["---"] * len(section.head), *section.rows]
    return ["| " + " | ".join(_escaped(cell) or " " for cell in row) + " |" for row in table]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
