"""A small embedded task and a way to run the real command line on it."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ending import ended
from filelock import FileLock
from forkserver import serving, write_program
from processes import HANGS, children_of, kill

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.local_ray import local_ray
from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics

REPOSITORY = Path(__file__).parents[2]
REWARD = REPOSITORY / "openrlhf_cov" / "experiments" / "tiny_task" / "tiny_reward_func.py"


@dataclass(frozen=True)
class Task:
    """Folder of a model, a training file of 96 problems, and 40 of them as a benchmark."""

    model: Path
    train: Path
    benchmark: Path

    def flags(self, output: Path) -> list[str]:
        """Flags of a run of three steps of 16 prompts that any host can do."""
        return f"""
            --actor.model_name_or_path {self.model} --data.prompt_dataset {self.train}
            --data.input_key input --data.label_key label --reward.remote_url {REWARD}
            --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --train.colocate_actor_ref --vllm.num_engines 1
            --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef 1e-3
            --rollout.batch_size 16 --rollout.n_samples_per_prompt 8 --rollout.micro_batch_size 32
            --train.batch_size 32 --train.micro_batch_size 16 --data.max_len 48 --rollout.max_new_tokens 24
            --data.max_samples 48 --actor.adam.lr 1e-4 --actor.lr_scheduler constant
            --ckpt.output_dir {output} --ckpt.path {output}/checkpoints
        """.split()


@pytest.fixture(scope="session")
def task(tmp_path_factory, worker_id) -> Task:
    """The task with the policy that comes with the package."""
    return _made_once("task", _shipped_policy, tmp_path_factory, worker_id)


@pytest.fixture(scope="session")
def young_task(tmp_path_factory, worker_id) -> Task:
    """The task with a policy that has learned less and is less certain; making it takes some 15 seconds."""
    return _made_once("young_task", _young_policy, tmp_path_factory, worker_id)


def _shipped_policy():
    from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig
    from openrlhf_cov.experiments.tiny_task.shipped_policies import shipped_policy

    return shipped_policy("addition", 0, BasePolicyConfig())


def _young_policy():
    import torch

    from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, make_base_policy

    torch.set_num_threads(1)
    return make_base_policy(_problems(), BasePolicyConfig(steps=100, rows_per_step=48), seed=0)


def _problems():
    from openrlhf_cov.experiments.tiny_task.problems import Addition

    return [Addition(a, b) for a in range(10, 58) for b in (34, 71)]


def _made_once(name: str, make_policy, tmp_path_factory, worker_id: str) -> Task:
    """Make a task; the processes that run tests side by side share one, which the first of them makes."""
    if worker_id == "master":  # one process
        return _make_task(tmp_path_factory.mktemp(name), make_policy)
    folder = tmp_path_factory.getbasetemp().parent / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _make_task(folder.with_name(f"{name}_to_be"), make_policy).model.parent.rename(folder)
    return Task(folder / "model", folder / "train.jsonl", folder / "sums.jsonl")


def _make_task(folder: Path, make_policy) -> Task:
    problems = _problems()
    model, tokenizer = make_policy()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"input": problem.prompt, "label": str(problem.a + problem.b)} for problem in problems]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [problem.to_benchmark_row() for problem in problems[:40]]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    return Task(folder / "model", folder / "train.jsonl", folder / "sums.jsonl")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Two of these tests run side by side on two cores, where threads beyond one wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # of the commands that are started here
        yield


@pytest.fixture(scope="session", autouse=True)
def no_idle_workers():
    """A Ray that is started here makes no workers before they are asked for: those of our runs have another setup."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        yield


# Environment variable: what starts the processes of a run in place of Python.
PYTHON = "COV_TEST_PYTHON"


@pytest.fixture(scope="session")
def ray():
    """Environment of one Ray for all runs that need none of their own.

    Its processes are forked, see ``tests/helpers/forkserver.py``.
    Those with a Ray of their own show that a run starts in processes which import all.
    """
    with TemporaryDirectory(dir="/tmp") as folder:  # short: sockets are put there
        program = Path(folder, "python")
        write_program(program)
        with ExitStack() as stack:
            without_warnings = {"PYTHONWARNINGS": "ignore"}
            wait = stack.enter_context(serving(program, without_warnings | cpu_host.environment()))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "executable", str(program))  # beside which its ``ray`` is looked for
                address = stack.enter_context(local_ray(num_gpus=3, num_cpus=8, log=Path(folder, "ray.log")))
            wait()
            yield {"RAY_ADDRESS": address.gcs, PYTHON: str(program)} | without_warnings | address.token


@pytest.fixture(scope="session")
def forking_python(ray) -> str:
    """The program in place of ``sys.executable`` whose processes are forked (forkserver.py).

    Where a test sets ``sys.executable`` to it, a Ray that the test starts in its own process has such workers.
    """
    return ray[PYTHON]


@pytest.fixture(scope="session")
def kill_tree():
    """The function that sends SIGKILL to a process and everything it started."""
    return _kill_tree


def _kill_tree(process: subprocess.Popen) -> None:
    if process.poll() is None:
        tree = children_of(process.pid)
        process.kill()
        process.wait()
        kill(tree)


@pytest.fixture(scope="session")
def trainer():
    """Function (flags, environment of a Ray) -> environment and command line of a run; without, its Ray is its own."""
    return _trainer


def _trainer(flags: list[str], ray: dict[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
    env = os.environ | {"PYTHONWARNINGS": "ignore", "RAY_ADDRESS": "local"} | (ray or {})
    return env, [env.get(PYTHON, sys.executable), "-m", "openrlhf_cov.cli.train_ppo_ray", *flags]


@dataclass(frozen=True)
class Run:
    """A finished run of the command line."""

    stderr: str
    folder: Path
    # With what its actors log.
    stdout: str = ""

    @property
    def metrics(self) -> list[dict]:
        """Lines of metrics.jsonl."""
        return read_metrics(self.folder / METRICS_FILE)


@pytest.fixture(scope="session")
def run_trainer():
    """The function that runs the command line."""
    return _run_trainer


def _run_trainer(
    flags: list[str], folder: Path, ray: dict[str, str] | None = None, timeout: float = HANGS, status: int = 0
) -> Run:
    """Run ``python -m openrlhf_cov.cli.train_ppo_ray`` in a process of its own, which is to end with that status."""
    env, command = _trainer(flags, ray)
    done = ended(command, "the run", status=status, env=env, timeout=timeout, cwd=folder.parent)
    return Run(done.stderr, folder, done.stdout)
