"""The memory that a dry run budgets: of GPUs by phase, of their nodes, and of a CPU host."""

import pytest

from openrlhf_cov.cluster import cpu_host

GPUS = ["--dry_run_gpu_memory", "80"]
COLOCATED = ["--train.colocate_all", "--dry_run_gpu_memory", "4"]


def test_memory_that_is_short_names_the_phase_and_what_mends_it(plan_run):
    status, _, shortfalls = plan_run({"--vllm.gpu_memory_utilization": 0.9}, *COLOCATED)
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


@pytest.mark.slow
def test_engines_need_the_memory_of_a_gpu_to_be_counted(plan_run, monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    status, lines, _ = plan_run()
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
def test_the_memory_of_a_cpu_host_is_that_of_all_processes_together(plan_run):
    status, lines, shortfalls = plan_run({}, *NODE)
    assert (status, shortfalls) == (0, [])
    assert "cluster: 1 node x 2 logical GPUs, 24 GiB of memory (--dry_run_nodes, --dry_run_gpus)" in lines
    assert "memory of a logical GPU, which is memory of its node, GiB, estimated (docs/sizing.md)" in lines
    # 1 for the KV cache and 2 processes in the engine, 1 of the actor and 3 of the run, each 2/3; a model of nothing
    assert " ".join(lines[-2].split()) == "node 0 5.0 GiB of 24.0"
    assert not any("not counted" in line for line in lines)


@pytest.mark.usefixtures("on_a_cpu_host")
def test_a_model_that_a_cpu_host_cannot_hold_is_a_shortfall(plan_run):
    status, lines, shortfalls = plan_run(QWEN_ON_CPU, *NODE)
    assert status == 2
    assert lines[-1] == "dry run: 1 shortfall"
    # P = 7,615,616,512: weights, gradients and fp32 states are 20 P, the update 4 P, the reduce bucket 2e9, the engine
    # 4 P + 1 GiB; 6 processes of 2/3 GiB
    gib = (28 * 7_615_616_512 + 2e9) / 2**30 + 1 + 6 * 2 / 3
    assert shortfalls == [
        f"memory: node 0 needs {gib:.1f} GiB of 24.0 for all processes together, as GPUs are logical there; take a "
        "smaller model, lower --train.micro_batch_size or --data.max_len, or take a host with more memory; to plan "
        "for GPUs add --dry_run_gpu_memory"
    ]


@pytest.mark.usefixtures("on_a_cpu_host")
def test_the_kv_cache_of_a_cpu_host_is_compared_with_a_sequence(plan_run, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.000001")  # 1,073 bytes; a token takes 2 x 2 x 2 x 8 x 4 = 256
    _, _, shortfalls = plan_run({}, *NODE)
    assert shortfalls == [
        "VLLM_CPU_KVCACHE_SPACE 0.000001 leaves a KV cache of 4 tokens per engine, less than one sequence of "
        "--data.max_len 48; raise it or --vllm.tensor_parallel_size"
    ]


@pytest.mark.usefixtures("on_a_cpu_host")
def test_a_kv_cache_of_no_size_is_a_shortfall(plan_run, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4GB")
    assert plan_run({}, *NODE)[2] == ["VLLM_CPU_KVCACHE_SPACE 4GB is no number of GiB; set one, or unset it"]


SLEEPING = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.gpu_memory_utilization", "0.8"]


def test_what_leaves_the_gpus_must_fit_into_their_nodes(plan_run):
    changes = {"--actor.model_name_or_path": "Qwen/Qwen2.5-7B", "--ds.zero_stage": 3, "--vllm.num_engines": 8}
    changes |= {"--actor.num_gpus_per_node": 4, "--actor.num_nodes": 2, "--train.batch_size": 8}
    extra = [*GPUS, *SLEEPING, "--dry_run_nodes", "2", "--dry_run_gpus", "4"]
    assert plan_run(changes, *extra)[2] == []
    # on each node half of the states of 14 P, and 4 engines of 2 P: 15 P = 106.4 GiB
    assert plan_run(changes, *extra, "--dry_run_node_memory", "107")[2] == []
    assert plan_run(changes, *extra, "--dry_run_node_memory", "106")[2] == [
        "memory: node 0 and 1 more need 106.4 GiB of 106.0 beside the GPUs, for what sleeps or is offloaded; keep "
        "more on the GPUs (without --ds.adam_offload, --ds.enable_sleep, --vllm.enable_sleep, --ref.offload), or take "
        "nodes with more memory"
    ]


def test_what_finds_no_room_is_budgeted_too(plan_run):
    changes = {"--actor.model_name_or_path": "Qwen/Qwen2.5-7B", "--ds.zero_stage": 2}
    small = ["--dry_run_gpu_memory", "24"]
    fitting, crowded = (plan_run(changes, *small, "--dry_run_gpus", number) for number in ("2", "1"))
    memory = [line for line in fitting[2] if line.startswith("memory: ")]
    assert len(memory) > 1
    room = [line for line in crowded[2] if "no room" in line]
    assert [line for line in crowded[2] if line not in room] == fitting[2]
    assert room[0].startswith("actor: no room for 1 GPU beside what comes before; the run needs 2, there is 1: lower")
    assert any(line.strip().startswith("1 x actor (1 without room)") for line in crowded[1])
    assert "cluster: 1 node x 1 GPU of 24 GiB (--dry_run_nodes, --dry_run_gpus)" in crowded[1]
