"""PRIME on the embedded task: three real steps with a process reward model, and the same run with an interruption."""

import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from openrlhf_cov.utils.metrics_log import read_metrics

pytestmark = pytest.mark.e2e

PRIME = """
    --method prime --prime_lr 1e-4 --algo.advantage.estimator rloo --algo.kl.init_coef 0
    --rollout_seeded --ckpt.save_steps 1 --ckpt.max_num 9
""".split()
CLOCK = ("time", "timing/")


def lines(folder):
    """Return the metrics without those of the clock."""
    return [
        {name: value for name, value in line.items() if not name.startswith(CLOCK)}
        for line in read_metrics(folder / "metrics.jsonl")
    ]


def weights_of_checkpoint(folder, model, step):
    (file,) = (folder / "checkpoints" / model / f"global_step{step}").glob("mp_rank_*_model_states.pt")
    return torch.load(file, weights_only=False)["module"]


def test_three_steps_and_a_resumed_run(run_trainer, task, tmp_path, ray):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run = run_trainer([*task.flags(straight), *PRIME], straight, ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert math.isfinite(line["policy_loss"])
        assert line["gradient/norm"] > 0
        assert 0 < line["prm/loss"] < 1
        assert math.isfinite(line["prm/reward_mean"])
        assert line["prm/grad_norm"] > 0
        assert line["prm/lr"] == pytest.approx(1e-4)
        assert line["prm/skipped_updates"] == line["ppo/skipped_updates"] == 0
        assert "kl" in line
    # Of the responses that the model was just trained on. After few updates the share is near one half, on either
    # side: every host trains its own base policy.
    assert max(line["prm/accuracy"] for line in run.metrics) > 0.5
    # the four updates of the first step begin where the model is its reference, at a loss of ln 2
    assert run.metrics[0]["prm/loss"] == pytest.approx(math.log(2), abs=0.1)

    # policy and process reward model have moved, each to a place of its own
    start = load_file(task.model / "model.safetensors")
    policy, prm = (weights_of_checkpoint(straight, model, 3) for model in ("_actor", "_prm"))
    for name, before in start.items():
        assert not prm[name].float().equal(before.float()), name
        assert not prm[name].equal(policy[name]), name

    # An interruption after the first step changes nothing: the optimizer of the process reward model goes on, too.
    shutil.copytree(straight, broken, ignore=shutil.ignore_patterns("model.safetensors", "global_step[23]*"))
    for model in ("_actor", "_prm"):
        (broken / "checkpoints" / model / "latest").write_text("global_step1")
    run_trainer([*task.flags(broken), *PRIME, "--ckpt.load_enable"], broken, ray)
    assert lines(broken) == lines(straight)
    for model, expected in (("_actor", policy), ("_prm", prm)):
        found = weights_of_checkpoint(broken, model, 3)
        assert all(found[name].equal(weight) for name, weight in expected.items()), model
