import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_cov.cli import dry_run, train_ppo_ray
from openrlhf_cov.cli.host import facts
from openrlhf_cov.tiny_task.tokenizer import build_tokenizer
from openrlhf_cov.trainer import cpu_host

REPOSITORY = Path(__file__).parents[2]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 21,
    "max_position_embeddings": 96,
    "tie_word_embeddings": True,
}
ONE_NODE = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "2"]
GPUS = ["--dry_run_gpu_memory", "80"]


@pytest.fixture
def model(inputs) -> Path:
    """The folder of the inputs' model, now with a config and a tokenizer that can be read."""
    folder = inputs["--actor.model_name_or_path"]
    (folder / "config.json").write_text(json.dumps(CONFIG))
    build_tokenizer(96).save_pretrained(folder)
    return folder


@pytest.fixture
def command(inputs, model):
    """Function (changes) -> the flags of a run on two GPUs."""
    inputs |= {"--data.max_len": 48, "--rollout.max_new_tokens": 24, "--algo.kl.init_coef": 0}

    def flags(changes=()) -> list[str]:
        return [str(word) for pair in (inputs | dict(changes)).items() if pair[1] is not None for word in pair]

    return flags


@pytest.fixture
def plan(command, parse_nested, capsys):
    """Function (changes, flags...) -> (exit status, lines of the plan, shortfalls)."""

    def run(changes=(), *extra: str):
        shortfalls: list[str] = []

        def complain(message: str) -> int:
            shortfalls.append(message)
            return 2

        args = parse_nested(*command(changes), *ONE_NODE, *extra)
        capsys.readouterr()
        status = dry_run.run(args, complain)
        return status, capsys.readouterr().out.splitlines(), shortfalls

    return run


def test_a_run_that_would_run(plan, tmp_path):
    status, lines, shortfalls = plan((), *GPUS)
    assert (status, shortfalls) == (0, [])
    assert lines[-1] == "dry run: it would run"
    text = [" ".join(line.split()) for line in lines]
    assert "4 prompts x 2 = 8 samples, updates: 2" in text
    # prompts "0+0=" to "3+3=" have 4 characters; 24 may be generated
    assert "384 tokens if all are as long as they may be (48, of which 24 response)" in text
    assert (
        "128 tokens with prompts of 4 tokens, the mean of the data, and responses half as long as they may be" in text
    )
    assert "cluster: 1 node x 2 GPUs of 80 GiB (--dry_run_nodes, --dry_run_gpus)" in text
    assert "node 0 GPU 0 engine 0" in text
    assert "node 0 GPU 1 actor 0" in text
    assert "sum, of 80 77.0 77.0 77.0 77.0" in text  # 0.95 of 80 GiB and a process
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "checkpoints").exists()


def test_folders_that_were_there_stay(plan, tmp_path):
    (tmp_path / "run").mkdir()
    assert plan((), *GPUS)[0] == 0
    assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "checkpoints").exists()


def test_folders_above_are_removed_too(tmp_path):
    deep = tmp_path / "a" / "b" / "c"
    with dry_run.leaves_no_folders(deep, tmp_path / "a" / "d"):
        deep.mkdir(parents=True)
        (tmp_path / "a" / "d").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_that_is_not_empty_stays(tmp_path):
    with dry_run.leaves_no_folders(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "theirs").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["theirs"]


