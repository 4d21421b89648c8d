"""What a run needs of a cluster, the Ray that it joins or starts, and whether there is room.

``connect`` is called with a Ray that only notes how it is started or joined: a real one would take the ports, and the
cores, of this host.
"""

import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from ray.autoscaler.v2 import sdk, utils
from ray.autoscaler.v2.schema import ClusterStatus, NodeInfo, Stats
from ray.exceptions import GetTimeoutError
from ray.experimental import internal_kv
from run_flags import run_flags
from texts import refusal_of

from openrlhf_cov.cluster import connection, cpu_host
from openrlhf_cov.cluster.ray_here import LOOPBACK_ONLY
from openrlhf_cov.cluster.workers import trust_remote_code
from openrlhf_cov.errors import UsageError

KL = {"algo.kl.init_coef": 1e-3}
CRITIC = {"critic.model_name_or_path": "model"}
REWARD_MODEL = {"reward.remote_url": None}
COLOCATE_ALL = {"train.colocate_all": True}
COLOCATE_CRITIC_REWARD = {"train.colocate_critic_reward": True}


def needs(dtype="bf16", **changes):
    """Return the needs of a run with an actor of two GPUs and two engines."""
    return connection.needs_of_training(run_flags({"actor.num_gpus_per_node": 2, "ds.param_dtype": dtype} | changes))


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
def test_a_run_needs_a_bundle_for_each_gpu_of_upstreams_placement(changes, gpus):
    assert needs(**changes).bundles == [{"GPU": 1.0, "CPU": 1.0}] * gpus


class Host:
    """A host without an accelerator on which no Ray runs yet; its environment names none."""

    def __init__(self, monkeypatch):
        self.patch = monkeypatch
        self.error = None
        # The arguments of ``ray.init``.
        self.asked = {}
        variables = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "OMP_NUM_THREADS", cpu_host.TRUST_VARIABLE)
        for name in (*variables, *connection.FORWARDED, *connection.FORWARDED_IF_SET):
            monkeypatch.setenv(name, "")  # as it was, afterwards
            monkeypatch.delenv(name)
        monkeypatch.setattr(connection.ray, "init", self.init)
        self.runs()
        self.has_gpus(False)

    def init(self, **settings):
        self.asked = settings
        if self.error:
            raise self.error

    def has_gpus(self, gpus):
        self.patch.setattr(cpu_host, "is_cpu_host", lambda: not gpus)

    def runs(self, *addresses, joined=None):
        """Let Rays run on this host; ``joined`` is that of ``ray start``."""
        self.patch.setattr(connection, "rays_of_this_host", lambda: frozenset(addresses))
        self.patch.setattr(connection, "ray_of_this_host", lambda: joined)

    def connect(self, dtype="fp32", **environment):
        """Connect with these variables of the environment; return the arguments of ``ray.init``."""
        for name, value in environment.items():
            self.patch.setenv(name, value)
        connection.connect(needs(dtype))
        return self.asked

    def refusal(self, address, error=None):
        """Return the line with which the Ray at an address is refused."""
        self.error = error
        message = refusal_of(self.connect, RAY_ADDRESS=address)
        assert f"RAY_ADDRESS={address}" in message
        return message


@pytest.fixture
def host(monkeypatch):
    return Host(monkeypatch)


# A Ray of its own.


def test_a_cpu_host_gets_logical_gpus_and_the_stand_ins(host):
    asked = host.connect()
    assert (asked["address"], asked["num_gpus"]) == ("local", 4)
    assert asked["num_cpus"] == 4 + connection.CONTROLLER_CPUS
    assert asked["runtime_env"]["worker_process_setup_hook"] == "openrlhf_cov.cluster.workers.prepare_worker"
    assert connection.FORWARDED.items() <= asked["runtime_env"]["env_vars"].items()
    assert asked["runtime_env"]["env_vars"]["DS_ACCELERATOR"] == "cpu"


def test_workers_trust_the_code_of_models_only_if_the_driver_does(host):
    assert cpu_host.TRUST_VARIABLE not in host.connect()["runtime_env"]["env_vars"]
    trust_remote_code(True)
    assert host.connect()["runtime_env"]["env_vars"][cpu_host.TRUST_VARIABLE] == "1"


def test_a_ray_that_cannot_be_started_is_one_line(host):
    host.error = RuntimeError("no space\nleft")
    with pytest.raises(UsageError, match=r"^no Ray can be started on this host \(no space\)$"):
        host.connect()


def test_a_ray_that_starts_too_slowly_is_started_again_and_what_it_left_is_ended(host, monkeypatch):
    left = []
    shutdowns = []

    def init(**settings):
        if len(left) < 2:
            left.append(subprocess.Popen(["sleep", "600"]))
            raise Exception("The current node timed out during startup.")
        host.asked = settings

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: shutdowns.append(1))
    try:
        assert host.connect()["address"] == "local"
        assert (len(left), len(shutdowns)) == (2, 2)
        assert all(process.poll() is not None for process in left)
    finally:
        for process in left:
            process.kill()
            process.wait()


def test_a_ray_of_our_own_is_private(host):
    asked = host.connect(**LOOPBACK_ONLY)
    folder = Path(asked["_temp_dir"]).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.getuid()
    assert asked["_node_ip_address"] == "127.0.0.1"


# The Ray that RAY_ADDRESS names, or that runs on this host: joined as it is, or refused in one line.


