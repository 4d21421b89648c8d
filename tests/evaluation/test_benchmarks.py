from pathlib import Path

import pytest
from texts import missing

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, GROUPS, PROTOCOLS, names_in, own_benchmark, select


def chosen(names):
    return [benchmark.name for benchmark in select(names)]


def test_the_records_are_whole():
    for benchmark in BENCHMARKS.values():
        assert benchmark.hub is None or benchmark.hub.path.count("/") == 1, benchmark.name
    files = [file for benchmark in BENCHMARKS.values() for file in benchmark.files]
    assert len(files) == len(set(files))
    assert BENCHMARKS["omni_math"].files == ("omni_math.jsonl", "omni_math_rule.jsonl")


def test_groups():
    assert all(member in BENCHMARKS for members in GROUPS.values() for member in members)
    # the seven columns of Table 2; `all` leaves out the two sets that share problems with a third
    assert set(GROUPS["paper"]) == set(
        "aime24 aime25 amc_2022_2023 math500 omni_math olympiadbench minerva_math".split()
    )
    programs = {name for name, benchmark in BENCHMARKS.items() if benchmark.grader == "code"}
    assert set(GROUPS["all"]) == BENCHMARKS.keys() - {"amc23", "omni_math_500"} - programs
    assert set(GROUPS["code"]) == programs - {"code_basics"}
    assert set(GROUPS["law"]) == set("math500 aime24 amc_2022_2023 olympiadbench omni_math".split())


def test_the_paper_protocol():
    how = {name: PROTOCOLS["paper"].sampling_of(benchmark) for name, benchmark in BENCHMARKS.items()}
    averaged = {name for name, sampling in how.items() if sampling.samples > 1}
    assert averaged == {"aime24", "aime25", "amc23", "amc_2022_2023"}
    for name, sampling in how.items():
        expected = (32, 0.6, 1.0, 8192) if name in averaged else (1, 0.0, 1.0, 8192)
        assert (sampling.samples, sampling.temperature, sampling.top_p, sampling.max_tokens) == expected


def test_select():
    assert chosen("gsm8k, aime24") == ["gsm8k", "aime24"]
    assert chosen("all") == list(GROUPS["all"])
    assert chosen("paper,amc23") == [*GROUPS["paper"], "amc23"]
    assert chosen("math500,paper,all") == ["math500", *(n for n in GROUPS["all"] if n != "math500")]  # none twice


def test_select_takes_files():
    assert select("math500, data/sums.jsonl,aime24") == [
        BENCHMARKS["math500"],
        own_benchmark(Path("data/sums.jsonl")),
        BENCHMARKS["aime24"],
    ]
    assert chosen("sums.jsonl,./sums.jsonl") == ["sums"]
    (aime24,) = select("/data/aime24.jsonl")  # one's own, though a benchmark has its name
    assert (aime24.version, aime24.path) == (0, Path("/data/aime24.jsonl"))


@pytest.mark.parametrize("names", ["aime24,a/aime24.jsonl", "a/sums.jsonl,b/sums.jsonl", "all,math500.jsonl"])
def test_two_benchmarks_of_one_name_are_refused(names):
    name = names.split("/")[-1].split(",")[-1].removesuffix(".jsonl")
    with pytest.raises(UsageError) as refused:
        select(names)
    assert missing(str(refused.value), f"--benchmarks {names}", "two", name) == []


def test_versions_count_up_with_the_record():
    # whoever changes a record counts its version up, then mends this line
    records = {(b.name, b.version, b.rows, b.sampling.samples, b.grader) for b in BENCHMARKS.values()}
    assert records == {
        ("aime24", 1, 30, 32, "math"),
        ("aime25", 1, 30, 32, "math"),
        ("amc23", 1, 40, 32, "math"),
        ("amc_2022_2023", 1, 83, 32, "math"),
        ("math500", 1, 500, 1, "math"),
        ("minerva_math", 1, 272, 1, "math"),
        ("olympiadbench", 1, 675, 1, "math"),
        ("omni_math", 1, 2816, 1, "math"),
        ("omni_math_500", 1, 500, 1, "math"),
        ("gsm8k", 1, 1319, 1, "gsm8k"),
        ("code_basics", 1, 20, 1, "code"),
        ("humaneval", 1, 164, 1, "code"),
        ("humaneval_plus", 1, 164, 1, "code"),
        ("mbpp", 1, 500, 1, "code"),
        ("mbpp_plus", 1, 378, 1, "code"),
        ("livecodebench", 2, None, 1, "code"),
    }


@pytest.mark.parametrize(
    ("dataset", "names"),
    [("bench:aime24,math500", "aime24,math500"), ("bench:", ""), ("data.jsonl", None), ("", None), (None, None)],
)
def test_the_prefix_tells_benchmarks_from_datasets(dataset, names):
    assert names_in(dataset) == names
