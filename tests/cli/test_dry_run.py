"""What a dry run says: the plan, its memory and every shortfall at once. It leaves nothing on disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from texts import missing

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.host import facts
from openrlhf_cov.trainer.preflight import dry_run

REPOSITORY = Path(__file__).parents[2]
ONE_NODE = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "2"]
GPUS = ["--dry_run_gpu_memory", "80"]
COLOCATED = ["--train.colocate_all", "--dry_run_gpu_memory", "4"]
NODE = ["--dry_run_node_memory", "24"]
QWEN = {"--actor.model_name_or_path": "Qwen/Qwen2.5-7B"}
SLEEPING = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.gpu_memory_utilization", "0.8"]


@pytest.fixture
def on_a_cpu_host(monkeypatch):
    """This is a host without GPU, whatever is installed."""
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)


def test_a_run_that_would_run(plan_run, tmp_path):
    status, lines, shortfalls = plan_run((), *GPUS)
    assert (status, shortfalls) == (0, [])
    assert lines[-1] == "dry run: it would run"
    # Prompts "0+0=" to "3+3=" have 4 characters, and 24 tokens may be generated: 8 (24 + 24) and 8 (4 + 12) tokens.
    assert "methods: none" in lines
    assert "note: the memory of the hosts is not checked (--dry_run_node_memory)" in lines
    tokens = ("384 tokens", "48", "24", "128 tokens", "4 tokens")
    placement = ("node 0 GPU 0 engine 0", "node 0 GPU 1 actor 0", "GiB")
    facts = ("4 prompts x 2 = 8 samples", "updates: 2", *tokens, "1 node x 2 GPUs of 80 GiB", *placement)
    assert missing("\n".join(lines), *facts) == []
    # 0.95 of 80 GiB and a process
    assert ["77.0"] * 4 in [line.split()[-4:] for line in lines]
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "checkpoints").exists()


def test_every_shortfall_is_listed(plan_run, tmp_path):
    changes = {
        "--actor.num_gpus_per_node": 3,
        "--vllm.tensor_parallel_size": 3,
        "--vllm.gpu_memory_utilization": 0.02,
        "--data.prompt_dataset": tmp_path / "nowhere.jsonl",
        "--reward.remote_url": tmp_path / "nowhere.py",
        "--ckpt.output_dir": tmp_path / "train.jsonl" / "run",
        "--data.max_len": 100,
        "--rollout.max_new_tokens": 100,
        "--rollout.micro_batch_size": 2,
        "--rollout.batch_size": 5,
    }
    status, lines, shortfalls = plan_run(changes, *GPUS)
    assert status == 2
    assert lines[-1] == f"dry run: {len(shortfalls)} shortfalls"
    facts = [
        ("--data.max_len 100 is",),
        ("--train.batch_size 4", "--train.micro_batch_size 1 x 3 ranks of actor = 3"),
        ("--rollout.batch_size 5 x --rollout.n_samples_per_prompt 2 = 10 samples",),
        (f"--ckpt.output_dir {tmp_path / 'train.jsonl' / 'run'} ",),
        ("--vllm.tensor_parallel_size 3", "4 heads", "2", "48", "1, 2, 4"),
        (f"--reward.remote_url {tmp_path / 'nowhere.py'}: no such file",),
        (f"--data.prompt_dataset {tmp_path / 'nowhere.jsonl'}: no such file",),
        ("--data.max_len 100", "96 positions"),
        ("engine: no room for 3 GPUs", "needs 6", "2"),
        ("actor: no room for 3 GPUs", "needs 6", "2"),
        ("--vllm.gpu_memory_utilization 0.02", "KV cache of 0 tokens"),
    ]
    for shortfall, of_line in zip(shortfalls, facts, strict=True):
        assert missing(shortfall, *of_line) == []
        assert shortfall.startswith(of_line[0])


def test_a_tokenizer_that_cannot_be_loaded_is_a_shortfall(plan_run, loadable_model):
    (loadable_model / "tokenizer.json").write_text("{}")
    _, _, shortfalls = plan_run((), *GPUS)
    assert len(shortfalls) == 1
    assert shortfalls[0].startswith(f"--actor.model_name_or_path {loadable_model}: its tokenizer cannot be loaded (")


def test_a_model_with_experts_is_not_estimated(plan_run, loadable_model):
    (loadable_model / "config.json").write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 8}))
    _, lines, shortfalls = plan_run((), *GPUS)
    (shortfall,) = shortfalls
    assert missing(shortfall, f"--actor.model_name_or_path {loadable_model}", "mixtral", "experts") == []
    assert any(line.startswith("memory: not estimated") for line in lines)


def test_prompts_that_are_cut_are_noted(plan_run):
    _, lines, shortfalls = plan_run({"--data.max_len": 27}, *GPUS)  # 3 tokens for prompts of 4
    assert shortfalls == []
    (note,) = [line for line in lines if line.startswith("note: 4 of 4 prompts")]
    assert missing(note, "3 tokens", "--data.max_len 27") == []


@pytest.mark.slow
def test_every_benchmark_that_cannot_be_read_is_listed(plan_run, tmp_path):
    benchmarks = {"--eval.dataset": "bench:aime24,math500,gsm8k", "--eval.data_dir": tmp_path, "--eval.steps": 1}
    row = {"id": "1", "problem": "1+1", "answer": "2", "source": "math"}
    (tmp_path / "math500.jsonl").write_text(json.dumps(row))
    _, _, shortfalls = plan_run(benchmarks, *GPUS)
    facts = [
        (f"--eval.data_dir {tmp_path}", "aime24.jsonl"),
        (f"{tmp_path / 'math500.jsonl'}: 1 rows", "500", "--eval.limit"),
        (f"--eval.data_dir {tmp_path}", "gsm8k.jsonl"),
    ]
    assert [missing(line, *of_line) for line, of_line in zip(shortfalls, facts, strict=True)] == [[], [], []]
    benchmarks |= {"--eval.data_dir": tmp_path / "nowhere"}
    (shortfall,) = plan_run(benchmarks, *GPUS)[2]
    assert shortfall.startswith(f"--eval.data_dir {tmp_path / 'nowhere'}: ")


def test_a_dry_run_leaves_no_folder_that_it_made(tmp_path):
    deep = tmp_path / "a" / "b" / "c"
    with dry_run.leaves_no_folders(deep, tmp_path / "a" / "d"):
        deep.mkdir(parents=True)
        (tmp_path / "a" / "d").mkdir()
    assert list(tmp_path.iterdir()) == []
    with dry_run.leaves_no_folders(deep):
        deep.mkdir(parents=True)
        (tmp_path / "a" / "theirs").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["theirs"]


@pytest.mark.usefixtures("on_a_cpu_host")
def test_gpus_that_are_planned_for_have_the_defaults_of_a_gpu_host(parse_nested):
    flags = "--reward.remote_url r.py --vllm.num_engines 1 --dry_run --train.dynamic_batch_enable".split()
    here = parse_nested(*flags)
    planned = parse_nested(*flags, *GPUS)
    assert (here.ds.param_dtype, here.vllm.sync_backend, here.vllm.gpu_memory_utilization) == ("fp32", "gloo", 0.2)
    assert (planned.ds.param_dtype, planned.vllm.sync_backend) == ("bf16", "nccl")
    assert planned.vllm.gpu_memory_utilization == 0.95
    assert here.ds.packing_samples == planned.ds.packing_samples is True
    assert here.ds.attn_implementation == cpu_host.PACKED_ATTENTION
    assert planned.ds.attn_implementation == "flash_attention_2"
    assert parse_nested(*flags, *GPUS, "--ds.param_dtype", "fp32").ds.param_dtype == "fp32"


# Memory: of GPUs by phase, of their nodes, and of a CPU host.


def test_memory_that_is_short_names_the_phase_and_what_mends_it(plan_run):
    status, _, shortfalls = plan_run({"--vllm.gpu_memory_utilization": 0.9}, *COLOCATED)
    assert status == 2
    # 3.6 GiB for the engine, one for each process; DeepSpeed's bucket is another while nothing sleeps
    assert missing(shortfalls[0], "memory: ", "actor + engine", "6.5 GiB of 4") == []
    assert [line.split(" in phase ")[1].split(";")[0] for line in shortfalls[:4]] == [
        "generate",
        "score",
        "train",
        "send",
    ]
    mends = ("--vllm.gpu_memory_utilization", "--rollout.max_tokens_per_gpu", "--ds.adam_offload", "--ds.enable_sleep")
    assert all(mend in line for mend, line in zip(mends, shortfalls, strict=False))


@pytest.mark.slow
def test_engines_need_the_memory_of_a_gpu_to_be_counted(plan_run, monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    status, lines, _ = plan_run()
    assert status == 0
    assert any(missing(line, "note: engines are not counted", "--dry_run_gpu_memory") == [] for line in lines)
    assert any(line.startswith("cluster: 1 node x 2 GPUs (--dry") for line in lines)


@pytest.mark.usefixtures("on_a_cpu_host")
def test_the_memory_of_a_cpu_host_is_that_of_all_processes_together(plan_run):
    status, lines, shortfalls = plan_run({}, *NODE)
    assert (status, shortfalls) == (0, [])
    assert any(line.startswith("cluster: 1 node x 2 logical GPUs, 24 GiB of memory") for line in lines)
    # processes: 1 of the engine, 1 of the actor and 3 of the run, each 2/3; model and KV cache of almost nothing
    assert " ".join(lines[-2].split()) == "node 0 3.3 GiB of 24.0"
    assert not any("not counted" in line for line in lines)


@pytest.mark.usefixtures("on_a_cpu_host")
def test_a_model_that_a_cpu_host_cannot_hold_is_a_shortfall(plan_run):
    status, lines, shortfalls = plan_run(QWEN | {"--ds.zero_stage": 2}, *NODE)
    assert status == 2
    assert lines[-1] == "dry run: 1 shortfall"
    # P = 7,615,616,512: weights, gradients and fp32 states are 20 P, the update 4 P, the reduce bucket 16 MiB, the
    # engine 4 P + 1 GiB; 5 processes of 2/3 GiB
    gib = (28 * 7_615_616_512 + 2**24) / 2**30 + 1 + 5 * 2 / 3
    (shortfall,) = shortfalls
    flags = ("--train.micro_batch_size", "--data.max_len", "--dry_run_gpu_memory")
    assert missing(shortfall, "memory: node 0", f"{gib:.1f} GiB of 24.0", *flags) == []


@pytest.mark.usefixtures("on_a_cpu_host")
def test_the_kv_cache_of_a_cpu_host_is_compared_with_a_sequence(plan_run, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.000001")  # 1,073 bytes; a token takes 2 x 2 x 2 x 8 x 4 = 256
    (shortfall,) = plan_run({}, *NODE)[2]
    assert missing(shortfall, "VLLM_CPU_KVCACHE_SPACE 0.000001", "4 tokens", "--data.max_len 48") == []


@pytest.mark.usefixtures("on_a_cpu_host")
def test_a_kv_cache_of_no_size_is_a_shortfall(plan_run, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4GB")
    (shortfall,) = plan_run({}, *NODE)[2]
    assert missing(shortfall, "VLLM_CPU_KVCACHE_SPACE 4GB", "GiB") == []


@pytest.mark.slow
def test_what_leaves_the_gpus_must_fit_into_their_nodes(plan_run):
    changes = QWEN | {"--ds.zero_stage": 3, "--vllm.num_engines": 8}
    changes |= {"--actor.num_gpus_per_node": 4, "--actor.num_nodes": 2, "--train.batch_size": 8}
    extra = [*GPUS, *SLEEPING, "--dry_run_nodes", "2", "--dry_run_gpus", "4"]
    assert plan_run(changes, *extra)[2] == []
    # on each node half of the states of 14 P, and 4 engines of 2 P: 15 P = 106.4 GiB
    assert plan_run(changes, *extra, "--dry_run_node_memory", "107")[2] == []
    (shortfall,) = plan_run(changes, *extra, "--dry_run_node_memory", "106")[2]
    flags = ("--ds.adam_offload", "--ds.enable_sleep", "--vllm.enable_sleep", "--ref.offload")
    assert missing(shortfall, "memory: node 0 and 1 more", "106.4 GiB of 106.0", *flags) == []


def test_what_finds_no_room_is_budgeted_too(plan_run):
    changes = QWEN | {"--ds.zero_stage": 2}
    small = ["--dry_run_gpu_memory", "24"]
    fitting, crowded = (plan_run(changes, *small, "--dry_run_gpus", number) for number in ("2", "1"))
    memory = [line for line in fitting[2] if line.startswith("memory: ")]
    assert len(memory) > 1
    room = [line for line in crowded[2] if "no room" in line]
    assert [line for line in crowded[2] if line not in room] == fitting[2]
    assert missing(room[0], "actor: no room for 1 GPU", "needs 2", "1") == []
    assert any(line.strip().startswith("1 x actor (1 without room)") for line in crowded[1])
    assert any(line.startswith("cluster: 1 node x 1 GPU of 24 GiB") for line in crowded[1])


# The layouts of the recipes in docs/sizing.md.

ON_THE_SAME_GPUS = "--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.8"
# Model, flags, nodes of 8 GPUs, and the sums of the actor's GPUs as docs/sizing.md has them.
LAYOUTS = {
    "7b colocated": (
        "Qwen/Qwen2.5-7B",
        "--actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 8 --train.max_tokens_per_gpu 40960 "
        + ON_THE_SAME_GPUS,
        1,
        ["67.8", "12.9", "43.6", "21.0"],
    ),
    "7b split": (
        "Qwen/Qwen2.5-7B",
        "--actor.num_nodes 1 --actor.num_gpus_per_node 4 --vllm.num_engines 4 --train.max_tokens_per_gpu 40960 "
        "--vllm.gpu_memory_utilization 0.9",
        1,
        ["34.3", "42.4", "57.8", "36.3"],
    ),
    "32b colocated": (
        "Qwen/Qwen2.5-32B",
        "--actor.num_nodes 4 --actor.num_gpus_per_node 8 --vllm.num_engines 8 --vllm.tensor_parallel_size 4 "
        "--train.max_tokens_per_gpu 40960 " + ON_THE_SAME_GPUS,
        4,
        ["71.6", "15.9", "69.8", "26.8"],
    ),
    "32b split": (
        "Qwen/Qwen2.5-32B",
        "--actor.num_nodes 2 --actor.num_gpus_per_node 8 --vllm.num_engines 4 --vllm.tensor_parallel_size 4 "
        "--train.max_tokens_per_gpu 32768 --vllm.gpu_memory_utilization 0.9",
        4,
        ["36.4", "45.5", "75.6", "39.3"],
    ),
}

SIZING = (REPOSITORY / "docs" / "sizing.md").read_text(encoding="utf-8").splitlines()
# The output that docs/sizing.md shows, that of the first layout; of all layouts a table there has the sums.
SHOWN = SIZING[SIZING.index("placement") - 1 :]
SHOWN = SHOWN[: SHOWN.index("```")]

STEP = """--ds.zero_stage 3 --ds.grad_accum_dtype fp32 --actor.gradient_checkpointing_enable
--train.dynamic_batch_enable --data.max_len 10240 --rollout.max_new_tokens 8192 --rollout.batch_size 256
--rollout.n_samples_per_prompt 8 --train.batch_size 256"""


@pytest.mark.parametrize("layout_name", LAYOUTS)
def test_the_layouts_of_the_recipes_fit_without_a_network(
    run_flags, parse_nested, capsys, write_rows, tmp_path, layout_name
):
    name, layout, nodes, sums = LAYOUTS[layout_name]
    data = write_rows(tmp_path / "more.jsonl", [{"input": f"{i}+1=", "label": str(i + 1)} for i in range(32)])
    cluster = f"--dry_run --dry_run_nodes {nodes} --dry_run_gpus 8 --dry_run_gpu_memory 80"
    changes = {"--actor.model_name_or_path": name, "--data.prompt_dataset": data}
    args = parse_nested(*run_flags(changes), *f"{layout} {STEP} {cluster}".split())
    complaints: list[str] = []
    assert dry_run.run(args, complaints.append) == 0
    assert complaints == []
    lines = capsys.readouterr().out.splitlines()
    assert sums in [line.split()[-4:] for line in lines if line.strip().startswith("sum, of 80")]
    (note,) = [line for line in lines if line.startswith(f"note: --actor.model_name_or_path {name}: ")]
    assert missing(note, "built-in table", "tokenizer not checked") == []
    (row,) = [line for line in SIZING if line.lower().startswith(f"| {layout_name} |")]
    assert row.endswith(f"| {' | '.join(sums)} |")
    if layout_name == "7b colocated":
        assert [line for line in SHOWN if line not in lines] == []


# The whole command.

MODULES = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("modules: " + " ".join(sorted({name.split(".")[0] for name in sys.modules}))))
from openrlhf_cov.cli import train_ppo_ray
sys.exit(train_ppo_ray.main())
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


@pytest.mark.slow
def test_the_command_line_with_a_planned_cluster_touches_neither_ray_nor_engines(run_flags, tmp_path):
    done = run_command([*run_flags(), *ONE_NODE, *GPUS])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "dry run: it would run"
    assert not {"vllm", "deepspeed"} & set(done.stderr.split("modules: ")[1].split())
    assert not (tmp_path / "run").exists()


@pytest.mark.e2e
def test_without_a_planned_cluster_it_asks_ray(run_flags, tmp_path):
    done = run_command([*run_flags(), "--dry_run"])
    assert done.returncode == 0, done.stderr
    memory = f"{facts.memory() / 2**30:.4g} GiB of memory"
    assert missing(done.stdout, "cluster: 1 node x 2 logical GPUs", memory, "Ray") == []
    assert not (tmp_path / "run").exists()
