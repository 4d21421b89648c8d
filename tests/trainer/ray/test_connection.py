"""What a run needs of a cluster, the Ray that it starts on its own host, and whether there is room."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError

from openrlhf_cov.cluster import connection, cpu_host
from openrlhf_cov.cluster.ray_here import LOOPBACK_ONLY
from openrlhf_cov.cluster.workers import trust_remote_code
from openrlhf_cov.errors import UsageError

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
def test_a_run_needs_a_bundle_for_each_gpu_of_upstreams_placement(run_args, changes, gpus):
    assert connection.needs_of_training(run_args(changes)).bundles == [{"GPU": 1.0, "CPU": 1.0}] * gpus


def test_a_cpu_host_gets_logical_gpus_and_the_stand_ins(connect):
    asked = connect(True, {})
    assert (asked["address"], asked["num_gpus"]) == ("local", 4)
    assert asked["num_cpus"] == 4 + connection.CONTROLLER_CPUS
    assert asked["runtime_env"]["worker_process_setup_hook"] == "openrlhf_cov.cluster.workers.prepare_worker"
    assert connection.FORWARDED.items() <= asked["runtime_env"]["env_vars"].items()
    assert asked["runtime_env"]["env_vars"]["DS_ACCELERATOR"] == "cpu"


def test_workers_trust_the_code_of_models_only_if_the_driver_does(connect, monkeypatch):
    monkeypatch.setenv(cpu_host.TRUST_VARIABLE, "")  # as it was, afterwards
    monkeypatch.delenv(cpu_host.TRUST_VARIABLE)
    assert cpu_host.TRUST_VARIABLE not in connect(True, {})["runtime_env"]["env_vars"]
    trust_remote_code(True)
    assert connect(True, {})["runtime_env"]["env_vars"][cpu_host.TRUST_VARIABLE] == "1"


def test_a_ray_that_cannot_be_started_is_one_line(connect):
    with pytest.raises(UsageError, match=r"^no Ray can be started on this host \(no space\)$"):
        connect(True, {}, RuntimeError("no space\nleft"))


class SlowRay:
    """Takes the place of ``ray``: its first ``failures`` starts leave a process behind and raise ``error``."""

    def __init__(self, failures, error):
        self.failures = failures
        self.error = error
        self.left_behind = []
        self.shutdowns = 0

    def init(self, **settings):
        if len(self.left_behind) < self.failures:
            self.left_behind.append(subprocess.Popen(["sleep", "600"]))
            raise self.error

    def shutdown(self):
        self.shutdowns += 1


@pytest.fixture
def slow_ray(connect, monkeypatch):
    """Function (failures, error) -> the ``SlowRay`` that ``connection.connect`` starts."""
    made = []

    def make(failures, error):
        made.append(SlowRay(failures, error))
        monkeypatch.setattr(connection, "ray", made[-1])
        return made[-1]

    yield make
    for each in made:
        for process in each.left_behind:
            process.kill()
            process.wait()


TIMED_OUT = "The current node timed out during startup."


def test_a_ray_that_starts_too_slowly_is_started_again(slow_ray):
    found = slow_ray(2, Exception(TIMED_OUT))
    connection._start({})
    assert (len(found.left_behind), found.shutdowns) == (2, 2)
    assert all(process.poll() is not None for process in found.left_behind)  # what a failed start left is ended


def test_a_ray_of_our_own_is_private(connect, monkeypatch):
    for name, value in LOOPBACK_ONLY.items():
        monkeypatch.setenv(name, value)
    folder = Path(connect(True, {})["_temp_dir"])
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_uid == os.getuid()
    assert connect(True, {})["_node_ip_address"] == "127.0.0.1"


class Cluster:
    """Takes the place of ``ray`` in ``check_capacity``: a cluster that gives a group its place, or never does."""

    def __init__(self, total, gives=True, busy=True):
        self.total = total
        self.busy = busy
        self.gives = gives
        self.groups = []

    def cluster_resources(self):
        return self.total

    def available_resources(self):
        return {"CPU": 1.0} if self.busy else self.total

    def placement_group(self, bundles, strategy):
        self.groups.append(bundles)
        return SimpleNamespace(ready=lambda: None)

    def remove_placement_group(self, group):
        self.groups.append("removed")

    def get(self, ready, timeout):
        self.groups.append(timeout)
        if not self.gives:
            raise GetTimeoutError


@pytest.fixture
def reserve(monkeypatch, run_args):
    """Function (total, gives, whether an autoscaler adds nodes, arguments of ``check_capacity``) -> refusal, and what
    is asked of such a cluster; the run needs 4 GPUs and 5 CPUs."""

    def run(total, gives=True, scales=False, busy=True, **settings):
        fake = Cluster(total, gives, busy)
        monkeypatch.setattr(connection, "autoscales", lambda: scales)
        monkeypatch.setattr(connection, "ray", fake)
        for name in ("placement_group", "remove_placement_group"):
            monkeypatch.setattr(connection, name, getattr(fake, name))
        try:
            connection.check_capacity(connection.needs_of_training(run_args({"ds.param_dtype": "bf16"})), **settings)
        except UsageError as error:
            return str(error), fake.groups
        return None, fake.groups

    return run


ROOM = [{"GPU": 1.0, "CPU": 1.0}] * 4 + [{"CPU": 1.0}]
NEEDS = "the run needs 4 GPUs and 5 CPUs; Ray has {} GPUs (0 free) and {} CPUs (1 free); lower --actor.num_gpus"


def test_room_is_reserved_and_given_back(reserve):
    message, asked = reserve({"GPU": 4.0, "CPU": 5.0})
    assert message is None
    assert asked == [ROOM, 20.0, "removed"]


TOO_SMALL = [({"GPU": 3.0, "CPU": 64.0}, (3, 64)), ({"GPU": 8.0, "CPU": 4.0}, (8, 4)), ({"CPU": 64.0}, (0, 64))]


@pytest.mark.parametrize(("total", "has"), TOO_SMALL)
def test_more_than_the_cluster_has_is_refused_at_once(reserve, total, has):
    message, asked = reserve(total)
    assert message.startswith(NEEDS.format(*has))
    assert asked == []  # nothing to wait for


def test_room_that_does_not_come_free_is_refused_and_not_left_pending(reserve):
    message, asked = reserve({"GPU": 8.0, "CPU": 64.0}, gives=False)
    assert message.startswith(NEEDS.format(8, 64))
    assert asked[-1] == "removed"


@pytest.mark.parametrize(("timeout", "waited"), [(0.0, connection.SCALE_TIMEOUT), (60.0, 60.0)])
@pytest.mark.parametrize("total", [*(total for total, _ in TOO_SMALL), {"GPU": 8.0, "CPU": 64.0}])  # the last is busy
def test_a_cluster_that_grows_is_waited_for(reserve, total, timeout, waited):
    assert reserve(total, scales=True, timeout=timeout) == (None, [ROOM, waited, "removed"])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([], False),  # no monitor has reported
        (["node_aa", "node_bb"], False),  # one that knows the nodes by their ids
        (["headgroup", "workers-8xgpu"], True),
        (["headgroup"], True),  # no worker yet
    ],
)
def test_an_autoscaler_is_known_by_its_types_of_nodes(monkeypatch, version, types, expected):
    from ray.autoscaler.v2 import sdk, utils
    from ray.experimental import internal_kv

    nodes = [SimpleNamespace(ray_node_type_name=name) for name in types]
    status = SimpleNamespace(active_nodes=nodes[:1], idle_nodes=nodes[1:])
    report = json.dumps({"autoscaler_report": {"active_nodes": dict.fromkeys(types, 1)}}).encode() if types else None
    monkeypatch.setattr(utils, "is_autoscaler_v2", lambda fetch_from_server: version == 2)
    monkeypatch.setattr(sdk, "get_cluster_status", lambda address: status)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", lambda key: report)
    monkeypatch.setattr(connection.ray, "nodes", lambda: [{"NodeID": "aa"}, {"NodeID": "bb"}])
    monkeypatch.setattr(connection.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="head:6379"))
    assert connection.autoscales() is expected
