"""Choose the Ray of a run and check that it has room; a run that cannot be placed stops instead of waiting."""

import json
import os
import socket
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import psutil
import ray
from openrlhf.utils.logging_utils import init_logger
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.exceptions import GetTimeoutError
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.ray_here import (
    LOOPBACK_ONLY,
    private_folder,
    ray_of_this_host,
    rays_of_this_host,
    temporary_folder,
)
from openrlhf_cov.cluster.sizing.flag_sizes import CONTROLLER_CPUS, layout_of
from openrlhf_cov.cluster.workers import prepare_worker
from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.utils.cores import cores, most_processes

logger = init_logger(__name__)

# Seconds to wait for room, e.g. for the actors of a run that has just ended. --ray.placement_timeout overrides this
# and the next one.
FREE_TIMEOUT = 20.0

# The same where an autoscaler may add nodes first; Ray itself gives a node 15 minutes to start.
SCALE_TIMEOUT = 1800.0

# Seconds in which a web server answers; the head of a Ray answers within milliseconds.
ANSWER_TIMEOUT = 2.0

# Seconds in which killed processes end.
END_TIMEOUT = 20.0

# A Ray that is started for a run gives its raylet 30 s; on a busy host a second attempt often succeeds.
START_ATTEMPTS = 3

DASHBOARD = (
    "the address of a web server, such as the dashboard that `ray job submit --address` takes; RAY_ADDRESS is the "
    "host:port of Ray itself (`ray start --head` prints it, port 6379 by default), or unset"
)

# Environment variables that upstream hands to every worker, with upstream's defaults.
FORWARDED = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}

# Environment variables that a worker gets if this process has them.
FORWARDED_IF_SET = ("VLLM_LOGGING_LEVEL", cpu_host.TRUST_VARIABLE)


@dataclass(frozen=True)
class Needs:
    """The resources that a run requests from Ray."""

    # One bundle per GPU.
    bundles: list[dict[str, float]]
    # The flags that lower the need, for messages.
    way_out: str


def needs_of_training(args: SimpleNamespace) -> Needs:
    """Return the needs of a training with these flags."""
    layout = layout_of(args)
    slots = sum(group.slots for group in layout.groups())
    return Needs([{"GPU": 1.0, "CPU": 1.0}] * slots, way_out=layout.way_out)


def connect(needs: Needs) -> bool:
    """Join a Ray, or start one for this process alone; return True if it was started.

    RAY_ADDRESS says which (``ray job submit`` sets it; ``local`` starts a Ray of its own). Without the variable the
    Ray that ``ray start`` runs here is joined, as by ``ray.init()``: two Rays that know nothing of each other hand out
    the same GPUs.

    Args:
        needs: The resources that the run requests. They size a Ray that is started on a CPU host.

    Raises:
        UsageError: The Ray that RAY_ADDRESS names, or that of this host, cannot be joined, or no Ray can be started,
            for example because a CPU host has too few cores.
    """
    address = os.environ.get("RAY_ADDRESS")
    runtime_env = _runtime_env()
    if not address and (address := ray_of_this_host()):
        logger.warning(
            f"joining the Ray of this host at {address}; RAY_ADDRESS=local would start another one beside it"
        )
        way_out = "end it with `ray stop`, or start another one beside it with RAY_ADDRESS=local"
        _init(
            f"the Ray of this host at {address} cannot be joined; {way_out}", address=address, runtime_env=runtime_env
        )
        return False
    if address and address != "local":
        _check_address(address)
        way_out = "give host:port of a running Ray, or unset RAY_ADDRESS to start one"
        _init(f"RAY_ADDRESS={address} cannot be joined; {way_out}", address=address, runtime_env=runtime_env)
        return False
    if others := rays_of_this_host():
        logger.warning(
            f"starting a Ray beside {', '.join(sorted(others))}: they know nothing of each other and may hand out the "
            "same GPUs; RAY_ADDRESS=host:port joins one"
        )
    resources = {}
    if cpu_host.is_cpu_host():
        slots = len(needs.bundles)
        if slots > most_processes():
            raise UsageError(
                f"the run needs {slots} model processes, this host without an accelerator has {cores()} cores; "
                f"{needs.way_out}"
            )
        # GPUs that do not exist: logical slots, by which Ray places one model process each.
        resources = {"num_gpus": slots, "num_cpus": slots + CONTROLLER_CPUS}
    settings = {"include_dashboard": False, "runtime_env": runtime_env, **resources}
    # Ray makes its temporary folder writable for all users: it gets a subfolder of one that nobody else can enter.
    settings["_temp_dir"] = str(private_folder(temporary_folder()) / "ray")
    if all(os.environ.get(name) == value for name, value in LOOPBACK_ONLY.items()):
        settings["_node_ip_address"] = "127.0.0.1"
    _start(settings)
    return True


