import socket
import threading
from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError

from openrlhf_cov.errors import UsageError
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
    """Takes the place of the ``ray`` module in ``connect``; notes what ``init`` was asked for, raises ``error``."""

    def __init__(self, error=None):
        self.asked = {}
        self.error = error

    def init(self, **kwargs):
        self.asked = kwargs
        if self.error:
            raise self.error


@pytest.fixture
def connect(monkeypatch):
    """Function (is_cpu_host, changes, error of ``ray.init``) -> arguments of ``ray.init``."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "OMP_NUM_THREADS", *cluster.FORWARDED):
        monkeypatch.delenv(name, raising=False)

    def run(on_cpu, changes, error=None):
        recording = RecordingRay(error)
        monkeypatch.setattr(cluster, "ray", recording)
        monkeypatch.setattr(cluster.cpu_host, "is_cpu_host", lambda: on_cpu)
        cluster.connect(
            cluster.needs_of_training(run_args({"ds.param_dtype": "fp32" if on_cpu else "bf16"} | changes))
        )
        return recording.asked

    return run


def test_a_cpu_host_gets_logical_gpus_and_the_stand_ins(connect):
    asked = connect(True, {})
    assert (asked["address"], asked["num_gpus"]) == ("local", 4)
    assert asked["num_cpus"] == 4 + cluster.CONTROLLER_CPUS
    assert asked["runtime_env"]["worker_process_setup_hook"] == "openrlhf_cov.trainer.ray.adapters.prepare_worker"
    assert cluster.FORWARDED.items() <= asked["runtime_env"]["env_vars"].items()
    assert asked["runtime_env"]["env_vars"]["DS_ACCELERATOR"] == "cpu"


def test_a_gpu_host_keeps_its_own_resources(connect):
    asked = connect(False, {})
    assert not {"num_gpus", "num_cpus"} & asked.keys()
    assert asked["runtime_env"] == {"env_vars": cluster.FORWARDED}


def test_fp32_needs_the_hook_on_any_host(connect):
    assert "worker_process_setup_hook" in connect(False, {"ds.param_dtype": "fp32"})["runtime_env"]


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


HTTP2_SETTINGS = b"\x00\x00\x18\x04\x00\x00\x00\x00\x00" + b"\x00" * 24
"""What the gRPC server of a Ray head sends first."""


def test_a_running_ray_is_joined_as_it_is(connect, monkeypatch, listening):
    address = listening(HTTP2_SETTINGS)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {"NCCL_DEBUG": "INFO"}}}')
    asked = connect(True, {})
    assert asked.keys() == {"address", "runtime_env"}
    assert asked["address"] == address
    assert "NCCL_DEBUG" not in asked["runtime_env"]["env_vars"]


def test_a_port_that_keeps_silent_is_left_to_ray(connect, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        assert connect(True, {})["address"] == f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["local", ""])
def test_a_ray_of_its_own_can_be_asked_for(connect, monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    asked = connect(True, {})
    assert (asked["address"], asked["num_gpus"]) == ("local", 4)


def refusal(connect, monkeypatch, address, error=None):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError) as refused:
        connect(True, {}, error)
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    assert f"RAY_ADDRESS={address}" in message
    return message


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_address_of_the_dashboard_is_refused(connect, monkeypatch, scheme):
    message = refusal(connect, monkeypatch, f"{scheme}://127.0.0.1:8265")
    assert "`ray job submit --address` takes" in message
    assert "host:port" in message


def test_the_dashboard_without_its_scheme_is_refused(connect, monkeypatch, listening):
    # Ray itself would wait three minutes and then end the process
    message = refusal(connect, monkeypatch, listening(b"HTTP/1.0 200 OK\r\n\r\n"))
    assert "is the address of a web server" in message


@pytest.mark.parametrize("address", ["127.0.0.1", "head", "head:", ":6379", "head:port", "127.0.0.1:99999"])
def test_what_is_no_host_and_port_is_refused(connect, monkeypatch, address):
    assert "is not host:port" in refusal(connect, monkeypatch, address)


def test_a_port_without_a_ray_is_refused(connect, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    message = refusal(connect, monkeypatch, f"127.0.0.1:{port}")
    assert message.startswith(f"no Ray answers at RAY_ADDRESS=127.0.0.1:{port} (Connection refused)")


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("auto", ConnectionError("Could not find any running Ray instance.\nPlease specify the one")),
        ("ray://127.0.0.1:10001", ConnectionError("ray client connection timeout")),
        ("xyz://head:1", RuntimeError("Module: xyz does not exist.\nThis module was parsed from Address")),
        ("xyz://head:1", AssertionError()),
        ("auto", ValueError("bad address")),
        (
            "auto",
            Exception("The current node timed out during startup. This could happen"),
        ),  # a bare one, on busy hosts
    ],
)
def test_what_ray_refuses_is_one_line(connect, monkeypatch, address, error):
    reason = str(error).partition("\n")[0] or type(error).__name__
    message = refusal(connect, monkeypatch, address, error)
    assert message.startswith(f"RAY_ADDRESS={address} cannot be joined; ")
    assert message.endswith(f"({reason})")


def test_a_ray_that_cannot_be_started_is_one_line(connect):
    with pytest.raises(UsageError, match=r"^no Ray can be started on this host \(no space\)$"):
        connect(True, {}, RuntimeError("no space\nleft"))


class Cluster:
    """Takes the place of ``ray`` in ``check_capacity``: a cluster that gives a group its place, or never does."""

    def __init__(self, total, gives=True):
        self.total = total
        self.gives = gives
        self.groups = []

    def cluster_resources(self):
        return self.total

    def available_resources(self):
        return {"CPU": 1.0}

    def placement_group(self, bundles, strategy):
        self.groups.append(bundles)
        return SimpleNamespace(ready=lambda: None)

    def remove_placement_group(self, group):
        self.groups.append("removed")

    def get(self, ready, timeout):
        assert timeout == cluster.PLACEMENT_TIMEOUT
        if not self.gives:
            raise GetTimeoutError


@pytest.fixture
def reserve(monkeypatch):
    """Function (total, gives) -> what ``check_capacity`` asks of such a cluster; the run needs 4 GPUs and 5 CPUs."""

    def run(total, gives=True):
        fake = Cluster(total, gives)
        monkeypatch.setattr(cluster, "ray", fake)
        for name in ("placement_group", "remove_placement_group"):
            monkeypatch.setattr(cluster, name, getattr(fake, name))
        try:
            cluster.check_capacity(cluster.needs_of_training(run_args({"ds.param_dtype": "bf16"})))
        except UsageError as error:
            return str(error), fake.groups
        return None, fake.groups

    return run


NEEDS = "the run needs 4 GPUs and 5 CPUs; Ray has {} GPUs (0 free) and {} CPUs (1 free); lower --actor.num_gpus"


def test_room_is_reserved_and_given_back(reserve):
    message, asked = reserve({"GPU": 4.0, "CPU": 5.0})
    assert message is None
    assert asked == [[{"GPU": 1.0, "CPU": 1.0}] * 4 + [{"CPU": 1.0}], "removed"]


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
