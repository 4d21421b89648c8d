import json

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.trainer.preflight import preflight

NO_WEIGHTS = "no weights (model*.safetensors or pytorch_model*.bin)"
NO_CONFIG = ["not json", "[]", '{"model_type": "nonsense"}', '{"model_type": "qwen2", "vocab_size": "x"}']


def test_good_inputs_pass_and_leave_an_empty_folder(check, tmp_path):
    check()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_model_is_required(parse_nested, tmp_path):
    args = parse_nested("--ckpt.output_dir", str(tmp_path), "--reward.remote_url", "r.py", "--vllm.num_engines", "1")
    with pytest.raises(UsageError, match=r"^--actor\.model_name_or_path is missing"):
        preflight.check(args)


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ((), f"no config.json, no tokenizer_config.json, {NO_WEIGHTS}"),
        (("tokenizer_config.json", "pytorch_model.bin"), "no config.json"),
        (("config.json", "model.safetensors"), "no tokenizer_config.json"),
        (("config.json", "tokenizer_config.json", "model.gguf"), NO_WEIGHTS),
    ],
)
def test_an_incomplete_model_folder_is_refused(refusal, make_model, tmp_path, files, missing):
    folder = make_model(tmp_path / "incomplete", files)
    message = refusal({"--actor.model_name_or_path": folder})
    assert message == f"--actor.model_name_or_path {folder} is not a Hugging Face model folder: {missing}"


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--actor.model_name_or_path", "no such folder"),
        ("--reward.model_name_or_path", "no such folder"),
        ("--reward.remote_url", "no such file"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(refusal, inputs, tmp_path, flag, reason):
    if flag == "--reward.model_name_or_path":
        del inputs["--reward.remote_url"]
    assert refusal({flag: tmp_path / "nowhere.py"}) == f"{flag} {tmp_path / 'nowhere.py'}: {reason}"


def test_a_hub_name_that_the_hub_does_not_give_is_refused(refusal, monkeypatch):
    import transformers

    def refuse(name, **kwargs):
        raise OSError(f"{name} is not a local folder\nand no model on the hub")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse)
    message = refusal({"--actor.model_name_or_path": "someone/nothing"})
    assert message.startswith("--actor.model_name_or_path someone/nothing: neither a folder here nor a model")
    assert message.endswith("(someone/nothing is not a local folder)")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def other(): pass", " has no function reward_func(queries, prompts, labels)"),
        ("import no_such_module_here", " cannot be imported: ModuleNotFoundError: No module named"),
        ("def reward_func(:", " cannot be imported: SyntaxError: "),
    ],
)
def test_a_bad_reward_file_is_refused(refusal, inputs, code, reason):
    inputs["--reward.remote_url"].write_text(code)
    assert refusal({}).startswith(f"--reward.remote_url {inputs['--reward.remote_url']}{reason}")


def test_a_reward_server_is_not_imported():
    assert preflight.load_reward(["http://127.0.0.1:5000/score"]) is None
    assert preflight.load_reward(None) is None


def test_weights_without_content_are_refused(refusal, inputs):
    folder = inputs["--actor.model_name_or_path"]
    (folder / "model-00002-of-00002.safetensors").touch()
    message = refusal()
    assert message.startswith(f"--actor.model_name_or_path {folder}: model-00002-of-00002.safetensors is empty")


@pytest.mark.parametrize("config", NO_CONFIG)
def test_a_config_that_is_not_that_of_a_model_is_refused(refusal, inputs, config):
    folder = inputs["--actor.model_name_or_path"]
    (folder / "config.json").write_text(config)
    message = refusal()
    assert message.startswith(f"--actor.model_name_or_path {folder}: config.json is not that of a model (")
    assert len(message.splitlines()) == 1


def test_a_name_below_a_local_folder_is_not_looked_up_on_the_hub(refusal, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "_checked_config", None)  # would ask the hub
    message = refusal({"--actor.model_name_or_path": "model/modle"})
    assert message.startswith("--actor.model_name_or_path model/modle: no such folder in model/")


UNEVEN = {"--actor.num_gpus_per_node": 2, "--rollout.batch_size": 4, "--rollout.micro_batch_size": 3}


