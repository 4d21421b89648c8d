"""What is checked before a training starts: numbers, data, model, reward, benchmarks and recordings."""

import json

import datasets
import pytest
import torch
from texts import missing

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.connection import needs_of_training
from openrlhf_cov.data.rollout_files import (
    RecordedSample,
    RolloutHeader,
    RolloutRecord,
    rollout_path,
    tokenizer_digest,
    write_rollout,
)
from openrlhf_cov.experiments.tiny_task import coin_reward_func
from openrlhf_cov.experiments.tiny_task.tokenizer import CHARACTERS, build_tokenizer
from openrlhf_cov.rewards import reward_func
from openrlhf_cov.trainer.preflight import check_data, preflight

MESSAGES = [{"role": "user", "content": "1+1="}]
GOOD = {"input": "1+1=", "label": "2"}


def four(**changes):
    """Four rows of data with these changes."""
    return [GOOD | changes] * 4


def third(row):
    """Four good rows and another one, the third."""
    return [GOOD, GOOD, row, GOOD, GOOD]


# Files of data beside the good one, train.jsonl.
DATA = {
    "labels.jsonl": [GOOD, GOOD | {"label": "four"}, GOOD],
    "none.jsonl": third({"input": None, "label": "6"}),
    "no_input.jsonl": third({"label": "6"}),
    "blank.jsonl": third({"input": " \n", "label": "6"}),
    "nothing.jsonl": third({"input": "", "label": "6"}),
    "numbers.jsonl": four(input=7),
    "chat.jsonl": four(input=MESSAGES),
    "answered.jsonl": four(input=[*MESSAGES, {"role": "assistant", "content": "2"}]),
    "no_role.jsonl": four(input=[{"content": "1+1="}]),
    "texts.jsonl": four(input=["1+1="]),
    "json_text.jsonl": four(input=json.dumps(MESSAGES)),
    "python_text.jsonl": four(input=str(MESSAGES)),
    "some_bad.jsonl": [GOOD, GOOD | {"label": "x"}] * 200,
    "all_bad.jsonl": four(label="x") * 50,
    "own.jsonl": [{"id": "1", "problem": "1+1=", "answer": "2", "source": "math"}],
}
TEXTS = {
    "empty.jsonl": "",
    "bad.jsonl": '{"input": "1+1=", "lab\n',
    "array.json": json.dumps([GOOD, GOOD | {"label": "four"}] * 2),
    "indented.json": json.dumps([GOOD, GOOD | {"label": "four"}] * 2, indent=2),
    "rows.csv": 'input,label\n"1, 2 and 3?",6\n1+1=,2\n2+2=,4\n3+3=,6\n',
    "none.py": "def other(): pass",
    "one.py": "def reward_func(queries): ...",
    "four.py": "def reward_func(queries, prompts, labels, more): ...",
    "named.py": "def reward_func(queries, *, prompts, labels): ...",
    "import.py": "import no_such_module_here",
    "syntax.py": "def reward_func(:",
    "exit.py": "import sys; sys.exit(3)",
    "agent.py": "from openrlhf.utils.agent import AgentExecutorBase\nclass AgentExecutor(AgentExecutorBase): ...",
    "no_agent.py": "class AgentExecutor: ...",
    "any.py": "def reward_func(queries, prompts, labels): ...",
    "made.py": "def reward_func(queries, prompts, labels): ...\ndef make_reward_func(config): return reward_func",
}
MODELS = {
    "bare": (),
    "no_config": ("tokenizer_config.json", "pytorch_model.bin"),
    "no_tokenizer": ("config.json", "model.safetensors"),
    "gguf": ("config.json", "tokenizer_config.json", "model.gguf"),
}
NO_WEIGHTS = "no weights (model*.safetensors or pytorch_model*.bin)"
NO_MODEL = "is not a Hugging Face model folder: "

