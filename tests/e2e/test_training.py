"""Three steps of each method through the real command line, with Ray, DeepSpeed and vLLM."""

import json
import math
import os
import re
import urllib.request

import pytest
from ending import ended
from processes import HANGS
from safetensors.torch import load_file

from openrlhf_cov.cluster.local_ray import local_ray
from openrlhf_cov.utils.metric_table import TABLE
from openrlhf_cov.utils.metrics_log import read_metrics

pytestmark = pytest.mark.e2e

METHODS = {
    "none": ["--cov_type", "none"],
    "clip_cov": ["--cov_type", "clip_cov", "--clip_cov_ratio", "0.05", "--clip_cov_lb", "0.0", "--clip_cov_ub", "1e6"],
    "kl_cov": ["--cov_type", "kl_cov", "--kl_cov_ratio", "0.05"],
}
TWO_RANKS = ["--actor.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2"]
# Twice as many samples in every step as elsewhere, so that the reward of a few steps shows what they learned.
LARGE_STEPS = "--rollout.batch_size 32 --train.batch_size 64 --data.max_samples 96".split()


GAE = ["--algo.advantage.estimator", "gae", "--critic.num_gpus_per_node", "1", "--critic.adam.lr", "1e-4"]
# Conditions of metrics that every run here meets.
ALWAYS = frozenset(
    {
        "several samples per prompt",
        "scores",
        "the reward function of the embedded task",
        "a reward function",
        "log-probs of the engine",
    }
)


def documented_names(*conditions: str) -> set[str]:
    """The metrics that need nothing, or what begins with one of the ``conditions``."""
    rows = [row for table in TABLE.values() for row in table]
    met = tuple(ALWAYS.union(conditions))
    return {name for row in rows if not row.only_with or row.only_with.startswith(met) for name in row.titles}


def assert_good_steps(
    run, cov_type: str, *conditions: str, steps: int = 3, frozen: int = 0, samples: int = 128
) -> None:
    """Every line after the first ``frozen`` ones has the documented names and values that this task can give."""
    restrains, drops = cov_type != "none", cov_type == "clip_cov"
    assert [line["step"] for line in run.metrics] == list(range(1, steps + 1))
    for line in run.metrics[frozen:]:
        assert set(line) == documented_names(*conditions)
        # 5 % of the tokens of a micro-batch, rounded down; micro-batches here have some 150 tokens and more
        assert 0.04 <= line["cov/selected_frac"] <= 0.05 if restrains else line["cov/selected_frac"] == 0.0
        assert 0.0 < line["entropy/mean"] < math.log(21)  # 21 symbols
        # four updates of lr 1e-4 move one token in a hundred by a factor, a rare one by some powers of ten
        assert 1.05 < line["ppo/ratio_p99"] < 10
        assert line["ppo/ratio_p99"] / 1.002 < line["ppo/ratio_max"] < 1e4  # to the histogram's 0.2 %
        assert 0.0 < line["ppo/clip_frac"] < 0.5 if not restrains else line["ppo/clip_frac"] < 0.02  # the clip is open
        # Clip-Cov takes the gradient of what it selects; KL-Cov leaves it, and has a drift to penalise
        dropped = line["gradient/zero_frac"] - line["ppo/clip_frac"]
        assert dropped == pytest.approx(line["cov/selected_frac"] if drops else 0.0, abs=1e-6)
        assert not restrains or line["cov/selected_abs_log_ratio"] > 1e-3
        assert line["rollout/num_samples"] == samples
        parts = [line[f"timing/{name}"] for name in ("make_experience", "ppo_train", "broadcast")]
        assert min(parts) > 0
        assert line["timing/step_total"] > sum(parts)


