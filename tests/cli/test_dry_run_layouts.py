"""The layouts of the recipes in docs/sizing.md."""

from pathlib import Path

import pytest

from openrlhf_cov.trainer.preflight import dry_run

COLOCATED_FLAGS = "--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.8"
# Model, flags, nodes of 8 GPUs, and the sums of the actor's GPUs as docs/sizing.md has them.
LAYOUTS = {
    "7b colocated": (
        "Qwen/Qwen2.5-7B",
        "--actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 8 --train.max_tokens_per_gpu 40960 "
        + COLOCATED_FLAGS,
        1,
        ["67.8", "18.4", "43.6", "21.0"],
    ),
    "7b split": (
        "Qwen/Qwen2.5-7B",
        "--actor.num_nodes 1 --actor.num_gpus_per_node 4 --vllm.num_engines 4 --train.max_tokens_per_gpu 40960 "
        "--vllm.gpu_memory_utilization 0.9",
        1,
        ["34.3", "47.2", "57.8", "36.3"],
    ),
    "32b colocated": (
        "Qwen/Qwen2.5-32B",
        "--actor.num_nodes 4 --actor.num_gpus_per_node 8 --vllm.num_engines 8 --vllm.tensor_parallel_size 4 "
        "--train.max_tokens_per_gpu 40960 " + COLOCATED_FLAGS,
        4,
        ["67.9", "24.7", "69.8", "23.1"],
    ),
    "32b split": (
        "Qwen/Qwen2.5-32B",
        "--actor.num_nodes 2 --actor.num_gpus_per_node 8 --vllm.num_engines 4 --vllm.tensor_parallel_size 4 "
        "--train.max_tokens_per_gpu 32768 --vllm.gpu_memory_utilization 0.9",
        4,
        ["36.4", "52.4", "75.6", "39.3"],
    ),
}

SIZING = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text(encoding="utf-8").splitlines()
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
    note = (
        f"note: --actor.model_name_or_path {name}: shape from the built-in table, config.json not read; tokenizer not"
    )
    assert f"{note} checked" in lines
    (row,) = [line for line in SIZING if line.lower().startswith(f"| {layout_name} |")]
    assert row.endswith(f"| {' | '.join(sums)} |")
    if layout_name == "7b colocated":
        assert [line for line in SHOWN if line not in lines] == []