# The inputs have rollouts of 4 prompts x 2 samples, 4 prompts in the data, updates of 4 samples, and a GPU per model.
MICRO, REF = "--train.micro_batch_size", "--ref.num_gpus_per_node"
TWO, THREE = "--actor.num_gpus_per_node 2", "--actor.num_gpus_per_node 3"
GAE = "--algo.advantage.estimator gae"
NO_KL = "--algo.kl.init_coef 0"
KL_LOSS = "--algo.kl.use_loss --algo.kl.init_coef 1e-3"
CHUNKS = f"{TWO} --rollout.micro_batch_size 4 {NO_KL}"
PARALLEL = "--ds.tensor_parallel_size 2 --ds.param_dtype bf16"
NO_TOKEN_LEFT = "no token is left for the prompt"
DATASET, EVAL, CHAT = "--data.prompt_dataset {}", "--eval.steps 5 --eval.dataset {}", "--data.apply_chat_template"
MODEL = "--actor.model_name_or_path"
BENCH = "--eval.steps 1 --eval.dataset bench:"

# Flags behind those of the inputs, and what the one line contains; {} is the folder of all files.
REFUSED = [
    # A rollout is one update or several whole ones.
    ("--train.batch_size 9", "--train.batch_size 9 is more than one rollout"),
    ("--train.batch_size 9 --rollout.batch_size 100", " 8 samples; not one optimizer step would be made"),
    ("--data.max_samples 1", " 2 samples; not one optimizer step would be made"),
    ("--train.batch_size 3", ": 2 samples of every rollout would have no update"),  # 8 = 2 * 3 + 2
    ("--rollout.batch_size 7", ": 2 samples of every rollout would have no update"),  # 14 = 3 * 4 + 2
    ("--rollout.vllm_generate_batch_size 3", "--rollout.vllm_generate_batch_size 3 is less"),
    # Two ranks with chunks of 4 samples take 8, the whole rollout; 3 prompts have 6 samples.
    (f"{CHUNKS} --data.max_samples 3", " = 6 samples; not one optimizer step would be made, which takes a mul"),
    # Rows are limited over all data sets together: 4 of 8 rows, x 2 samples = 8, less than one step of 9.
    (
        "--data.prompt_dataset {}/train.jsonl,{}/train.jsonl --data.max_samples 4 --rollout.batch_size 8 "
        "--train.batch_size 9",
        "4 prompts (of 4 in the data",
    ),
    # 8 samples in micro-batches of 3, 3 and 2: the second rank would wait for ever.
    (
        f"{TWO} --rollout.micro_batch_size 3",
        "--rollout.batch_size 4 x --rollout.n_samples_per_prompt 2 = 8 samples are no multiple of "
        "--rollout.micro_batch_size 3 x 2 ranks of the actor = 6: ",
    ),
    # Models that share GPUs have one size; 2 nodes of 1 GPU and 1 node of 2 are no equal sizes.
    (f"{TWO} --train.colocate_actor_ref", "--actor.num_gpus_per_node 2 and --ref.num_nodes 1"),
    (f"{TWO} --train.colocate_actor_ref --ref.num_nodes 2", "--ref.num_nodes 2 x --ref.num_gpus_per_node 1"),
    (f"{TWO} --train.colocate_all", "--ref.num_nodes 1 x --ref.num_gpus_per_node 1"),
    ("--vllm.num_engines 2 --train.colocate_all", "--actor.num_gpus_per_node 1 = 1, --vllm.num_engines 2 x"),
    (f"{GAE} --critic.num_gpus_per_node 2 --train.colocate_critic_reward", "2 and --reward.num_nodes"),
    # Upstream keeps the last max_len - max_new_tokens tokens of a prompt; without max_new_tokens, all but one.
    ("--data.max_len 64 --rollout.max_new_tokens 64", f"max_new_tokens 64: {NO_TOKEN_LEFT}"),
    ("--data.max_len 64 --rollout.max_new_tokens 100", "--data.max_len 64 is for prompt and response tog"),
    ("--data.max_len 1", f"--rollout.max_new_tokens 1: {NO_TOKEN_LEFT}"),
    # An update is a whole number of micro-batches on every rank.
    (f"{MICRO} 8", "--train.micro_batch_size 8 x 1 rank of actor = 8"),  # 4 // 8 = 0 accumulation steps
    (f"{MICRO} 3", "--train.micro_batch_size 3 x 1 rank of actor = 3"),  # DeepSpeed: 4 != 3 * 1 * 1
    (f"{MICRO} 4 {TWO}", "--train.micro_batch_size 4 x 2 ranks of actor = 8"),
    (f"{MICRO} 2 {REF} 4", "--train.micro_batch_size 2 x 4 ranks of ref = 8"),
    (f"{GAE} --critic.num_gpus_per_node 8", "--train.micro_batch_size 1 x 8 ranks of critic = 8"),
    ("--reward.remote_url= --reward.model_name_or_path {}/model --reward.num_gpus_per_node 8", "ranks of reward = 8"),
    (PARALLEL, "--actor.num_gpus_per_node 1 = 1 process, no multiple of --ds.ring_attn_size 1 x"),
    # Dynamic batches need as many samples on every rank: of 4 samples upstream trains on 3 with 3 ranks.
    (f"{THREE} --train.dynamic_batch_enable", "--train.batch_size 4 is no multiple of the 3 ranks of actor: "),
    (f"{GAE} --critic.num_gpus_per_node 5 --train.dynamic_batch_enable", "no multiple of the 5 ranks of critic"),
    (f"{REF} 3 --train.dynamic_batch_enable", "ranks of ref = 3"),  # it does not train
    # The gradient of log pi - log pi_ref is that of log pi, whose mean over samples of pi is 0; a reward may be k1.
    (KL_LOSS, "--algo.kl.estimator k1 as a loss (--algo.kl.use_loss) has a gradient of 0"),
    # Engines would not start with these; Qwen2 of transformers has 32 heads.
    ("--vllm.tensor_parallel_size 3", "--vllm.tensor_parallel_size 3 does not divide the model: 32 heads"),
    ("--data.max_len 32769", "--data.max_len 32769 is more than the 32768 positions of the model"),
    # Data.
    (f"{DATASET}/no.jsonl", f"{DATASET}/no.jsonl: no such file"),
    (f"{EVAL}/no.jsonl", "--eval.dataset {}/no.jsonl: no such file"),
    (f"{DATASET}/train.jsonl,{{}}/no.jsonl", f"{DATASET}/no.jsonl: no such file"),
    (f"{DATASET}/empty.jsonl", f"{DATASET}/empty.jsonl is empty"),
    (f"{EVAL}/empty.jsonl", "--eval.dataset {}/empty.jsonl is empty"),
    (f"{DATASET}/train.jsonl,", "train.jsonl,: a name is empty; give files or names on the hub"),
    # The second line begins with {"input": ", which are 11 bytes.
    (f"{DATASET}/latin.jsonl", f"{DATASET}/latin.jsonl, line 2: byte 12 is not UTF-8"),
    (f"{DATASET}/bad.jsonl", f"{DATASET}/bad.jsonl cannot be read: "),
    ("--data.input_key question", "question: {}/train.jsonl has no such key; it has input, label"),
    ("--data.label_key answer", "--data.label_key answer: {}/train.jsonl has no such key; it has input, label"),
    ("--data.prompt_split trian", "--data.prompt_split trian: {}/train.jsonl has no such split; it has train"),
    (
        f"{DATASET}/labels.jsonl",
        "{}/labels.jsonl, line 2: --data.label_key label is 'four': a label is a string of digits; mend the row, or "
        "drop such rows with --reward_skip_bad_labels",
    ),
    # An array may have any number of lines, so that a line would be wrong.
    (f"{DATASET}/array.json", "{}/array.json, row 2: --data.label_key label is 'four'"),
    (f"{DATASET}/indented.json", "{}/indented.json, row 2: --data.label_key label is 'four'"),
    (f"{DATASET}/all_bad.jsonl --reward_skip_bad_labels", "{}/all_bad.jsonl, line 200: "),
    (f"{DATASET}/none.jsonl", "{}/none.jsonl, row 3: --data.input_key input is None: every row needs a prompt"),
    (f"{EVAL}/none.jsonl", "{}/none.jsonl, row 3: --data.input_key input is None: every row needs a prompt"),
    (f"{DATASET}/no_input.jsonl", "row 3: --data.input_key input is None"),
    (f"{DATASET}/blank.jsonl", r"row 3: --data.input_key input is ' \n'"),
    (f"{DATASET}/nothing.jsonl {CHAT}", "row 3: --data.input_key input is ''"),
    (f"{DATASET}/nothing.jsonl --data.input_template Q:{{{{}}}}", "row 3: --data.input_key input is ''"),
    (f"{DATASET}/chat.jsonl", "without --data.apply_chat_template a prompt is a text"),
    (f"{DATASET}/numbers.jsonl", "a prompt is a text"),
    (f"{DATASET}/numbers.jsonl {CHAT}", "a prompt is a text or a list"),
    (f"{DATASET}/answered.jsonl {CHAT}", "the last message is the assistant's answer"),
    (f"{DATASET}/no_role.jsonl {CHAT}", "a list of messages has a role and a content in each"),
    (f"{DATASET}/texts.jsonl {CHAT}", "a list of messages has a role and a content in each"),
    (f"{DATASET}/json_text.jsonl {CHAT}", "it is a list of messages written as a text"),
    (f"{DATASET}/python_text.jsonl {CHAT}", "it is a list of messages written as a text"),
    # Models and rewards.
    (f"{MODEL} {{}}/nowhere", f"{MODEL} {{}}/nowhere: no such folder"),
    ("--reward.remote_url= --reward.model_name_or_path {}/nowhere", "{}/nowhere: no such folder"),
    (f"{MODEL} {{}}/bare", f"{{}}/bare {NO_MODEL}no config.json, no tokenizer_config.json, {NO_WEIGHTS}"),
    (f"{MODEL} {{}}/no_config", f"{{}}/no_config {NO_MODEL}no config.json"),
    (f"{MODEL} {{}}/no_tokenizer", f"{{}}/no_tokenizer {NO_MODEL}no tokenizer_config.json"),
    (f"{MODEL} {{}}/gguf", f"{{}}/gguf {NO_MODEL}{NO_WEIGHTS}"),
    ("--reward.remote_url {}/nowhere.py", "--reward.remote_url {}/nowhere.py: no such file"),
    ("--reward.remote_url {}/none.py", "{}/none.py has no function reward_func(queries, prompts, labels)"),
    *(
        (
            f"--reward.remote_url {{}}/{name}.py",
            f"{{}}/{name}.py: reward_func(queries, prompts, labels) cannot be called",
        )
        for name in ("one", "four", "named")
    ),
    ("--reward.remote_url {}/import.py", "{}/import.py cannot be imported: ModuleNotFoundError: No module named"),
    ("--reward.remote_url {}/exit.py", "--reward.remote_url {}/exit.py cannot be imported: SystemExit: 3"),
    ("--logger.tensorboard_dir {}/any.py", "--logger.tensorboard_dir {}/any.py: {}/any.py is a file; give a folder"),
    ("--reward.remote_url {}/syntax.py", "{}/syntax.py cannot be imported: SyntaxError: "),
    # The function of a file gets no settings without make_reward_func(config).
    ("--reward.remote_url {}/any.py --reward_format any", "--reward_format has no effect with --reward.remote_url {}"),
    ("--reward.remote_url {}/any.py --reward_source gsm8k", "--reward_source has no effect with"),
    # Benchmarks are refused in the words of openrlhf-cov evaluate.
    (f"{BENCH}aime25x --eval.data_dir {{}}", "bench:aime25x: no benchmark 'aime25x'; did you mean aime25?"),
    (f"{BENCH}zzz --eval.data_dir {{}}", "bench:zzz: no benchmark 'zzz'; "),
    (f"{BENCH}aime25 --eval.data_dir {{}}/nowhere", "--eval.data_dir {}/nowhere: no such folder"),
    (f"{BENCH}aime25 --eval.data_dir {{}}", "--eval.data_dir {}: no file aime25.jsonl, which aime25 needs"),
    (f"{BENCH}omni_math", "omni_math is not on the Hugging Face hub; give --eval.data_dir with omni_math.jsonl or"),
]

