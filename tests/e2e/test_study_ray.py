"""A study of the whole trainer on an embedded task: training, a look at the model, the page; and again."""

import json
import os
import sys

import pytest
from ending import ended

from openrlhf_cov.experiments.study.run_results import unpack

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


OF_LAB = """
title: Two steps, in the flags of the laboratory
task: commands
flags: --steps 2 --updates 2 --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --test_samples 16
seeds: [0]
arms:
  - name: GRPO
  - {name: PSR, flags: --method psr}
  - {name: toss of a coin, flags: --random_reward}
  - {name: reference KL, flags: --algo.kl.init_coef 1e-2}
"""


# What vLLM says of an engine that it starts.
STARTED = "Initializing a V1 LLM engine"


def test_a_study_of_the_trainer(tmp_path):
    spec, output, packed = tmp_path / "two.yaml", tmp_path / "out", tmp_path / "two.jsonl.xz"
    spec.write_text(OF_LAB)
    words = [str(spec), "--output", str(output), "--base_policies", str(tmp_path / "base"), "--pack", str(packed)]
    command = [sys.executable, "-m", "openrlhf_cov.cli.study", *words, "--engine", "ray"]
    for said in ("0 of 4 runs are finished", "4 of 4 runs are finished"):
        assert said in ended(command, "a study of four runs", env=os.environ | {"RAY_ADDRESS": "local"}).stdout
    first = {}
    for result in unpack(packed):
        assert result.samples == 16
        assert result.metrics.steps.tolist() == [1, 2]
        assert result.evaluations.steps.tolist() == [0, 2]  # the base policy, and the trained one
        assert 0.2 < result.evaluations.column("greedy")[0] < 0.7  # a habit that is right for 14 of 32 letters
        assert len(result.greedy) == len(result.kinds) == 256
        assert set(result.kinds) == {"a", "b", "c", "d"}
        log = (output / result.run.folder / "metrics.jsonl").read_text().splitlines()
        first[result.run.method] = line = json.loads(log[0])
        assert line["entropy/position_0"] > line["entropy/position_4"]
        assert not (output / result.run.folder / "state").exists()
    # what each arm makes of the same samples: all right ones have the advantage 1, GRPO's have the mean 0
    grpo, psr, coin, reference = (first[arm] for arm in ("GRPO", "PSR", "toss of a coin", "reference KL"))
    assert grpo["return"] == pytest.approx(0.0, abs=1e-6)
    assert psr["return"] == psr["reward"] == grpo["reward"] == reference["reward"] != coin["reward"]
    assert reference["kl"] > grpo["kl"] == 0.0


def test_a_run_on_the_engine_of_others_is_what_it_is_on_its_own(tmp_path):
    """Seed 1 of KL-Cov, on an engine that has had three other trainings, and on a new one."""
    head, arms = SPEC.replace("--rollout_seeded", "--rollout_seeded --actor.adam.lr 1e-3").split("arms:")
    kl_cov = arms.splitlines()[-1]
    logs, engines = {}, {}
    for name, seeds, chosen in (("beside", "[0, 1]", arms), ("alone", "[1]", f"\n{kl_cov}\n")):
        spec, output = tmp_path / f"{name}.yaml", tmp_path / name
        spec.write_text(f"{head.replace('[0]', seeds)}arms:{chosen}")
        words = [str(spec), "--output", str(output), "--base_policies", str(tmp_path / "base")]
        command = [sys.executable, "-m", "openrlhf_cov.cli.study", *words]
        ended(command, "a study", env=os.environ | {"RAY_ADDRESS": "local"})
        (run,) = output.glob("report/KL-Cov/*/seed-1")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        logs[name] = [{key: value for key, value in line.items() if not is_of_time(key)} for line in lines]
        engines[name] = STARTED in (run / "log.txt").read_text()
    assert logs["beside"] == logs["alone"]
    assert all(line["cov/selected_count"] > 0 for line in logs["alone"])
    assert engines == {"beside": False, "alone": True}  # only one of the two has started one


def is_of_time(name: str) -> bool:
    return name == "time" or name.startswith(("timing/", "perf/", "memory/"))
