"""Record three training steps in six layouts, and compare another version of the trainer with the record.

Every run goes through the real command line, with seeded rollouts, so that equal versions give equal bits: metrics of
all steps, rollouts and weights. A version that changes the order of a sum differs a little; one that changes what is
computed differs a lot. The rollouts are files of ``--rollout.dump_dir`` (docs/replay.md).

    python benchmarks/oracle.py record FOLDER [LAYOUT ...]
    python benchmarks/oracle.py compare FOLDER [LAYOUT ...]    # samples anew
    python benchmarks/oracle.py replay FOLDER [LAYOUT ...]     # trains on the recorded rollouts

The last two exit with status 1 above --tolerance.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from openrlhf_cov.data.rollout_files import RecordedSample, read_rollout, recorded_steps, rollout_path
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, make_base_policy
from openrlhf_cov.experiments.tiny_task.problems import Addition
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, read_metrics

REWARD = Path(__file__).parents[1] / "openrlhf_cov" / "experiments" / "tiny_task" / "tiny_reward_func.py"

COMMON = """
    --data.input_key input --data.label_key label --vllm.num_engines 1 --rollout_seeded --actor.lr_scheduler constant
    --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 8 --data.max_samples 24
    --train.micro_batch_size 4 --data.max_len 48 --rollout.max_new_tokens 24 --actor.adam.lr 1e-4
"""
# Folder of a record with the rollouts of a layout.
ROLLOUTS = "rollouts"

ONE_RANK = "--actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --train.colocate_actor_ref"
TWO_RANKS = "--actor.num_gpus_per_node 2 --ref.num_gpus_per_node 2"

# Name -> flags beside COMMON.
LAYOUTS = {
    # One rank, four updates of a rollout, a KL loss to the reference.
    "one_rank": f"{ONE_RANK} --cov_type kl_cov --kl_cov_ratio 0.04 --train.batch_size 8 --algo.kl.use_loss "
    "--algo.kl.estimator k3 --algo.kl.init_coef 1e-3 --algo.advantage.estimator group_norm",
    # Two ranks, ZeRO-2, static micro-batches, two epochs over every rollout.
    "zero2": f"{TWO_RANKS} --ds.zero_stage 2 --cov_type clip_cov --clip_cov_ratio 0.04 --clip_cov_lb 0.1 "
    "--clip_cov_ub 1000 --train.batch_size 16 --train.max_epochs 2 --algo.kl.init_coef 0 "
    "--algo.advantage.estimator group_norm",
    # Two ranks, ZeRO-3, dynamic micro-batches of updates and of scoring.
    "zero3_dynamic": f"{TWO_RANKS} --ds.zero_stage 3 --cov_type kl_cov --kl_cov_ratio 0.04 --train.batch_size 16 "
    "--train.dynamic_batch_enable --train.max_tokens_per_gpu 160 --rollout.max_tokens_per_gpu 160 "
    "--algo.kl.init_coef 0 --algo.advantage.estimator rloo",
    # A critic, and the KL penalty in the reward.
    "critic": f"{ONE_RANK} --critic.num_gpus_per_node 1 --critic.adam.lr 1e-4 --algo.advantage.estimator gae "
    "--algo.advantage.lambd 0.95 --algo.advantage.gamma 0.99 --train.batch_size 16 --algo.kl.init_coef 1e-3",
    # Dynamic sampling, an entropy bonus, evaluation before the first step and after every second one.
    "dynamic_sampling": f"{ONE_RANK} --cov_type kl_cov --kl_cov_ratio 0.04 --train.batch_size 16 "
    "--algo.dynamic_filtering_enable --actor.entropy_coef 0.001 --algo.kl.init_coef 0 --eval.steps 2 --eval.at_start "
    "--algo.advantage.estimator group_norm",
    # No method: upstream's own loss, with its correction of the rollout's log-probs.
    "plain": f"{ONE_RANK} --cov_type none --train.batch_size 16 --algo.kl.init_coef 0 "
    "--algo.advantage.estimator reinforce --algo.advantage.is_correction_level token",
}


def main(argv: list[str] | None = None) -> int:
    """Record, compare or replay; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare", "replay"))
    parser.add_argument("folder", type=Path, help="of the record")
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=f"default all: {', '.join(LAYOUTS)}")
    parser.add_argument(
        "--tolerance", type=float, default=1e-6, help="largest relative difference (default %(default)s)"
    )
    args = parser.parse_args(argv)
    if unknown := set(args.layouts) - LAYOUTS.keys():
        parser.error(f"{', '.join(sorted(unknown))}: no such layout; choose from {', '.join(LAYOUTS)}")
    worst = 0.0
    for name in args.layouts or LAYOUTS:
        recorded = args.folder / name
        if args.action == "record":
            shutil.rmtree(recorded / ROLLOUTS, ignore_errors=True)  # a run does not replace recorded rollouts
            run(name, recorded, "--rollout.dump_dir", recorded / ROLLOUTS)
            sys.stdout.write(f"{name}: recorded\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder)
            if args.action == "replay":
                run(name, found, "--rollout.replay_dir", recorded / ROLLOUTS)
                differences = compare(recorded, found)
            else:
                run(name, found, "--rollout.dump_dir", found / ROLLOUTS)
                differences = compare(recorded, found)
                differences["rollouts"] = of_rollouts(recorded / ROLLOUTS, found / ROLLOUTS)
        worst = max(worst, *differences.values())
        sys.stdout.write(f"{name}: " + ", ".join(f"{what} {value:.3g}" for what, value in differences.items()) + "\n")
        sys.stdout.flush()
    return 1 if worst > args.tolerance else 0


def run(layout: str, output: Path, flag: str, rollouts: Path) -> None:
    """Train three steps; keep metrics and weights in ``output``, and give the folder ``rollouts`` with its flag."""
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder)
        write_task(task)
        evaluation = ["--eval.dataset", str(task / "train.jsonl")] if "--eval.steps" in LAYOUTS[layout] else []
        command = [sys.executable, "-m", "openrlhf_cov.cli.train_ppo_ray", *COMMON.split(), *LAYOUTS[layout].split()]
        command += ["--actor.model_name_or_path", str(task / "model"), "--reward.remote_url", str(REWARD), *evaluation]
        command += ["--data.prompt_dataset", str(task / "train.jsonl")]
        command += ["--ckpt.output_dir", str(task / "out"), "--ckpt.path", str(task / "checkpoints")]
        command += [flag, str(rollouts.resolve())]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{layout}: the run ended with status {done.returncode}\n{done.stderr[-3000:]}")
        output.mkdir(parents=True, exist_ok=True)
        for name in (METRICS_FILE, EVAL_FILE, "model.safetensors"):
            if (task / "out" / name).exists():
                shutil.copy(task / "out" / name, output / name)


