"""What recipes run, at toy size: ZeRO stages, dynamic batches, short rollouts, one and two ranks, and resumed.

A straight run leaves a checkpoint after every step. The resumed run goes on from the first one and must write the same
metrics and the same model, bit for bit.
"""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics

pytestmark = pytest.mark.e2e

FLAGS = """
    --algo.kl.init_coef 0 --rollout_seeded --cov_type kl_cov --kl_cov_ratio 0.04
    --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 4
    --train.batch_size 16 --train.micro_batch_size 4 --train.max_tokens_per_gpu 160 --rollout.max_tokens_per_gpu 160
    --ckpt.save_steps 1 --ckpt.max_num 9 --train.num_episodes 2
""".split()
# Prompts of an episode: two rollouts of 8; or a third of 5, of which 4 make an update of 16 samples.
PROMPTS = {"full": 16, "short": 21}
# Of the two episodes. The group that is cut from the short rollout is the first of the next episode, where 8, 8 and 6
# groups are left for three steps; two groups of the last 6 make no update any more.
STEPS = {"full": 4, "short": 6}


def flags_of(task, folder: Path, ranks: int, zero_stage: int, batches: str, last: str) -> list[str]:
    dynamic = ["--train.dynamic_batch_enable"] if batches == "dynamic" else []
    layout = ["--actor.num_gpus_per_node", str(ranks), "--ref.num_gpus_per_node", str(ranks)]
    layout += ["--ds.zero_stage", str(zero_stage), "--data.max_samples", str(PROMPTS[last]), *dynamic]
    return [*task.flags(folder), *FLAGS, *layout]


def lines(folder: Path) -> list[dict]:
    """The metrics without those of the clock."""
    found = read_metrics(folder / METRICS_FILE)
    return [{k: v for k, v in line.items() if not k.startswith(("time", "timing/"))} for line in found]


def back_to_the_first_checkpoint(straight: Path, folder: Path) -> None:
    """A copy of a run as if it had been killed after its first step."""
    shutil.copytree(straight, folder, ignore=shutil.ignore_patterns("model.safetensors", "global_step[2-9]"))
    (folder / "checkpoints" / "_actor" / "latest").write_text("global_step1")


# Everything over the ranks; test_resume.py has one rank, ``make test-long`` the other layouts.
TELLING = [(2, 3, "dynamic", "short")]
TWO_RANKS = [(2, z, b, last) for z in (0, 2, 3) for b in ("static", "dynamic") for last in ("full", "short")]
OTHERS = [(2, 1, "static", "short"), *((1, z, "static", "short") for z in (0, 1, 2, 3))]
LAYOUTS = [
    pytest.param(*layout, marks=[] if layout in TELLING else [pytest.mark.long]) for layout in TWO_RANKS + OTHERS
]


@pytest.mark.parametrize(("ranks", "zero_stage", "batches", "last"), LAYOUTS)
def test_a_resumed_run_is_the_straight_one(run_trainer, task, tmp_path, ray, ranks, zero_stage, batches, last):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    layout = (ranks, zero_stage, batches, last)
    run_trainer(flags_of(task, straight, *layout), straight, ray)
    expected = lines(straight)
    assert [line["step"] for line in expected] == list(range(1, STEPS[last] + 1))
    samples = [32, 32, 16, 32, 32, 16] if last == "short" else [32] * 4
    assert [line["rollout/num_samples"] for line in expected] == samples
    # 4 % of the tokens of each update, rounded down
    assert all(0.03 < line["cov/selected_frac"] <= 0.04 for line in expected)

    back_to_the_first_checkpoint(straight, resumed)
    run_trainer([*flags_of(task, resumed, *layout), "--ckpt.load_enable"], resumed, ray)
    assert lines(resumed) == expected
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (resumed, straight))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in theirs)