def _start(settings: dict[str, Any]) -> None:
    """Start a Ray for this process alone; try again where its processes did not start in time."""
    for attempt in range(1, START_ATTEMPTS + 1):
        children = set(psutil.Process().children())
        try:
            _init("no Ray can be started on this host", address="local", **settings)
            return
        except UsageError as error:
            if "timed out" not in str(error).lower() or attempt == START_ATTEMPTS:
                raise
            ray.shutdown()
            # Ray leaves the processes of a failed start running: GCS, raylet and agents.
            left = set(psutil.Process().children()) - children
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=END_TIMEOUT)
            logger.warning(f"{error}; trying again")


def _runtime_env() -> dict:
    """Return the runtime environment that Ray gives to every worker of the run."""
    env_vars = {name: os.environ.get(name, default) for name, default in FORWARDED.items()}
    env_vars |= {name: os.environ[name] for name in FORWARDED_IF_SET if name in os.environ}
    env_vars |= cpu_host.environment()
    # Ray refuses a variable that ``ray job submit --runtime-env-json`` set as well.
    job_config = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    job_env_vars = (job_config.get("runtime_env") or {}).get("env_vars") or {}
    runtime_env: dict = {"env_vars": {k: v for k, v in env_vars.items() if k not in job_env_vars}}
    return runtime_env | {"worker_process_setup_hook": f"{prepare_worker.__module__}.prepare_worker"}


def _init(refusal: str, **settings: Any) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about Ray's own plans
            ray.init(**settings)
    except Exception as error:  # Ray raises a bare one where a node starts too slowly
        raise UsageError(f"{refusal} ({reason_of(error)})") from error


def check_capacity(needs: Needs, timeout: float = 0.0, may_scale: bool = True) -> None:
    """Check that Ray can place the run: reserve its slots and give them back.

    Args:
        needs: The resources that the run requests.
        timeout: Seconds to wait until the slots are free; 0 for ``FREE_TIMEOUT``, or for ``SCALE_TIMEOUT`` where an
            autoscaler has to add nodes first.
        may_scale: False to treat the nodes of now as all that there will be, as a dry run does.

    Raises:
        UsageError: The slots do not come free in time, or the whole cluster has too few and no autoscaler adds nodes.
            The message has the shortfall.
    """
    # One more CPU for the controller, an actor of its own.
    bundles = [*needs.bundles, {"CPU": 1.0}]
    total = ray.cluster_resources()
    free = ray.available_resources()
    if may_scale and _exceed(bundles, free) and autoscales():
        timeout = timeout or SCALE_TIMEOUT
        logger.warning(
            f"waiting up to {timeout:g} s for the autoscaler: the run needs {_sum(bundles, 'GPU'):g} GPUs and "
            f"{_sum(bundles, 'CPU'):g} CPUs, {free.get('GPU', 0):g} and {free.get('CPU', 0):g} are free"
        )
    elif _exceed(bundles, total):
        raise _shortfall(bundles, needs.way_out)
    group = placement_group(bundles, strategy="PACK")
    try:
        ray.get(group.ready(), timeout=timeout or FREE_TIMEOUT)
    except GetTimeoutError as error:
        raise _shortfall(bundles, needs.way_out) from error
    finally:
        remove_placement_group(group)


