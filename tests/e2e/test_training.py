"""Three steps of each method through the real command line, with Ray, DeepSpeed and vLLM."""

import json
import math
import re
import time
import urllib.request
from pathlib import Path

import pytest
from safetensors.torch import load_file

from openrlhf_cov.cli.local_ray import local_ray

pytestmark = pytest.mark.e2e

METHODS = {
    "none": ["--cov_type", "none"],
    "clip_cov": ["--cov_type", "clip_cov", "--clip_cov_ratio", "0.05", "--clip_cov_lb", "0.0", "--clip_cov_ub", "1e6"],
    "kl_cov": ["--cov_type", "kl_cov", "--kl_cov_ratio", "0.05"],
}
TWO_RANKS = ["--actor.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2", "--train.micro_batch_size", "16"]


def documented_names() -> set[str]:
    """Names in backticks in the first column of the tables of docs/metrics.md."""
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}


def assert_good_steps(run, task, restrains: bool, steps: int = 3) -> None:
    assert run.status == 0
    assert [line["step"] for line in run.metrics] == list(range(1, steps + 1))
    for line in run.metrics:
        assert set(line) <= documented_names()
        # 5 % of the tokens of a micro-batch, rounded down; micro-batches here have some 150 tokens and more
        assert 0.04 <= line["cov/selected_frac"] <= 0.05 if restrains else line["cov/selected_frac"] == 0.0
        assert 0.0 < line["entropy/mean"] < math.log(21)  # 21 symbols
        assert line["ppo/ratio_max"] >= 1.0
        assert line["ppo/clip_frac"] >= 0.0
        assert line["timing/step_total"] > 0
        assert line["rollout/num_samples"] == 256
    before, after = load_file(task.model / "model.safetensors"), load_file(run.folder / "model.safetensors")
    # Adam moves a weight by about lr = 1e-4 in each of 4 updates per step, all one way at the most
    name = "model.layers.0.mlp.up_proj.weight"
    moved = (after[name].float() - before[name].float()).abs().max().item()
    assert 1e-4 < moved < 5e-4 * steps


def test_none_beside_a_ray_of_somebody_else(run_trainer, task, tmp_path):
    with local_ray(num_gpus=1, num_cpus=2, log=tmp_path / "ray.log") as other:
        run = run_trainer(task.flags(tmp_path / "run") + METHODS["none"], tmp_path / "run")
        assert_good_steps(run, task, restrains=False)

        # the other Ray has run no job and still answers; when it is named it is used, and found too small
        with urllib.request.urlopen(f"{other.dashboard}/api/jobs/", timeout=10) as answer:
            assert json.load(answer) == []
        started = time.monotonic()
        small = run_trainer(task.flags(tmp_path / "small"), tmp_path / "small", ray_address=other.gcs)
        assert time.monotonic() - started < 90  # imports included; the wait for room is 20 s
    assert small.status == 2
    last_line = small.stderr.strip().splitlines()[-1]
    assert "needs 2 GPUs" in last_line
    assert "Ray has 1 GPUs (1 free)" in last_line


def test_clip_cov(run_trainer, task, tmp_path):
    run = run_trainer(task.flags(tmp_path / "run") + METHODS["clip_cov"], tmp_path / "run")
    assert_good_steps(run, task, restrains=True)


def test_kl_cov_on_two_ranks_for_twelve_steps(run_trainer, task, tmp_path):
    flags = [*METHODS["kl_cov"], *TWO_RANKS, "--train.num_episodes", "4", "--cov_dump_every", "12"]
    run = run_trainer(task.flags(tmp_path / "run") + flags, tmp_path / "run")
    assert_good_steps(run, task, restrains=True, steps=12)
    names = set(run.metrics[0])
    for line in run.metrics:
        assert set(line) == names
        assert all(value is None or isinstance(value, int | float) for value in line.values())
        assert line["cov/selected_mean"] > line["cov/mean"]
        assert line["cov/top_2e-4"] >= line["cov/top_2e-2"] >= line["cov/top_0.5"] >= line["cov/mean"]
        assert line["entropy/p10"] <= line["entropy/p50"] <= line["entropy/p90"]
    # the change of entropy needs a step before, its correlation with the theorems five pairs of steps
    assert [run.metrics[n]["entropy/delta"] is None for n in (0, 1)] == [True, False]
    assert [run.metrics[n]["entropy/corr_theorem2"] is None for n in (4, 5)] == [True, False]
    dumped = [json.loads(line) for line in (run.folder / "cov_tokens" / "step_12.jsonl").read_text().splitlines()]
    assert len(dumped) == 200
    assert [token["cov"] for token in dumped] == sorted((token["cov"] for token in dumped), reverse=True)
    assert any(token["selected"] for token in dumped)
