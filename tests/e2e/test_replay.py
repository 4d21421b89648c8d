"""A run writes its rollouts, and another run without a vLLM engine trains on them, through the real command line."""

import pytest
import torch
from safetensors.torch import load_file

from openrlhf_cov.data.rollout_files import read_rollout, recorded_steps, rollout_path

pytestmark = pytest.mark.e2e

SETTINGS = ["--rollout_seeded", "--cov_type", "kl_cov", "--kl_cov_ratio", "0.05", "--ckpt.save_steps", "2"]


def weights(run):
    return load_file(run.folder / "model.safetensors")


def test_a_replayed_run_gives_the_same_weights_and_metrics_bit_by_bit(run_trainer, task, tmp_path, ray):
    dump = tmp_path / "rollouts"
    recorded = run_trainer(
        [*task.flags(tmp_path / "run"), *SETTINGS, "--rollout.dump_dir", str(dump)], tmp_path / "run", ray
    )
    assert recorded_steps(dump) == [1, 2, 3]
    assert len(read_rollout(rollout_path(dump, 1)).samples) == 128

    # The replay ends after its second step and is resumed with the third file.
    flags = [*task.flags(tmp_path / "replay"), *SETTINGS, "--rollout.replay_dir", str(dump)]
    run_trainer([*flags, "--rollout_limit", "2"], tmp_path / "replay", ray)
    (tmp_path / "replay" / "model.safetensors").unlink()
    replayed = run_trainer([*flags, "--ckpt.load_enable"], tmp_path / "replay", ray)
    before, after = weights(recorded), weights(replayed)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for one, other in zip(recorded.metrics, replayed.metrics, strict=True):
        assert {name: value for name, value in one.items() if not name.startswith(("time", "timing/"))} == {
            name: value for name, value in other.items() if not name.startswith(("time", "timing/"))
        }
    assert "RolloutRayActor" not in replayed.stdout + replayed.stderr

    # Another method trains on the same rollouts.
    other = run_trainer(
        [*task.flags(tmp_path / "other"), "--cov_type", "none", "--rollout.replay_dir", str(dump)],
        tmp_path / "other",
        ray,
    )
    assert [line["reward"] for line in other.metrics] == [line["reward"] for line in recorded.metrics]
    assert not all(torch.equal(before[name], value) for name, value in weights(other).items())
