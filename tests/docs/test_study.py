"""docs/study.md is what its published raw numbers say."""

import re
import runpy
from pathlib import Path

import pytest

from openrlhf_cov.cli.study_ray import RayStudy
from openrlhf_cov.cli.study_runs import LabStudy
from openrlhf_cov.study.results import unpack
from openrlhf_cov.study.spec import read_spec

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = sorted((REPOSITORY / "studies" / "results").glob("*.jsonl.xz"))


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(REPOSITORY / "scripts" / "write_study_docs.py"))


@pytest.mark.slow
def test_the_page_prints_the_results(script):
    """``python scripts/write_study_docs.py`` writes it."""
    page = script["PAGE"].read_text(encoding="utf-8")
    assert page == script["rewritten"](page)
    table = script["METHODS"].read_text(encoding="utf-8")
    assert table == script["rewritten"](table)
    assert [f"{name}.jsonl.xz" for name in script["PLACE"].findall(page)] == [path.name for path in RESULTS]
    for name in re.findall(r"\]\((assets/study/.*?)\)", page):
        assert (script["PAGE"].parent / name).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_the_main_table_is_that_of_the_raw_numbers(path):
    """Accuracy of each arm by hand, from the file: the mean over seeds of the share of questions answered right."""
    page = (REPOSITORY / "docs" / "study.md").read_text(encoding="utf-8")
    page = page.split(f"<!-- results {path.name.removesuffix('.jsonl.xz')} -->")[1]
    reported = [result for result in unpack(path) if result.run.stage == "report"]
    for arm in dict.fromkeys(result.run.arm for result in reported):
        [row] = [line for line in page.splitlines() if line.startswith(f"| {arm} |")][:1]
        shares = [sum(result.greedy.tolist()) / len(result.greedy) for result in reported if result.run.arm == arm]
        _, _, seeds, _, accuracy, *_ = (cell.strip() for cell in row.split("|"))
        assert int(seeds) == len(shares)
        assert float(accuracy.split()[0]) == pytest.approx(sum(shares) / len(shares), abs=0.00501)


@pytest.mark.slow
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_the_raw_numbers_are_those_of_the_spec(path, tmp_path):
    """Flags of every run, but for those that only label the machine's folders."""
    spec = read_spec(REPOSITORY / "studies" / path.name.replace(".jsonl.xz", ".yaml"))
    study = (RayStudy if spec.engine == "ray" else LabStudy)(spec, tmp_path, tmp_path)
    assert [each.run for each in unpack(path, study.asked)] == [each.run for each in unpack(path)]


def test_the_raw_numbers_are_small():
    assert sum(path.stat().st_size for path in RESULTS) < 20e6
