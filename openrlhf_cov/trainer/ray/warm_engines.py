"""Engines that outlive a run, for the next one of a study: starting one takes longer than a small training.

A run takes over an engine that was made with the same arguments on the same Ray. Nothing of the last run shows in the
next: weights are sent before the first rollout, cached prefixes are dropped with the old ones, samples have seeds of
their own, and the reward function is loaded anew (modules that it imports stay as they are). One that a run did not
give back, as it failed, is not taken.
"""

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from openrlhf_cov.cluster.ray_here import KEEP_ENGINES
from openrlhf_cov.utils.terminal import say

NAMESPACE = "openrlhf_cov_engines"
ANSWER_SECONDS = 60.0

# Engines of the run in this process.
_lent: list[Any] = []
# File with the output of an engine of an earlier run -> bytes that earlier runs wrote into it. Ray shows the output
# only to the run that started the engine.
_outputs: dict[str, int] = {}


def are_kept(args: SimpleNamespace) -> bool:
    """Return True if a run takes over engines, and leaves its own to the next run.

    The environment variable ``OPENRLHF_COV_KEEP_ENGINES`` must be 1, and a used engine must sample as a new one does.
    The seed and the NCCL group of an engine belong to one run, so samples need seeds of their own
    (``--rollout_seeded``), and weights must come over gloo. Engines that sleep, share GPUs with the models, or serve
    asynchronous training or agents are started anew.
    """
    if os.environ.get(KEEP_ENGINES) != "1":
        return False
    apart = args.vllm.enable_sleep or args.train.async_enable or args.train.colocate_all or args.train.agent_func_path
    return bool(args.rollout_seeded and args.vllm.sync_backend == "gloo" and not apart)


def engine(actor_class: Any, arguments: dict[str, Any]) -> Any:
    """Return the handle of an engine with these arguments: one that an earlier run has left, or a new one.

    Args:
        actor_class: The Ray actor class of engines.
        arguments: The arguments of the engine. A used engine has equal arguments, except for the seed.

    Returns:
        The handle. ``give_back`` leaves the engine to the next run.
    """
    its_own = {name: value for name, value in arguments.items() if name != "seed"}
    of_job = ray.get_runtime_context().runtime_env
    pickled = cloudpickle.dumps((sorted(its_own.items()), sorted(of_job.items())))  # pyright: ignore[reportPrivateImportUsage]
    kind = hashlib.sha256(pickled).hexdigest()
    name = f"{kind}-{len(_lent)}"
    if not _lent:
        # Engines of other arguments hold memory that this run needs.
        actors: list[Any] = ray.util.list_named_actors(all_namespaces=True)  # dictionaries, with all namespaces
        for each in actors:
            if each["namespace"] == NAMESPACE and not each["name"].startswith(kind):
                ray.kill(ray.get_actor(each["name"], NAMESPACE))
    found = _waiting(name)
    if found is None:
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        # the slots stay with upstream's placement group, which ends with the run
        found = actor_class.options(num_cpus=0, num_gpus=0, **options).remote(**arguments)
    _lent.append(found)
    return found


def give_back() -> None:
    """Leave the engines of a run that has ended well to the next run, except engines that have died."""
    for each in _lent:
        with suppress(RayError):
            ray.get(each.wait_for_a_run.remote())
    _lent.clear()


def show_outputs() -> None:
    """Write to stderr what engines of an earlier run have written during this one."""
    for path, begin in _outputs.items():
        with suppress(OSError), Path(path).open("rb") as file:
            file.seek(begin)
            say(file.read().decode(errors="replace"), sys.stderr)
    _outputs.clear()


def _waiting(name: str) -> Any:
    try:
        found = ray.get_actor(name, NAMESPACE)
    except ValueError:  # there is none
        return None
    try:
        outputs = ray.get(found.begin_a_run.remote(), timeout=ANSWER_SECONDS)
        if outputs is not None:
            _outputs.update(outputs)
            return found
    except RayError:  # it died, or is at work
        pass
    ray.kill(found)
    return None
