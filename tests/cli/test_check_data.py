import json

import datasets
import pytest

from openrlhf_cov.rewards import reward_func
from openrlhf_cov.trainer.preflight import check_data

# flag and what it names below the test's folder -> the message after the flag and the place
REFUSED = [
    ("--data.prompt_dataset", "no.jsonl", ": no such file"),
    ("--eval.dataset", "no.jsonl", ": no such file"),
    ("--data.prompt_dataset", "train.jsonl,{folder}/no.jsonl", "{folder}/no.jsonl: no such file"),
    ("--data.prompt_dataset", "empty.jsonl", " is empty"),
    ("--eval.dataset", "empty.jsonl", " is empty"),
    ("--data.prompt_dataset", "bad.jsonl", " cannot be read: "),
]


@pytest.mark.parametrize(("flag", "name", "reason"), REFUSED)
def test_a_dataset_that_cannot_be_read_is_refused(refusal, inputs, tmp_path, flag, name, reason):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "bad.jsonl").write_text('{"input": "1+1=", "lab\n')
    place = f"{tmp_path}/{name.format(folder=tmp_path)}"
    reason = reason.format(folder=tmp_path)
    message = refusal({flag: place})
    assert message.startswith(f"{flag} {reason}" if "," in name else f"{flag} {place}{reason}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--data.prompt_dataset": None}, "--data.prompt_dataset is missing"),
        ({"--data.label_key": None}, "--data.label_key is missing"),  # the reward checks labels
        ({"--data.input_key": "question"}, "--data.input_key question: {data} has no such key; it has input, label"),
        ({"--data.label_key": "answer"}, "--data.label_key answer: {data} has no such key; it has input, label"),
        ({"--data.prompt_split": "trian"}, "--data.prompt_split trian: {data} has no such split; it has train"),
    ],
)
def test_a_part_of_the_data_that_is_not_there_is_refused(refusal, inputs, changes, reason):
    data = inputs["--data.prompt_dataset"]
    for flag, value in changes.items():
        if value is None:
            del inputs[flag]
    message = refusal({flag: value for flag, value in changes.items() if value is not None})
    assert message.startswith(reason.format(data=data))


def test_a_bad_label_is_refused_with_its_row(refusal, write_rows, tmp_path):
    rows = [{"input": "1+1=", "label": "2"}, {"input": "2+2=", "label": "four"}, {"input": "3+3=", "label": "6"}]
    path = write_rows(tmp_path / "labels.jsonl", rows)
    assert refusal({"--data.prompt_dataset": path}) == (
        f"{path}, line 2: --data.label_key label is 'four': a label is a string of digits; mend the row, or drop such "
        "rows with --reward_skip_bad_labels"
    )


def test_bad_labels_may_be_skipped_as_long_as_some_are_good(check, refusal, write_rows, tmp_path):
    rows = [{"input": "1+1=", "label": "2"}, {"input": "2+2=", "label": "x"}]
    some = write_rows(tmp_path / "some.jsonl", rows * 200)
    none = write_rows(tmp_path / "none.jsonl", rows[1:] * 200)
    check({"--data.prompt_dataset": some}, "--reward_skip_bad_labels")
    assert refusal({"--data.prompt_dataset": none}, "--reward_skip_bad_labels").startswith(f"{none}, line 200: ")


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


def test_a_name_below_a_local_folder_is_not_looked_up_on_the_hub(refusal, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_data, "blending_datasets", None)  # would ask the hub
    (tmp_path / "data").mkdir()
    message = refusal({"--data.prompt_dataset": "data/trainn"})
    assert message.startswith("--data.prompt_dataset data/trainn: no such file in data/; ")


# row 3 of the rows is not like the others: rows, what the message shows of it, extra flags
BAD_PROMPTS = [
    ({"input": None, "label": "6"}, "None", []),
    ({"label": "6"}, "None", []),
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
