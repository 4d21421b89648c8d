import copy
import sys
from types import SimpleNamespace

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cluster import packages
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.command import read_settings

GROUP_OF_ONE = [
    "--reward.remote_url",
    "reward.py",
    "--algo.advantage.estimator",
    "group_norm",
    "--rollout.n_samples_per_prompt",
    "1",
    "--vllm.num_engines",
    "1",
]


def test_main_prints_one_line(monkeypatch, refused):
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *GROUP_OF_ONE])
    line = refused(train_ppo_ray.main)
    assert line.startswith("openrlhf-cov train: error: --rollout.n_samples_per_prompt 1: ")
    assert line.endswith("use at least 2\n")


def test_a_missing_package_is_one_line(monkeypatch, refused):
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", "--reward.remote_url", "reward.py", "--vllm.num_engines", "1"])
    monkeypatch.setitem(sys.modules, "openrlhf.utils.config", None)  # its import fails
    line = refused(train_ppo_ray.main)
    assert line.startswith("openrlhf-cov train: error: import of openrlhf.utils.config halted")
    assert line.endswith("install all of requirements.txt (requirements-cpu.txt on a host without a GPU)\n")


def test_main_checks_before_it_starts_ray(monkeypatch, refused, tmp_path):
    flags = ["--actor.model_name_or_path", str(tmp_path / "missing"), "--ckpt.output_dir", str(tmp_path / "run")]
    flags += ["--ckpt.path", str(tmp_path / "checkpoints")]
    flags += ["--reward.remote_url", "reward.py", "--vllm.num_engines", "1"]
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *flags])
    line = refused(train_ppo_ray.main)
    assert f"--actor.model_name_or_path {tmp_path / 'missing'}: no such folder" in line


def test_the_command_line_is_written_without_secrets(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", "--cov_type", "kl_cov", "--logger.wandb.key", "TOP"])
    train_ppo_ray._write_command(str(tmp_path / "run"))
    assert (tmp_path / "run" / "command.txt").read_text() == (
        "openrlhf-cov train --cov_type kl_cov --logger.wandb.key '***'\n"
    )


def test_all_settings_are_written_with_upstreams_defaults(monkeypatch, tmp_path):
    flags = ["--ckpt.output_dir", str(tmp_path), "--reward.remote_url", "reward.py", "--logger.wandb.key", "TOP"]
    monkeypatch.setattr(
        sys, "argv", ["train_ppo_ray", *flags, "--ray.placement_timeout", "90", "--vllm.num_engines", "1"]
    )
    train_ppo_ray._write_settings(train_ppo_ray.parse_args())
    found = read_settings(tmp_path / "settings.json")
    assert found["--algo.kl.init_coef"] == "0.01"
    assert found["--rollout.batch_size"] == "1024"
    assert (found["--cov_type"], found["--method"]) == ("none", "none")
    assert found["--ray.placement_timeout"] == "90.0"
    assert found["--logger.wandb.key"] == "***"


def test_settings_that_cannot_be_written_are_a_usage_error(tmp_path):
    (tmp_path / "settings.json").mkdir()
    args = SimpleNamespace(ckpt=SimpleNamespace(output_dir=str(tmp_path)))
    with pytest.raises(UsageError, match=rf"--ckpt.output_dir {tmp_path}: settings.json cannot be written"):
        train_ppo_ray._write_settings(args)


def test_a_command_line_that_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "command.txt").mkdir()
    with pytest.raises(UsageError, match=rf"--ckpt.output_dir {tmp_path}: command.txt cannot be written \(Is a dir"):
        train_ppo_ray._write_command(str(tmp_path))


def test_modelscope_is_asked_for(monkeypatch, parse_nested):
    monkeypatch.setitem(sys.modules, "modelscope", None)  # its import fails
    with pytest.raises(UsageError, match=r"--use_ms needs ModelScope .*pip install modelscope"):
        parse_nested("--reward.remote_url", "reward.py", "--vllm.num_engines", "1", "--use_ms")


def test_another_openrlhf_is_refused_before_its_flags_are_declared(monkeypatch, refused):
    monkeypatch.setattr(packages, "OPENRLHF", "0.0.1")
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray"])
    assert "--allow_openrlhf_version" in refused(train_ppo_ray.main)
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", "--allow_openrlhf_version"])
    assert "--vllm.num_engines is missing" in refused(train_ppo_ray.main)


def nested(url, key=None):
    logger = SimpleNamespace(wandb=SimpleNamespace(key=key))
    return SimpleNamespace(reward=SimpleNamespace(remote_url=url), logger=logger)


def test_a_command_that_was_copied_gets_its_secrets_from_the_environment(monkeypatch):
    args = nested(["http://a?token=***", "http://b", "http://c?token=***&n=1"], "***")
    monkeypatch.setenv("OPENRLHF_COV_REWARD_TOKEN", "s3cret")
    monkeypatch.setenv("WANDB_API_KEY", "k3y")
    train_ppo_ray.fill_in_secrets(args)
    assert args == nested(["http://a?token=s3cret", "http://b", "http://c?token=s3cret&n=1"], "k3y")
    for none in (nested(None), nested(["reward.py"], "key")):
        before = copy.deepcopy(none)
        train_ppo_ray.fill_in_secrets(none)
        assert none == before


@pytest.mark.parametrize(
    ("args", "flag", "variable"),
    [
        (nested(["http://a?token=***"]), "--reward.remote_url", "OPENRLHF_COV_REWARD_TOKEN"),
        (nested(None, "***"), "--logger.wandb.key", "WANDB_API_KEY"),
    ],
)
def test_a_copied_command_without_its_secret_is_refused(monkeypatch, args, flag, variable):
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match=f"^{flag} .*{variable}, which is not set"):
        train_ppo_ray.fill_in_secrets(args)