def assert_moved(run, task, updates: int) -> None:
    """Adam moves a weight by about lr = 1e-4 in each update, all one way at the most."""
    before, after = load_file(task.model / "model.safetensors"), load_file(run.folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert 1e-4 < (after[name].float() - before[name].float()).abs().max().item() < 1.25e-4 * updates


def test_none(run_trainer, task, tmp_path, ray):
    run = run_trainer(task.flags(tmp_path / "run") + METHODS["none"], tmp_path / "run", ray)
    assert_good_steps(run, "none")
    assert_moved(run, task, updates=12)
    assert "--cov_type none" in (tmp_path / "run" / "command.txt").read_text()


def test_an_engine_that_cannot_start_ends_the_run(run_trainer, task, tmp_path, ray, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "100000")  # GiB, more than any host has
    run = run_trainer(task.flags(tmp_path / "run"), tmp_path / "run", ray, status=1)
    # The policy waits for the engine to join its process group.
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("openrlhf-cov train: error:")]
    assert "vLLM engine 0 did not start" in line


def test_clip_cov_on_packed_samples_while_the_next_rollout_is_generated(run_trainer, task, tmp_path, ray):
    flags = [*METHODS["clip_cov"], "--train.async_enable", "--ds.packing_samples"]
    run = run_trainer(task.flags(tmp_path / "run") + flags, tmp_path / "run", ray)
    assert_good_steps(run, "clip_cov", "`--train.async_enable`")
    assert_moved(run, task, updates=12)


@pytest.mark.long  # test_invariance.py has a step of each of the two methods, alone
def test_only_uncertain_tokens_train_with_capped_weights(run_trainer, task, tmp_path, ray):
    run = run_trainer([*task.flags(tmp_path / "run"), "--method", "top_entropy,cispo"], tmp_path / "run", ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert set(line) == documented_names()
        # 80 % of the tokens of every update are dropped, rounded up: an update has some 300 tokens
        assert 0.8 <= line["cov/selected_frac"] < 0.804
        assert 0.8 <= line["gradient/zero_frac"] < 1
        assert line["ppo/clip_frac"] == 0  # nothing is clipped
        assert line["entropy/selected"] < line["entropy/unselected"]  # of the tokens that an update dropped
        assert min(line["gradient/positive_mass"], line["gradient/negative_mass"]) > 0
    assert_moved(run, task, updates=12)


def jobs_of(other):
    request = urllib.request.Request(
        f"{other.dashboard}/api/jobs/", headers={"Authorization": f"Bearer {other.token['RAY_AUTH_TOKEN']}"}
    )
    with urllib.request.urlopen(request, timeout=HANGS) as answer:
        return {job["job_id"] for job in json.load(answer)}


# A training with all its imports beside a second Ray takes a minute. test_ray_token.py shows in seconds that a run
# starts a Ray of its own, tests/cli/test_secrets.py that no file holds a key.
@pytest.mark.long
def test_a_run_joins_no_ray_of_somebody_else_and_hides_its_key(run_trainer, task, tmp_path):
    secret = "S3cretT0ken"
    flags = [*task.flags(tmp_path / "run"), "--rollout_limit", "1", "--logger.wandb.key", secret]
    with local_ray(num_gpus=1, num_cpus=2, log=tmp_path / "ray.log") as other:
        jobs = jobs_of(other)  # of the client that showed that it is ready
        # the actors of a Ray of the run's own have its environment
        run_trainer(flags, tmp_path / "run", {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)})

        # the other Ray has run no job more and still answers; when it is named it is used, and found too small
        assert jobs_of(other) == jobs
        joined = other.token | {"RAY_ADDRESS": other.gcs}
        small = run_trainer(task.flags(tmp_path / "small"), tmp_path / "small", ray=joined, status=2)
    last_line = small.stderr.strip().splitlines()[-1]
    assert "needs 2 GPUs" in last_line
    assert "Ray has 1 GPUs (1 free)" in last_line
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


