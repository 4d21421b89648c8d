import json
import logging

import datasets
import pytest

from openrlhf_cov.cli import preflight
from openrlhf_cov.errors import UsageError

REWARD = """
def reward_func(queries, prompts, labels):
    return {"rewards": [0.0 for _ in queries]}

def check_label(label):
    if not label.isdigit():
        raise ValueError("a label is a string of digits")
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_model(folder, files=("config.json", "tokenizer_config.json", "model.safetensors")):
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    return folder


@pytest.fixture
def inputs(tmp_path):
    """Good inputs of a run, as flags; a test replaces the value that it makes bad."""
    rows = [{"input": f"{i}+{i}=", "label": str(2 * i)} for i in range(4)]
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    return {
        "--ckpt.output_dir": tmp_path / "run",
        "--actor.model_name_or_path": make_model(tmp_path / "model"),
        "--reward.remote_url": reward,
        "--data.prompt_dataset": write_rows(tmp_path / "train.jsonl", rows),
        "--data.input_key": "input",
        "--data.label_key": "label",
        "--algo.advantage.estimator": "group_norm",
        "--rollout.batch_size": 4,
        "--rollout.n_samples_per_prompt": 2,
        "--rollout.micro_batch_size": 1,
        "--train.batch_size": 4,
        "--actor.num_gpus_per_node": 1,
        "--vllm.num_engines": 1,
    }


@pytest.fixture
def check(inputs, parse_nested):
    """Function: run all checks on the inputs with some of them changed."""

    def run(changes=(), *extra):
        flags = [str(word) for pair in (inputs | dict(changes)).items() for word in pair]
        preflight.check(parse_nested(*flags, *extra))

    return run


@pytest.fixture
def refused(check):
    """Function: the message with which the changed inputs are refused."""

    def run(changes, *extra):
        with pytest.raises(UsageError) as error:
            check(changes, *extra)
        return str(error.value)

    return run


def test_good_inputs_pass_and_leave_an_empty_folder(check, tmp_path):
    check()
    assert list((tmp_path / "run").iterdir()) == []


def test_generation_needs_an_engine(refused):
    assert refused({"--vllm.num_engines": 0}) == "--vllm.num_engines 0: rollouts come from vLLM; use at least 1"


def test_a_folder_of_another_run_is_refused(refused, check, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    message = refused({})
    assert f"--ckpt.output_dir {tmp_path / 'run'} holds metrics.jsonl" in message
    assert "--ckpt.load_enable" in message
    check({}, "--ckpt.load_enable")


@pytest.mark.parametrize("path", ["file", "file/run"])
def test_a_file_in_the_way_of_the_folder_is_refused(refused, tmp_path, path):
    (tmp_path / "file").touch()
    message = refused({"--ckpt.output_dir": tmp_path / path})
    assert message.startswith(f"--ckpt.output_dir {tmp_path / path} cannot be written: ")


def test_a_model_is_required(parse_nested, tmp_path):
    args = parse_nested("--ckpt.output_dir", str(tmp_path), "--reward.remote_url", "r.py", "--vllm.num_engines", "1")
    with pytest.raises(UsageError, match=r"^--actor\.model_name_or_path is missing"):
        preflight.check(args)


def test_a_missing_model_folder_is_refused(refused, tmp_path):
    message = refused({"--actor.model_name_or_path": tmp_path / "nowhere"})
    assert message == f"--actor.model_name_or_path {tmp_path / 'nowhere'}: no such folder"


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ((), "no config.json, no tokenizer_config.json, no weights (*.safetensors or *.bin)"),
        (("tokenizer_config.json", "pytorch_model.bin"), "no config.json"),
        (("config.json", "model.safetensors"), "no tokenizer_config.json"),
        (("config.json", "tokenizer_config.json", "model.gguf"), "no weights (*.safetensors or *.bin)"),
    ],
)
def test_an_incomplete_model_folder_is_refused(refused, tmp_path, files, missing):
    folder = make_model(tmp_path / "incomplete", files)
    message = refused({"--actor.model_name_or_path": folder})
    assert message == f"--actor.model_name_or_path {folder} is not a Hugging Face model folder: {missing}"


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "model-00001-of-00002.safetensors"])
def test_every_weight_format_passes(check, tmp_path, weights):
    folder = make_model(tmp_path / "other", ("config.json", "tokenizer_config.json", weights))
    check({"--actor.model_name_or_path": folder})


def test_a_hub_name_that_the_hub_does_not_give_is_refused(refused, monkeypatch):
    import transformers

    def refuse(name, **kwargs):
        raise OSError(f"{name} is not a local folder\nand no model on the hub")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse)
    message = refused({"--actor.model_name_or_path": "someone/nothing"})
    assert message.startswith("--actor.model_name_or_path someone/nothing: neither a folder here nor a model")
    assert message.endswith("(someone/nothing is not a local folder)")


def test_a_missing_reward_model_is_refused(refused, inputs, tmp_path):
    del inputs["--reward.remote_url"]
    message = refused({"--reward.model_name_or_path": tmp_path / "nowhere"})
    assert message == f"--reward.model_name_or_path {tmp_path / 'nowhere'}: no such folder"


def test_a_missing_reward_file_is_refused(refused, tmp_path):
    message = refused({"--reward.remote_url": tmp_path / "nowhere.py"})
    assert message == f"--reward.remote_url {tmp_path / 'nowhere.py'}: no such file"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def other(): pass", " has no function reward_func(queries, prompts, labels)"),
        ("reward_func = 3", " has no function reward_func(queries, prompts, labels)"),
        ("import no_such_module_here", " cannot be imported: ModuleNotFoundError: No module named"),
        ("1 / 0", " cannot be imported: ZeroDivisionError: division by zero"),
        ("def reward_func(:", " cannot be imported: SyntaxError: "),
    ],
)
def test_a_bad_reward_file_is_refused(refused, inputs, code, reason):
    inputs["--reward.remote_url"].write_text(code)
    assert refused({}).startswith(f"--reward.remote_url {inputs['--reward.remote_url']}{reason}")


def test_a_reward_server_is_not_imported():
    assert preflight.load_reward(["http://127.0.0.1:5000/score"]) is None
    assert preflight.load_reward(None) is None


@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
def test_a_missing_dataset_is_refused(refused, tmp_path, flag):
    assert refused({flag: tmp_path / "no.jsonl"}) == f"{flag} {tmp_path / 'no.jsonl'}: no such file"


def test_one_missing_dataset_of_two_is_refused(refused, inputs, tmp_path):
    both = f"{inputs['--data.prompt_dataset']},{tmp_path / 'no.jsonl'}"
    assert refused({"--data.prompt_dataset": both}) == f"--data.prompt_dataset {tmp_path / 'no.jsonl'}: no such file"


def test_a_dataset_is_required(refused, inputs):
    del inputs["--data.prompt_dataset"]
    assert refused({}).startswith("--data.prompt_dataset is missing")


@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
def test_an_empty_dataset_is_refused(refused, tmp_path, flag):
    (tmp_path / "empty.jsonl").touch()
    assert refused({flag: tmp_path / "empty.jsonl"}) == f"{flag} {tmp_path / 'empty.jsonl'} is empty"


def test_a_file_that_is_no_json_is_refused(refused, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"input": "1+1=", "lab\n')
    message = refused({"--data.prompt_dataset": tmp_path / "bad.jsonl"})
    assert message.startswith(f"--data.prompt_dataset {tmp_path / 'bad.jsonl'} cannot be read: ")


@pytest.mark.parametrize("flag", ["--data.input_key", "--data.label_key"])
def test_a_missing_key_is_refused_with_the_keys_there_are(refused, inputs, flag):
    message = refused({flag: "question"})
    assert message == f"{flag} question: {inputs['--data.prompt_dataset']} has no such key; it has input, label"


def test_a_bad_label_is_refused_with_its_row(refused, tmp_path):
    rows = [{"input": "1+1=", "label": "2"}, {"input": "2+2=", "label": "four"}, {"input": "3+3=", "label": "6"}]
    path = write_rows(tmp_path / "labels.jsonl", rows)
    expected = f"{path}, row 2: --data.label_key label is 'four': a label is a string of digits"
    assert refused({"--data.prompt_dataset": path}) == expected
    assert refused({"--eval.dataset": path}) == expected


def test_a_reward_that_checks_labels_needs_their_key(refused, inputs):
    del inputs["--data.label_key"]
    assert refused({}).startswith("--data.label_key is missing")


def test_a_reward_without_a_label_check_takes_any(check, inputs, tmp_path):
    inputs["--reward.remote_url"].write_text("def reward_func(queries, prompts, labels): ...")
    path = write_rows(tmp_path / "labels.jsonl", [{"input": "a", "label": "four"}] * 4)
    check({"--data.prompt_dataset": path})


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        ({"--train.batch_size": 9}, 8),  # 4 prompts x 2
        ({"--train.batch_size": 9, "--rollout.batch_size": 100}, 8),  # the data has 4 prompts only
        ({"--data.max_samples": 1}, 2),  # 1 prompt x 2
    ],
)
def test_a_step_larger_than_a_rollout_is_refused(refused, inputs, changes, samples):
    message = refused(changes)
    assert message.startswith(
        f"--train.batch_size {(inputs | changes)['--train.batch_size']} is more than one rollout"
    )
    assert f" {samples} samples; not one optimizer step would be made" in message


def test_a_step_as_large_as_a_rollout_passes(check):
    check({"--train.batch_size": 8})


@pytest.mark.parametrize(
    ("cov_type", "changes", "warns"),
    [
        ("kl_cov", {}, True),  # 4 prompts x 2 = 8 samples, one update
        ("kl_cov", {"--train.batch_size": 4}, False),
        ("kl_cov", {"--train.max_epochs": 2}, False),
        ("kl_cov", {"--rollout.batch_size": 8}, True),  # 16 samples, but the data gives 8
        ("clip_cov", {}, False),
        ("none", {}, False),
    ],
)
def test_kl_cov_with_one_update_per_rollout_warns(check, caplog, cov_type, changes, warns):
    preflight.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    try:
        check({"--cov_type": cov_type, "--train.batch_size": 8} | changes)
    finally:
        preflight.logger.removeHandler(caplog.handler)
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [message.startswith("--cov_type kl_cov with one update per rollout") for message in messages] == [
        True
    ] * warns


def test_rows_are_limited_over_all_datasets(refused, inputs, tmp_path):
    # upstream cuts the concatenated data to --data.max_samples: 4 of 8 rows, x 2 samples = 8, less than one step of 9
    other = write_rows(tmp_path / "other.jsonl", [{"input": "1+1=", "label": "2"}] * 4)
    changes = {
        "--data.prompt_dataset": f"{inputs['--data.prompt_dataset']},{other}",
        "--data.max_samples": 4,
        "--rollout.batch_size": 8,
        "--train.batch_size": 9,
    }
    assert "4 prompts (of 4 in the data" in refused(changes)