def test_every_shortfall_is_listed(plan, tmp_path):
    changes = {
        "--actor.num_gpus_per_node": 3,
        "--vllm.tensor_parallel_size": 3,
        "--vllm.gpu_memory_utilization": 0.03,
        "--data.prompt_dataset": tmp_path / "nowhere.jsonl",
        "--reward.remote_url": tmp_path / "nowhere.py",
        "--ckpt.output_dir": tmp_path / "train.jsonl" / "run",
        "--data.max_len": 100,
        "--rollout.max_new_tokens": 100,
        "--rollout.micro_batch_size": 2,
        "--rollout.batch_size": 5,
    }
    status, lines, shortfalls = plan(changes, *GPUS)
    assert status == 2
    assert lines[-1] == f"dry run: {len(shortfalls)} shortfalls"
    beginnings = [
        "--data.max_len 100 is for prompt and response together",
        "--train.batch_size 4 is no multiple of --train.micro_batch_size 1 x 3 ranks of actor = 3",
        "--rollout.batch_size 5 x --rollout.n_samples_per_prompt 2 = 10 samples are no multiple of",
        f"--ckpt.output_dir {tmp_path / 'train.jsonl' / 'run'} cannot be written",
        f"--reward.remote_url {tmp_path / 'nowhere.py'}: no such file",
        f"--data.prompt_dataset {tmp_path / 'nowhere.jsonl'}: no such file",
        "--vllm.tensor_parallel_size 3 does not divide the model: 4 heads, 2 of keys, MLP 48; use one of 1, 2, 4",
        "--data.max_len 100 is more than the 96 positions of the model",
        "engine: no room for 3 GPUs beside what comes before; the run needs 6, there are 2: lower",
        "actor: no room for 3 GPUs beside what comes before; the run needs 6, there are 2: lower",
        "--vllm.gpu_memory_utilization 0.03 leaves a KV cache of 0 tokens per engine",
    ]
    assert len(shortfalls) == len(beginnings)
    for shortfall, beginning in zip(shortfalls, beginnings, strict=True):
        assert shortfall.startswith(beginning)


def test_every_number_that_does_not_fit_is_listed(plan):
    changes = {"--algo.kl.init_coef": 0.1, "--ref.num_gpus_per_node": 2, "--train.batch_size": 3}
    _, _, shortfalls = plan(changes | {"--vllm.num_engines": 2}, *GPUS, "--train.colocate_all")
    assert [line[:60] for line in shortfalls] == [
        "--train.colocate_all needs equal sizes, got --actor.num_node",
        "--train.colocate_all needs equal numbers: --actor.num_nodes ",
        "--train.batch_size 3 is no multiple of --train.micro_batch_s",
    ]


COLOCATED = ["--train.colocate_all", "--dry_run_gpu_memory", "4"]


def test_memory_that_is_short_names_the_phase_and_what_mends_it(plan):
    status, _, shortfalls = plan({"--vllm.gpu_memory_utilization": 0.9}, *COLOCATED)
    assert status == 2
    # 3.6 GiB for the engine, one for each process; DeepSpeed's bucket is another while nothing sleeps
    assert shortfalls[0].startswith(
        "memory: a GPU of actor + engine needs 6.5 GiB of 4 in phase generate; lower --vllm.gpu_memory_utilization"
    )
    assert [line.split(" in phase ")[1].split(";")[0] for line in shortfalls[:4]] == [
        "generate",
        "score",
        "train",
        "send",
    ]
    mends = ("--vllm.gpu_memory_utilization", "--rollout.max_tokens_per_gpu", "--ds.adam_offload", "--ds.enable_sleep")
    assert all(mend in line for mend, line in zip(mends, shortfalls, strict=False))


def test_what_sleeps_does_not_count_in_other_phases(plan):
    _, lines, _ = plan(
        (), *COLOCATED, "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.gpu_memory_utilization", "0.5"
    )
    (engine,) = [line.split() for line in lines if line.strip().startswith("engine, asleep")]
    assert engine[-4:] == ["2.0", "1.0", "1.0", "1.0"]


