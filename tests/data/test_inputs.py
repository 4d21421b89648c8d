import hashlib
import json

import pytest
from texts import missing

from openrlhf_cov.data.inputs import TRAINING_SETS, Keys, Row, open_sources
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.sources import SOURCES

ROWS = [
    {"id": "p0", "problem": " 1+1=\n", "answer": "2 ", "source": "math/easy"},
    {"id": 7, "problem": "1/4=", "answer": 0.25, "source": "math/hard", "level": 3},
]


def read(source):
    return list(source.read(hashlib.sha256()))


def refusal(*arguments):
    with pytest.raises(UsageError) as refused:
        [read(source) for source in open_sources(*arguments)]
    assert "\n" not in str(refused.value)
    return str(refused.value)


class TestFiles:
    def test_rows_have_texts_without_white_space_around_them(self, open_rows):
        assert read(open_rows(ROWS)) == [
            Row("own", "p0", "1+1=", "2", "math/easy"),
            Row("own", "7", "1/4=", "0.25", "math/hard"),
        ]

    def test_a_row_without_id_and_source_has_its_number_and_its_dataset(self, open_rows):
        rows = [{"problem": "?", "answer": "5"}, "", {"problem": "!", "answer": "6"}]
        assert [(row.id, row.source) for row in read(open_rows(rows, "sums.jsonl"))] == [
            ("sums-0", "math/sums"),
            ("sums-1", "math/sums"),
        ]

    def test_a_source_that_names_no_rule_is_refused_unless_one_is_given(self, tmp_path):
        path = tmp_path / "own.jsonl"
        rows = [ROWS[0] | {"source": "choice/x"}, ROWS[1] | {"source": "taco"}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        message = refusal(str(path), None, Keys())
        assert missing(message, f"{path}, line 2", "'taco'", "--rule", ", ".join(SOURCES)) == []
        (source,) = open_sources(str(path), None, Keys(), "gsm8k")
        assert [row.source for row in read(source)] == ["choice/x", "gsm8k/taco"]

    def test_the_file_of_a_named_set_has_the_rule_of_the_set(self, tmp_path):
        (tmp_path / "dapo_math_17k.jsonl").write_text(json.dumps(ROWS[0] | {"source": "AoPS"}) + "\n")
        (source,) = open_sources("dapo-math-17k", tmp_path, Keys())
        assert read(source)[0].source == "math/AoPS"

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "own.jsonl, line 2: not JSON: "),
            ("[1]", "own.jsonl, line 2: it is not a JSON object"),
            ('{"answer": "5"}', "line 2 has no key 'problem'; it has answer; name the key with --problem_key"),
            ("{}", "line 2 has no key 'problem'; it has none; name the key with --problem_key"),
            ('{"problem": "?"}', "line 2 has no key 'answer'; it has problem; name the key with --answer_key"),
            ('{"problem": ["?"], "answer": "5"}', "line 2: 'problem' is a text, got ['?']"),
            ('{"problem": "?", "answer": true}', "line 2: 'answer' is a text, got True"),
        ],
    )
    def test_a_bad_row_is_refused_by_its_line(self, write, line, message):
        assert message in refusal(str(write([ROWS[0], line])), None, Keys())

    @pytest.mark.parametrize("key", ["id", "source"])
    def test_a_key_that_was_asked_for_has_to_be_there(self, write, key):
        message = refusal(str(write(ROWS[:1])), None, Keys(**{key: "other"}))
        assert missing(message, "'other'", "id, problem, answer, source", f"--{key}_key") == []


class TestNames:
    def test_several_are_read_in_their_order(self, write, tmp_path):
        write(ROWS[:1], "math_train.jsonl")
        own = write(ROWS[1:], "b.jsonl")
        sources = open_sources(f"{own}, math", tmp_path, Keys())
        assert [source.name for source in sources] == ["b", "math"]
        assert [row.name for source in sources for row in read(source)] == ["b/7", "math/p0"]

    def test_two_of_one_name_are_refused(self, write, tmp_path):
        write(ROWS)
        (tmp_path / "other").mkdir()
        write(ROWS, "other/own.jsonl")
        message = refusal(f"{tmp_path}/own.jsonl,{tmp_path}/other/own.jsonl", None, Keys())
        assert message.endswith("two datasets are called own; rename a file or name it once")

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("gsm8", "did you mean gsm8k?"),
            ("DAPO-Math-17K", "did you mean dapo-math-17k?"),
            ("no/such.jsonl", f"give a file, or one of {', '.join(TRAINING_SETS)}"),
        ],
    )
    def test_an_unknown_one_is_refused(self, name, hint):
        assert refusal(name, None, Keys()) == f"--dataset {name}: no such file or dataset; {hint}"

    def test_a_named_set_that_is_not_in_the_folder_is_refused(self, tmp_path):
        # in a folder of evaluation sets gsm8k.jsonl is the test set
        (tmp_path / "gsm8k.jsonl").write_text("")
        assert missing(refusal("gsm8k", tmp_path, Keys()), f"--data_dir {tmp_path}", "gsm8k_train.jsonl") == []


