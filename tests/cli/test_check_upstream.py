"""Flags of upstream that a run cannot keep end it before anything starts, with one line."""

import json

import pytest

from openrlhf_cov.cluster import cpu_host

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
        (
            "--ds.lora.rank 0 --ds.lora.target_modules q_proj v_proj",
            "--ds.lora.target_modules q_proj v_proj has no effect without --ds.lora.rank",
        ),
        ("--train.enable_ema", "--train.enable_ema needs a GPU"),
        ("--actor.muon.ns_steps 3", "--actor.muon.ns_steps 3 has no effect"),
        ("--actor.muon.no_nesterov", "--actor.muon.no_nesterov has no effect"),
        ("--critic.muon.no_nesterov", "--critic.muon.no_nesterov has no effect"),
        ("--critic.muon.ns_steps 3", "--critic.muon.ns_steps 3 has no effect"),
        (
            "--data.prompt_probs 0.5,0.5",
            "--data.prompt_probs 0.5,0.5: give one probability for each of the 1 data set",
        ),
        ("--data.prompt_probs all", "--data.prompt_probs all: give one probability"),
        ("--reward.normalize_enable", "--reward.normalize_enable is not supported"),
        ("--reward.model_name_or_path m", "--reward.model_name_or_path m has no effect with --reward.remote_url"),
    ],
)
def test_what_is_refused(refusal, flags, beginning):
    message = refusal((), *flags.split())
    assert message.startswith(beginning)
    assert "\n" not in message


@pytest.mark.parametrize("more", [("--ckpt.load_enable",), ("--ds.lora.rank", "8", "--vllm.sync_backend", "gloo")])
def test_averages_that_would_be_wrong_on_a_gpu_host_too(refusal, monkeypatch, more):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    assert refusal((), "--train.enable_ema", *more).startswith("--train.enable_ema ")


def test_a_dry_run_says_so_too(plan_run):
    status, _, shortfalls = plan_run((), *LORA, "--dry_run_gpu_memory", "80")  # of a GPU host, whose default is nccl
    assert status == 2
    (shortfall,) = shortfalls
    assert shortfall.startswith("--ds.lora.rank 8 needs --vllm.sync_backend gloo, got nccl")
    assert plan_run((), *LORA, "--dry_run_gpu_memory", "80", "--vllm.sync_backend", "gloo")[2] == []


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
    changes = {"--data.max_len": 48, "--rollout.max_new_tokens": 24}
    flags = (*LORA, "--ds.lora.target_modules", *modules)
    if reason is None:
        check(changes, *flags)
        return
    message = refusal(changes, *flags)
    assert message.startswith(f"--ds.lora.target_modules {modules[0]}: ")
    assert reason in message


def test_all_linear_is_peft_s_word_however_it_is_given(parse_nested, inputs):
    flags = [str(word) for pair in inputs.items() for word in pair]
    assert parse_nested(*flags, *LORA).ds.lora.target_modules == "all-linear"
    given = parse_nested(*flags, *LORA, "--ds.lora.target_modules", "all-linear")
    assert given.ds.lora.target_modules == "all-linear"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--ds.lora.target_modules", "all-linear", "lm_head"], "give it alone, or name layers"),
        (["--ds.lora.target_modules"], "is empty"),
        (["--train.agent_func_path", "agent.py"], "--reward.remote_url has no effect with --train.agent_func_path"),
    ],
)
def test_what_the_parser_refuses(refused, parse, words, reason):
    assert reason in refused(parse, *words)


def test_two_data_sets_are_read_with_their_probabilities(check, inputs):
    path = inputs["--data.prompt_dataset"]
    check({"--data.prompt_dataset": f"{path},{path}"}, "--data.prompt_probs", "0.75,0.25")