COLOCATED_FLAGS = "--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.8"
LAYOUTS = {
    "7b colocated": (
        "Qwen/Qwen2.5-7B",
        "--actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 8 --train.max_tokens_per_gpu 20480 "
        + COLOCATED_FLAGS,
        1,
        ["67.8", "42.5", "56.7", "21.0"],
    ),
    "7b split": (
        "Qwen/Qwen2.5-7B",
        "--actor.num_nodes 1 --actor.num_gpus_per_node 4 --vllm.num_engines 4 --train.max_tokens_per_gpu 20480 "
        "--vllm.gpu_memory_utilization 0.9",
        1,
        ["30.3", "65.7", "68.9", "32.3"],
    ),
    "32b colocated": (
        "Qwen/Qwen2.5-32B",
        "--actor.num_nodes 4 --actor.num_gpus_per_node 8 --vllm.num_engines 8 --vllm.tensor_parallel_size 4 "
        "--train.max_tokens_per_gpu 20480 " + COLOCATED_FLAGS,
        4,
        ["67.9", "44.5", "67.6", "23.1"],
    ),
    "32b split": (
        "Qwen/Qwen2.5-32B",
        "--actor.num_nodes 2 --actor.num_gpus_per_node 8 --vllm.num_engines 4 --vllm.tensor_parallel_size 4 "
        "--train.max_tokens_per_gpu 16384 --vllm.gpu_memory_utilization 0.9",
        4,
        ["32.4", "64.0", "71.5", "35.3"],
    ),
}
"""Model, flags, nodes of 8 GPUs, and the sums of the actor's GPUs as docs/sizing.md has them."""

SIZING = (REPOSITORY / "docs" / "sizing.md").read_text(encoding="utf-8")
DOCUMENTED = [block for block in SIZING.split("\n```\n") if block.startswith("cluster: ")]
"""The outputs that docs/sizing.md shows."""

STEP = """--ds.zero_stage 3 --actor.gradient_checkpointing_enable --train.dynamic_batch_enable --data.max_len 10240
--rollout.max_new_tokens 8192 --rollout.batch_size 256 --rollout.n_samples_per_prompt 8 --train.batch_size 256"""


@pytest.mark.parametrize(("name", "layout", "nodes", "sums"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_layouts_of_the_recipes_fit_without_a_network(
    command, parse_nested, capsys, write_rows, tmp_path, name, layout, nodes, sums
):
    data = write_rows(tmp_path / "more.jsonl", [{"input": f"{i}+1=", "label": str(i + 1)} for i in range(32)])
    cluster = f"--dry_run --dry_run_nodes {nodes} --dry_run_gpus 8 --dry_run_gpu_memory 80"
    changes = {"--actor.model_name_or_path": name, "--data.prompt_dataset": data}
    args = parse_nested(*command(changes), *f"{layout} {STEP} {cluster}".split())
    complaints: list[str] = []
    assert dry_run.run(args, complaints.append) == 0
    assert complaints == []
    lines = capsys.readouterr().out.splitlines()
    assert sums in [line.split()[-4:] for line in lines if line.strip().startswith("sum, of 80")]
    note = (
        f"note: --actor.model_name_or_path {name}: shape from the built-in table, config.json not read; tokenizer not"
    )
    assert f"{note} checked" in lines
    (shown,) = [block for block in DOCUMENTED if sums[2] in block.split()]
    assert [line for line in shown.splitlines() if line not in lines] == []


def test_an_unknown_hub_name_without_a_network_is_a_shortfall(plan, monkeypatch):
    import transformers

    def refuse(name, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse)
    status, lines, shortfalls = plan({"--actor.model_name_or_path": "someone/unknown"}, *GPUS)
    assert status == 2
    assert shortfalls[0].startswith("--actor.model_name_or_path someone/unknown: neither a folder here nor a model")
    assert "memory: not estimated, the shape of the model is not known" in lines


def test_a_model_that_is_missing_altogether(plan):
    _, lines, shortfalls = plan({"--actor.model_name_or_path": None}, *GPUS)
    assert shortfalls == ["--actor.model_name_or_path is missing: give a Hugging Face model folder or a hub name"]
    assert "memory: not estimated, the shape of the model is not known" in lines


def test_a_tokenizer_that_cannot_be_loaded_is_a_shortfall(plan, model):
    (model / "tokenizer.json").write_text("{}")
    _, _, shortfalls = plan((), *GPUS)
    assert len(shortfalls) == 1
    assert shortfalls[0].startswith(f"--actor.model_name_or_path {model}: its tokenizer cannot be loaded (")


def test_a_model_with_experts_is_not_estimated(plan, model):
    (model / "config.json").write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 8}))
    _, lines, shortfalls = plan((), *GPUS)
    assert shortfalls == [
        f"--actor.model_name_or_path {model}: model_type 'mixtral' has experts, whose memory is not estimated; plan "
        "its memory by hand, and run it without --dry_run"
    ]
    assert "memory: not estimated, the shape of the model is not known" in lines