# Flags with which the inputs are accepted.
TAKEN = [
    "",
    "--rollout.vllm_generate_batch_size 4",
    "--rollout.vllm_generate_batch_size 8 --train.async_enable",
    CHUNKS,
    "--rollout.micro_batch_size 3",
    f"{TWO} --rollout.micro_batch_size 2",
    f"{TWO} {REF} 2 --train.colocate_actor_ref",
    f"{TWO} {NO_KL} --train.colocate_actor_ref",  # no reference model
    "--vllm.num_engines 1 --train.colocate_all",
    "--critic.num_gpus_per_node 2 --train.colocate_critic_reward",  # group_norm has no critic
    "--data.max_len 64 --rollout.max_new_tokens 63",
    "--data.max_len 2",
    f"{MICRO} 2",
    f"{MICRO} 2 {REF} 4 {NO_KL}",
    "--critic.num_gpus_per_node 8 --reward.num_gpus_per_node 8",
    f"{MICRO} 4 {REF} 2 {TWO} {PARALLEL}",  # two processes per rank
    f"{GAE} {TWO} --critic.num_gpus_per_node 2 --train.dynamic_batch_enable",
    f"{KL_LOSS} --algo.kl.estimator k3",
    f"{KL_LOSS} --algo.kl.unbiased_gradient",
    "--algo.kl.use_loss --algo.kl.init_coef 0",
    "--algo.kl.init_coef 1e-3",
    f"{DATASET}/some_bad.jsonl --reward_skip_bad_labels",
    f"{DATASET}/labels.jsonl --reward.remote_url {{}}/any.py --rollout.batch_size 2",  # it has no check of labels
    # The trainer reads these for any file; the settings of the grader need a function that takes them.
    "--reward.remote_url {}/any.py --reward_incorrect -1 --reward_keep_truncated --reward_workers 3",
    "--reward.remote_url {}/any.py --reward_source row",
    "--reward.remote_url {}/made.py --reward_format any --reward_source gsm8k",
    f"--reward.remote_url {coin_reward_func.__file__} --reward_source code --code_extract whole",
    f"{DATASET}/chat.jsonl {CHAT}",
    f"{DATASET}/numbers.jsonl --data.input_template Q:{{{{}}}}",  # upstream formats anything
    f"{DATASET}/rows.csv --reward.remote_url {reward_func.__file__}",
    "--reward.remote_url http://127.0.0.1:1/score",  # a server is neither imported nor asked
    "--data.prompt_dataset {}/train.jsonl,{}/train.jsonl --data.prompt_probs 0.75,0.25",
]


