import pytest

from openrlhf_cov.cluster.sizing.flag_sizes import layout_of, roles_of
from openrlhf_cov.cluster.sizing.host import CPU_PROCESS, cpu_budget, cpu_bytes, cpu_engine, off_gpu_bytes
from openrlhf_cov.cluster.sizing.memory import GIB
from openrlhf_cov.cluster.sizing.model_shape import KNOWN
from openrlhf_cov.cluster.sizing.placement import place

QWEN_7B = KNOWN["Qwen/Qwen2.5-7B"]
SMOLLM = KNOWN["HuggingFaceTB/SmolLM2-135M"]
P, Q = QWEN_7B.parameters, SMOLLM.parameters


def hosts(args, nodes, models=("actor",)):
    roles = roles_of(args, dict.fromkeys(models, QWEN_7B), on_gpus=True)
    return off_gpu_bytes(args, roles, place(layout_of(args).groups(), nodes), QWEN_7B)


def test_what_sleeps_is_on_the_host(flags):
    # 8 GPUs on two nodes of 4: half of 14 bytes per parameter, and 4 engines of 2 bytes, on each
    half = {"states of DeepSpeed": 14 * P / 2, "weights of engines": 4 * 2 * P}
    assert hosts(flags(), [4, 4]) == {0: half, 1: half}


def test_what_is_offloaded_is_on_the_host(flags):
    awake = {"ds.enable_sleep": False, "vllm.enable_sleep": False}
    assert hosts(flags(awake), [8]) == {0: {"states of DeepSpeed": 0, "weights of engines": 0}}
    args = flags(awake | {"ds.adam_offload": True, "algo.kl.init_coef": 0.1, "ref.offload": True})
    (parts,) = hosts(args, [8], ("actor", "ref")).values()
    assert parts["states of DeepSpeed"] == pytest.approx(16 * P + 2 * P)
    assert parts["weights of engines"] == 0


def test_adapters_alone_are_offloaded(flags):
    awake = {"ds.enable_sleep": False, "vllm.enable_sleep": False, "ds.adam_offload": True}
    (parts,) = hosts(flags(awake | {"ds.lora.rank": 16}), [8]).values()
    # Adapters of rank 16 have less than a hundredth of the parameters.
    assert 0 < parts["states of DeepSpeed"] < 16 * P / 100


@pytest.mark.parametrize(
    ("stage", "averages"),
    # Stage 3: 4 bytes of the average and 2 of the offloaded model, half of them on each of two nodes. Stage 2: the
    # first process has the average, and the model stays on the GPUs.
    [(3, {0: 3 * P, 1: 3 * P}), (2, {0: 4 * P})],
)
def test_the_moving_average_is_on_the_host(flags, stage, averages):
    args = flags({"ds.zero_stage": stage, "train.enable_ema": True})
    parts = hosts(args, [4, 4])
    assert {node: part["averaged weights"] for node, part in parts.items() if "averaged weights" in part} == averages


# SmolLM2-135M on a CPU host.
CPU = {
    "actor.num_gpus_per_node": 1, "vllm.num_engines": 1, "ds.param_dtype": "fp32", "ds.zero_stage": 2,
    "train.dynamic_batch_enable": False, "train.colocate_all": False, "data.max_len": 512,
    "ds.enable_sleep": True, "vllm.enable_sleep": True,
}  # fmt: skip


def test_an_engine_on_a_cpu_host_is_weights_and_kv_cache(flags):
    engine = cpu_engine(flags(CPU), SMOLLM, 1.0 * GIB)
    assert engine.share == 4 * Q + GIB
    assert engine.kv_bytes(SMOLLM) == GIB
    assert engine.kv_tokens(SMOLLM) == GIB // (2 * 30 * 3 * 64 * 4)  # 30 layers, 3 heads of keys of 64


def test_without_a_size_the_kv_cache_is_what_the_engine_gets(flags):
    # 4 sequences of 4 blocks of 128 tokens and one more, and vLLM's own block
    engine = cpu_engine(flags(CPU | {"vllm_max_num_seqs": 4}), SMOLLM)
    assert engine.kv_tokens(SMOLLM) == 21 * 128
    # 4 sequences of 16 blocks of 32 tokens and one more, twice
    args = flags(CPU | {"vllm_max_num_seqs": 4, "vllm.enable_prefix_caching": True})
    assert cpu_engine(args, SMOLLM).kv_tokens(SMOLLM) == (2 * 4 * 17 + 1) * 32


def test_ranks_of_an_engine_are_processes_beside_its_actor_and_its_scheduler(flags):
    args = flags(CPU | {"vllm.tensor_parallel_size": 2})
    rows = {row.name: row.values for row in cpu_budget({}, ("engine",), cpu_engine(args, SMOLLM)).rows}
    assert rows["Python, torch"] == (3 * CPU_PROCESS,) * 4


def test_nothing_leaves_the_memory_of_a_cpu_host(flags):
    args = flags(CPU)
    actor = roles_of(args, {"actor": SMOLLM}, on_gpus=False)["actor"]
    rows = {
        row.name: row.values for row in cpu_budget({"actor": actor}, ("actor",), cpu_engine(args, SMOLLM, GIB)).rows
    }
    assert rows["actor: weights"] == (4 * Q,) * 4
    # gradients, master weights and moments; the reduce bucket has 2 ** 22 elements of 4 bytes
    assert rows["actor: optimizer, gradients"] == (4 * Q + 12 * Q + 2**24,) * 4
    assert rows["Python, torch"] == (CPU_PROCESS,) * 4
    assert "CUDA, NCCL" not in rows
    assert "offloaded, here all the same" not in rows


def test_what_is_offloaded_stays_in_the_memory_of_a_cpu_host(flags):
    args = flags(CPU | {"ds.adam_offload": True})
    roles = roles_of(args, {"actor": SMOLLM}, on_gpus=False)
    rows = {row.name: row.values for row in cpu_budget(roles, ("actor",), cpu_engine(args, SMOLLM, GIB)).rows}
    assert rows["actor: optimizer, gradients"] == (2**24,) * 4
    assert rows["offloaded, here all the same"] == (16 * Q,) * 4


def test_all_processes_of_a_node_share_its_memory(flags):
    args = flags(CPU | {"vllm.num_engines": 2})
    engine = cpu_engine(args, SMOLLM, GIB)
    roles = roles_of(args, {"actor": SMOLLM}, on_gpus=False)
    budgets = {kinds: cpu_budget(roles, kinds, engine) for kinds in (("actor",), ("engine",))}
    one_engine = 4 * Q + GIB + CPU_PROCESS
    assert budgets["engine",].totals == (one_engine,) * 4
    needs = cpu_bytes(place(layout_of(args).groups(), [2, 1]), budgets)
    rest = 3 * CPU_PROCESS  # the command, the trainer, Ray
    assert needs == {0: 2 * one_engine + rest, 1: max(budgets["actor",].totals) + rest}
    together = cpu_bytes(place(layout_of(args).groups(), [3]), budgets)
    assert together == {0: 2 * one_engine + max(budgets["actor",].totals) + rest}
