"""The oracle of the training loop: what it records, and what it compares."""

import math
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from openrlhf_cov.data.rollout_files import RecordedSample, RolloutHeader, RolloutRecord, rollout_path, write_rollout
from openrlhf_cov.utils.metrics_log import METRICS_FILE


@pytest.fixture
def oracle(load_benchmark):
    return load_benchmark("oracle")


SAMPLE = RecordedSample(
    tokens=torch.tensor([1, 2, 3]),
    action_mask=torch.tensor([False, True]),
    sample_id=0,
    log_probs=torch.tensor([0.0, -0.5]),
    reward=1.0,
    score=1.0,
)


def write(folder, sample):
    folder.mkdir(parents=True, exist_ok=True)
    header = RolloutHeader(step=1, samples_per_prompt=1, prompts_per_step=1, tokenizer="digest")
    write_rollout(rollout_path(folder, 1), RolloutRecord(header, [sample]))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, 0.0),
        ({"log_probs": torch.tensor([0.0, -0.75])}, 0.25),
        ({"reward": 0.5}, 0.5),
        ({"tokens": torch.tensor([1, 2, 4])}, math.inf),
    ],
)
def test_rollouts_differ_by_log_probs_and_rewards_and_without_bound_by_tokens(oracle, tmp_path, changes, difference):
    write(tmp_path / "one", SAMPLE)
    write(tmp_path / "other", replace(SAMPLE, **changes))
    assert oracle.of_rollouts(tmp_path / "one", tmp_path / "other") == difference


def test_a_record_without_rollouts_is_another_one(oracle, tmp_path):
    write(tmp_path / "one", SAMPLE)
    assert oracle.of_rollouts(tmp_path / "one", tmp_path / "nowhere") == math.inf


@pytest.fixture
def trained(oracle, monkeypatch):
    """Runs that give the metrics, weights and rollouts of a training without one; the list has their flags."""
    flags = []

    def run(command, **settings):
        given = dict(pairwise(command))
        output = Path(given["--ckpt.output_dir"])
        output.mkdir(parents=True)
        (output / METRICS_FILE).write_text('{"step": 1, "reward": 0.5}\n')
        save_file({"weight": torch.ones(2)}, output / "model.safetensors")
        for name in ("--rollout.dump_dir", "--rollout.replay_dir"):
            if name in given:
                flags.append((name, Path(given[name]).name))
        if "--rollout.dump_dir" in given:
            write(Path(given["--rollout.dump_dir"]), SAMPLE)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(oracle, "write_task", lambda folder: None)
    monkeypatch.setattr(oracle.subprocess, "run", run)
    return flags


def test_a_record_is_compared_with_new_rollouts_or_replayed(oracle, trained, tmp_path, capsys):
    for action in ("record", "compare", "replay"):
        assert oracle.main([action, str(tmp_path), "plain"]) == 0
    assert trained == [
        ("--rollout.dump_dir", "rollouts"),
        ("--rollout.dump_dir", "rollouts"),
        ("--rollout.replay_dir", "rollouts"),
    ]
    assert rollout_path(tmp_path / "plain" / "rollouts", 1).exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "plain: metrics 0, evaluations 0, weights 0, rollouts 0"
    assert lines[2] == "plain: metrics 0, evaluations 0, weights 0"
    # A sampler that gives other tokens is found.
    write(tmp_path / "plain" / "rollouts", replace(SAMPLE, tokens=torch.tensor([1, 2, 4])))
    assert oracle.main(["compare", str(tmp_path), "plain"]) == 1
