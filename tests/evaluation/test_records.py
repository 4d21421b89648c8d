import json
from dataclasses import asdict, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from texts import missing

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.data import Problem
from openrlhf_cov.evaluation.response_records import (
    AskedProblem,
    BenchmarkSettings,
    Response,
    RunSettings,
    read_problems,
    read_responses,
    read_settings,
    record_line,
    write_records,
    write_settings,
)

RESPONSE = Response(
    benchmark="aime24", id="p0", sample=1, seed=5, text="二 \\boxed{4}\u2028\n", tokens=7, prompt_tokens=3,
    truncated=False, surprisal=0.25, answer="4", status="graded", correct=True, published=True,
)  # fmt: skip
LINE = (
    '{"benchmark": "aime24", "id": "p0", "sample": 1, "seed": 5, "text": "二 \\\\boxed{4}\u2028\\n", "tokens": 7, '
    '"prompt_tokens": 3, "truncated": false, "surprisal": 0.25, "answer": "4", "status": "graded", "correct": true, '
    '"published": true}'
)
GREEDY = replace(RESPONSE, sample=0, seed=None, surprisal=None, answer=None, status="no_answer", correct=False)
SETTINGS = RunSettings(
    model="models/二", protocol="paper", template="plain", template_text="{problem}\u2028\n…", seed=7, log_probs=False,
    reward_format="boxed", max_model_len=None, packages={"vllm": "0.19.1"},
    benchmarks=(
        BenchmarkSettings(
            name="aime24", version=1, problems=30, complete=True, samples=32, temperature=0.6, top_p=1.0,
            max_tokens=8192, grader="math", sha256="ab", ungradable=("p3", "p4"),
        ),
    ),
)  # fmt: skip

RESPONSES = st.builds(
    Response,
    benchmark=st.sampled_from(["aime24", "b"]),
    id=st.text(max_size=3),
    sample=st.integers(0, 40),
    seed=st.none() | st.integers(0, 2**63 - 1),
    text=st.text(max_size=20),
    tokens=st.integers(0, 2**20),
    prompt_tokens=st.integers(0, 2**20),
    truncated=st.booleans(),
    surprisal=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    answer=st.none() | st.text(max_size=5),
    status=st.sampled_from(["graded", "prompt_too_long"]),
    correct=st.booleans(),
    published=st.none() | st.booleans(),
)


def test_a_line(tmp_path):
    assert record_line(RESPONSE) == LINE
    (tmp_path / "responses.jsonl").write_text(LINE + "\n", encoding="utf-8")
    assert read_responses(tmp_path) == [RESPONSE]


def test_a_line_of_before_there_were_two_graders_has_no_verdict_of_published(tmp_path):
    (tmp_path / "responses.jsonl").write_text(LINE.replace(', "published": true', "") + "\n", encoding="utf-8")
    assert read_responses(tmp_path) == [replace(RESPONSE, published=None)]


def test_what_is_no_json_is_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        record_line(replace(RESPONSE, surprisal=float("nan")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@given(st.lists(RESPONSES, max_size=4, unique_by=lambda response: response.key))
def test_responses_are_read_as_they_were_written(folder, responses):
    write_records(folder / "responses.jsonl", responses)
    assert read_responses(folder) == responses


@given(st.integers(0, 2 * len(LINE.encode()) + 2), st.permutations([RESPONSE, GREEDY]))
@example(len(LINE.encode()), [RESPONSE, GREEDY])  # whole, but for its newline
@example(len(LINE.encode()) - 1, [RESPONSE, GREEDY])
def test_a_file_that_was_cut_at_any_byte_has_its_whole_lines(folder, cut, responses):
    lines = [record_line(response).encode() for response in responses]
    (folder / "responses.jsonl").write_bytes(b"\n".join([*lines, b""])[:cut])
    ends = [len(lines[0]), len(lines[0]) + 1 + len(lines[1])]
    assert read_responses(folder) == responses[: sum(end <= cut for end in ends)]


def test_of_two_responses_to_the_same_sample_the_first_counts(tmp_path):
    again = replace(RESPONSE, text="another", correct=False)
    write_records(tmp_path / "responses.jsonl", [RESPONSE, GREEDY, again])
    assert read_responses(tmp_path) == [RESPONSE, GREEDY]


BROKEN = [
    LINE[:-1],
    "[]",
    "3",
    json.dumps({name: value for name, value in asdict(RESPONSE).items() if name != "seed"}),
    json.dumps(asdict(RESPONSE) | {"entropy": 1.0}),
]


@pytest.mark.parametrize("line", BROKEN)
@pytest.mark.parametrize("after", [LINE + "\n", ""])
def test_a_broken_line_that_was_not_cut_is_refused(tmp_path, line, after):
    path = tmp_path / "responses.jsonl"
    path.write_text(f"{record_line(GREEDY)}\n{line}\n{after}", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        read_responses(tmp_path)
    assert str(refused.value).startswith(f"{path}, line 2: ")
    assert "\n" not in str(refused.value)


def test_problems_are_read_as_they_were_written(tmp_path):
    problems = [AskedProblem.of("aime24", Problem(f"p{n}", "1+1=\u2028?", "2", "sums/easy")) for n in range(2)]
    assert asdict(problems[0]) == dict(
        benchmark="aime24", id="p0", problem="1+1=\u2028?", answer="2", source="sums/easy"
    )
    write_records(tmp_path / "problems.jsonl", problems)
    assert read_problems(tmp_path) == problems


def test_problems_are_all_there_or_refused(tmp_path):
    path = tmp_path / "problems.jsonl"
    with pytest.raises(UsageError, match=r"problems\.jsonl cannot be read: No such file"):
        read_problems(tmp_path)
    problem = AskedProblem(benchmark="b", id="p", problem="?", answer="2", source="s")
    path.write_text(record_line(problem) + "\n" + record_line(problem)[:20])
    with pytest.raises(UsageError, match=r"problems\.jsonl, line 2: "):
        read_problems(tmp_path)


def test_settings_are_read_as_they_were_written(tmp_path):
    write_settings(tmp_path, SETTINGS)
    assert read_settings(tmp_path) == SETTINGS
    assert json.loads((tmp_path / "run.json").read_text())["schema"] == 1


def test_another_schema_is_refused(tmp_path):
    write_settings(tmp_path, replace(SETTINGS, schema=2))
    with pytest.raises(UsageError) as refused:
        read_settings(tmp_path)
    assert missing(str(refused.value), str(tmp_path / "run.json"), "schema 2", "schema 1") == []


GOOD = asdict(SETTINGS)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        json.dumps(GOOD | {"more": 1}),
        json.dumps({name: value for name, value in GOOD.items() if name != "seed"}),
        json.dumps(GOOD | {"benchmarks": [{"name": "aime24"}]}),
    ],
)
def test_settings_that_are_none_are_refused_in_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError) as refused:
        read_settings(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'run.json'} cannot be read (")
    assert str(refused.value).endswith("); it is written by `evaluate`")
