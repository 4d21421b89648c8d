"""docs/study.md, docs/study_commands.md and docs/study/ are what the published raw numbers say."""

import lzma
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PACKED = sorted((REPOSITORY / "studies" / "results").glob("*.jsonl.xz"))
# Files of studies. The other one is of a script, and has no spec.
RESULTS = [path for path in PACKED if (REPOSITORY / "studies" / path.name.replace(".jsonl.xz", ".yaml")).exists()]
# Pages of docs/study/ that are about several studies.
FURTHER = ("entropy_drops", "equal_tuning", "forecasts")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(REPOSITORY / "scripts" / "write_study_docs.py"))


def name_of(path):
    return path.name.removesuffix(".jsonl.xz")


@pytest.fixture(scope="module", params=RESULTS, ids=name_of)
def path(request):
    """All tests of one file run in a row, so that a process of tests reads it once."""
    return request.param


@pytest.mark.slow
def test_a_page_prints_the_results(script, path):
    """``python scripts/write_study_docs.py`` writes it."""
    page = DOCS / "study" / f"{name_of(path)}.md"
    text = page.read_text(encoding="utf-8")
    assert text == script["page"](name_of(path), script["content_of"](name_of(path)))
    for name in re.findall(r"\]\((../assets/study/.*?)\)", text):
        assert (page.parent / name).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", FURTHER)
def test_a_page_about_several_studies_prints_the_results(script, name):
    text = (DOCS / "study" / f"{name}.md").read_text(encoding="utf-8")
    assert text == script["further_page"](name, script["further_pages"]()[name])
    for picture in re.findall(r"\]\((../assets/study/.*?)\)", text):
        assert (DOCS / "study" / picture).is_file()


@pytest.mark.slow
def test_the_study_prints_the_results(script):
    text = script["STUDY"].read_text(encoding="utf-8")
    assert text == script["with_numbers"](text)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("+0.10 [+0.07, +0.14]", "+0.10*"),
        ("-0.46 [-0.56, -0.36]", "−0.46*"),
        ("+0.03 [-0.01, +0.06]", "+0.03"),  # the interval contains zero
        ("+0.03 [+0.00, +0.05]", "+0.03"),  # one end is zero as printed
        ("+0.00 [+0.00, +0.01]", "+0.00"),  # less than one question of a test
        ("+0.72", "+0.72"),  # no interval, because all seeds have this difference
    ],
)
def test_an_asterisk_marks_an_interval_without_zero(script, cell, shown):
    assert script["starred"](cell) == shown