@pytest.fixture
def files(tmp_path, write_rows, make_model):
    """The folder with all files that the rows name."""
    for name, rows in DATA.items():
        write_rows(tmp_path / name, rows)
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.jsonl").write_bytes(b'{"input": "1+1=", "label": "2"}\n{"input": "\xe9", "label": "4"}\n')
    for name, parts in MODELS.items():
        make_model(tmp_path / name, parts)
    return tmp_path


@pytest.mark.parametrize(("flags", "said"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_inputs_that_cannot_train_are_refused(refusal, files, flags, said):
    assert said.format(*[files] * 3) in refusal((), *flags.format(files, files).split())


@pytest.mark.parametrize("flags", TAKEN)
def test_inputs_that_can_train_are_accepted(check, files, flags):
    check((), *flags.format(files, files).split())
    assert list((files / "run").iterdir()) == []


@pytest.mark.parametrize("flag", [MODEL, "--data.prompt_dataset", "--data.label_key"])  # the reward checks labels
def test_what_a_training_needs_is_named(refusal, inputs, flag):
    del inputs[flag]
    assert refusal().startswith(f"{flag} is missing")


@pytest.mark.parametrize(
    ("flag", "name", "asks_hub"),
    [
        ("--data.prompt_dataset", "data/trainn", (check_data, "blending_datasets")),
        (MODEL, "model/modle", (preflight, "_checked_config")),
    ],
)
def test_a_name_below_a_local_folder_is_not_looked_up_on_the_hub(refusal, monkeypatch, tmp_path, flag, name, asks_hub):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(*asks_hub, None)
    assert f"{flag} {name}: no such f" in refusal({flag: name})


def test_a_hub_name_that_the_hub_does_not_give_is_refused(refusal, monkeypatch):
    import transformers

    def refuse(name, **kwargs):
        raise OSError(f"{name} is not a local folder\nand no model on the hub")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse)
    message = refusal({MODEL: "someone/nothing"})
    assert message.startswith(f"{MODEL} someone/nothing: neither a folder here nor a model")
    assert message.endswith("(someone/nothing is not a local folder)")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "[]", "config.json is not that of a model ("),
        ("config.json", "not json", "config.json is not that of a model ("),
        ("config.json", '{"model_type": "nonsense"}', "config.json is not that of a model ("),
        ("config.json", '{"model_type": "qwen2", "vocab_size": "x"}', "config.json is not that of a model ("),
        ("model-00002-of-00002.safetensors", "", "model-00002-of-00002.safetensors is empty"),
    ],
)
def test_a_damaged_model_is_refused(refusal, inputs, name, content, said):
    folder = inputs[MODEL]
    (folder / name).write_text(content)
    assert refusal().startswith(f"{MODEL} {folder}: {said}")


