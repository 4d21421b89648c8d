"""A secret that is given to a run stands in none of the files that the run, its report and its logs leave behind."""

import os
import subprocess
import sys

import pytest

SECRET = "S3cretT0ken"
FLAGS = [
    *("--reward.remote_url", f"http://127.0.0.1:1/get_reward?token={SECRET},http://me:{SECRET}@127.0.0.1:1"),
    *("--logger.wandb.key", SECRET, "--hf_token", SECRET, f"--judge.api_key={SECRET}"),
]
RUN = """
import asyncio, logging, sys
from pathlib import Path
from types import SimpleNamespace
from openrlhf_cov.cluster import cpu_host
cpu_host.install()
from openrlhf_cov.cluster.workers import prepare_worker
prepare_worker()
from openrlhf.utils.agent import SingleTurnAgentExecutor
from openrlhf.utils.config import hierarchize
from openrlhf.utils.logging_utils import init_logger
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer.metrics.logs import CovWandbLogger
from openrlhf_cov.trainer.rollout.reward_executor import RewardExecutor
from openrlhf_cov.utils.command import write_command
from openrlhf_cov.utils.metrics_log import MetricsLog

flags = sys.stdin.read().split()  # wandb records the command line of its process, which is that of a Ray worker
folder, urls, key = Path("run"), flags[1].split(","), flags[3]
write_command(folder, ["train_ppo_ray", *flags])
log = MetricsLog(folder / "metrics.jsonl")
for step in range(1, 9):
    log.write(step, {"reward": step / 10, "entropy/mean": 1 / step})

args = hierarchize(SimpleNamespace(**{
    "reward.remote_url": urls, "logger.wandb.key": key, "logger.wandb.org": None, "logger.wandb.project": "p",
    "logger.wandb.group": None, "logger.wandb.run_name": "r", "hf_token": key, "train.batch_size": 8,
    "ckpt.output_dir": str(folder), "ckpt.load_enable": False,
}))
before = repr(args)
tracker = CovWandbLogger(args)
assert repr(args) == before
tracker.log_train(1, {"reward": 0.5})
assert tracker.handle.config["train"]
tracker.close()

async def no_pause(seconds): pass
asyncio.sleep = no_pause
executor = RewardExecutor(urls, RewardConfig())
for _ in urls:
    try:
        asyncio.run(executor._reward("q", "p", "l"))
    except RuntimeError as error:
        executor._warn(RuntimeError(f"{error} {urls}"), "p", "r", "l")
try:
    raise ValueError(f"cannot reach {urls}")
except ValueError:
    init_logger("openrlhf").exception("failed")
    logging.getLogger("else").error("given: %s %s", "--hf_token", key, exc_info=True)
"""
UNCAUGHT = """
import sys
from openrlhf_cov.utils.terminal import clean_logs
clean_logs()
raise ConnectionError(f"no answer of {sys.stdin.read()}")
"""


@pytest.mark.e2e
def test_no_file_of_a_run_holds_its_secrets(tmp_path):
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path)}
    env.pop("WANDB_API_KEY", None)
    with (tmp_path / "train.log").open("w") as log:
        for program, status in ((RUN, 0), (UNCAUGHT, 1)):
            command = [sys.executable, "-c", program]
            done = subprocess.run(
                command, env=env, cwd=tmp_path, input="\n".join(FLAGS), text=True, stdout=log, stderr=log
            )
            assert done.returncode == status, (tmp_path / "train.log").read_text()
    with (tmp_path / "report.log").open("w") as log:
        words = "openrlhf_cov.cli.report run --output report --export out.json".split()
        subprocess.run([sys.executable, "-m", *words], env=env, cwd=tmp_path, stdout=log, stderr=log, check=True)
        for program in ("evaluate", "watch", "grade", "train_ppo_ray"):
            subprocess.run([sys.executable, "-m", f"openrlhf_cov.cli.{program}", *FLAGS], env=env, stderr=log)
    text = (tmp_path / "train.log").read_text()
    assert "ConnectionError: no answer of --reward.remote_url" in text
    assert "http://127.0.0.1:1/get_reward?token=***" in text
    assert text.count("Request error") >= 1
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []
    assert (tmp_path / "run" / "command.txt").stat().st_mode & 0o077 == 0