@pytest.mark.slow
def test_the_results_of_the_readme_are_those_of_the_studies(script):
    """Critical shares and widths of learning rates."""
    studies = [script["finished"](name) for name in ("shortcut", "learning_rate_map")]
    numbers = script["study_numbers"].shares_and_widths(*studies)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    table = readme.split("| critical share | learning rates, decades |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len(rows) == 8
    assert rows == [[name, *numbers[name]] for name, *_ in rows]
    # The first screen has the same shares in percent, without decimals.
    for name in ("KL-Cov", "Clip-Cov"):
        assert f"{name} {float(numbers[name][0].split()[0]):.0%}".replace("%", " %") in readme.replace("\n", " ")


def test_every_study_that_has_run_has_a_page_that_is_linked():
    names = [name_of(path) for path in RESULTS]
    assert {path.stem for path in (DOCS / "study").glob("*.md")} == {*names, *FURTHER}
    assert {*names, *FURTHER} <= linked((DOCS / "study.md").read_text(encoding="utf-8"))


NUMBER = r"[+−-]?\d+\.\d+"
INTERVAL = re.compile(rf"(?<![\d.])({NUMBER}) \[({NUMBER}), ({NUMBER})\]")


def intervals(text: str) -> set[tuple[float, ...]]:
    """Estimates with their two ends, as they are printed."""
    found = INTERVAL.findall(text.replace("\n", " ").replace("  ", " "))
    return {tuple(float(each.replace("−", "-")) for each in numbers) for numbers in found}


def linked(text: str) -> set[str]:
    """Studies to whose pages a text leads."""
    return set(re.findall(r"\]\((?:docs/|\.\./)?study/(\w+)\.md", text))


def tables_of(names) -> set[tuple[float, ...]]:
    """All intervals on the pages of studies, also as "lower by", with the other sign."""
    found = set.union(*(intervals((DOCS / "study" / f"{name}.md").read_text(encoding="utf-8")) for name in names))
    return found | {(-middle, -high, -low) for middle, low, high in found}


def test_answers_say_what_stands_in_the_tables():
    """An interval in the words of a paragraph is in a table of a study that the paragraph names."""
    answers = (DOCS / "study_commands.md").read_text(encoding="utf-8").split("\n## Answers\n")[1]
    said = 0
    for paragraph in re.split(r"\n\n|\n(?=- )", answers):
        if numbers := intervals(paragraph):
            assert numbers <= tables_of(linked(paragraph)), paragraph
            said += len(numbers)
    assert said > 20


@pytest.mark.parametrize("page", ["README.md", "docs/study_commands.md"])
def test_pages_say_what_stands_in_some_table(page):
    numbers = intervals((REPOSITORY / page).read_text(encoding="utf-8"))
    assert numbers
    assert numbers <= tables_of(map(name_of, RESULTS))


@pytest.mark.slow
def test_the_raw_numbers_are_those_of_the_spec_and_of_the_main_table(script, path):
    spec, results = script["results_of"](name_of(path))
    with lzma.open(path) as lines:  # all runs have the flags of the spec, but for labels of the machine
        assert len(results) == sum(1 for _ in lines) > 0
    if not spec.sweep:  # a sweep has runs of many settings for each method, and no table of methods
        check_main_table(name_of(path), results)


def check_main_table(name, results):
    """Accuracy of each method by hand, from the file: the share of questions answered right, and the same against the
    first method, each with Student's interval over seeds."""
    page = (DOCS / "study" / f"{name}.md").read_text(encoding="utf-8").split("\n## Results\n")[1]
    shares: dict[str, dict[int, float]] = {}
    for result in results:
        if result.run.stage == "report":
            share = sum(result.greedy.tolist()) / len(result.greedy)
            shares.setdefault(result.run.method, {})[result.run.seed] = share
    first = next(iter(shares.values()))
    for method, by_seed in shares.items():
        main, *against = [line.split("|") for line in page.splitlines() if line.startswith(f"| {method} |")][:2]
        assert int(main[2]) == len(by_seed)
        # Student's interval of a share may exceed 1; the page ends it there.
        expected = [min(number, 1.0) for number in students(list(by_seed.values()))]
        assert printed(main[4]) == pytest.approx(expected, abs=0.00501, nan_ok=True)
        if by_seed is not first:
            apart = [share - first[seed] for seed, share in by_seed.items() if seed in first]
            assert int(against[0][2]) == len(apart)
            # Without spread, the page prints no interval.
            expected = students(apart) if np.ptp(apart) > 1e-12 else [apart[0]]
            assert printed(against[0][3]) == pytest.approx(expected, abs=0.00501, nan_ok=True)


# Number of seeds -> the 0.975 quantile of Student's t with one degree of freedom less, as in every table of it.
T = {2: 12.7062, 3: 4.3027, 4: 3.1824, 5: 2.7764, 6: 2.5706, 7: 2.4469, 8: 2.3646, 9: 2.3060, 12: 2.2010}


def printed(cell: str) -> list[float]:
    """An estimate and, of several seeds, the ends of its interval."""
    return [float(number) for number in re.findall(r"[-+]?[\d.]+", cell)]


def students(values: list[float]) -> list[float]:
    """Mean and 95 % interval, without the latter of one value."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return [mean]
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = T[len(values)] * deviation / math.sqrt(len(values))
    return [mean, mean - half, mean + half]


def test_the_page_of_the_bandit_quotes_the_falls_of_the_entropy():
    """The numbers of its section are those of its row in entropy_drops.md, but for the last column."""
    page = (DOCS / "study" / "two_peaks.md").read_text(encoding="utf-8")
    section = page.split("## How well do the theorems hold in the bandit?")[1].split("\n## ")[0]
    falls = (DOCS / "study" / "entropy_drops.md").read_text(encoding="utf-8")
    [row] = [line for line in falls.splitlines() if line.startswith("| two_peaks,")]
    quoted = INTERVAL.findall(section)
    assert len(quoted) == 4  # theorem 1, theorem 2, discriminator, natural gradient; the drift has none
    assert quoted == INTERVAL.findall(row)[:-1]


def test_the_raw_numbers_are_small():
    assert sum(path.stat().st_size for path in PACKED) < 25e6
