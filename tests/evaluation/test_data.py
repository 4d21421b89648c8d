import json
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from texts import missing

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, own_benchmark
from openrlhf_cov.evaluation.data import Problem, load_problems, ungradable

REAL = Path(__file__).parents[3] / "shared/data/eval"
# Those whose real files are there; programs are tested in ``tests/rewards/code``.
MATHEMATICS = [name for name, benchmark in BENCHMARKS.items() if benchmark.grader != "code"]
MATH = replace(BENCHMARKS["math500"], rows=3)
ROWS = [{"id": f"p{n}", "problem": f"{n}+{n}=", "answer": str(2 * n), "source": "math/easy"} for n in range(3)]


def write(folder, lines, name="math500.jsonl"):
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    return folder / name


def refusal(*arguments, **keywords):
    with pytest.raises(UsageError) as refused:
        load_problems(*arguments, **keywords)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the benchmarks are not at {REAL}")
class TestRealFiles:
    @pytest.mark.parametrize("name", MATHEMATICS)
    def test_every_benchmark_loads_whole(self, name):
        problems = load_problems(BENCHMARKS[name], REAL)
        assert len(problems) == len({problem.id for problem in problems}) == BENCHMARKS[name].rows

    @pytest.mark.slow
    @pytest.mark.parametrize("name", MATHEMATICS)
    def test_answers_that_cannot_be_graded_are_counted_and_kept(self, name):
        # four golds of Omni-MATH-Rule lack a brace; a fifth, omni-rule-981, is a sentence with a box and is read well
        broken = {"omni_math": ["omni-rule-183", "omni-rule-682", "omni-rule-710", "omni-rule-1469"]}
        assert ungradable(BENCHMARKS[name], load_problems(BENCHMARKS[name], REAL)) == broken.get(name, [])


def test_further_fields_empty_lines_and_odd_line_separators_do_no_harm(tmp_path):
    write(
        tmp_path, [ROWS[0], "", json.dumps(ROWS[1] | {"problem": "a\u2028b"}, ensure_ascii=False), ROWS[2] | {"x": 1}]
    )
    problems = load_problems(MATH, tmp_path)
    assert [problem.problem for problem in problems] == ["0+0=", "a\u2028b", "2+2="]
    assert problems[2] == Problem("p2", "2+2=", "4", "math/easy")


def test_the_first_name_of_a_file_is_preferred(tmp_path):
    benchmark = replace(BENCHMARKS["omni_math"], rows=1)
    write(tmp_path, ROWS[:1], "omni_math_rule.jsonl")
    assert load_problems(benchmark, tmp_path)[0].id == "p0"
    write(tmp_path, ROWS[1:2], "omni_math.jsonl")
    assert load_problems(benchmark, tmp_path)[0].id == "p1"


@pytest.mark.parametrize("rows", [ROWS[:2], [*ROWS, ROWS[0] | {"id": "p3"}]])
def test_a_wrong_row_count_is_refused(tmp_path, rows):
    path = write(tmp_path, rows)
    assert missing(refusal(MATH, tmp_path), f"{path}: {len(rows)} rows", "version 1", "3", "--limit") == []


WITHOUT_ANSWER = {name: value for name, value in ROWS[1].items() if name != "answer"}
# the second of three lines -> the end of the message about it
REFUSED = [
    (WITHOUT_ANSWER, "answer: this field is missing; add it"),
    (ROWS[1] | {"problem": " \n"}, "problem: must not be empty"),
    (ROWS[1] | {"id": None}, "id: must be a valid string; got None"),
    (ROWS[1] | {"answer": 4}, "answer: must be a valid string; got 4"),
    (ROWS[1] | {"source": ["4"]}, "source: must be a valid string; got ['4']"),
    (ROWS[1] | {"id": "p0"}, "id: 'p0' is also the id of {path}, line 1"),
    ("null", "must have the fields id, problem, answer, source; got None"),
    ('{"id": "p', "not JSON: "),
    ("[" * 100_000, ""),
]


@pytest.mark.parametrize(("line", "fault"), REFUSED, ids=[fault[:20] for _, fault in REFUSED])
@pytest.mark.parametrize("own", [False, True])
def test_a_bad_row_is_refused_by_its_line(tmp_path, line, fault, own):
    path = write(tmp_path, [ROWS[0], line, ROWS[2]])
    benchmark = own_benchmark(path) if own else MATH
    assert refusal(benchmark, tmp_path).startswith(f"{path}, line 2: {fault.format(path=path)}")


def test_bytes_that_are_no_utf8_are_refused(tmp_path):
    (tmp_path / "math500.jsonl").write_bytes(json.dumps(ROWS[0]).encode() + b'\n{"id": "\xff"}\n')
    assert refusal(MATH, tmp_path).startswith(f"{tmp_path / 'math500.jsonl'}, line 2: ")