def test_prompts_that_are_cut_are_noted(plan):
    _, lines, shortfalls = plan({"--data.max_len": 27}, *GPUS)  # 3 tokens for prompts of 4
    assert shortfalls == []
    assert (
        "note: 4 of 4 prompts are longer than the 3 tokens that --data.max_len 27 leaves beside the response: "
        "upstream cuts them"
    ) in lines


def test_the_template_counts(plan):
    # "1+1= in words" has characters that the tokenizer does not know; digits and signs it does
    _, lines, _ = plan((), *GPUS, "--data.input_template", "1+1=2{}")
    assert any("prompts of 9 tokens" in line for line in lines)


def test_engines_need_the_memory_of_a_gpu_to_be_counted(plan, monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    status, lines, _ = plan()
    assert status == 0
    assert "note: engines are not counted: the memory of a GPU is not known (--dry_run_gpu_memory)" in lines
    assert any(line.startswith("cluster: 1 node x 2 GPUs (--dry") for line in lines)


@pytest.fixture
def on_a_cpu_host(monkeypatch):
    """This is a host without GPU, whatever is installed."""
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)


QWEN_ON_CPU = {"--actor.model_name_or_path": "Qwen/Qwen2.5-7B", "--ds.zero_stage": 2}
NODE = ["--dry_run_node_memory", "24"]


@pytest.mark.usefixtures("on_a_cpu_host")
def test_the_memory_of_a_cpu_host_is_that_of_all_processes_together(plan):
    status, lines, shortfalls = plan({}, *NODE)
    assert (status, shortfalls) == (0, [])
    assert "cluster: 1 node x 2 logical GPUs, 24 GiB of memory (--dry_run_nodes, --dry_run_gpus)" in lines
    assert "memory of a logical GPU, which is memory of its node, GiB, estimated (docs/sizing.md)" in lines
    # 1 for the KV cache and 3 processes in the engine, 1 of the actor and 3 of the run, each 2/3; a model of nothing
    assert " ".join(lines[-2].split()) == "node 0 5.7 GiB of 24.0"
    assert not any("not counted" in line for line in lines)


@pytest.mark.usefixtures("on_a_cpu_host")
def test_a_model_that_a_cpu_host_cannot_hold_is_a_shortfall(plan):
    status, lines, shortfalls = plan(QWEN_ON_CPU, *NODE)
    assert status == 2
    assert lines[-1] == "dry run: 1 shortfall"
    # P = 7,615,616,512: weights, gradients and fp32 states are 20 P, the update 8 P, the reduce bucket 2e9, the engine
    # 4 P + 1 GiB; 7 processes of 2/3 GiB
    gib = (32 * 7_615_616_512 + 2e9) / 2**30 + 1 + 7 * 2 / 3
    assert shortfalls == [
        f"memory: node 0 needs {gib:.1f} GiB of 24.0 for all processes together, as GPUs are logical there; take a "
        "smaller model, lower --train.micro_batch_size or --data.max_len, or take a host with more memory; to plan "
        "for GPUs add --dry_run_gpu_memory"
    ]


@pytest.mark.usefixtures("on_a_cpu_host")
def test_the_memory_of_a_cluster_in_words_is_not_known(plan):
    status, lines, shortfalls = plan(QWEN_ON_CPU)
    assert (status, shortfalls) == (0, [])
    assert any(line.split()[:2] == ["node", "0"] and line.endswith(" GiB") for line in lines)


