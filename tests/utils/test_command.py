import pytest

from openrlhf_cov.utils.command import COMMAND_FILE, read_flags, without_secrets, write_command


def test_settings(tmp_path):
    path = tmp_path / "command.txt"
    path.write_text("ray job submit --x '{\"a\": 1}' -- python -m m --n 3 --low_high 0.2 0.28 --yes --k=5 --neg -1\n")
    assert read_flags(path) == {
        "--x": '{"a": 1} -- python -m m',
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
    words = [
        "train_ppo_ray",
        "--cov_type",
        "kl_cov",
        "--data.path",
        "/a folder/x",
        "--actor.eps_clip_low_high",
        "1",
        "1",
    ]
    write_command(tmp_path / "new" / "run", words)
    assert (tmp_path / "new" / "run" / COMMAND_FILE).read_text() == (
        "train_ppo_ray --cov_type kl_cov --data.path '/a folder/x' --actor.eps_clip_low_high 1 1\n"
    )
    assert read_flags(tmp_path / "new" / "run" / COMMAND_FILE) == {
        "--cov_type": "kl_cov",
        "--data.path": "/a folder/x",
        "--actor.eps_clip_low_high": "1 1",
    }


@pytest.mark.parametrize(
    "spelling",
    [
        ["--logger.wandb.key", "TOP"],
        ["--logger.wandb.key=TOP"],
        ["--logger.wandb.k", "TOP"],
        ["--logger.wandb.ke=TOP"],
    ],
)
def test_no_key_reaches_the_disk(tmp_path, spelling):
    write_command(tmp_path, ["train", *spelling, "--x", "TOPIC"])
    assert (tmp_path / COMMAND_FILE).read_text().replace("TOPIC", "").count("TOP") == 0
    assert "***" in (tmp_path / COMMAND_FILE).read_text()


@pytest.mark.parametrize("flag", ["--data.input_key", "--logger.wandb.keys", "--logger.wandb", "--l"])
def test_other_flags_are_kept(flag):
    assert without_secrets(["train", flag, "value", f"{flag}=value"]) == ["train", flag, "value", f"{flag}=value"]
