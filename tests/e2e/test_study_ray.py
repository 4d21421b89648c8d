"""A study of the whole trainer on an embedded task: training, a look at the model, the page; and again."""

import json
import os
import sys

import pytest
from ending import ended

from openrlhf_cov.study.results import unpack

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SPEC = """
title: Two steps
task: commands
engine: ray
flags: >
  --rollout_limit 2 --data.max_samples 32 --actor.num_gpus_per_node 1 --vllm.num_engines 1
  --vllm.gpu_memory_utilization 0.2
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --rollout.batch_size 8 --rollout.n_samples_per_prompt 4
  --rollout.micro_batch_size 32 --train.batch_size 16 --train.micro_batch_size 16 --ds.zero_stage 2 --rollout_seeded
seeds: [0]
arms:
  - name: GRPO
  - {name: KL-Cov, flags: --cov_type kl_cov --kl_cov_ratio 2e-2}
"""


def test_a_study_of_the_trainer(tmp_path):
    spec, output, packed = tmp_path / "two.yaml", tmp_path / "out", tmp_path / "two.jsonl.xz"
    spec.write_text(SPEC)
    words = [str(spec), "--output", str(output), "--base_policies", str(tmp_path / "base"), "--pack", str(packed)]
    command = [sys.executable, "-m", "openrlhf_cov.cli.study", *words]
    for said in ("0 of 2 runs are finished", "2 of 2 runs are finished"):
        assert said in ended(command, "a study of two runs", env=os.environ | {"RAY_ADDRESS": "local"}).stdout
    for result in unpack(packed):
        assert result.metrics.steps.tolist() == [1, 2]
        assert result.evaluations.steps.tolist() == [0, 2]  # the base policy, and the trained one
        assert 0.2 < result.evaluations.column("greedy")[0] < 0.7  # a habit that is right for 14 of 32 letters
        assert len(result.greedy) == len(result.kinds) == 256
        assert set(result.kinds) == {"a", "b", "c", "d"}
        log = (output / result.run.folder / "metrics.jsonl").read_text().splitlines()
        assert json.loads(log[0])["entropy/position_0"] > json.loads(log[0])["entropy/position_4"]
        assert not (output / result.run.folder / "state").exists()
