import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from openrlhf_cov.settings import Schedule
from openrlhf_cov.utils.command import (
    COMMAND_FILE,
    SETTINGS_FILE,
    TRAINER_DEFAULTS,
    read_flags,
    read_settings,
    setting,
    write_command,
    write_settings,
)


def test_settings(tmp_path):
    path = tmp_path / "command.txt"
    path.write_text("ray job submit --x '{\"a\": 1}' -- python -m m --n 3 --low_high 0.2 0.28 --yes --k=5 --neg -1\n")
    assert read_flags(path) == {
        "--x": '{"a": 1}',
        "--n": "3",
        "--low_high": "0.2 0.28",
        "--yes": "true",
        "--k": "5",
        "--neg": "-1",
    }
    assert read_flags(tmp_path / "none") == {}
    path.write_text("python 'unclosed")
    assert read_flags(path) == {}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new" / "run" / COMMAND_FILE
    write_command(path.parent, ["train_ppo_ray", "--data.path", "/a folder/x", "--low_high", "1", "1"])
    assert path.read_text() == "train_ppo_ray --data.path '/a folder/x' --low_high 1 1\n"
    assert read_flags(path) == {"--data.path": "/a folder/x", "--low_high": "1 1"}


@pytest.mark.parametrize("spelling", [["--logger.wandb.key", "TOP"], ["--logger.wandb.ke=TOP"]])
def test_no_key_reaches_the_disk(tmp_path, spelling):
    write_command(tmp_path, ["train", *spelling, "--x", "TOPIC"])
    assert (tmp_path / COMMAND_FILE).read_text().replace("TOPIC", "").count("TOP") == 0
    assert "***" in (tmp_path / COMMAND_FILE).read_text()


def test_the_user_alone_can_read_the_command(tmp_path):
    (tmp_path / COMMAND_FILE).write_text("of an earlier run")
    (tmp_path / COMMAND_FILE).chmod(0o644)
    write_command(tmp_path, ["train"])
    assert (tmp_path / COMMAND_FILE).stat().st_mode & 0o777 == 0o600


# --- reading settings


def test_a_flag_that_is_not_named_is_unknown():
    assert setting({"--cov_type": "none"}, "--algo.kl.init_coef") is None
    assert setting({"--algo.kl.init_coef": "0"}, "--algo.kl.init_coef") == "0"
    assert setting({"--algo.kl.init": "0"}, "--algo.kl.init_coef") == "0"  # argparse takes a beginning
    assert setting({"--actor.eps_clip": "0.3", "--actor": "1"}, "--actor.eps_clip") == "0.3"  # the exact name first
    assert setting({}, "--algo.kl.init_coef") is None


def test_settings_are_written_with_their_defaults_and_without_secrets(tmp_path):
    values = {
        "--algo.kl.init_coef": 0.01,
        "--actor.entropy_coef": None,
        "--actor.eps_clip_low_high": [0.2, 0.28],
        "--train.colocate_all": False,
        "--cov_ratio": Schedule(0.1, 0.2, 100),
        "--other_ratio": Schedule(0.1, 0.2, 100, "cosine", begin=10),
        "--logger.wandb.key": "TOP",
        "--reward.remote_url": ["http://a?token=TOP"],
    }
    write_settings(tmp_path, values)
    assert (tmp_path / SETTINGS_FILE).stat().st_mode & 0o777 == 0o600
    assert read_settings(tmp_path / SETTINGS_FILE) == {
        "--algo.kl.init_coef": "0.01",
        "--actor.entropy_coef": "",
        "--actor.eps_clip_low_high": "0.2 0.28",
        "--train.colocate_all": "false",
        "--cov_ratio": "0.1:0.2:100:linear",
        "--other_ratio": "0.1:0.2:10-100:cosine",
        "--logger.wandb.key": "***",
        "--reward.remote_url": "http://a?token=***",
    }


@pytest.mark.parametrize("content", [b"", b"[1]", b'"x"', b"{", b'{"--a": [1], "--b": 2}', b"\xff"])
def test_damaged_settings_are_unknown(tmp_path, content):
    (tmp_path / SETTINGS_FILE).write_bytes(content)
    assert read_settings(tmp_path / SETTINGS_FILE) == {}
    assert read_settings(tmp_path / "none") == {}


def test_defaults_are_upstreams():
    tree = ast.parse((Path(find_spec("openrlhf").submodule_search_locations[0]) / "cli/train_ppo_ray.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    flags = {ast.unparse(call.args[0]).strip("'"): call.keywords for call in calls}
    for flag, default in TRAINER_DEFAULTS.items():
        assert {keyword.arg: ast.unparse(keyword.value) for keyword in flags[flag]}["default"] == default
    # without a default that acts on the entropy
    for flag in ("--actor.entropy_coef", "--actor.eps_clip_low_high"):
        assert {keyword.arg: ast.unparse(keyword.value) for keyword in flags[flag]}["default"] == "None"
    assert "--data.max_samples" in flags
    assert "--algo.dynamic_filtering_enable" in flags