def test_places_without_problems_are_refused(tmp_path):
    assert refusal(MATH, tmp_path / "no").startswith(f"--data_dir {tmp_path / 'no'}: ")
    files = ("omni_math.jsonl", "omni_math_rule.jsonl")
    assert missing(refusal(BENCHMARKS["omni_math"], tmp_path), f"--data_dir {tmp_path}", *files) == []
    assert missing(refusal(BENCHMARKS["omni_math_500"], None), "omni_math_500", "hub") == []
    path = tmp_path / "sums.jsonl"
    assert missing(refusal(own_benchmark(path), None), str(path), "No such file or directory") == []
    write(tmp_path, ["", ""], "sums.jsonl")
    assert refusal(own_benchmark(path), None) == f"{path} has no problems"
    write(tmp_path, [ROWS[0] | {"source": "taco"}], "sums.jsonl")
    assert refusal(own_benchmark(path), None).startswith(f"{path}: problem p0: its source 'taco' names no rule;")


class TestOwnFile:
    @pytest.mark.parametrize("data_dir", [None, Path("/nowhere")])
    def test_it_is_read_from_where_it_is_whatever_its_length(self, tmp_path, data_dir):
        for count in (1, 3):
            path = write(tmp_path, ROWS[:count], "sums.jsonl")
            problems = load_problems(own_benchmark(path), data_dir)
            assert [problem.id for problem in problems] == ["p0", "p1", "p2"][:count]

    def test_every_row_has_the_rule_of_its_source(self):
        # 1,234 is a number, but no letter and not digits alone; B is a letter and a formula; 34+57 is a formula alone
        golds = ["1,234", "B", "34+57", "\\frac{1}{2"]
        sources = ["math", "gsm8k", "choice/x", "tiny_addition", "math/somewhere"]
        problems = [Problem(f"{gold} {source}", "?", gold, source) for gold in golds for source in sources]
        assert ungradable(own_benchmark(Path("sums.jsonl")), problems) == [
            *("1,234 choice/x", "1,234 tiny_addition"),
            *("B gsm8k", "B tiny_addition"),
            *("34+57 gsm8k", "34+57 choice/x", "34+57 tiny_addition"),
            *(f"\\frac{{1}}{{2 {source}" for source in sources),
        ]


def test_what_the_rule_of_the_benchmark_cannot_read_is_ungradable():
    golds = {"a": "1,234", "b": "two", "c": "\\frac{1}{2", "d": "so \\boxed{6}."}
    problems = [Problem(name, "?", gold, "s") for name, gold in golds.items()]
    assert ungradable(BENCHMARKS["gsm8k"], problems) == ["b", "c"]
    assert ungradable(BENCHMARKS["math500"], problems) == ["c"]


HUB_ROWS = [
    ("aime24", {"ID": "2024-I-1", "Problem": "?", "Answer": 25}, ("Maxwell-Jia/AIME_2024", None, "train")),
    ("amc_2022_2023", {"id": 0, "problem": "?", "answer": 142.0}, ("AI-MO/aimo-validation-amc", None, "train")),
    ("minerva_math", {"question": "?", "answer": "1.6"}, ("math-ai/minervamath", None, "test")),
    ("olympiadbench", {"id": 16, "question": "?", "final_answer": ["$2$"]}, ("math-ai/olympiadbench", None, "test")),
    ("gsm8k", {"question": "?", "answer": "9 * 2\n#### 1,018"}, ("openai/gsm8k", "main", "test")),
]
HUB_PROBLEMS = {
    "aime24": Problem("2024-I-1", "?", "25", "aime24"),
    "amc_2022_2023": Problem("0", "?", "142.0", "amc_2022_2023"),
    "minerva_math": Problem("minerva_math-0", "?", "1.6", "minerva_math"),
    "olympiadbench": Problem("16", "?", "$2$", "olympiadbench"),
    "gsm8k": Problem("gsm8k-0", "?", "1,018", "gsm8k"),
}


@pytest.mark.parametrize(("name", "row", "call"), HUB_ROWS)
def test_rows_of_the_hub(hub, name, row, call):
    calls = hub([row])
    benchmark = replace(BENCHMARKS[name], rows=1, hub=replace(BENCHMARKS[name].hub, rows=None))
    assert load_problems(benchmark, None) == [HUB_PROBLEMS[name]]
    assert calls == [call]


def test_the_hub_may_have_another_row_count(hub):
    hub([{"id": n, "question": "?", "final_answer": ["2"]} for n in range(674)])
    assert len(load_problems(BENCHMARKS["olympiadbench"], None)) == 674


def test_the_hub_is_checked_like_a_file(hub):
    hub([{"unique_id": "a", "problem": "?", "answer": "2"}, {"unique_id": "b", "problem": "?", "answer": ""}])
    assert missing(refusal(MATH, None), "HuggingFaceH4/MATH-500, split test, row 2", "answer: must not be empty") == []
    hub([{"unique_id": "a", "problem": "?", "answer": "2"}])
    assert missing(refusal(MATH, None), "HuggingFaceH4/MATH-500, split test: 1 rows", "version 1", "3") == []
    hub([{"unique_id": "a", "question": "?", "answer": "2"}])
    message = "HuggingFaceH4/MATH-500, split test: field 'problem' is missing; it has unique_id, question, answer"
    assert refusal(MATH, None) == message


def test_a_hub_out_of_reach_is_refused_in_one_line(monkeypatch):
    def load_dataset(*arguments, **keywords):
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = refusal(MATH, None)
    facts = ("ConnectionError: no route", "--data_dir", "math500.jsonl")
    assert missing(message, "HuggingFaceH4/MATH-500, split test", *facts) == []
    assert "\n" not in message
