import json

import datasets
import pytest

from openrlhf_cov.rewards import reward_func
from openrlhf_cov.trainer.preflight import check_data


@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
def test_a_missing_dataset_is_refused(refusal, tmp_path, flag):
    assert refusal({flag: tmp_path / "no.jsonl"}) == f"{flag} {tmp_path / 'no.jsonl'}: no such file"


def test_one_missing_dataset_of_two_is_refused(refusal, inputs, tmp_path):
    both = f"{inputs['--data.prompt_dataset']},{tmp_path / 'no.jsonl'}"
    assert refusal({"--data.prompt_dataset": both}) == f"--data.prompt_dataset {tmp_path / 'no.jsonl'}: no such file"


def test_a_dataset_is_required(refusal, inputs):
    del inputs["--data.prompt_dataset"]
    assert refusal({}).startswith("--data.prompt_dataset is missing")


@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
def test_an_empty_dataset_is_refused(refusal, tmp_path, flag):
    (tmp_path / "empty.jsonl").touch()
    assert refusal({flag: tmp_path / "empty.jsonl"}) == f"{flag} {tmp_path / 'empty.jsonl'} is empty"


def test_a_file_that_is_no_json_is_refused(refusal, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"input": "1+1=", "lab\n')
    message = refusal({"--data.prompt_dataset": tmp_path / "bad.jsonl"})
    assert message.startswith(f"--data.prompt_dataset {tmp_path / 'bad.jsonl'} cannot be read: ")


@pytest.mark.parametrize("flag", ["--data.input_key", "--data.label_key"])
def test_a_missing_key_is_refused_with_the_keys_there_are(refusal, inputs, flag):
    message = refusal({flag: "question"})
    assert message == f"{flag} question: {inputs['--data.prompt_dataset']} has no such key; it has input, label"


def test_a_bad_label_is_refused_with_its_row(refusal, write_rows, tmp_path):
    rows = [{"input": "1+1=", "label": "2"}, {"input": "2+2=", "label": "four"}, {"input": "3+3=", "label": "6"}]
    path = write_rows(tmp_path / "labels.jsonl", rows)
    assert refusal({"--data.prompt_dataset": path}) == (
        f"{path}, line 2: --data.label_key label is 'four': a label is a string of digits; mend the row, or drop such "
        "rows with --reward_skip_bad_labels"
    )


def test_a_bad_label_is_found_in_the_second_file(refusal, write_rows, tmp_path):
    good = write_rows(tmp_path / "good.jsonl", [{"input": "1+1=", "label": "2"}] * 3)
    bad = write_rows(tmp_path / "bad.jsonl", [{"input": "1+1=", "label": "2"}, {"input": "2+2=", "label": "x"}])
    assert refusal({"--data.prompt_dataset": f"{good},{bad}"}).startswith(f"{bad}, line 2: ")


def test_bad_labels_may_be_skipped_as_long_as_some_are_good(check, refusal, write_rows, tmp_path):
    rows = [{"input": "1+1=", "label": "2"}, {"input": "2+2=", "label": "x"}]
    some = write_rows(tmp_path / "some.jsonl", rows * 200)
    none = write_rows(tmp_path / "none.jsonl", rows[1:] * 200)
    check({"--data.prompt_dataset": some}, "--reward_skip_bad_labels")
    assert refusal({"--data.prompt_dataset": none}, "--reward_skip_bad_labels").startswith(f"{none}, line 200: ")


def test_a_reward_that_checks_labels_needs_their_key(refusal, inputs):
    del inputs["--data.label_key"]
    assert refusal({}).startswith("--data.label_key is missing")


def test_a_reward_without_a_label_check_takes_any(check, inputs, write_rows, tmp_path):
    inputs["--reward.remote_url"].write_text("def reward_func(queries, prompts, labels): ...")
    path = write_rows(tmp_path / "labels.jsonl", [{"input": "a", "label": "four"}] * 4)
    check({"--data.prompt_dataset": path})


def test_rows_are_limited_over_all_datasets(refusal, inputs, write_rows, tmp_path):
    # upstream cuts the concatenated data to --data.max_samples: 4 of 8 rows, x 2 samples = 8, less than one step of 9
    other = write_rows(tmp_path / "other.jsonl", [{"input": "1+1=", "label": "2"}] * 4)
    changes = {
        "--data.prompt_dataset": f"{inputs['--data.prompt_dataset']},{other}",
        "--data.max_samples": 4,
        "--rollout.batch_size": 8,
        "--train.batch_size": 9,
    }
    assert "4 prompts (of 4 in the data" in refusal(changes)


@pytest.mark.parametrize(
    ("flag", "split_flag"), [("--data.prompt_dataset", "--data.prompt_split"), ("--eval.dataset", "--eval.split")]
)
def test_a_split_that_is_not_there_is_refused_with_those_that_are(refusal, inputs, flag, split_flag):
    path = inputs["--data.prompt_dataset"]
    message = refusal({flag: path, split_flag: "trian"})
    assert message == f"{split_flag} trian: {path} has no such split; it has train"


def test_a_name_below_a_local_folder_is_not_looked_up_on_the_hub(refusal, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_data, "blending_datasets", None)  # would ask the hub
    (tmp_path / "data").mkdir()
    message = refusal({"--data.prompt_dataset": "data/trainn"})
    assert message.startswith("--data.prompt_dataset data/trainn: no such file in data/; ")


@pytest.mark.parametrize("name", ["org/name", "name"])
def test_other_names_are_those_of_the_hub(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    check_data.refuse_local_name("--data.prompt_dataset", name, "file")


@pytest.mark.parametrize("name", ["/x", "./x", "~/x", "a/b/c", "x.jsonl", "x.parquet", "x.arrow"])
def test_what_looks_like_a_path_is_one(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(check_data.UsageError, match=f"^--flag {name}: no such file$"):
        check_data.refuse_local_name("--flag", name, "file")


# row 3 of the rows is not like the others: rows, what the message shows of it, extra flags
BAD_PROMPTS = [
    ({"input": None, "label": "6"}, "None", []),
    ({"label": "6"}, "None", []),
    ({"input": "", "label": "6"}, "''", []),
    ({"input": " \n", "label": "6"}, r"' \n'", []),
    ({"input": "", "label": "6"}, "''", ["--data.apply_chat_template"]),
    ({"input": "", "label": "6"}, "''", ["--data.input_template", "Q: {}"]),
]


@pytest.mark.parametrize(("row", "shown", "flags"), BAD_PROMPTS)
@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
def test_a_row_without_a_prompt_is_refused_with_its_number(refusal, write_rows, tmp_path, flag, row, shown, flags):
    good = [{"input": f"{i}+{i}=", "label": str(2 * i)} for i in range(4)]
    path = write_rows(tmp_path / "rows.jsonl", [*good[:2], row, *good[2:]])
    message = refusal({flag: path}, *flags)
    assert message.startswith(f"{path}, row 3: --data.input_key input is {shown}: every row needs a prompt")


MESSAGES = [{"role": "user", "content": "1+1="}]


def test_messages_need_the_chat_template(refusal, check, write_rows, tmp_path):
    path = write_rows(tmp_path / "chat.jsonl", [{"input": MESSAGES, "label": "2"}] * 4)
    message = refusal({"--data.prompt_dataset": path})
    assert message.startswith(f"{path}, row 1: --data.input_key input is [")
    assert message.endswith(": without --data.apply_chat_template a prompt is a text")
    check({"--data.prompt_dataset": path}, "--data.apply_chat_template")


def test_prompts_that_are_no_text(refusal, check, write_rows, tmp_path):
    path = write_rows(tmp_path / "numbers.jsonl", [{"input": 7, "label": "2"}] * 4)
    assert "a prompt is a text" in refusal({"--data.prompt_dataset": path})
    assert "a prompt is a text or a list" in refusal({"--data.prompt_dataset": path}, "--data.apply_chat_template")
    check({"--data.prompt_dataset": path}, "--data.input_template", "Q: {}")  # upstream formats anything


ROWS = [{"prompt": [{"role": "user", "content": f"{i}+{i}="}], "reward_model": {"gold": str(2 * i)}} for i in range(4)]
VERL = {"--data.input_key": "prompt", "--data.label_key": "reward_model.gold"}


def write_parquet(path, rows):
    datasets.Dataset.from_list(rows).to_parquet(path)


def save_to_disk(path, rows):
    datasets.Dataset.from_list(rows).save_to_disk(path)


def save_splits_to_disk(path, rows):
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(path)


def write_json(path, rows):
    path.write_text(json.dumps(rows, indent=1))


FORMATS = {
    "rows.parquet": write_parquet,
    "rows.json": write_json,
    "saved": save_to_disk,
    "splits": save_splits_to_disk,
}


@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
@pytest.mark.parametrize("name", FORMATS)
def test_nested_keys_are_read_in_every_format(check, refusal, tmp_path, flag, name):
    FORMATS[name](tmp_path / name, ROWS)
    changes = VERL | {"--data.prompt_dataset": tmp_path / name, flag: tmp_path / name}
    check(changes, "--data.apply_chat_template")
    message = refusal(changes | {"--data.label_key": "reward_model.answer"}, "--data.apply_chat_template")
    assert message == (
        f"--data.label_key reward_model.answer: {tmp_path / name} has no such key; it has prompt, reward_model, "
        "reward_model.gold"
    )


def test_a_csv_is_read(check, tmp_path):
    (tmp_path / "rows.csv").write_text('input,label\n"1, 2 and 3?",6\n1+1=,2\n2+2=,4\n3+3=,6\n')
    check({"--data.prompt_dataset": tmp_path / "rows.csv", "--reward.remote_url": reward_func.__file__})


def test_a_bad_nested_label_is_refused(refusal, write_rows, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [*ROWS[:2], ROWS[2] | {"reward_model": {"gold": None}}, ROWS[3]])
    changes = VERL | {"--data.prompt_dataset": path, "--reward.remote_url": reward_func.__file__}
    message = refusal(changes, "--data.apply_chat_template")
    assert message.startswith(f"{path}, line 3: --data.label_key reward_model.gold is None: ")


def test_a_nested_prompt_that_is_missing_is_refused(refusal, write_rows, tmp_path):
    rows = [{"task": {"text": "1+1="}, "label": "2"}, {"task": None, "label": "2"}] * 2
    path = write_rows(tmp_path / "rows.jsonl", rows)
    message = refusal({"--data.prompt_dataset": path, "--data.input_key": "task.text"})
    assert message.startswith(f"{path}, row 2: --data.input_key task.text is None: every row needs a prompt")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_bad_label_in_an_array_is_refused_with_its_row(refusal, tmp_path, indent):
    # an array may have any number of lines, so that a line would be wrong
    rows = [{"input": "1+1=", "label": "2"}, {"input": "2+2=", "label": "four"}] * 2
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=indent))
    message = refusal({"--data.prompt_dataset": tmp_path / "rows.json"})
    assert message.startswith(f"{tmp_path / 'rows.json'}, row 2: --data.label_key label is 'four'")


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([*MESSAGES, {"role": "assistant", "content": "2"}], "the last message is the assistant's answer"),
        ([{"content": "1+1="}], "a list of messages has a role and a content in each"),
        (json.dumps([{"role": "user", "content": "1+1="}]), "it is a list of messages written as a text"),
        ("[{'role': 'user', 'content': '1+1='}]", "it is a list of messages written as a text"),
        (["1+1="], "a list of messages has a role and a content in each"),
    ],
)
def test_messages_that_are_no_prompt_are_refused(refusal, write_rows, tmp_path, messages, fault):
    path = write_rows(tmp_path / "chat.jsonl", [{"input": messages, "label": "2"}] * 4)
    assert fault in refusal({"--data.prompt_dataset": path}, "--data.apply_chat_template")
