"""Flags of upstream that a run cannot keep end it before anything starts, with one line."""

import pytest
from texts import missing

LORA = ("--ds.lora.rank", "8")


@pytest.mark.parametrize(
    ("flags", "beginning"),
    [
        ("--vllm.sync_with_ray", "--vllm.sync_with_ray is not supported"),
        ("--ds.load_in_4bit", "--ds.load_in_4bit is not supported"),
        ("--ds.lora.rank 8 --vllm.sync_backend nccl", "--ds.lora.rank 8 needs --vllm.sync_backend gloo, got nccl"),
        ("--ds.lora.rank 8 --algo.advantage.estimator gae", "--ds.lora.rank 8 does not train a critic"),
        (
            "--ds.lora.rank 8 --ds.tensor_parallel_size 2 --ds.param_dtype bf16 --actor.num_gpus_per_node 2",
            "--ds.lora.rank 8 and --ds.tensor_parallel_size 2",
        ),
        ("--ds.lora.alpha 32", "--ds.lora.alpha 32 has no effect without --ds.lora.rank"),
        ("--ds.lora.rank 0 --ds.lora.target_modules q_proj v_proj", "--ds.lora.target_modules q_proj v_proj has no"),
        ("--train.enable_ema", "--train.enable_ema needs a GPU"),
        ("--actor.muon.ns_steps 3", "--actor.muon.ns_steps 3 has no effect"),
        ("--actor.muon.no_nesterov", "--actor.muon.no_nesterov has no effect"),
        ("--critic.muon.no_nesterov", "--critic.muon.no_nesterov has no effect"),
        ("--critic.muon.ns_steps 3", "--critic.muon.ns_steps 3 has no effect"),
        ("--data.prompt_probs 0.5,0.5", "--data.prompt_probs 0.5,0.5: give one probability"),
        ("--data.prompt_probs all", "--data.prompt_probs all: give one probability"),
        ("--reward.normalize_enable", "--reward.normalize_enable is not supported"),
        ("--reward.model_name_or_path m", "--reward.model_name_or_path m has no effect with --reward.remote_url"),
    ],
)
def test_what_is_refused(refusal, flags, beginning):
    assert refusal((), *flags.split()).startswith(beginning)


def test_a_reward_model_beside_an_agent_is_refused(refusal, inputs, tmp_path):
    del inputs["--reward.remote_url"]  # the agent takes its place
    inputs["--train.agent_func_path"] = tmp_path / "agent.py"
    message = refusal({"--reward.model_name_or_path": "m"})
    assert missing(message, "--reward.model_name_or_path m", "no effect", "--train.agent_func_path") == []


@pytest.mark.slow
def test_a_dry_run_says_so_too(plan_run):
    status, _, shortfalls = plan_run((), *LORA, "--dry_run_gpu_memory", "80")  # of a GPU host, whose default is nccl
    assert status == 2
    (shortfall,) = shortfalls
    assert shortfall.startswith("--ds.lora.rank 8 needs --vllm.sync_backend gloo, got nccl")
    assert plan_run((), *LORA, "--dry_run_gpu_memory", "80", "--vllm.sync_backend", "gloo")[2] == []