def test_a_model_without_a_shard_of_its_index_is_refused(refusal, check, inputs):
    folder = inputs[MODEL]
    shards = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("abc", shards, strict=True))})
    )
    (folder / shards[0]).write_text("weights")
    assert refusal().startswith(f"{MODEL} {folder}: {shards[1]} is missing (2 files of the index are)")
    for shard in shards:
        (folder / shard).write_text("weights")
    check()


def test_a_chat_template_that_the_tokenizer_lacks_is_refused(refusal, check, loadable_model):
    assert refusal((), CHAT).startswith(f"{CHAT}: the tokenizer of {MODEL} {loadable_model} has no chat template")
    (loadable_model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    check((), CHAT)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.py", "no such file"),
        ("none.jsonl", "no such file, or its name does not end in .py"),
        ("syntax.py", "cannot be imported: SyntaxError"),
        ("exit.py", "cannot be imported: SystemExit: 3"),
        ("none.py", "has no class AgentExecutor that inherits from"),
        ("no_agent.py", "has no class AgentExecutor that inherits from"),
    ],
)
def test_an_agent_that_the_engines_cannot_use_is_refused(refusal, check, inputs, files, name, said):
    del inputs["--reward.remote_url"]
    message = refusal({"--train.agent_func_path": files / name})
    assert message.startswith(f"--train.agent_func_path {files / name}")
    assert said in message
    check({"--train.agent_func_path": files / "agent.py"})


