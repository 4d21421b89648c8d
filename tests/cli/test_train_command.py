"""``openrlhf-cov train``: what its command does before a training starts, and what ``--preset NAME`` sets."""

import json
import shlex
import sys

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cluster import connection, cpu_host, packages
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.limits import REWARD_TOKEN
from openrlhf_cov.trainer.flags.parser import CovArgumentParser, preset_lines
from openrlhf_cov.trainer.flags.presets import PRESETS
from openrlhf_cov.trainer.preflight import preflight
from openrlhf_cov.utils.output_folders import alone_in

RUN = ("--reward.remote_url", "reward.py", "--vllm.num_engines", "1")
REWARD = ("--reward.remote_url", "openrlhf_cov/rewards/reward_func.py")


def test_a_missing_package_is_one_line(monkeypatch, refused):
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *RUN])
    monkeypatch.setitem(sys.modules, "openrlhf.utils.config", None)  # its import fails
    line = refused(train_ppo_ray.main)
    assert line.startswith("import of openrlhf.utils.config halted")
    assert line.endswith("install all of requirements.txt (requirements-cpu.txt on a host without a GPU)\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--algo.advantage.estimator group_norm", "--rollout.n_samples_per_prompt 1: "),
        ("--actor.model_name_or_path {}/missing", "--actor.model_name_or_path {}/missing: no such folder"),
    ],
)
def test_flags_and_inputs_are_checked_before_ray_starts(monkeypatch, refused, tmp_path, flags, said):
    folders = ("--ckpt.output_dir", str(tmp_path / "run"), "--ckpt.path", str(tmp_path / "checkpoints"))
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *RUN, *folders, *flags.format(tmp_path).split()])
    assert refused(train_ppo_ray.main).startswith(said.format(tmp_path))


def test_a_folder_in_which_the_run_cannot_be_described_is_a_usage_error(parse_nested, tmp_path):
    for name in ("command.txt", "settings.json"):
        (tmp_path / name).mkdir()
    args = parse_nested(*RUN, "--ckpt.output_dir", str(tmp_path))
    with pytest.raises(UsageError, match=rf"--ckpt.output_dir {tmp_path}: settings.json cannot be written"):
        train_ppo_ray._write_settings(args)
    with pytest.raises(UsageError, match=rf"--ckpt.output_dir {tmp_path}: command.txt cannot be written \(Is a dir"):
        train_ppo_ray._write_command(str(tmp_path))


def test_modelscope_is_asked_for(monkeypatch, parse_nested):
    monkeypatch.setitem(sys.modules, "modelscope", None)  # its import fails
    with pytest.raises(UsageError, match=r"--use_ms needs ModelScope .*pip install modelscope"):
        parse_nested(*RUN, "--use_ms")


def test_another_openrlhf_is_refused_before_its_flags_are_declared(monkeypatch, refused):
    monkeypatch.setattr(packages, "OPENRLHF", "0.0.1")
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray"])
    assert "--allow_openrlhf_version" in refused(train_ppo_ray.main)
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", "--allow_openrlhf_version"])
    assert "--vllm.num_engines is missing" in refused(train_ppo_ray.main)


HIDDEN = ("--vllm.num_engines", "1", "--reward.remote_url", "http://a?token=***,http://b,http://c?token=***&n=1")


def test_a_command_that_was_copied_gets_its_secrets_from_the_environment(monkeypatch, parse_nested):
    monkeypatch.setenv(REWARD_TOKEN, "s3cret")
    monkeypatch.setenv("WANDB_API_KEY", "k3y")
    args = parse_nested(*HIDDEN, "--logger.wandb.key", "***")
    train_ppo_ray.fill_in_secrets(args)
    assert args.reward.remote_url == ["http://a?token=s3cret", "http://b", "http://c?token=s3cret&n=1"]
    assert args.logger.wandb.key == "k3y"
    given = parse_nested(*RUN, "--logger.wandb.key", "key")
    train_ppo_ray.fill_in_secrets(given)
    assert (given.reward.remote_url, given.logger.wandb.key) == (["reward.py"], "key")


@pytest.mark.parametrize(
    ("flags", "flag", "variable"),
    [
        (HIDDEN, "--reward.remote_url", REWARD_TOKEN),
        ((*RUN, "--logger.wandb.key", "***"), "--logger.wandb.key", "WANDB_API_KEY"),
    ],
)
def test_a_copied_command_without_its_secret_is_refused(monkeypatch, parse_nested, flags, flag, variable):
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match=f"^{flag} .*{variable}, which is not set"):
        train_ppo_ray.fill_in_secrets(parse_nested(*flags))


# Presets: what they set, what wins over them, and that their runs fit the hosts that they name.


