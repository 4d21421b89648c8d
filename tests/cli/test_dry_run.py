"""What a dry run says: the plan, every shortfall at once, and what it leaves on disk, which is nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cluster.host import facts
from openrlhf_cov.trainer.preflight import dry_run

REPOSITORY = Path(__file__).parents[2]

ONE_NODE = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "2"]
GPUS = ["--dry_run_gpu_memory", "80"]


def test_a_run_that_would_run(plan_run, tmp_path):
    status, lines, shortfalls = plan_run((), *GPUS)
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
    beginnings = [
        "--data.max_len 100 is for prompt and response together",
        "--train.batch_size 4 is no multiple of --train.micro_batch_size 1 x 3 ranks of actor = 3",
        "--rollout.batch_size 5 x --rollout.n_samples_per_prompt 2 = 10 samples are no multiple of",
        f"--ckpt.output_dir {tmp_path / 'train.jsonl' / 'run'} cannot be written",
        "--vllm.tensor_parallel_size 3 does not divide the model: 4 heads, 2 of keys, MLP 48; use one of 1, 2, 4",
        f"--reward.remote_url {tmp_path / 'nowhere.py'}: no such file",
        f"--data.prompt_dataset {tmp_path / 'nowhere.jsonl'}: no such file",
        "--data.max_len 100 is more than the 96 positions of the model",
        "engine: no room for 3 GPUs beside what comes before; the run needs 6, there are 2: lower",
        "actor: no room for 3 GPUs beside what comes before; the run needs 6, there are 2: lower",
        "--vllm.gpu_memory_utilization 0.02 leaves a KV cache of 0 tokens per engine",
    ]
    assert len(shortfalls) == len(beginnings)
    for shortfall, beginning in zip(shortfalls, beginnings, strict=True):
        assert shortfall.startswith(beginning)


def test_every_number_that_does_not_fit_is_listed(plan_run):
    changes = {"--algo.kl.init_coef": 0.1, "--ref.num_gpus_per_node": 2, "--train.batch_size": 3}
    _, _, shortfalls = plan_run(changes | {"--vllm.num_engines": 2}, *GPUS, "--train.colocate_all")
    assert [line[:60] for line in shortfalls] == [
        "--train.colocate_all needs equal sizes, got --actor.num_node",
        "--train.colocate_all needs equal numbers: --actor.num_nodes ",
        "--train.batch_size 3 is no multiple of --train.micro_batch_s",
        "--rollout.batch_size 4 x --rollout.n_samples_per_prompt 2 = ",
    ]


def test_a_tokenizer_that_cannot_be_loaded_is_a_shortfall(plan_run, loadable_model):
    (loadable_model / "tokenizer.json").write_text("{}")
    _, _, shortfalls = plan_run((), *GPUS)
    assert len(shortfalls) == 1
    assert shortfalls[0].startswith(f"--actor.model_name_or_path {loadable_model}: its tokenizer cannot be loaded (")


def test_a_model_with_experts_is_not_estimated(plan_run, loadable_model):
    (loadable_model / "config.json").write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 8}))
    _, lines, shortfalls = plan_run((), *GPUS)
    assert shortfalls == [
        f"--actor.model_name_or_path {loadable_model}: model_type 'mixtral' has experts, whose memory is not "
        "estimated; plan its memory by hand, and run it without --dry_run"
    ]
    assert "memory: not estimated, the shape of the model is not known" in lines


def test_prompts_that_are_cut_are_noted(plan_run):
    _, lines, shortfalls = plan_run({"--data.max_len": 27}, *GPUS)  # 3 tokens for prompts of 4
    assert shortfalls == []
    assert (
        "note: 4 of 4 prompts are longer than the 3 tokens that --data.max_len 27 leaves beside the response: "
        "upstream cuts them"
    ) in lines


def test_every_benchmark_that_cannot_be_read_is_listed(plan_run, tmp_path):
    benchmarks = {"--eval.dataset": "bench:aime24,math500,gsm8k", "--eval.data_dir": tmp_path, "--eval.steps": 1}
    row = {"id": "1", "problem": "1+1", "answer": "2", "source": "math"}
    (tmp_path / "math500.jsonl").write_text(json.dumps(row))
    _, _, shortfalls = plan_run(benchmarks, *GPUS)
    assert shortfalls == [
        f"--eval.data_dir {tmp_path}: no file aime24.jsonl, which aime24 needs",
        f"{tmp_path / 'math500.jsonl'}: 1 rows, but math500 version 1 has 500; get the complete set, and use "
        "--eval.limit for a part of it",
        f"--eval.data_dir {tmp_path}: no file gsm8k.jsonl, which gsm8k needs",
    ]
    benchmarks |= {"--eval.data_dir": tmp_path / "nowhere"}
    assert plan_run(benchmarks, *GPUS)[2] == [f"--eval.data_dir {tmp_path / 'nowhere'}: no such folder"]


def test_gpus_that_are_planned_for_have_the_defaults_of_a_gpu_host(parse_nested, monkeypatch):
    monkeypatch.setattr(train_ppo_ray.cpu_host, "is_cpu_host", lambda: True)
    flags = ["--reward.remote_url", "r.py", "--vllm.num_engines", "1", "--dry_run", "--train.dynamic_batch_enable"]
    here, planned = parse_nested(*flags), parse_nested(*flags, *GPUS)
    assert (here.ds.param_dtype, here.vllm.sync_backend, here.vllm.gpu_memory_utilization) == ("fp32", "gloo", 0.2)
    assert (planned.ds.param_dtype, planned.vllm.sync_backend) == ("bf16", "nccl")
    assert planned.vllm.gpu_memory_utilization == 0.95
    assert here.ds.packing_samples == planned.ds.packing_samples is True
    assert (here.ds.attn_implementation, planned.ds.attn_implementation) == (
        train_ppo_ray.cpu_host.PACKED_ATTENTION,
        "flash_attention_2",
    )
    given = parse_nested(*flags, *GPUS, "--ds.param_dtype", "fp32")
    assert given.ds.param_dtype == "fp32"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dry_run_nodes 4", "--dry_run_nodes 4 only applies with --dry_run; add --dry_run or drop it"),
        ("--dry_run_node_memory 64", "--dry_run_node_memory 64 only applies with --dry_run; add --dry_run or drop it"),
        ("--dry_run --dry_run_nodes 4", "--dry_run_nodes and --dry_run_gpus go together, got 4 and 0"),
        ("--dry_run --dry_run_gpus 4", "--dry_run_nodes and --dry_run_gpus go together, got 0 and 4"),
        ("--dry_run --dry_run_gpu_memory nan", "--dry_run_gpu_memory nan: must be a finite number of at least 0"),
        (
            "--dry_run --dry_run_nodes 100000 --dry_run_gpus 8",
            "--dry_run_nodes 100000 of --dry_run_gpus 8 are 800,000 GPUs; a dry run plans for 100,000 at most",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(parse_nested, refused, flags, message):
    line = refused(parse_nested, "--reward.remote_url", "r.py", "--vllm.num_engines", "1", *flags.split())
    assert line == f"openrlhf-cov train: error: {message}\n"


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
    assert f"cluster: 1 node x 2 logical GPUs, {memory} (what Ray has)" in done.stdout.splitlines()
    assert not (tmp_path / "run").exists()
