from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from openrlhf_cov.data.templates import TEMPLATES
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import (
    BENCHMARKS,
    GREEDY,
    GROUPS,
    PROTOCOLS,
    Sampling,
    get_protocol,
    names_in,
    own_benchmark,
    select,
    table,
)
from openrlhf_cov.rewards.sources import SOURCES


def chosen(names):
    return [benchmark.name for benchmark in select(names)]


def test_the_names_are_those_that_users_know():
    assert (
        list(BENCHMARKS)
        == (
            "aime24 aime25 amc23 amc_2022_2023 math500 minerva_math olympiadbench omni_math omni_math_500 gsm8k "
            "code_basics humaneval humaneval_plus mbpp mbpp_plus livecodebench"
        ).split()
    )
    assert all(name == benchmark.name for name, benchmark in BENCHMARKS.items())
    assert not BENCHMARKS.keys() & GROUPS.keys()


def test_the_records_are_whole():
    for benchmark in BENCHMARKS.values():
        assert benchmark.version >= 1, benchmark.name
        assert benchmark.rows is None or benchmark.rows > 0, benchmark.name
        assert benchmark.grader in SOURCES, benchmark.name
        assert benchmark.hub is None or benchmark.hub.path.count("/") == 1, benchmark.name
    files = [file for benchmark in BENCHMARKS.values() for file in benchmark.files]
    assert len(files) == len(set(files))
    assert BENCHMARKS["omni_math"].files == ("omni_math.jsonl", "omni_math_rule.jsonl")


def test_a_record_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        BENCHMARKS["aime24"].rows = 29


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


def test_the_quick_protocol_is_the_same_everywhere():
    how = {PROTOCOLS["quick"].sampling_of(benchmark) for benchmark in BENCHMARKS.values()}
    assert how == {Sampling(samples=4, temperature=0.6, top_p=1.0, max_tokens=2048)}


def test_protocols_name_a_template():
    assert all(protocol.template in TEMPLATES for protocol in PROTOCOLS.values())
    assert all(name == protocol.name for name, protocol in PROTOCOLS.items())
    assert get_protocol("paper") is PROTOCOLS["paper"]


def test_an_unknown_protocol_is_refused():
    with pytest.raises(UsageError, match=r"^--protocol papr: no such protocol; choose one of paper, quick$"):
        get_protocol("papr")


def test_select():
    assert chosen("gsm8k, aime24") == ["gsm8k", "aime24"]
    assert chosen("all") == list(GROUPS["all"])
    assert chosen("paper,amc23") == [*GROUPS["paper"], "amc23"]


def test_select_gives_no_benchmark_twice():
    assert chosen("aime24,aime24") == ["aime24"]
    assert chosen("math500,paper,all") == ["math500", *(n for n in GROUPS["all"] if n != "math500")]


def test_select_takes_files():
    assert select("math500, data/sums.jsonl,aime24") == [
        BENCHMARKS["math500"],
        own_benchmark(Path("data/sums.jsonl")),
        BENCHMARKS["aime24"],
    ]
    assert chosen("sums.jsonl,./sums.jsonl") == ["sums"]
    (aime24,) = select("/data/aime24.jsonl")  # one's own, though a benchmark has its name
    assert (aime24.version, aime24.path) == (0, Path("/data/aime24.jsonl"))


def test_a_file_is_graded_by_its_rows_and_greedily_sampled():
    sums = own_benchmark(Path("data/sums.jsonl"))
    assert (sums.name, sums.version, sums.title, sums.rows) == ("sums", 0, "sums.jsonl", None)
    assert (sums.grader, sums.hub, sums.sampling) == ("row", None, GREEDY)
    assert PROTOCOLS["quick"].sampling_of(sums).samples == 4


@pytest.mark.parametrize("names", ["aime24,a/aime24.jsonl", "a/sums.jsonl,b/sums.jsonl", "all,math500.jsonl"])
def test_two_benchmarks_of_one_name_are_refused(names):
    name = names.split("/")[-1].split(",")[-1].removesuffix(".jsonl")
    with pytest.raises(UsageError) as refused:
        select(names)
    assert str(refused.value) == f"--benchmarks {names}: two benchmarks are called {name}; rename the file"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("aime2", "--benchmarks aime2: no benchmark 'aime2'; did you mean aime25?"),
        ("aime24,math50", "--benchmarks aime24,math50: no benchmark 'math50'; did you mean math500?"),
        ("GSM8K", "--benchmarks GSM8K: no benchmark 'GSM8K'; did you mean gsm8k?"),
        ("papr", "--benchmarks papr: no benchmark 'papr'; did you mean paper?"),
        ("omni_math_rule", "--benchmarks omni_math_rule: no benchmark 'omni_math_rule'; did you mean omni_math?"),
        ("xyzzy", "--benchmarks xyzzy: no benchmark 'xyzzy'; --list shows all"),
        ("", "--benchmarks : a name is empty; give names from --list, separated by commas"),
        ("aime24,", "--benchmarks aime24,: a name is empty; give names from --list, separated by commas"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_one(names, message):
    with pytest.raises(UsageError) as refused:
        select(names)
    assert str(refused.value) == message


GOOD = {"samples": 2, "temperature": 0.6, "top_p": 1.0, "max_tokens": 8}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "--samples is at least 1, got 0"),
        ({"max_tokens": 0}, "--max_tokens is at least 1, got 0"),
        ({"temperature": -0.1}, "--temperature is a finite number of at least 0, got -0.1"),
        ({"temperature": float("nan")}, "--temperature is a finite number of at least 0, got nan"),
        ({"top_p": 0.0}, "--top_p is a fraction in (0, 1], got 0.0"),
        ({"top_p": 1.1}, "--top_p is a fraction in (0, 1], got 1.1"),
        ({"temperature": 0.0}, "--samples 2 with --temperature 0: greedy responses are all the same; use 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    Sampling(**GOOD)
    with pytest.raises(ValueError, match=r"^--") as refused:
        Sampling(**(GOOD | change))
    assert str(refused.value) == message


def test_the_table_shows_everything():
    lines = table().splitlines()
    assert lines[0].split()[:4] == ["name", "version", "problems", "samples"]
    assert lines[1].split()[:6] == ["aime24", "1", "30", "32", "0.6", "8192"]
    assert [line.split()[0] for line in lines[1 : 1 + len(BENCHMARKS)]] == list(BENCHMARKS)
    shown = "\n".join(lines[1 + len(BENCHMARKS) :])
    assert all(f"group {name}: " in shown for name in GROUPS)
    assert all(f"protocol {name}: " in shown for name in PROTOCOLS)


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
