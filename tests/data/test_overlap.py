import hashlib
import json

import pytest

from openrlhf_cov.data.overlap import EvaluationSet, EvaluationSets, read_evaluation_sets
from openrlhf_cov.errors import UsageError

# 14 words.
TRAINS = "A train leaves Boston at noon and goes west at fifty miles an hour."


@pytest.fixture
def sets():
    found = EvaluationSets(ngram=5)
    found.add("aime/1", TRAINS)
    found.add("amc/7", TRAINS.upper())
    found.add("amc/8", "What is $2n - 1$?")
    return found


def test_the_same_letters_and_digits_are_found_in_every_set(sets):
    assert sets.same("a train leaves boston, at noon, and goes west at fifty miles an hour!") == ["aime/1", "amc/7"]
    assert sets.same("What is $2n + 1$?") == ["amc/8"]  # nearly always typesetting, and to be on the safe side
    assert sets.same("What is $2n + 10$?") == []


def test_so_many_words_in_a_row_are_similar(sets):
    # "and goes west at fifty": 5 words; "goes west at fifty" only 4
    assert sets.similar("A plane climbs and goes west at fifty knots.") == ["aime/1", "amc/7"]
    assert sets.similar("A plane climbs, then goes west at fifty knots.") == []


def test_a_problem_of_fewer_words_is_found_by_all_of_them():
    sets = EvaluationSets(ngram=20)
    sets.add("aime/1", TRAINS)  # 14 words
    sets.add("amc/8", "Find the sum of all primes below 9.")  # 8 words
    sets.add("amc/9", "What is the value of x + y?")  # 7 words, which stand in many problems
    assert sets.similar(f"{TRAINS} When does it arrive? Find the sum of all primes below 9!") == ["aime/1", "amc/8"]
    assert sets.similar("A train leaves Boston at noon and goes west at fifty miles an") == []
    assert sets.similar("Let x = 1 and y = 2. What is the value of x + y?") == []


def test_all_files_of_a_folder_are_read_in_order(tmp_path):
    content = json.dumps({"id": 3, "problem": TRAINS}) + "\n\n" + json.dumps({"id": "x/4", "problem": "2"}) + "\n"
    (tmp_path / "b.jsonl").write_text(content)
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "a.txt").write_text("no evaluation set")
    sets = read_evaluation_sets(tmp_path, 0)
    assert sets.files == [
        EvaluationSet("a", 0, hashlib.sha256(b"").hexdigest()),
        EvaluationSet("b", 2, hashlib.sha256(content.encode()).hexdigest()),
    ]
    assert sets.same(TRAINS) == ["b/3"]
    assert sets.same("2") == ["b/x/4"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", "must have the fields id, problem; got "),
        ('{"id": "1"}', "problem: this field is missing; add it"),
        ('{"id": 1, "problem": 2}', "problem: must be a valid string; got 2"),
        ("\xff", "byte 1 is not UTF-8"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path, line, said):
    good = json.dumps({"id": "0", "problem": "?"})
    (tmp_path / "a.jsonl").write_bytes(f"{good}\n{line}\n".encode("latin-1"))
    with pytest.raises(UsageError, match=rf"a\.jsonl, line 2: {said}"):
        read_evaluation_sets(tmp_path, 0)


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_folder_without_sets_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"--eval_dir .*: no \*\.jsonl files there"):
        read_evaluation_sets(tmp_path / name, 0)