def test_a_balancing_loss_needs_experts(refusal, check, inputs):
    flags = ("--actor.aux_loss_coef", "0.1")
    assert refusal((), *flags).startswith("--actor.aux_loss_coef 0.1 has no effect: ")
    (inputs[MODEL] / "config.json").write_text(json.dumps({"model_type": "qwen2_moe"}))
    check((), *flags)


@pytest.mark.parametrize("name", preflight.CONFIG_FILES)
def test_a_model_with_code_of_its_own_is_refused_without_the_flag(refusal, check, make_model, tmp_path, name):
    folder = make_model(tmp_path / "own")
    content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(content | {"auto_map": {"AutoProcessor": "code.Own"}}))
    (folder / "code.py").write_text("raise SystemExit('it ran')")
    message = refusal({MODEL: folder})
    assert message.startswith(f"{MODEL} {folder} brings code of its own along ({name}: auto_map)")
    assert "--trust_remote_code" in message
    check({MODEL: folder}, "--trust_remote_code")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("repo_r --entropy_target 3.5:0.3:9", "--entropy_target 3.5 is out of reach: a vocabulary of 20 tokens"),
        ("stare --stare_gate 3", "--stare_gate 3 is out of reach"),
        ("entrocraft --entrocraft_high 0.7:4:9 --entrocraft_low 0.6", "--entrocraft_high 4 is out of reach"),
    ],
)
def test_an_entropy_that_no_distribution_has_is_refused(refusal, check, inputs, flags, said):
    # ln 20 = 2.996
    (inputs[MODEL] / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 20}))
    assert refusal((), "--method", *flags.split()).startswith(said)
    check((), "--method", "repo_r", "--entropy_target", "2.9")


