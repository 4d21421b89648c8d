from types import SimpleNamespace

import pytest

from openrlhf_cov.trainer.ray import cluster


def run_args(changes):
    """Actor 1 x 2, one GPU for each other model, two engines; no critic, no reference, a reward function."""
    flags = {
        "actor.num_nodes": 1, "actor.num_gpus_per_node": 2,
        "ref.num_nodes": 1, "ref.num_gpus_per_node": 1,
        "critic.num_nodes": 1, "critic.num_gpus_per_node": 1, "critic.model_name_or_path": None,
        "reward.num_nodes": 1, "reward.num_gpus_per_node": 1, "reward.remote_url": ["reward.py"],
        "vllm.num_engines": 2, "vllm.tensor_parallel_size": 1,
        "algo.kl.init_coef": 0.0,
        "train.colocate_all": False, "train.colocate_actor_ref": False, "train.colocate_critic_reward": False,
        "train.async_enable": False,
    }  # fmt: skip
    root = SimpleNamespace()
    for flag, value in (flags | changes).items():
        *path, last = flag.split(".")
        node = root
        for part in path:
            if not hasattr(node, part):
                setattr(node, part, SimpleNamespace())
            node = getattr(node, part)
        setattr(node, last, value)
    return root


KL = {"algo.kl.init_coef": 1e-3}
CRITIC = {"critic.model_name_or_path": "model"}
REWARD_MODEL = {"reward.remote_url": None}
COLOCATE_ALL = {"train.colocate_all": True}
COLOCATE_CRITIC_REWARD = {"train.colocate_critic_reward": True}


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({}, 4),  # actor 2, engines 2
        ({"actor.num_nodes": 3}, 8),  # actor 6, engines 2
        ({"vllm.tensor_parallel_size": 4}, 10),  # actor 2, engines 8
        (KL, 5),  # and the reference model
        (KL | {"ref.num_gpus_per_node": 2, "train.colocate_actor_ref": True}, 4),  # which shares the actor's
        ({"train.colocate_actor_ref": True}, 4),
        (CRITIC, 5),
        (REWARD_MODEL, 5),
        (CRITIC | REWARD_MODEL, 6),
        (CRITIC | REWARD_MODEL | COLOCATE_CRITIC_REWARD, 5),
        (REWARD_MODEL | COLOCATE_CRITIC_REWARD, 5),  # nothing to share with
        (COLOCATE_ALL, 2),  # the engines share the actor's
        (COLOCATE_ALL | KL | CRITIC | REWARD_MODEL, 2),
        (COLOCATE_ALL | {"train.async_enable": True}, 4),  # engines apart
        # upstream reserves a placement group of the critic's size even where all models are colocated
        (COLOCATE_ALL | CRITIC | COLOCATE_CRITIC_REWARD, 3),
        (COLOCATE_ALL | CRITIC | REWARD_MODEL | COLOCATE_CRITIC_REWARD, 3),
    ],
)
def test_required_bundles_follow_upstreams_placement(changes, gpus):
    assert cluster.required_bundles(run_args(changes)) == [{"GPU": 1.0, "CPU": 1.0}] * gpus


def test_variables_of_the_job_are_not_named_twice(monkeypatch):
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    assert cluster._job_env_vars() == {}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {"NCCL_DEBUG": "INFO"}}}')
    assert cluster._job_env_vars() == {"NCCL_DEBUG": "INFO"}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": null}')
    assert cluster._job_env_vars() == {}


class RecordingRay:
    """Takes the place of the ``ray`` module in ``connect``; notes what ``init`` was asked for."""

    def __init__(self):
        self.asked = {}

    def init(self, **kwargs):
        self.asked = kwargs


@pytest.fixture
def connect(monkeypatch):
    """Function (is_cpu_host, changes) -> arguments of ``ray.init``."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "OMP_NUM_THREADS", *cluster.FORWARDED):
        monkeypatch.delenv(name, raising=False)

    def run(on_cpu, changes):
        recording = RecordingRay()
        monkeypatch.setattr(cluster, "ray", recording)
        monkeypatch.setattr(cluster.cpu_host, "is_cpu_host", lambda: on_cpu)
        cluster.connect(run_args({"ds.param_dtype": "fp32" if on_cpu else "bf16"} | changes))
        return recording.asked

    return run


def test_a_cpu_host_gets_logical_gpus_and_the_stand_ins(connect):
    asked = connect(True, {})
    assert (asked["address"], asked["num_gpus"]) == ("local", 4)
    assert asked["num_cpus"] == 4 + cluster.CONTROLLER_CPUS
    assert asked["runtime_env"]["worker_process_setup_hook"] == "openrlhf_cov.trainer.ray.seams.prepare_worker"
    assert cluster.FORWARDED.items() <= asked["runtime_env"]["env_vars"].items()
    assert asked["runtime_env"]["env_vars"]["DS_ACCELERATOR"] == "cpu"


def test_a_gpu_host_keeps_its_own_resources(connect):
    asked = connect(False, {})
    assert not {"num_gpus", "num_cpus"} & asked.keys()
    assert asked["runtime_env"] == {"env_vars": cluster.FORWARDED}


def test_fp32_needs_the_hook_on_any_host(connect):
    assert "worker_process_setup_hook" in connect(False, {"ds.param_dtype": "fp32"})["runtime_env"]


def test_a_running_ray_is_joined_as_it_is(connect, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {"NCCL_DEBUG": "INFO"}}}')
    asked = connect(True, {})
    assert asked.keys() == {"address", "runtime_env"}
    assert asked["address"] == "10.0.0.1:6379"
    assert "NCCL_DEBUG" not in asked["runtime_env"]["env_vars"]