def reserve(slots: int) -> PlacementGroup:
    """Reserve one GPU and one CPU for each of ``slots`` processes and return the group once Ray has them.

    The processes of one node are packed together. The reservation ends with the run.
    """
    group = placement_group([{"GPU": 1, "CPU": 1} for _ in range(slots)], strategy="PACK")
    ray.get(group.ready())
    return group


def autoscales() -> bool:
    """Return True if an autoscaler adds nodes to the Ray that was joined: KubeRay's, or that of a cluster launcher.

    A Ray without one has a monitor too, which knows no types of nodes: it calls each by the node's id.
    """
    from ray.autoscaler._private.util import format_readonly_node_type
    from ray.autoscaler.v2.sdk import get_cluster_status
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental.internal_kv import _internal_kv_get

    if is_autoscaler_v2(fetch_from_server=True):
        status = get_cluster_status(ray.get_runtime_context().gcs_address)
        types = {node.ray_node_type_name for node in (*status.active_nodes, *status.idle_nodes)}
    else:
        report = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS) or b"{}").get("autoscaler_report") or {}
        types = set(report.get("active_nodes", {}))
    return bool(types - {format_readonly_node_type(node["NodeID"]) for node in ray.nodes()})


def gpus_of_nodes() -> dict[str, int]:
    """Return address -> GPUs of every node of the Ray that was joined, used or not, without nodes that have none."""
    gpus: Counter[str] = Counter()  # one host can run several nodes of Ray
    for node in ray.nodes():
        if node["Alive"]:
            gpus[node["NodeManagerAddress"]] += int(node["Resources"].get("GPU", 0))
    return dict(+gpus)


def _shortfall(bundles: list[dict[str, float]], way_out: str) -> UsageError:
    total = ray.cluster_resources()
    free = ray.available_resources()
    return UsageError(
        f"the run needs {_sum(bundles, 'GPU'):g} GPUs and {_sum(bundles, 'CPU'):g} CPUs; Ray has "
        f"{total.get('GPU', 0):g} GPUs ({free.get('GPU', 0):g} free) and {total.get('CPU', 0):g} CPUs "
        f"({free.get('CPU', 0):g} free); {way_out}, or give Ray more"
    )


def _exceed(bundles: list[dict[str, float]], resources: Mapping[str, float]) -> bool:
    return any(_sum(bundles, kind) > resources.get(kind, 0.0) for kind in ("GPU", "CPU"))


def _sum(bundles: list[dict[str, float]], kind: str) -> float:
    return sum(bundle.get(kind, 0.0) for bundle in bundles)


def _check_address(address: str) -> None:
    """Raise UsageError for an address that is no head of a Ray.

    Ray itself waits for minutes for a head, and then ends the process.
    """
    if address.startswith(("http://", "https://")):
        raise UsageError(f"RAY_ADDRESS={address} is {DASHBOARD}")
    if address == "auto" or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) >= 2**16:
        raise UsageError(f"RAY_ADDRESS={address} is not host:port; give that of a running Ray, or unset it")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
            if _is_web_server(connection):
                raise UsageError(f"RAY_ADDRESS={address} is {DASHBOARD}")
    except OSError as error:
        raise UsageError(
            f"no Ray answers at RAY_ADDRESS={address} ({error.strerror or error}); start it or unset RAY_ADDRESS"
        ) from error


def _is_web_server(connection: socket.socket) -> bool:
    """Return True if the other side speaks HTTP/1, as Ray's dashboard does; the head of a Ray does not."""
    connection.settimeout(ANSWER_TIMEOUT)
    try:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