def write_task(folder: Path) -> None:
    """Write a small model that half-knows sums, and 24 of them to train on; the same in every call."""
    torch.set_num_threads(1)
    problems = [Addition(a, b) for a in range(10, 22) for b in (34, 71)]
    model, tokenizer = make_base_policy(problems, BasePolicyConfig(steps=100, rows_per_step=48), seed=0)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"input": problem.prompt, "label": str(problem.a + problem.b)} for problem in problems]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def compare(recorded: Path, found: Path) -> dict[str, float]:
    """Return the largest relative differences of metrics, evaluations and weights; infinite where something lacks."""
    differences = {
        "metrics": of_lines(lines(recorded / METRICS_FILE), lines(found / METRICS_FILE)),
        "evaluations": of_lines(lines(recorded / EVAL_FILE), lines(found / EVAL_FILE)),
    }
    before, after = (load_file(folder / "model.safetensors") for folder in (recorded, found))
    if before.keys() != after.keys():
        return differences | {"weights": math.inf}
    apart = math.sqrt(sum(float((before[name].double() - after[name].double()).square().sum()) for name in before))
    size = math.sqrt(sum(float(each.double().square().sum()) for each in before.values()))
    return differences | {"weights": apart / size}


def of_rollouts(recorded: Path, found: Path) -> float:
    """Return the largest difference of log-probs, rewards and scores; infinite where tokens or steps differ."""
    if recorded_steps(recorded) != recorded_steps(found):
        return math.inf
    worst = 0.0
    for step in recorded_steps(recorded):
        before, after = (read_rollout(rollout_path(folder, step)).samples for folder in (recorded, found))
        if len(before) != len(after):
            return math.inf
        worst = max(worst, *(of_samples(one, other) for one, other in zip(before, after, strict=True)))
    return worst


def of_samples(one: RecordedSample, other: RecordedSample) -> float:
    """Return the largest difference of two samples; infinite where their tokens differ."""
    if not (one.tokens.equal(other.tokens) and one.action_mask.equal(other.action_mask)):
        return math.inf
    numbers = [(one.reward or 0.0) - (other.reward or 0.0), (one.score or 0.0) - (other.score or 0.0)]
    if one.log_probs is not None and other.log_probs is not None:
        numbers.append(float((one.log_probs - other.log_probs).abs().max()))
    return max(map(abs, numbers))


def lines(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file without those of the clock."""
    found = read_metrics(path) if path.exists() else []
    return [{name: each for name, each in line.items() if not name.startswith(("time", "timing/"))} for line in found]


def of_lines(before: list[dict[str, float]], after: list[dict[str, float]]) -> float:
    """Return the largest difference of two values, relative to the larger one; absolute below 1e-3."""
    if [line.keys() for line in before] != [line.keys() for line in after]:
        for one, other in zip(before, after, strict=False):
            if different := one.keys() ^ other.keys():
                sys.stdout.write(f"  names that one side lacks: {', '.join(sorted(different))}\n")
        return math.inf
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        for name, value in one.items():
            if isinstance(value, int | float) and not (math.isnan(value) and math.isnan(other[name])):
                difference = abs(value - other[name]) / max(abs(value), abs(other[name]), 1e-3)
                if difference > worst:
                    worst = difference
                    if worst > 1e-6:
                        sys.stdout.write(f"  {name} at step {one['step']:g}: {value!r} and {other[name]!r}\n")
    return worst


if __name__ == "__main__":
    sys.exit(main())