def test_samplings_are_refused_in_the_words_of_the_evaluation(refusal, files, loadable_model):
    flags = f"--eval.steps 1 --eval.dataset bench:{files}/own.jsonl --eval.n_samples_per_prompt 4 --eval.temperature 0"
    message = refusal((), *flags.split())
    assert missing(message, "own", "--eval.n_samples_per_prompt 4", "--eval.temperature 0", "use 1") == []


ROWS = [{"prompt": [{"role": "user", "content": f"{i}+{i}="}], "reward_model": {"gold": str(2 * i)}} for i in range(4)]
FORMATS = {
    "rows.parquet": lambda path: datasets.Dataset.from_list(ROWS).to_parquet(path),
    "rows.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "saved": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(path),
    "splits": lambda path: datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(path),
}


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--data.prompt_dataset", "--eval.dataset"])
@pytest.mark.parametrize("name", FORMATS)
def test_nested_keys_are_read_in_every_format(check, refusal, tmp_path, flag, name):
    place = tmp_path / name
    FORMATS[name](place)
    changes = {"--data.prompt_dataset": place, flag: place, "--data.input_key": "prompt"}
    if flag == "--eval.dataset":
        changes["--eval.steps"] = 5
    check(changes | {"--data.label_key": "reward_model.gold"}, CHAT)
    message = refusal(changes | {"--data.label_key": "reward_model.answer"}, CHAT)
    there = (str(place), "prompt, reward_model, reward_model.gold")
    assert missing(message, "--data.label_key reward_model.answer", *there) == []


@pytest.mark.parametrize(
    "flags",
    ["--train.enable_ema --ckpt.load_enable", "--train.enable_ema --ds.lora.rank 8 --vllm.sync_backend gloo"],
)
def test_averages_that_would_be_wrong_on_a_gpu_host_too(refusal, monkeypatch, flags):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    assert refusal((), *flags.split()).startswith("--train.enable_ema ")


@pytest.mark.parametrize(
    ("modules", "tied", "reason"),
    [
        (["all-linear"], True, None),
        (["q_proj", "down_proj"], True, None),
        (["lm_head"], False, None),
        (["lm_head"], True, "lm_head has a LoRA adapter and shares its weight with another layer"),
        (["embed_tokens"], True, "has a LoRA adapter and shares its weight with another layer"),
        (["q_prj"], True, "Target modules"),
    ],
)
def test_the_layers_that_get_adapters(check, refusal, loadable_model, modules, tied, reason):
    config = loadable_model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": tied}))
    flags = ("--ds.lora.rank", "8", "--ds.lora.target_modules", *modules)
    if reason is None:
        check((), *flags)
        return
    message = refusal((), *flags)
    assert message.startswith(f"--ds.lora.target_modules {modules[0]}: ")
    assert reason in message