STDIN = '{"inputs": ["1 2"], "outputs": ["3"]}'
CHAT = [
    {"role": "system", "content": "Think."},
    {"role": "user", "content": "Find it.\n\nPresent the answer in LaTex format: \\boxed{Your answer}"},
]
HUB = {
    "eurus-2-rl-math": (
        {"prompt": CHAT, "reward_model": {"ground_truth": "34", "style": "rule"}, "ability": "math"},
        ("PRIME-RL/Eurus-2-RL-Data", None, "train"),
        Row("eurus-2-rl-math", "eurus-2-rl-math-0", "Find it.", "34", "math/Eurus-2-RL-Math"),
    ),
    "dapo-math-17k": (
        {"prompt": "Find it.", "solution": "34", "ability": "MATH"},
        ("open-r1/DAPO-Math-17k-Processed", "all", "train"),
        Row("dapo-math-17k", "dapo-math-17k-0", "Find it.", "34", "math/DAPO-Math-17k"),
    ),
    "math": (
        {"problem": "Find it.", "solution": "It is \\boxed{\\frac{1}{2}}.", "type": "Algebra"},
        ("DigitalLearningGmbH/MATH-lighteval", None, "train"),
        Row("math", "math-0", "Find it.", "\\frac{1}{2}", "math/MATH"),
    ),
    "gsm8k": (
        {"question": "How many?", "answer": "#### is the mark\n#### 1,018"},
        ("openai/gsm8k", "main", "train"),
        Row("gsm8k", "gsm8k-0", "How many?", "1,018", "gsm8k/train"),
    ),
    "eurus-2-code": (
        {
            "ability": "code",
            "prompt": [{"role": "user", "content": "Add."}],
            "reward_model": {"ground_truth": STDIN, "style": "rule"},
        },
        ("PRIME-RL/Eurus-2-RL-Data", None, "train"),
        # the judge is not that of the form, so the label names it
        Row("eurus-2-code", "eurus-2-code-0", "Add.", f'{STDIN[:-1]}, "judge": "prime"}}', "code/Eurus-2-RL-Code"),
    ),
    "acecode": (
        {"question": "Add.", "test_cases": ["assert add(1, 2) == 3"]},
        ("TIGER-Lab/AceCode-87K", None, "train"),
        Row("acecode", "acecode-0", "Add.", '["assert add(1, 2) == 3"]', "code/AceCode"),
    ),
    "kodcode": (
        {"question": "Add.", "test": "def test_add():\n    pass\n", "test_info": []},
        ("KodCode/KodCode-V1", None, "train"),
        Row("kodcode", "kodcode-0", "Add.", '{"pytest": "def test_add():\\n    pass\\n"}', "code/KodCode"),
    ),
    "taco": (
        {"question": "Add.", "input_output": STDIN, "starter_code": ""},
        ("BAAI/TACO", None, "train"),
        Row("taco", "taco-0", "Add.", STDIN, "code/TACO"),
    ),
    "apps": (
        {"question": "Add.", "input_output": STDIN, "starter_code": ""},
        ("codeparrot/apps", None, "train"),
        Row("apps", "apps-0", "Add.", STDIN, "code/APPS"),
    ),
}


class TestHub:
    @pytest.mark.parametrize("name", TRAINING_SETS)
    def test_rows(self, hub, name):
        row, call, expected = HUB[name]
        calls = hub([row])
        (source,) = open_sources(name, None, Keys())
        assert read(source) == read(source) == [expected]
        assert calls == [call]
        assert source.count == 1

    def test_programs_of_eurus_are_not_mathematics(self, hub):
        row, *_ = HUB["eurus-2-rl-math"]
        hub([row | {"ability": "code"}, row])
        (source,) = open_sources("eurus-2-rl-math", None, Keys())
        assert (source.count, len(read(source))) == (1, 1)

    def test_a_solution_gives_the_same_answer_as_in_a_file(self, hub, write, tmp_path):
        # In a written solution the box is the answer, also beside a relation or a factor; in a response it is not.
        rows = [{"problem": "?", "solution": rf"so {end}."} for end in (r"$n > \boxed{3}$", r"$\boxed{25}\pi$")]
        hub(rows)
        (source,) = open_sources("math", None, Keys())
        write(rows, "math_train.jsonl")
        (file,) = open_sources("math", tmp_path, Keys())
        assert [row.answer for row in read(source)] == [row.answer for row in read(file)] == ["3", "25"]

    def test_the_digest_follows_the_content(self, hub):
        digests = []
        for answer in ("#### 1", "#### 1", "#### 2"):
            hub([{"question": "?", "answer": answer}])
            (source,) = open_sources("gsm8k", None, Keys())
            list(source.read(digest := hashlib.sha256()))
            digests.append(digest.hexdigest())
        assert digests[0] == digests[1] != digests[2]

    def test_a_file_in_the_form_of_the_hub_is_read_and_what_is_no_program_left_out(self, write, tmp_path):
        row = HUB["eurus-2-code"][0]
        write([row, row | {"ability": "math"}, row], "eurus_2_rl.jsonl")
        (source,) = open_sources("eurus-2-code", tmp_path, Keys())
        assert [each.id for each in read(source)] == ["eurus-2-code-0", "eurus-2-code-2"]

    @pytest.mark.parametrize(
        ("row", "message"),
        [({}, "has no 'ability'"), ({"ability": "code", "prompt": []}, "is not as eurus-2-code should be")],
    )
    def test_a_row_of_another_form_is_refused_by_its_line(self, write, tmp_path, row, message):
        write([row], "eurus_2_rl.jsonl")
        assert f"eurus_2_rl.jsonl, line 1 {message}" in refusal("eurus-2-code", tmp_path, Keys())

    def test_a_missing_field_is_refused(self, hub):
        hub([{"question": "?", "solution": "5"}])
        message = refusal("gsm8k", None, Keys())
        assert missing(message, "openai/gsm8k, main, split train", "'answer'", "question, solution") == []