@pytest.fixture
def listening():
    """Function (answer) -> host:port of a socket that sends ``answer`` to whoever says something."""
    sockets = []

    def serve(server, answer):
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)

    def start(answer):
        server = socket.create_server(("127.0.0.1", 0))
        sockets.append(server)
        threading.Thread(target=serve, args=(server, answer), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in sockets:
        server.close()


# What the gRPC server of a Ray head sends first.
HTTP2_SETTINGS = b"\x00\x00\x18\x04\x00\x00\x00\x00\x00" + b"\x00" * 24


def test_a_running_ray_is_joined_as_it_is(host, listening):
    address = listening(HTTP2_SETTINGS)
    job = '{"runtime_env": {"env_vars": {"NCCL_DEBUG": "INFO"}}}'
    asked = host.connect(RAY_ADDRESS=address, RAY_JOB_CONFIG_JSON_ENV_VAR=job)
    assert asked.keys() == {"address", "runtime_env"}
    assert asked["address"] == address
    assert "NCCL_DEBUG" not in asked["runtime_env"]["env_vars"]


@pytest.mark.parametrize(
    ("address", "part"),
    [
        *((f"{scheme}://127.0.0.1:8265", "`ray job submit --address` takes") for scheme in ("http", "https")),
        *(
            (address, "is not host:port")
            for address in ("127.0.0.1", "head:", ":6379", "head:port", "127.0.0.1:99999")
        ),
    ],
)
def test_what_is_no_address_of_a_ray_is_refused(host, address, part):
    assert part in host.refusal(address)


def test_the_dashboard_without_its_scheme_is_refused(host, listening):
    # Ray itself would wait three minutes and then end the process
    assert "is the address of a web server" in host.refusal(listening(b"HTTP/1.0 200 OK\r\n\r\n"))


def test_a_port_without_a_ray_is_refused(host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    message = host.refusal(f"127.0.0.1:{port}")
    assert message.startswith(f"no Ray answers at RAY_ADDRESS=127.0.0.1:{port} (Connection refused)")


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("auto", ConnectionError("Could not find any running Ray instance.\nPlease specify the one")),
        ("xyz://head:1", RuntimeError("Module: xyz does not exist.\nThis module was parsed from Address")),
        ("xyz://head:1", AssertionError()),
        ("auto", Exception("The current node timed out during startup. This could happen")),  # on busy hosts
    ],
)
def test_what_ray_refuses_is_one_line(host, address, error):
    reason = str(error).partition("\n")[0] or type(error).__name__
    message = host.refusal(address, error)
    assert message.startswith(f"RAY_ADDRESS={address} cannot be joined; ")
    assert message.endswith(f"({reason})")


HERE = "10.0.0.1:6379"


@pytest.mark.parametrize("gpus", [False, True])
def test_the_ray_of_this_host_is_joined(host, gpus):
    host.has_gpus(gpus)
    host.runs(HERE, "10.0.0.1:7000", joined=HERE)
    asked = host.connect("bf16" if gpus else "fp32")
    assert asked["address"] == HERE
    assert not {"num_gpus", "num_cpus"} & asked.keys()


@pytest.mark.parametrize("addresses", [[], ["10.0.0.1:7000"]])
def test_a_ray_that_is_started_beside_another_says_so(host, log, addresses):
    host.has_gpus(True)
    host.runs(*addresses)
    host.connect("bf16")
    assert ["10.0.0.1:7000" in line for line in log.messages] == [True] * len(addresses)


# Room for the run, which needs 4 GPUs and 5 CPUs.


class Ready:
    """A placement group that waits for its place."""

    def ready(self):
        """Return what ``ray.get`` waits for."""


@pytest.fixture
def reserve(monkeypatch):
    """Function (total, gives, whether an autoscaler adds nodes, arguments of ``check_capacity``) -> refusal, and what
    is asked of such a cluster, which gives a group its place or never does."""

    def run(total, gives=True, scales=False, **settings):
        asked = []

        def place(bundles, strategy):
            asked.append(bundles)
            return Ready()

        def get(ready, timeout):
            asked.append(timeout)
            if not gives:
                raise GetTimeoutError

        played = {
            "autoscales": lambda: scales,
            "placement_group": place,
            "remove_placement_group": lambda group: asked.append("removed"),
        }
        of_ray = {"cluster_resources": lambda: total, "available_resources": lambda: {"CPU": 1.0}, "get": get}
        for module, functions in ((connection, played), (connection.ray, of_ray)):
            for name, function in functions.items():
                monkeypatch.setattr(module, name, function)
        try:
            connection.check_capacity(needs(), **settings)
        except UsageError as error:
            return str(error), asked
        return None, asked

    return run


ROOM = [{"GPU": 1.0, "CPU": 1.0}] * 4 + [{"CPU": 1.0}]
NEEDS = "the run needs 4 GPUs and 5 CPUs; Ray has {} GPUs (0 free) and {} CPUs (1 free); lower --actor.num_gpus"


def test_room_is_reserved_and_given_back(reserve):
    assert reserve({"GPU": 4.0, "CPU": 5.0}) == (None, [ROOM, 20.0, "removed"])


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


class Context:
    """What Ray says of this process."""

    gcs_address = "head:6379"


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
    nodes = [NodeInfo("instance", name, "id", "10.0.0.1") for name in types]
    status = ClusterStatus(active_nodes=nodes[:1], idle_nodes=nodes[1:], stats=Stats(gcs_request_time_s=0.0))
    report = json.dumps({"autoscaler_report": {"active_nodes": dict.fromkeys(types, 1)}}).encode() if types else None
    monkeypatch.setattr(utils, "is_autoscaler_v2", lambda fetch_from_server: version == 2)
    monkeypatch.setattr(sdk, "get_cluster_status", lambda address: status)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", lambda key: report)
    monkeypatch.setattr(connection.ray, "nodes", lambda: [{"NodeID": "aa"}, {"NodeID": "bb"}])
    monkeypatch.setattr(connection.ray, "get_runtime_context", Context)
    assert connection.autoscales() is expected
