import hashlib
import json

import pytest

from openrlhf_cov.data.inputs import Keys, open_sources
from openrlhf_cov.data.output import write_training_set
from openrlhf_cov.data.overlap import EvaluationSet, EvaluationSets
from openrlhf_cov.data.templates import BOXED
from openrlhf_cov.errors import UsageError

ROWS = [
    {"id": "p0", "problem": "Find 1+1.", "answer": "2", "source": "math/easy"},
    {"id": "p1", "problem": "Find 2+2.", "answer": "", "source": "math/easy"},
    {"id": "p2", "problem": "设 x=1", "answer": "1", "source": "gsm8k"},
]
SETTINGS = {"template": "plain", "eval_ngram": 0}


def unwatched(rows, count, what):
    return rows


@pytest.fixture
def prepare(tmp_path):
    """Function (sources, …) -> (folder, manifest)."""

    def run(sources, evaluation=None, settings=(), folder="out", watch=unwatched):
        output = tmp_path / folder
        output.mkdir(exist_ok=True)
        arguments = (output, sources, evaluation or EvaluationSets(), SETTINGS | dict(settings), watch)
        return output, write_training_set(*arguments)

    return run


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rows_that_train(prepare, open_rows):
    folder, _ = prepare([open_rows(ROWS)])
    assert lines(folder / "train.jsonl") == [
        {"dataset": "own", "id": "p0", "prompt": f"Find 1+1.\n{BOXED}", "answer": "2", "source": "math/easy"},
        {"dataset": "own", "id": "p2", "prompt": f"设 x=1\n{BOXED}", "answer": "1", "source": "gsm8k"},
    ]
    assert "设 x=1" in (folder / "train.jsonl").read_text(encoding="utf-8")  # for people to read


@pytest.mark.parametrize(
    ("template", "source", "fits"),
    [
        ("qwen-boxed", "code/x", False),
        ("qwen-code", "math/easy", False),
        ("none", "code/x", True),
        ("qwen-code", "code/x", True),
    ],
)
def test_a_template_that_asks_for_something_else_is_refused(prepare, open_rows, template, source, fits):
    answer = json.dumps({"stdin": [["1\n", "2\n"]]}) if source.startswith("code") else "2"
    rows = [open_rows([{"id": "p0", "problem": "Add 1.", "answer": answer, "source": source}])]
    if fits:
        folder, _ = prepare(rows, settings={"template": template})
        assert [line["id"] for line in lines(folder / "train.jsonl")] == ["p0"]
        return
    with pytest.raises(UsageError, match=rf"--template {template} does not ask for what the source {source} of"):
        prepare(rows, settings={"template": template})


def test_the_manifest_counts_and_hashes(prepare, open_rows, tmp_path):
    evaluation = EvaluationSets(files=[EvaluationSet("aime", 1, "abc"), EvaluationSet("amc", 0, "def")])
    evaluation.add("aime/1", "Find 7+7.")
    other = [{"id": "q", "problem": "Find 7+7", "answer": "14"}, {"id": "r", "problem": "find 1+1", "answer": "2"}]
    folder, manifest = prepare([open_rows(ROWS), open_rows(other, "other.jsonl")], evaluation)
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8")) == manifest
    none = {"empty": 0, "bad_label": 0, "evaluation": 0, "evaluation_ngram": 0, "conflict": 0, "duplicate": 0}
    # r repeats p0 of the file before it
    assert manifest["rows"] == none | {"read": 5, "kept": 2, "empty": 1, "evaluation": 1, "duplicate": 1}

    def sha256(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    assert manifest["inputs"] == [
        none
        | {"name": "own", "place": "own.jsonl", "sha256": sha256(tmp_path / "own.jsonl")}
        | {"read": 3, "kept": 2, "empty": 1},
        none
        | {"name": "other", "place": "other.jsonl", "sha256": sha256(tmp_path / "other.jsonl")}
        | {"read": 2, "kept": 0, "evaluation": 1, "duplicate": 1},
    ]
    assert manifest["evaluation"] == [
        {"name": "aime", "rows": 1, "sha256": "abc", "overlaps": 1},
        {"name": "amc", "rows": 0, "sha256": "def", "overlaps": 0},
    ]
    assert manifest["outputs"] == {
        "train.jsonl": {"rows": 2, "sha256": sha256(folder / "train.jsonl")},
        "dropped.jsonl": {"rows": 3, "sha256": sha256(folder / "dropped.jsonl")},
    }
    assert manifest["settings"] == SETTINGS | {"template_text": "{problem}\n" + BOXED}


def test_the_same_input_gives_the_same_bytes_wherever_it_is(prepare, open_rows):
    one, _ = prepare([open_rows(ROWS)])
    other, _ = prepare([open_rows(ROWS)], folder="elsewhere")
    for name in ("train.jsonl", "dropped.jsonl", "manifest.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert sorted(path.name for path in one.iterdir()) == ["dropped.jsonl", "manifest.json", "train.jsonl"]


def test_a_source_that_changes_meanwhile_leaves_nothing_behind(prepare, write, tmp_path):
    sources = open_sources(str(write(ROWS)), None, Keys())

    def watch(rows, count, what):
        yield from rows
        write(ROWS[::-1])

    with pytest.raises(UsageError, match=r"own\.jsonl changed while it was read"):
        prepare(sources, watch=watch)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("rows", "why"), [([], "there is none"), (ROWS[1:2], "1 empty")])
def test_a_set_without_rows_is_refused_and_leaves_an_earlier_one_alone(prepare, open_rows, tmp_path, rows, why):
    folder, _ = prepare([open_rows(ROWS)])
    before = (folder / "train.jsonl").read_bytes()
    with pytest.raises(UsageError, match=f"no row is left to train on: {why}"):
        prepare([open_rows(rows)])
    assert (folder / "train.jsonl").read_bytes() == before


def test_why_no_row_is_left_is_written(prepare, open_rows, tmp_path):
    rows = [{"problem": "Find 1+1.", "answer": None}, {"problem": "Find 2+2.", "answer": "{4"}]
    with pytest.raises(UsageError, match=r"1 empty, 1 bad_label; .*out/dropped\.jsonl has them$"):
        prepare([open_rows(rows)])
    assert [(row["id"], row["reason"]) for row in lines(tmp_path / "out/dropped.jsonl")] == [
        ("own-0", "empty"),
        ("own-1", "bad_label"),
    ]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dropped.jsonl"]
