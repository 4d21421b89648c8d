"""Real Rays on this host, joined as ``ray start`` runs them.

One that adds nodes (Ray has a stand-in for a cloud) is waited for, one that does not is not.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ending import ended
from ray import autoscaler
from ray.util import get_node_ip_address

from openrlhf_cov.cluster.local_ray import PORT_FLAGS, environment, free_ports, stop

pytestmark = [pytest.mark.e2e, pytest.mark.long]

HEAD_ID = "f" * 51 + "00000"
# In the language of ``ray start --autoscaling-config``.
CLOUD = {
    "cluster_name": "fake_multinode",
    "max_workers": 2,
    "provider": {
        "type": "fake_multinode",
        "launch_multiple": True,
        "head_node_id": HEAD_ID,
        "use_node_id_as_ip": True,  # all nodes have the address of this host
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
    "head_node_type": "ray.head.default",
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 5,
    "auth": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    **{f"{kind}_commands": [] for kind in ("initialization", "setup", "head_setup", "worker_setup")},
    **{f"{kind}_start_ray_commands": [] for kind in ("head", "worker")},
}

RUN = """
import sys, time
from openrlhf_cov.errors import UsageError
from openrlhf_cov.cluster import connection

needs = connection.Needs([{"GPU": 1.0, "CPU": 1.0}] * 2, way_out="less")
assert not connection.connect(needs)
for _ in range(60):  # the monitor reports every few seconds
    if connection.autoscales():
        break
    time.sleep(0.5)
print(connection.autoscales(), flush=True)
try:
    connection.check_capacity(needs, timeout=1200)
    print("room", connection.ray.cluster_resources()["GPU"])
except UsageError as error:
    print(error)
"""


@pytest.fixture
def head():
    """Function (cloud or None, variables) -> environment of a process on the host of such a Ray."""
    folder = Path(tempfile.mkdtemp(prefix="cov-", dir="/tmp"))
    running = []

    def start(cloud, **variables):
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
        command += ["--num-cpus", "2", "--num-gpus", "0", "--object-store-memory", str(2**28)]
        ports = dict(zip(PORT_FLAGS, map(str, free_ports(len(PORT_FLAGS))), strict=True))
        command += [word for flag in ports.items() for word in flag]
        env = environment() | {"RAY_TMPDIR": str(folder), "AUTOSCALER_UPDATE_INTERVAL_S": "1"} | variables
        if cloud:
            gcs = {"gcs_address": f"{get_node_ip_address()}:{ports['--port']}"}  # its nodes would look for port 6379
            (folder / "cloud.yaml").write_text(json.dumps(cloud | {"provider": cloud["provider"] | gcs}))
            command += ["--autoscaling-config", str(folder / "cloud.yaml")]
            env |= {"RAY_FAKE_CLUSTER": "1", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID}
        with (folder / "head.log").open("w") as log:
            running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))
        return environment() | {"RAY_TMPDIR": str(folder)}

    yield start
    for process in running:
        stop(process)
    shutil.rmtree(folder, ignore_errors=True)


# Ray's second autoscaler reads the example of the stand-in for a cloud, which some wheels of Ray lack.
EXAMPLE = Path(autoscaler.__path__[0], "_private", "fake_multi_node", "example.yaml")
NEEDS_EXAMPLE = pytest.mark.skipif(not EXAMPLE.is_file(), reason=f"this Ray has no {EXAMPLE.name} of its stand-in")
V2 = {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID}


@pytest.mark.parametrize(
    ("cloud", "variables", "expected"),
    [
        (None, {}, ["False", "the run needs 2 GPUs"]),
        (CLOUD, {}, ["True", "room 2.0"]),
        (None, V2, ["False", "the run needs 2 GPUs"]),
        pytest.param(CLOUD, V2, ["True", "room 2.0"], marks=NEEDS_EXAMPLE),
    ],
    ids=["fixed", "autoscaler", "fixed, v2", "autoscaler, v2"],
)
def test_a_cluster_that_grows_is_waited_for(head, cloud, variables, expected):
    env = head(cloud, **variables)
    file = Path(env["RAY_TMPDIR"], "ray", "ray_current_cluster")
    while not (file.exists() and file.read_text()):
        time.sleep(0.2)
    done = ended([sys.executable, "-c", RUN], "a run that waits for its cluster", env=env)
    # Beside what Ray and the log say.
    scales, outcome = (
        line for line in done.stdout.splitlines() if line.startswith(("True", "False", "room", "the run"))
    )
    assert (scales, outcome[: len(expected[1])]) == tuple(expected)
    assert "joining the Ray of this host" in done.stderr + done.stdout