@pytest.mark.usefixtures("on_a_cpu_host")
def test_the_kv_cache_of_a_cpu_host_is_compared_with_a_sequence(plan, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.000001")  # 1,073 bytes; a token takes 2 x 2 x 2 x 8 x 4 = 256
    _, _, shortfalls = plan({}, *NODE)
    assert shortfalls == [
        "VLLM_CPU_KVCACHE_SPACE 0.000001 leaves a KV cache of 4 tokens per engine, less than one sequence of "
        "--data.max_len 48; raise it or --vllm.tensor_parallel_size"
    ]


@pytest.mark.usefixtures("on_a_cpu_host")
def test_a_kv_cache_of_no_size_is_a_shortfall(plan, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4GB")
    assert plan({}, *NODE)[2] == ["VLLM_CPU_KVCACHE_SPACE 4GB is no number of GiB; set one, or unset it"]


SLEEPING = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.gpu_memory_utilization", "0.8"]


def test_what_leaves_the_gpus_must_fit_into_their_nodes(plan):
    changes = {"--actor.model_name_or_path": "Qwen/Qwen2.5-7B", "--ds.zero_stage": 3, "--vllm.num_engines": 8}
    changes |= {"--actor.num_gpus_per_node": 4, "--actor.num_nodes": 2, "--train.batch_size": 8}
    extra = [*GPUS, *SLEEPING, "--dry_run_nodes", "2", "--dry_run_gpus", "4"]
    assert plan(changes, *extra)[2] == []
    # on each node half of the states of 14 P, and 4 engines of 2 P: 15 P = 106.4 GiB
    assert plan(changes, *extra, "--dry_run_node_memory", "107")[2] == []
    assert plan(changes, *extra, "--dry_run_node_memory", "106")[2] == [
        "memory: node 0 and 1 more need 106.4 GiB of 106.0 beside the GPUs, for what sleeps or is offloaded; keep "
        "more on the GPUs (without --ds.adam_offload, --ds.enable_sleep, --vllm.enable_sleep, --ref.offload), or take "
        "nodes with more memory"
    ]


def test_what_finds_no_room_is_budgeted_too(plan):
    changes = {"--actor.model_name_or_path": "Qwen/Qwen2.5-7B", "--ds.zero_stage": 2}
    small = ["--dry_run_gpu_memory", "24"]
    fitting, crowded = (plan(changes, *small, "--dry_run_gpus", number) for number in ("2", "1"))
    memory = [line for line in fitting[2] if line.startswith("memory: ")]
    assert len(memory) > 1
    room = [line for line in crowded[2] if "no room" in line]
    assert [line for line in crowded[2] if line not in room] == fitting[2]
    assert room[0].startswith("actor: no room for 1 GPU beside what comes before; the run needs 2, there is 1: lower")
    assert any(line.strip().startswith("1 x actor (1 without room)") for line in crowded[1])
    assert "cluster: 1 node x 1 GPU of 24 GiB (--dry_run_nodes, --dry_run_gpus)" in crowded[1]


def test_every_benchmark_that_cannot_be_read_is_listed(plan, tmp_path):
    benchmarks = {"--eval.dataset": "bench:aime24,math500,gsm8k", "--eval.data_dir": tmp_path, "--eval.steps": 1}
    row = {"id": "1", "problem": "1+1", "answer": "2", "source": "math"}
    (tmp_path / "math500.jsonl").write_text(json.dumps(row))
    _, _, shortfalls = plan(benchmarks, *GPUS)
    assert shortfalls == [
        f"--eval.data_dir {tmp_path}: no file aime24.jsonl, which aime24 needs",
        f"{tmp_path / 'math500.jsonl'}: 1 rows, but math500 version 1 has 500; get the complete set, and use "
        "--eval.limit for a part of it",
        f"--eval.data_dir {tmp_path}: no file gsm8k.jsonl, which gsm8k needs",
    ]
    benchmarks |= {"--eval.data_dir": tmp_path / "nowhere"}
    assert plan(benchmarks, *GPUS)[2] == [f"--eval.data_dir {tmp_path / 'nowhere'}: no such folder"]


def test_gpus_that_are_planned_for_have_the_defaults_of_a_gpu_host(parse_nested, monkeypatch):
    monkeypatch.setattr(train_ppo_ray.cpu_host, "is_cpu_host", lambda: True)
    flags = ["--reward.remote_url", "r.py", "--vllm.num_engines", "1", "--dry_run", "--train.dynamic_batch_enable"]
    here, planned = parse_nested(*flags), parse_nested(*flags, *GPUS)
    assert (here.ds.param_dtype, here.vllm.sync_backend, here.vllm.gpu_memory_utilization) == ("fp32", "gloo", 0.2)
    assert (planned.ds.param_dtype, planned.vllm.sync_backend) == ("bf16", "nccl")
    assert planned.vllm.gpu_memory_utilization == 0.95
    assert (here.ds.packing_samples, planned.ds.packing_samples) == (False, True)
    given = parse_nested(*flags, *GPUS, "--ds.param_dtype", "fp32")
    assert given.ds.param_dtype == "fp32"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dry_run_nodes 4", "--dry_run_nodes 4 only applies with --dry_run; add --dry_run or drop it"),
        ("--dry_run_gpus 8", "--dry_run_gpus 8 only applies with --dry_run; add --dry_run or drop it"),
        ("--dry_run_gpu_memory 80", "--dry_run_gpu_memory 80 only applies with --dry_run; add --dry_run or drop it"),
        ("--dry_run_node_memory 64", "--dry_run_node_memory 64 only applies with --dry_run; add --dry_run or drop it"),
        ("--dry_run --dry_run_node_memory -1", "--dry_run_node_memory is at least 0, got -1.0"),
        ("--dry_run --dry_run_nodes 4", "--dry_run_nodes and --dry_run_gpus go together, got 4 and 0"),
        ("--dry_run --dry_run_gpus 4", "--dry_run_nodes and --dry_run_gpus go together, got 0 and 4"),
        ("--dry_run --dry_run_nodes -1 --dry_run_gpus 8", "--dry_run_nodes is at least 0, got -1"),
        ("--dry_run --dry_run_gpu_memory nan", "--dry_run_gpu_memory is at least 0, got nan"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(parse_nested, refused, flags, message):
    line = refused(parse_nested, "--reward.remote_url", "r.py", "--vllm.num_engines", "1", *flags.split())
    assert line == f"train_ppo_ray: error: {message}\n"


MODULES = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("modules: " + " ".join(sorted({name.split(".")[0] for name in sys.modules}))))
from openrlhf_cov.cli import train_ppo_ray
train_ppo_ray.main()
"""


def run_command(flags):
    return subprocess.run(
        [sys.executable, "-c", MODULES, *flags],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_command_line_with_a_planned_cluster_touches_neither_ray_nor_engines(command, tmp_path):
    done = run_command([*command(), *ONE_NODE, *GPUS])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "dry run: it would run"
    assert not {"vllm", "deepspeed"} & set(done.stderr.split("modules: ")[1].split())
    assert not (tmp_path / "run").exists()


def test_the_command_line_lists_shortfalls_on_stderr(command, tmp_path):
    changes = {"--data.prompt_dataset": tmp_path / "nowhere.jsonl", "--vllm.tensor_parallel_size": 4}
    done = run_command([*command(changes), *ONE_NODE, *GPUS])
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("train_ppo_ray: error: ")]
    assert [line.removeprefix("train_ppo_ray: error: ")[:30] for line in errors] == [
        "--data.prompt_dataset " + str(tmp_path)[:8],
        "engine: no room for 4 GPUs bes",
    ]
    assert done.stdout.splitlines()[-1] == "dry run: 2 shortfalls"


@pytest.mark.e2e
def test_without_a_planned_cluster_it_asks_ray(command, tmp_path):
    done = run_command([*command(), "--dry_run"])
    assert done.returncode == 0, done.stderr
    memory = f"{facts.memory() / 2**30:.4g} GiB of memory"
    assert f"cluster: 1 node x 2 logical GPUs, {memory} (what Ray has)" in done.stdout.splitlines()
    assert not (tmp_path / "run").exists()
