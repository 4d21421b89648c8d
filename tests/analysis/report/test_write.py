import pytest

from openrlhf_cov.analysis.report.contents import Options, build_contents, read_runs
from openrlhf_cov.analysis.report.write import write_files, write_report


@pytest.mark.slow
def test_figures_and_page_of_run_folders(write_run, tmp_path):
    runs = [write_run(tmp_path / "first"), write_run(tmp_path / "second", flags="--cov_type kl_cov")]
    page = write_report(runs, tmp_path / "out" / "deep")
    assert page == tmp_path / "out" / "deep" / "report.html"
    assert "second" in page.read_text(encoding="utf-8")
    names = {path.name for path in (page.parent / "figures").iterdir()}
    assert {"law.svg", "law.png", "reward_and_entropy.svg", "coefficients.png"} <= names


@pytest.mark.slow
def test_one_format_and_no_page(write_run, tmp_path):
    contents = build_contents(read_runs([write_run(tmp_path / "run")]), Options())
    written = write_files(contents, tmp_path / "out", formats=("png",), with_page=False)
    assert written.page is None
    assert {path.suffix for path in written.figures} == {".png"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["figures"]
    assert sorted(written.figures) == sorted((tmp_path / "out" / "figures").iterdir())