def parsed(*flags):
    return vars(CovArgumentParser().parse_args([*REWARD, *flags]))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("method", [(), ("--method", "kl_cov"), ("--cov_type", "clip_cov"), ("--method", "cispo")])
def test_no_critic_and_no_reference(name, method):
    args = parsed("--preset", name, *method)
    assert args["algo.advantage.estimator"] == "group_norm"
    assert args["algo.kl.init_coef"] == 0
    assert args["rollout.n_samples_per_prompt"] > 1


@pytest.mark.parametrize(
    ("words", "count"),
    # 128 x 8 / 256, 512 x 16 / 512, 256 x 8 / 256 of section 4.3, and one by definition, also of another rollout
    [
        *(("grpo", 4), ("dapo", 16), ("paper-7b", 8), ("paper-32b", 8), ("on-policy", 1)),
        ("on-policy --rollout.batch_size 64 --rollout.n_samples_per_prompt 4", 1),
        ("on-policy --train.batch_size 512", 2),
    ],
)
def test_updates_of_a_rollout(words, count):
    args = parsed("--preset", *words.split())
    samples = args["rollout.batch_size"] * args["rollout.n_samples_per_prompt"]
    assert samples / args["train.batch_size"] == count


@pytest.mark.parametrize(
    ("words", "engines"),
    [
        ("grpo --actor.num_gpus_per_node 4", 4),
        ("grpo --vllm.tensor_parallel_size 2", 4),
        ("paper-32b", 8),  # 4 x 8 GPUs, 4 of each engine
        ("grpo --vllm.num_engines 2", 2),
    ],
)
def test_engines_share_the_gpus_that_are_given(monkeypatch, words, engines):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    assert parsed("--preset", *words.split())["vllm.num_engines"] == engines


def test_a_host_without_gpus_has_one_engine(monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)
    args = parsed("--preset", "paper-32b")
    assert (args["vllm.num_engines"], args["actor.num_nodes"], args["actor.num_gpus_per_node"]) == (1, 1, 1)
    assert args["vllm.gpu_memory_utilization"] == cpu_host.FLAG_DEFAULTS["vllm.gpu_memory_utilization"]
    assert not args["train.colocate_all"]


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


# The clip range of a preset gives way to the flag for both sides of it.
@pytest.mark.parametrize("given", [["--actor.adam.lr", "3e-6"], ["--actor.eps_clip", "0.3"]])
@pytest.mark.parametrize("name", PRESETS)
def test_what_is_printed_makes_the_same_run_without_the_preset(monkeypatch, name, given):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    parser = CovArgumentParser()
    args = vars(parser.parse_args([*REWARD, "--preset", name, *given]))
    assert all(len(line) <= 100 and line.startswith("  --") for line in preset_lines(parser).splitlines())
    assert given[0] not in words_of(parser)
    written = vars(CovArgumentParser().parse_args([*REWARD, *words_of(parser), *given]))
    times = ("logger.wandb.run_name", "logger.tensorboard_run_name")  # have the time of day
    values = {name: (as_list(value), as_list(args[name])) for name, value in written.items() if name not in times}
    assert {name: pair for name, pair in values.items() if pair[0] != pair[1]} == {}


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
    flags += ["--ckpt.path", f"{tmp_path}/run/state", "--dry_run", "--dry_run_gpu_memory", "80"]
    flags += ["--dry_run_nodes", str(nodes), "--dry_run_gpus", "8"]
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", "--preset", name, "--method", method, *REWARD, *flags])
    status = train_ppo_ray.main()
    shown = capsys.readouterr()
    assert (status, "error:" in shown.err) == (0, False), shown.err
    assert shown.out.startswith("the preset sets\n  --actor.num_nodes ")
    assert "dry run: it would run" in shown.out


@pytest.mark.parametrize(
    ("held", "flags", "said"),
    [
        ("run", "", "--ckpt.output_dir {0}/run: another process is writing there; "),
        ("state", "--ckpt.save_steps 5", "--ckpt.path {0}/state: another process is writing there; "),
    ],
)
def test_a_second_run_in_the_folders_of_another_is_refused(monkeypatch, refused, tmp_path, held, flags, said):
    # The inputs are checked elsewhere. A Ray is not started for a run that is refused.
    monkeypatch.setattr(preflight, "check", lambda args: None)
    monkeypatch.setattr(connection, "connect", lambda needs: pytest.fail("a Ray was started"))
    folders = ["--ckpt.output_dir", str(tmp_path / "run"), "--ckpt.path", str(tmp_path / "state")]
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *RUN, *folders, *flags.split()])
    with alone_in(tmp_path / held):
        assert refused(train_ppo_ray.main).startswith(said.format(tmp_path))
