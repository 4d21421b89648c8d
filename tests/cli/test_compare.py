import json
from dataclasses import replace

import pytest

from openrlhf_cov.cli import compare

# eight problems with two samples each: the second run gets six more samples right, 6/16 = 37.5 points
FIRST = {"aime24": ["1 2"] * 8}
SECOND = {"aime24": ["1 1"] * 6 + ["1 2"] * 2}


@pytest.fixture
def runs(make_evaluation, tmp_path):
    folders = [tmp_path / "grpo", tmp_path / "kl_cov"]
    for folder, tables in zip(folders, (FIRST, SECOND), strict=True):
        make_evaluation(tables, model=f"models/{folder.name}").write(folder)
    return list(map(str, folders))


def test_the_table(runs, capsys):
    assert compare.main(runs) == 0
    lines = capsys.readouterr().out.splitlines()
    # scores 8/16 and 14/16; of the eight differences six are 1/2 and two are 0, so p is 2^(1-6) = 1/32.
    # A resample has X ~ Binomial(8, 3/4) halves: P(X <= 2) = 0.4 % and P(X <= 3) = 2.7 %, so the interval starts at
    # 3/16 and ends at 8/16
    assert lines[:2] == ["grpo: models/grpo", "kl_cov: models/kl_cov"]
    assert [line.split() for line in lines[4:6]] == [
        "aime24 grpo 8 2 50.0 50.0 to 50.0".split(),
        "kl_cov 8 2 87.5 68.8 to 100.0 +37.5 +18.8 to +50.0 0.031 0.031 higher".split(),
    ]
    assert "Holm's correction for the 1 differences" in lines[-1]


def test_noise_and_lower(runs, make_evaluation, tmp_path, capsys):
    same = make_evaluation({"aime24": ["1 2"] * 7 + ["2 1"]}).write(tmp_path / "same")
    assert compare.main([runs[1], runs[0]]) == 0
    assert capsys.readouterr().out.splitlines()[5].endswith("-37.5  -50.0 to -18.8  0.031     0.031  lower")
    assert compare.main([runs[1], runs[0], str(same)]) == 0  # twice 1/32 is above 0.05
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in lines[6:8]] == [["0.031", "0.062", "noise"]] * 2
    assert compare.main([runs[0], str(same)]) == 0
    assert capsys.readouterr().out.splitlines()[5].endswith("+0.0  +0.0 to +0.0  1.000     1.000  noise")


def test_one_run_beside_the_paper(runs, capsys):
    assert compare.main([runs[0], "--against", "paper-7b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3] for line in lines[4:8]] == ["21.2", "18.1", "22.1", "22.6"]
    assert "noise" not in "".join(lines)
    assert "arXiv 2505.22617, Table 2" in lines[-3]


def test_pass_at_k_where_samples_are_missing(runs, make_evaluation, tmp_path, capsys):
    greedy = make_evaluation({"aime24": ["1"] * 8}).write(tmp_path / "greedy")
    assert compare.main([runs[0], str(greedy), "--metric", "pass@2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split()[:5] == ["benchmark", "run", "problems", "K", "pass@2"]
    assert lines[4].split() == ["aime24", "grpo", "8", "2", "100.0", "100.0", "to", "100.0"]
    assert lines[5].split() == ["greedy", "8", "1", "-", "-", "fewer", "than", "2", "samples"]
    assert "Nothing can be compared with grpo." in lines[7]


def test_folders_of_the_same_name_are_told_apart_by_their_paths(runs, make_evaluation, tmp_path, capsys):
    other = make_evaluation(SECOND).write(tmp_path / "other" / "grpo")
    assert compare.main([runs[0], str(other)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [f"{runs[0]}: models/grpo", f"{other}: models/tiny"]


def test_scores_by_the_grader_published(make_evaluation, tmp_path, capsys):
    # of the wrong answers, published takes half for right: 8/16 + 4/16
    run = make_evaluation({"aime24": ["1 2"] * 4 + ["1 3"] * 4})
    run = run.having(lambda response: replace(response, published=response.answer != "3"))
    folder = str(run.write(tmp_path / "both"))
    assert compare.main([folder, "--against", "paper-7b", "--grader", "published"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["both: models/tiny", "graded by: published"]
    assert lines[4].split()[:5] == ["aime24", "both", "8", "2", "75.0"]


def test_json(runs, tmp_path):
    assert compare.main([*runs, "--against", "paper-32b", "--json", str(tmp_path / "out.json")]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert list(result) == ["metric", "runs", "models", "against", "benchmarks", "notes", "grader", "schema"]
    assert (result["schema"], result["runs"], result["against"]) == (1, ["grpo", "kl_cov"], "paper-32b")
    (aime,) = result["benchmarks"]
    assert aime["published"]["KL-Cov"] == 0.368
    first, second = aime["scores"]
    assert list(first) == ["run", "problems", "samples", "score", "difference", "reason"]
    assert (first["difference"], first["reason"]) == (None, None)
    assert list(second["difference"]) == ["interval", "p_value", "p_holm", "noise"]
    assert second["difference"]["interval"]["estimate"] == 0.375
    assert second["difference"]["noise"] is False