# Folders of recorded rollouts.


def write_steps(folder, *steps, samples=2, prompts=4, words=CHARACTERS):
    folder.mkdir(exist_ok=True)
    digest = tokenizer_digest(build_tokenizer(96, words))
    for step in steps:
        recorded = [
            RecordedSample(torch.tensor([1, 2, 3]), torch.tensor([False, True]), number)
            for number in range(samples * prompts)
        ]
        header = RolloutHeader(step, samples, prompts, digest)
        write_rollout(rollout_path(folder, step), RolloutRecord(header, recorded))
    return folder


REPLAYED = [
    ((), {}, ": it has no recorded rollouts"),
    ((1, 3), {}, "step_000002.safetensors is missing, but step_000003.safetensors is there"),
    ((1, 2), {"samples": 4}, "/step_000001.safetensors: it has 4 samples per prompt, the run has 2"),
    ((1, 2), {"prompts": 8}, "/step_000001.safetensors: it has 8 prompts per step, the run has 4"),
    ((1, 2), {"words": "a"}, "its token ids are those of another tokenizer"),
]


@pytest.mark.usefixtures("loadable_model")
@pytest.mark.parametrize(("steps", "changes", "said"), REPLAYED)
def test_recordings_that_do_not_fit_are_refused(refusal, tmp_path, steps, changes, said):
    folder = write_steps(tmp_path / "rollouts", *steps, **changes)
    message = refusal({"--rollout.replay_dir": folder})
    assert message.startswith(f"--rollout.replay_dir {folder}")
    assert said in message


@pytest.mark.usefixtures("loadable_model")
def test_recordings_that_fit_are_accepted_unless_damaged(check, refusal, tmp_path):
    folder = write_steps(tmp_path / "rollouts", 1, 2)
    check({"--rollout.replay_dir": folder})
    rollout_path(folder, 1).write_bytes(b"no file of safetensors")
    first = f"--rollout.replay_dir {folder}/step_000001.safetensors"
    assert refusal({"--rollout.replay_dir": folder}).startswith(f"{first}: it is no recorded rollout that can be read")


@pytest.mark.usefixtures("loadable_model")
def test_a_folder_with_the_rollouts_of_another_run_is_not_written_to(refusal, check, tmp_path):
    folder = write_steps(tmp_path / "rollouts", 1)
    line = refusal({"--rollout.dump_dir": folder})
    assert line.startswith(f"--rollout.dump_dir {folder} holds step_000001.safetensors of another run")
    check({"--rollout.dump_dir": folder}, "--ckpt.load_enable")
    assert "is also --rollout.replay_dir" in refusal({"--rollout.dump_dir": folder, "--rollout.replay_dir": folder})


def test_a_replayed_run_needs_an_engine_only_to_evaluate(inputs, parse_nested, refused, tmp_path):
    inputs.pop("--vllm.num_engines")
    flags = [str(word) for pair in inputs.items() for word in pair] + ["--rollout.replay_dir", str(tmp_path)]
    together = ("--algo.kl.init_coef", "0", "--train.colocate_all")
    # One process of the policy, on one GPU.
    assert len(needs_of_training(parse_nested(*flags, *together)).bundles) == 1
    evaluates = ("--eval.dataset", "eval.jsonl", "--eval.steps", "1")
    assert "--vllm.num_engines is missing" in refused(parse_nested, *flags, *evaluates)
    engine = ("--vllm.num_engines", "1", "--train.async_enable")
    assert len(needs_of_training(parse_nested(*flags, *together, *evaluates, *engine)).bundles) == 2