def test_rollouts_that_ranks_cannot_share_evenly_are_refused(refusal, check):
    # 8 samples in micro-batches of 3, 3 and 2: the second rank would wait for ever
    assert refusal(UNEVEN).startswith(
        "--rollout.batch_size 4 x --rollout.n_samples_per_prompt 2 = 8 samples are no multiple of "
        "--rollout.micro_batch_size 3 x 2 ranks of the actor = 6: "
    )
    check(UNEVEN | {"--actor.num_gpus_per_node": 1})
    check(UNEVEN | {"--rollout.micro_batch_size": 2})


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--vllm.tensor_parallel_size", 3, "does not divide the model: 32 heads"),  # Qwen2's of transformers
        ("--data.max_len", 32769, "is more than the 32768 positions of the model"),
    ],
)
def test_engines_that_could_not_start_are_refused(refusal, flag, value, reason):
    assert refusal({flag: value}).startswith(f"{flag} {value} {reason}")


def bench(names: str, folder="", **flags):
    return {"--eval.dataset": f"bench:{names}", "--eval.data_dir": folder, "--eval.steps": 1} | flags


def test_benchmarks_are_refused_in_the_words_of_the_trainer(refusal, tmp_path):
    assert refusal(bench("aime25x", tmp_path)) == (
        "--eval.dataset bench:aime25x: no benchmark 'aime25x'; did you mean aime25?"
    )
    assert refusal(bench("zzz", tmp_path)) == (
        "--eval.dataset bench:zzz: no benchmark 'zzz'; openrlhf-cov evaluate --list shows all"
    )
    assert refusal(bench("aime25", tmp_path / "nowhere")) == f"--eval.data_dir {tmp_path / 'nowhere'}: no such folder"
    assert refusal(bench("aime25", tmp_path)) == (
        f"--eval.data_dir {tmp_path}: no file aime25.jsonl, which aime25 needs"
    )
    assert refusal(bench("omni_math")) == (
        "omni_math is not on the Hugging Face hub; give --eval.data_dir with omni_math.jsonl or omni_math_rule.jsonl"
    )


def test_samplings_are_refused_in_the_words_of_the_trainer(check, monkeypatch, write_rows, tmp_path):
    import openrlhf.utils

    monkeypatch.setattr(openrlhf.utils, "get_tokenizer", lambda name, model: None)
    row = {"id": "1", "problem": "1+1=", "answer": "2", "source": "math"}
    own = write_rows(tmp_path / "own.jsonl", [row])
    greedy = {"--eval.n_samples_per_prompt": 4, "--eval.temperature": 0}
    with pytest.raises(UsageError) as error:
        check(bench(str(own), tmp_path, **greedy))
    assert str(error.value) == (
        "own: --eval.n_samples_per_prompt 4 with --eval.temperature 0: greedy responses are all the same; use 1"
    )


@pytest.mark.parametrize("name", preflight.CONFIG_FILES)
def test_a_model_with_code_of_its_own_is_refused_without_the_flag(refusal, check, make_model, tmp_path, name):
    folder = make_model(tmp_path / "own")
    content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(content | {"auto_map": {"AutoProcessor": "code.Own"}}))
    (folder / "code.py").write_text("raise SystemExit('it ran')")
    message = refusal({"--actor.model_name_or_path": folder})
    assert message.startswith(f"--actor.model_name_or_path {folder} brings code of its own along ({name}: auto_map)")
    assert "--trust_remote_code" in message
    check({"--actor.model_name_or_path": folder}, "--trust_remote_code")


def test_an_entropy_that_no_distribution_has_is_refused(refusal, check, inputs):
    config = inputs["--actor.model_name_or_path"] / "config.json"
    config.write_text(json.dumps({"model_type": "qwen2", "vocab_size": 20}))
    # ln 20 = 2.996
    assert refusal((), "--method", "repo_r", "--entropy_target", "3.5:0.3:9") == (
        "--entropy_target 3.5 is out of reach: a vocabulary of 20 tokens has an entropy of at most 3.00 nats"
    )
    check((), "--method", "repo_r", "--entropy_target", "2.9")
    assert refusal((), "--method", "stare", "--stare_gate", "3").startswith("--stare_gate 3 is out of reach")
    assert refusal((), "--method", "entrocraft", "--entrocraft_high", "0.7:4:9", "--entrocraft_low", "0.6").startswith(
        "--entrocraft_high 4 is out of reach"
    )
