"""``train --preset NAME``: what it sets, what wins over it, and that its runs fit the hosts that it names."""

import json
import shlex
import sys

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.trainer.flags.parser import CovArgumentParser, preset_lines
from openrlhf_cov.trainer.flags.presets import PRESETS

REWARD = ("--reward.remote_url", "openrlhf_cov/rewards/reward_func.py")
ON_8_GPUS = ("--dry_run", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80")


def parsed(*flags):
    return vars(CovArgumentParser().parse_args([*REWARD, *flags]))


def updates(args):
    """Optimizer steps of a rollout."""
    samples = args["rollout.batch_size"] * args["rollout.n_samples_per_prompt"]
    return samples / args["train.batch_size"]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("method", [(), ("--method", "kl_cov"), ("--cov_type", "clip_cov"), ("--method", "cispo")])
def test_no_critic_and_no_reference(name, method):
    args = parsed("--preset", name, *method)
    assert args["algo.advantage.estimator"] == "group_norm"
    assert args["algo.kl.init_coef"] == 0
    assert args["rollout.n_samples_per_prompt"] > 1


@pytest.mark.parametrize(
    ("name", "count"),
    # 128 x 8 / 256, 512 x 16 / 512, 256 x 8 / 256 of section 4.3, and one by definition
    [("grpo", 4), ("dapo", 16), ("paper-7b", 8), ("paper-32b", 8), ("on-policy", 1)],
)
def test_updates_of_a_rollout(name, count):
    assert updates(parsed("--preset", name)) == count


def test_flags_on_the_command_line_win():
    args = parsed("--actor.adam.lr", "3e-6", "--preset", "paper-7b", "--rollout.batch_size", "64")
    assert args["actor.adam.lr"] == 3e-6
    assert args["rollout.batch_size"] == 64
    assert args["train.batch_size"] == 256
    assert parsed("--preset", "grpo", "--algo.advantage.estimator", "rloo")["algo.advantage.estimator"] == "rloo"


def test_one_update_also_of_another_rollout():
    args = parsed("--preset", "on-policy", "--rollout.batch_size", "64", "--rollout.n_samples_per_prompt", "4")
    assert args["train.batch_size"] == 256
    assert updates(parsed("--preset", "on-policy", "--train.batch_size", "512")) == 2
    # a group that waits for the next step would be of an older policy
    assert parsed("--preset", "on-policy", "--algo.dynamic_filtering_enable")["sampling_max_staleness"] == 0


def test_engines_share_the_gpus_that_are_given(monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    assert parsed("--preset", "grpo", "--actor.num_gpus_per_node", "4")["vllm.num_engines"] == 4
    assert parsed("--preset", "grpo", "--vllm.tensor_parallel_size", "2")["vllm.num_engines"] == 4
    assert parsed("--preset", "paper-32b")["vllm.num_engines"] == 8  # 4 x 8 GPUs, 4 of each engine
    assert parsed("--preset", "grpo", "--vllm.num_engines", "2")["vllm.num_engines"] == 2


def test_a_host_without_gpus_has_one_engine(monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)
    args = parsed("--preset", "paper-32b")
    assert (args["vllm.num_engines"], args["actor.num_nodes"], args["actor.num_gpus_per_node"]) == (1, 1, 1)
    assert args["vllm.gpu_memory_utilization"] == cpu_host.FLAG_DEFAULTS["vllm.gpu_memory_utilization"]
    assert not args["train.colocate_all"]


def test_the_clip_is_the_methods_or_the_presets():
    assert parsed("--preset", "dapo")["actor.eps_clip_low_high"] == [0.2, 0.28]
    # KL-Cov was published without a PPO clip
    assert parsed("--preset", "dapo", "--method", "kl_cov")["actor.eps_clip_low_high"] == (float("inf"), float("inf"))
    assert parsed("--preset", "paper-7b")["actor.dual_clip"] == 10
    assert parsed("--preset", "paper-7b", "--method", "clip_cov")["actor.dual_clip"] is None


@pytest.mark.parametrize("size", ["7b", "32b"])
@pytest.mark.parametrize("method", ["grpo", "kl_cov", "clip_cov"])
def test_the_papers_presets_are_the_recipes(monkeypatch, submitted, tmp_path, size, method):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    _, *flags = submitted(f"train_qwen2.5.sh {size} {method}", folder=tmp_path)
    recipe = parsed(*flags)
    chosen = [] if method == "grpo" else ["--method", method]
    preset = parsed("--preset", f"paper-{size}", *chosen)
    free = ("ckpt.", "logger.", "eval", "data.", "reward", "cov_type", "method", "cov_dump", "train.num_episodes")
    free += ("actor.model_name_or_path", "clip_cov_")  # the recipe names values of --clip_cov_*, which are defaults
    different = {
        name: (value, preset[name])
        for name, value in recipe.items()
        if not name.startswith(free) and as_list(value) != as_list(preset[name])
    }
    assert different == {}
    for name in ("data.max_len", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"):
        assert recipe[name] == preset[name]


def words_of(parser):
    """What is printed, as a shell reads it: lines are joined at a backslash."""
    return shlex.split(preset_lines(parser).replace("\\\n", ""))


def as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_printed_makes_the_same_run_without_the_preset(monkeypatch, name):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    parser = CovArgumentParser()
    args = vars(parser.parse_args([*REWARD, "--preset", name, "--actor.adam.lr", "3e-6"]))
    assert "--actor.adam.lr" not in words_of(parser)
    written = vars(CovArgumentParser().parse_args([*REWARD, *words_of(parser), "--actor.adam.lr", "3e-6"]))
    times = ("logger.wandb.run_name", "logger.tensorboard_run_name")  # have the time of day
    values = {name: (as_list(value), as_list(args[name])) for name, value in written.items() if name not in times}
    assert {name: pair for name, pair in values.items() if pair[0] != pair[1]} == {}


def test_lines_of_a_preset_are_short_and_one_command(monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    parser = CovArgumentParser()
    parser.parse_args([*REWARD, "--preset", "dapo"])
    text = preset_lines(parser)
    lines = text.splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 100 and line.startswith("  --") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", "kl_cov"])
@pytest.mark.parametrize(
    ("name", "nodes"), [("grpo", 1), ("dapo", 1), ("paper-7b", 1), ("paper-32b", 4), ("on-policy", 1)]
)
def test_a_run_fits_the_hosts_that_it_is_for(monkeypatch, capsys, tmp_path, name, nodes, method):
    if (name, method) == ("on-policy", "kl_cov"):
        pytest.skip("KL-Cov needs more than one update of a rollout")
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(1024)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    size = "32B" if name == "paper-32b" else "7B"
    flags = ["--actor.model_name_or_path", f"Qwen/Qwen2.5-{size}", "--data.prompt_dataset", f"{tmp_path}/train.jsonl"]
    flags += ["--data.input_key", "prompt", "--data.label_key", "answer", "--ckpt.output_dir", f"{tmp_path}/run"]
    flags += ["--ckpt.path", f"{tmp_path}/run/state", "--dry_run_nodes", str(nodes)]
    command = ["train_ppo_ray", "--preset", name, "--method", method, *REWARD, *flags, *ON_8_GPUS]
    monkeypatch.setattr(sys, "argv", command)
    status = train_ppo_ray.main()
    shown = capsys.readouterr()
    assert (status, "error:" in shown.err) == (0, False), shown.err
    assert shown.out.startswith("the preset sets\n  --actor.num_nodes ")
    assert "dry run: it would run" in shown.out