# Surrogate -> (settings with which it shows, what holds then and not of PPO's ratio).
SURROGATES = {
    # their clip is the only one, and takes a small move for a large one
    "dppo": ("--dppo_delta 0.01", lambda line: line["ppo/clip_frac"] > 0.01),
    "gspo_token": ("", lambda line: line["ppo/clip_frac"] > 0.01),
    "gmpo": ("--gmpo_clip 0.01", lambda line: line["ppo/clip_frac"] > 0.01),
    # in all updates but the first one gates have closed; k is 10 where a token has become more probable by 1 %
    "sapo": ("--sapo_tau_pos 1e3 --sapo_tau_neg 1e3", lambda line: line["gradient/coefficient_mean"] < 0.7),
    "cegppo": ("--cegppo_clip 0.01 0.01 --cegppo_beta2 10", lambda line: line["gradient/coefficient_mean"] > 1.5),
}
# Estimator without a baseline -> the mean advantage of responses whose mean reward is ``reward``; GRPO's is 0.
RETURNS = {
    "psr": lambda reward: pytest.approx(reward, abs=1e-6),
    "nsr": lambda reward: pytest.approx(reward - 1, abs=1e-6),
    "w_reinforce": lambda reward: pytest.approx(0.1 * reward - (1 - reward), abs=1e-6),
}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("qae,dppo", []),
        *(
            pytest.param(method, more, marks=pytest.mark.long)
            for method, more in (
                ("passk,gspo_token", ["--algo.dynamic_filtering_enable"]),
                ("psr,cegppo", ["--algo.advantage.estimator", "reinforce"]),
                ("nsr,dppo", ["--algo.advantage.estimator", "reinforce", "--train.async_enable"]),
                ("w_reinforce,gmpo", ["--algo.advantage.estimator", "reinforce"]),
                ("qae,sapo", ["--ds.packing_samples"]),
            )
        ),
    ],
)
def test_a_run_with_an_estimator_and_a_surrogate(run_trainer, task, tmp_path, ray, method, more):
    estimator, surrogate = method.split(",")
    settings, acts = SURROGATES[surrogate]
    flags = ["--method", method, *settings.split(), *more]
    run = run_trainer([*task.flags(tmp_path / "run"), *flags], tmp_path / "run", ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert 0 < line["reward"] < 1  # the rewards, whatever the advantages are
        positive, negative = line["gradient/positive_mass"], line["gradient/negative_mass"]
        assert bool(positive > 0) is not method.startswith("nsr")
        assert bool(negative > 0) is not method.startswith("psr")
        assert math.isfinite(line["policy_loss"])
        assert acts(line)
        if estimator in RETURNS:
            assert line["return"] == RETURNS[estimator](line["reward"])
        elif estimator == "qae":
            assert abs(line["return"]) > 0.01
        else:  # sets of 4 of 8 all pass where 5 are right: such groups have no advantages, and no others were kept
            assert line["gradient/untrained_frac"] > line["gradient/zero_frac"] + 0.01
    assert_moved(run, task, updates=12)


@pytest.mark.long
def test_kl_cov_with_a_critic_that_learns_first(run_trainer, task, tmp_path, ray):
    frozen_once = ["--critic.freezing_steps", "0"]
    flags = [*METHODS["kl_cov"], *GAE, *frozen_once, "--ds.packing_samples"]
    run = run_trainer(task.flags(tmp_path / "run") + flags, tmp_path / "run", ray)
    assert_good_steps(run, "kl_cov", "a critic", frozen=1)
    assert_moved(run, task, updates=12)
    # the policy stands still in the first step, whose rollout only the critic learns from
    frozen, first, _ = run.metrics
    of_policy = re.compile("actor_|cov/|entropy/|gradient/|ppo/|ppo_|policy_loss|vllm_kl")
    assert not any(of_policy.match(name) for name in frozen)
    assert math.isfinite(frozen["critic_loss"])
    assert frozen["rollout/response_length_mean"] == pytest.approx(frozen["response_length"], rel=1e-6)
    assert all(math.isfinite(first[name]) for name in ("entropy/mean", "cov/mean", "entropy/selected"))
    assert first["cov/top_2e-2"] > first["cov/mean"]


EVERY_OTHER_STEP = """
    --train.async_enable --train.async_queue_size 2 --train.num_episodes 2
    --eval.steps 2 --eval.at_start --eval.template none --eval.max_tokens 24
    --ckpt.best_metric_key auto --ckpt.save_steps 2
""".split()


def test_an_asynchronous_run_evaluates_keeps_its_best_model_and_is_resumed(run_trainer, task, tmp_path, ray):
    folder = tmp_path / "run"
    flags = [*task.flags(folder), *EVERY_OTHER_STEP, "--eval.dataset", f"bench:{task.benchmark}"]
    run = run_trainer([*flags, "--rollout_limit", "4"], folder, ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3, 4]
    assert [line["step"] for line in read_metrics(folder / "eval.jsonl")] == [0, 2, 4]
    assert_best_model(folder)

    # two more steps, from the checkpoint of the fourth
    run = run_trainer([*flags, "--ckpt.load_enable"], folder, ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(line["policy_loss"]) for line in run.metrics)
    assert [line["step"] for line in read_metrics(folder / "eval.jsonl")] == [0, 2, 4, 6]
    assert_best_model(folder)
    # the rollouts of the first steps may be up to two versions old: the policy that trains has moved from theirs
    assert_moved(run, task, updates=24)


def assert_best_model(folder) -> None:
    """The folder ``best`` holds a model, and the step and value of the best evaluation."""
    evaluations = read_metrics(folder / "eval.jsonl")
    record = json.loads((folder / "checkpoints" / "best" / "best.json").read_text())
    values = {line["step"]: line[record["metric"]] for line in evaluations}
    assert record["value"] == max(values.values())
    assert record["value"] == values[record["global_step"]]
    assert load_file(folder / "checkpoints" / "best" / "model.safetensors")


def test_kl_cov_on_two_ranks_for_twelve_steps(run_trainer, young_task, tmp_path, ray, forking_python):
    flags = [*METHODS["kl_cov"], *TWO_RANKS, *LARGE_STEPS, "--train.num_episodes", "4", "--cov_dump_every", "12"]
    evaluation = ["--eval.dataset", f"bench:{young_task.benchmark}", "--eval.steps", "6", "--eval.template", "none"]
    flags += [*evaluation, "--eval.max_tokens", "24"]
    run = run_trainer(young_task.flags(tmp_path / "run") + flags, tmp_path / "run", ray)
    assert_good_steps(run, "kl_cov", steps=12, samples=256)
    assert_moved(run, young_task, updates=48)
    for line in run.metrics:
        assert all(value is None or isinstance(value, int | float) for value in line.values())
        assert line["cov/selected_mean"] > line["cov/mean"]
        assert line["cov/top_2e-4"] >= line["cov/top_2e-2"] >= line["cov/top_0.5"] >= line["cov/mean"]
        assert line["entropy/p10"] <= line["entropy/p50"] <= line["entropy/p90"]
    # 768 samples each: the standard deviation of the difference is 0.025 at the most
    first, last = (sum(line["score"] for line in lines) / 3 for lines in (run.metrics[:3], run.metrics[-3:]))
    assert last > first + 0.05
    # the change of entropy needs a step before, its correlation with the theorems five pairs of steps
    assert [run.metrics[n]["entropy/delta"] is None for n in (0, 1)] == [True, False]
    assert [run.metrics[n]["entropy/corr_theorem2"] is None for n in (4, 5)] == [True, False]
    dumped = [json.loads(line) for line in (run.folder / "cov_tokens" / "step_12.jsonl").read_text().splitlines()]
    assert len(dumped) == 200
    assert [token["cov"] for token in dumped] == sorted((token["cov"] for token in dumped), reverse=True)
    assert any(token["selected"] for token in dumped)

    # the harness gives the exported model the number that the training gave it
    curve = [json.loads(line) for line in (run.folder / "eval.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve] == [6, 12]
    command = [forking_python, "-m", "openrlhf_cov.cli.evaluate", "--model", run.folder]
    command += ["--benchmarks", young_task.benchmark, "--template", "none", "--max_tokens", "24"]
    command += ["--output", tmp_path / "results"]
    ended(command, "the evaluation of the trained model", env=os.environ | ray)
    (sums,) = json.loads((tmp_path / "results" / "summary.json").read_text())["benchmarks"]
    assert sums["avg_at_k"]["estimate"] == curve[-1]["eval/sums/avg@1"]
    assert sums["mean_tokens"] == pytest.approx(curve[-1]["eval/sums/response_length_mean"])
    assert 0.0 < sums["avg_at_k"]["estimate"] < 1.0
