"""Folders of recorded rollouts are checked before anything is started."""

import pytest
import torch

from openrlhf_cov.cluster.connection import needs_of_training
from openrlhf_cov.data.rollout_files import (
    RecordedSample,
    RolloutHeader,
    RolloutRecord,
    rollout_path,
    tokenizer_digest,
    write_rollout,
)
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer


@pytest.fixture
def short_model(inputs, loadable_model):
    """The inputs have a model whose tokenizer can be read, and sequences that are short enough for it."""
    inputs |= {"--data.max_len": 48, "--rollout.max_new_tokens": 24}


def write_steps(folder, *steps, samples=2, prompts=4, tokenizer=None):
    folder.mkdir(exist_ok=True)
    digest = tokenizer_digest(tokenizer or build_tokenizer(96))
    for step in steps:
        header = RolloutHeader(step, samples, prompts, digest)
        recorded = [
            RecordedSample(torch.tensor([1, 2, 3]), torch.tensor([False, True]), number)
            for number in range(samples * prompts)
        ]
        write_rollout(rollout_path(folder, step), RolloutRecord(header, recorded))
    return folder


def test_a_folder_that_fits_is_accepted(check, short_model, tmp_path):
    check({"--rollout.replay_dir": write_steps(tmp_path / "rollouts", 1, 2)})


def test_folders_that_do_not_fit_are_refused(refusal, short_model, tmp_path):
    folder = tmp_path / "rollouts"
    flag = {"--rollout.replay_dir": folder}
    assert refusal(flag).startswith(f"--rollout.replay_dir {folder}: it has no recorded rollouts")
    write_steps(folder, 1, 3)
    assert "step_000002.safetensors is missing, but step_000003.safetensors is there" in refusal(flag)
    write_steps(folder, 1, 2, 3, samples=4)
    first = f"--rollout.replay_dir {folder}/step_000001.safetensors"
    assert refusal(flag) == f"{first}: it has 4 samples per prompt, the run has 2"
    write_steps(folder, 1, 2, 3, prompts=8)
    assert refusal(flag) == f"{first}: it has 8 prompts per step, the run has 4"

    class Other:
        def get_vocab(self):
            return {"a": 0}

    write_steps(folder, 1, 2, 3, tokenizer=Other())
    assert refusal(flag).startswith(f"{first}: its token ids are those of another tokenizer")
    rollout_path(folder, 1).write_bytes(b"no file of safetensors")
    assert refusal(flag).startswith(f"{first}: it is no recorded rollout that can be read")


def test_a_folder_with_the_rollouts_of_another_run_is_not_written_to(refusal, check, short_model, tmp_path):
    folder = write_steps(tmp_path / "rollouts", 1)
    line = refusal({"--rollout.dump_dir": folder})
    assert line.startswith(f"--rollout.dump_dir {folder} holds step_000001.safetensors of another run")
    check({"--rollout.dump_dir": folder}, "--ckpt.load_enable")
    both = {"--rollout.dump_dir": folder, "--rollout.replay_dir": folder}
    assert "is also --rollout.replay_dir" in refusal(both)


def test_a_replayed_run_without_an_evaluation_needs_no_engine(inputs, parse_nested, tmp_path):
    inputs.pop("--vllm.num_engines")
    flags = [str(word) for pair in inputs.items() for word in pair]
    replay = ("--rollout.replay_dir", str(tmp_path), "--algo.kl.init_coef", "0", "--train.colocate_all")
    # One process of the policy, on one GPU.
    assert len(needs_of_training(parse_nested(*flags, *replay)).bundles) == 1
    evaluated = (
        "--eval.dataset",
        "eval.jsonl",
        "--eval.steps",
        "1",
        "--vllm.num_engines",
        "1",
        "--train.async_enable",
    )
    assert len(needs_of_training(parse_nested(*flags, *replay, *evaluated)).bundles) == 2


def test_a_run_that_evaluates_needs_an_engine(inputs, parse_nested, refused, tmp_path):
    inputs.pop("--vllm.num_engines")
    flags = [str(word) for pair in inputs.items() for word in pair]
    line = refused(lambda *words: parse_nested(*words), *flags, "--rollout.replay_dir", str(tmp_path),
                   "--eval.dataset", "eval.jsonl")  # fmt: skip
    assert "--vllm.num_engines is missing" in line
