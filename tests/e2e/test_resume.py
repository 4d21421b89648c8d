"""A run that is killed and resumed is the run that was not: every metric of every step is equal, bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from openrlhf_cov.trainer.checkpoints import partial_checkpoints
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, read_metrics

pytestmark = pytest.mark.e2e

DYNAMIC_SAMPLING = """
    --algo.dynamic_filtering_enable --rollout_seeded --ckpt.save_steps 1 --cov_type kl_cov --kl_cov_ratio 2e-2
    --rollout.batch_size 16 --train.batch_size 64 --train.micro_batch_size 32
""".split()
CLOCK = ("time", "timing/")


@pytest.fixture
def start(task, kill_tree):
    """Function (folder, flags...) -> the trainer in a process of its own; killed with all its children at the end."""
    running = []

    def start_run(folder: Path, *flags: str) -> subprocess.Popen:
        entry = [sys.executable, "-m", "openrlhf_cov.cli.train_ppo_ray"]
        evaluation = ["--eval.dataset", str(task.train), "--eval.steps", "1", "--eval.n_samples_per_prompt", "2"]
        command = [*entry, *task.flags(folder), *DYNAMIC_SAMPLING, *evaluation, *flags]
        env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        with folder.with_suffix(".log").open("a") as log:
            running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder.parent))
        return running[-1]

    yield start_run
    for process in running:
        kill_tree(process)


def wait_for_steps(process: subprocess.Popen, folder: Path, steps: int, file: str = METRICS_FILE) -> None:
    deadline = time.monotonic() + 300
    while steps_of(folder, file) < steps:
        assert process.poll() is None, folder.with_suffix(".log").read_text()[-20_000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def steps_of(folder: Path, file: str = METRICS_FILE) -> int:
    return len(read_metrics(folder / file)) if (folder / file).exists() else 0


def lines(folder: Path, file: str = METRICS_FILE) -> list[dict]:
    """The metrics without those of the clock."""
    return [{k: v for k, v in line.items() if not k.startswith(CLOCK)} for line in read_metrics(folder / file)]


def test_killed_resumed_and_stopped_is_as_good_as_straight(start, kill_tree, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    process = start(straight)
    assert process.wait(timeout=400) == 0, (tmp_path / "straight.log").read_text()[-20_000:]
    expected = lines(straight)
    assert len(expected) >= 5
    assert all(line["sampling/groups"] == 16.0 for line in expected[:-1])

    killed = start(broken)
    wait_for_steps(killed, broken, 2)  # step 2 is in the log; its checkpoint is being written or just was
    kill_tree(killed)
    assert lines(broken) == expected[: steps_of(broken)]
    folder = broken / "checkpoints" / "_actor"
    (folder / "partial-global_step99").mkdir()
    half_written = partial_checkpoints(folder)

    resumed = start(broken, "--ckpt.load_enable")
    wait_for_steps(resumed, broken, 3)
    resumed.send_signal(signal.SIGTERM)
    assert resumed.wait(timeout=120) == 128 + signal.SIGTERM
    steps = steps_of(broken)
    assert lines(broken) == expected[:steps]  # without a gap, without a step twice
    log = (tmp_path / "broken.log").read_text()
    assert f"SIGTERM: stopped after global step {steps}; continue with --ckpt.load_enable" in log
    assert (folder / "latest").read_text() == f"global_step{steps}"
    for name in half_written:
        assert f"{name} was never completed and is passed over" in log
    states = [line for line in log.splitlines() if "checkpoint_states: " in line]
    assert states
    assert max(map(len, states)) < 1000  # and not the tensors of the groups that wait
    assert lines(broken, EVAL_FILE) == lines(straight, EVAL_FILE)[: steps - 1]  # the last step was not evaluated

    finishing = start(broken, "--ckpt.load_enable")
    wait_for_steps(finishing, broken, len(expected) - 1, EVAL_FILE)  # the next step is the last
    finishing.send_signal(signal.SIGTERM)
    assert finishing.wait(timeout=300) == 0  # as finished: a run that is over is not stopped
    assert lines(broken) == expected
    assert lines(broken, EVAL_FILE) == lines(straight, EVAL_FILE)
    assert len(lines(straight, EVAL_FILE)) == len(expected)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (broken, straight))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in theirs)


@pytest.mark.long
def test_an_engine_that_dies_costs_no_step(start, tmp_path):
    folder = tmp_path / "run"
    log = folder.with_suffix(".log")
    for name, flags in (("VLLM::EngineCore", []), ("ray::CovRolloutActor", ["--ckpt.load_enable"])):
        before = steps_of(folder)
        run = start(folder, "--vllm.num_engines", "2", "--train.num_episodes", "2", *flags)
        wait_for_steps(run, folder, before + 1)
        engines = [p for p in psutil.Process(run.pid).children(recursive=True) if name in " ".join(p.cmdline())]
        assert len(engines) == 2
        orphans = engines[-1].children(recursive=True)  # vLLM's core outlives an actor that is killed
        engines[-1].kill()
        try:
            assert run.wait(timeout=300) == 1, log.read_text()[-20_000:]
        finally:
            for orphan in filter(psutil.Process.is_running, orphans):
                orphan.kill()
        steps = steps_of(folder)
        assert [line["step"] for line in lines(folder)] == list(range(1, steps + 1))
        *_, ending = (line for line in log.read_text().splitlines() if line.startswith("train_ppo_ray: error: "))
        assert f"died: stopped after global step {steps}; continue with --ckpt.load_enable" in ending
        assert (folder / "checkpoints" / "_actor" / "latest").read_text() == f"global_step{steps}"
