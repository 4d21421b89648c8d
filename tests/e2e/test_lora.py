"""Training of LoRA adapters through the real command line: engine and policy agree, a resume repeats the run."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.e2e

LORA = ["--ds.lora.rank", "4", "--ds.lora.alpha", "8", "--ds.lora.target_modules", "all-linear"]
# Flags with which upstream logs ``vllm_kl``, the difference of log-probs between engine and policy.
MISMATCH = ["--algo.advantage.is_correction_level", "token"]


def test_lora_trains_exports_and_resumes(run_trainer, task, tmp_path, ray):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    more = [*LORA, *MISMATCH, "--actor.adam.lr", "1e-2", "--ckpt.save_steps", "1", "--rollout_seeded"]
    run = run_trainer([*task.flags(straight), *more], straight, ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert "1 vLLM engine(s) received the new weights of global step 1" in run.stdout
    # updates of 1e-2 move log-probs by far more than fp32's rounding: an engine without the adapters would show
    assert max(line["ppo/ratio_p99"] for line in run.metrics) > 1.05
    assert all(abs(line["vllm_kl"]) < 1e-5 for line in run.metrics)

    before, after = load_file(task.model / "model.safetensors"), load_file(straight / "model.safetensors")
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj." in name}
    adapters = load_file(straight / "adapter" / "adapter_model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    a, b = (adapters[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    # alpha / rank = 2
    torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + 2 * b @ a)

    # continue from the checkpoint of step 2 in a copy of the run
    shutil.copytree(straight / "checkpoints", broken / "checkpoints")
    for tag in ("global_step3", "global_step3-again"):
        shutil.rmtree(broken / "checkpoints" / "_actor" / tag, ignore_errors=True)
    (broken / "checkpoints" / "_actor" / "latest").write_text("global_step2")
    resumed = run_trainer([*task.flags(broken), *more, "--ckpt.load_enable"], broken, ray)
    assert [line["step"] for line in resumed.metrics] == [3]
    again = load_file(broken / "model.safetensors")
    assert all(torch.equal(again[name], after[name]) for name in after)


@pytest.mark.long
def test_lora_on_two_ranks_with_zero_3_in_half_precision(run_trainer, task, tmp_path, ray):
    folder = tmp_path / "run"
    two_ranks = "--actor.num_gpus_per_node 2 --ref.num_gpus_per_node 2 --train.micro_batch_size 16 --ds.zero_stage 3"
    lora = "--ds.lora.rank 4 --ds.lora.target_modules q_proj v_proj --ds.lora.dropout 0.1 --ds.param_dtype bf16"
    flags = [*task.flags(folder), *f"{two_ranks} {lora} --actor.adam.lr 1e-2".split(), *MISMATCH]
    run = run_trainer(flags, folder, ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert all(abs(line["vllm_kl"]) < 1e-2 for line in run.metrics)  # bf16 rounds to 0.4 %

    before, after = load_file(task.model / "model.safetensors"), load_file(folder / "model.safetensors")
    assert after.keys() == before.keys()
    for name, weight in before.items():
        adapted = "q_proj.weight" in name or "v_proj.weight" in name
        assert torch.equal(after[name], weight.bfloat16()) is not adapted
