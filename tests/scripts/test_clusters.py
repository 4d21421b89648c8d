"""The Slurm script and the KubeRay manifest, with stand-ins for Slurm and Ray."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_the_kubernetes_manifest_asks_for_what_the_recipe_needs():
    job = yaml.safe_load((SCRIPTS / "kuberay_train.yaml").read_text())
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert workers["replicas"] * int(worker["resources"]["limits"]["nvidia.com/gpu"]) == 32
    recipe = next(word for word in job["spec"]["entrypoint"].split() if word.startswith("scripts/"))
    assert (SCRIPTS.parent / recipe).exists()
    pins = (SCRIPTS.parent / "requirements.txt").read_text()
    assert f"ray[default]=={job['spec']['rayClusterSpec']['rayVersion']}" in pins
    assert job["spec"]["backoffLimit"] > 0  # a failed job starts again, and the recipe continues the run


def test_slurm_starts_a_failed_job_again_and_keeps_its_log():
    options = [line for line in (SCRIPTS / "slurm_train.sbatch").read_text().splitlines() if line[:8] == "#SBATCH "]
    assert "#SBATCH --requeue" in options
    assert "#SBATCH --open-mode=append" in options


def stand_in(folder: Path, name: str, script: str) -> None:
    """A program of that name."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{script}\n")
    path.chmod(0o755)


def test_the_kubernetes_job_passes_its_flags_to_the_recipe(tmp_path):
    """KubeRay puts the entrypoint behind ``ray job submit --`` in a shell of its own; the job runs in another."""
    job = yaml.safe_load((SCRIPTS / "kuberay_train.yaml").read_text())["spec"]
    assert yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]["FLAGS"] == ""
    submitted = f'import subprocess, sys; open("{tmp_path}/job", "w").write(subprocess.list2cmdline(sys.argv[1:]))'
    (tmp_path / "ray.py").write_text(submitted)  # Ray's own way to make one line of the words
    stand_in(tmp_path, "ray", f'shift 3; exec {sys.executable} {tmp_path}/ray.py "$@"')
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ce", f"ray job submit -- {job['entrypoint']} ;"], check=True, env=path)
    (tmp_path / "scripts").mkdir()
    stand_in(tmp_path / "scripts", "train_qwen2.5_32b_kl_cov.sh", f'echo "$@" >> {tmp_path}/calls')
    command = (tmp_path / "job").read_text().replace("/workspace/openrlhf_cov", str(tmp_path))
    subprocess.run(["bash", "-c", command], check=True, env=path | {"FLAGS": "--train.seed 7"})
    assert (tmp_path / "calls").read_text() == "--dry_run --train.seed 7\n--train.seed 7\n"


@pytest.fixture
def slurm(tmp_path):
    """Function (nodes that join Ray) -> the Slurm script, finished, with stand-ins for Slurm and Ray."""
    stand_in(tmp_path, "scontrol", "printf 'n1\\nn2\\n'")
    note = f'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> {tmp_path}/tokens; echo'
    stand_in(tmp_path, "recipe.sh", f'{note} "recipe $* at $RAY_DASHBOARD" >> {tmp_path}/calls')
    stand_in(
        tmp_path,
        "srun",
        f'[[ "$*" == *hostname* ]] && echo "10.0.0.1 fe80::1" && exit\n{note} "srun $*" >> {tmp_path}/calls',
    )

    def run(joined: int) -> subprocess.CompletedProcess:
        rows = "".join(f" 1 node_{number}\\n" for number in range(joined))
        stand_in(tmp_path, "ray", f"[ $1 = status ] && printf '{rows}'")
        variables = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_CPUS_ON_NODE": "96"}
        script = (SCRIPTS / "slurm_train.sbatch").read_text()
        stand_in(tmp_path, "slurm_train", script.replace("await 600", "await 3"))  # seconds that a test can wait
        return subprocess.run(
            [tmp_path / "slurm_train", tmp_path / "recipe.sh", "32b", "kl_cov", "--train.seed", "7"],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"} | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_the_slurm_script_starts_ray_on_all_nodes_and_then_the_recipe(slurm, tmp_path):
    done = slurm(joined=2)
    assert done.returncode == 0, done.stderr
    head, worker, *recipe = sorted((tmp_path / "calls").read_text().splitlines(), key=lambda line: "recipe" in line)
    cores = "--cpus-per-task 96 --cpu-bind none"
    calls = {
        f"srun --nodes 1 --ntasks 1 {cores} --nodelist n1 ray start --head --node-ip-address 10.0.0.1 --port 6379 "
        "--dashboard-host 0.0.0.0 --num-gpus 8 --block",
        f"srun --nodes 1 --ntasks 1 {cores} --exclude n1 ray start --address 10.0.0.1:6379 --num-gpus 8 --block",
    }
    assert {head, worker} == calls
    at = "at http://10.0.0.1:8265"
    tokens = (tmp_path / "tokens").read_text().split()
    assert tokens[::2] == ["token"] * 4  # both nodes, the dry run and the run
    assert len(set(tokens[1::2])) == 1
    assert len(tokens[1]) == 64
    assert tokens[1] not in done.stdout + done.stderr + (tmp_path / "calls").read_text()
    assert recipe == [f"recipe 32b kl_cov --train.seed 7 --dry_run {at}", f"recipe 32b kl_cov --train.seed 7 {at}"]


@pytest.mark.slow
def test_the_slurm_script_gives_up_on_a_node_that_does_not_join(slurm, tmp_path):
    done = slurm(joined=1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("slurm_train: not all 2 nodes have joined after 3 s")
    assert "recipe" not in (tmp_path / "calls").read_text()
