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
# Where those that had a run before say what they have to say, and the bytes that are of others: Ray shows it to the
# run that started them alone.
_outputs: dict[str, int] = {}


def are_kept(args: SimpleNamespace) -> bool:
    """True where that is asked for and a run of these flags samples alike with a new engine and with a used one.

    The engine's own seed and its NCCL group are of one run: samples are to have seeds of their own, and weights to
    come over gloo. Engines that sleep, those of asynchronous training and of agents are begun anew.
    """
    if os.environ.get(KEEP_ENGINES) != "1":
        return False
    apart = args.vllm.enable_sleep or args.train.async_enable or args.train.colocate_all or args.train.agent_func_path
    return bool(args.rollout_seeded and args.vllm.sync_backend == "gloo" and not apart)


def engine(actor_class: Any, arguments: dict[str, Any]) -> Any:
    """Return the handle of an engine of these arguments: one that waits, or a new one, which waits after the run."""
    its_own = {name: value for name, value in arguments.items() if name != "seed"}
    of_job = ray.get_runtime_context().runtime_env
    pickled = cloudpickle.dumps((sorted(its_own.items()), sorted(of_job.items())))  # pyright: ignore[reportPrivateImportUsage]
    kind = hashlib.sha256(pickled).hexdigest()
    name = f"{kind}-{len(_lent)}"
    if not _lent:
        _end_all_but(kind)
    found = _waiting(name)
    if found is None:
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        # the slots stay with upstream's placement group, which ends with the run
        found = actor_class.options(num_cpus=0, num_gpus=0, **options).remote(**arguments)
    _lent.append(found)
    return found


def give_back() -> None:
    """Leave the engines of a run that has ended well to the next; one that has died by now is left to nobody."""
    for each in _lent:
        with suppress(RayError):
            ray.get(each.wait_for_a_run.remote())
    _lent.clear()


def show_outputs() -> None:
    """Write what engines that had a run before have said in this one to stderr."""
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


def _end_all_but(kind: str) -> None:
    actors: list[Any] = ray.util.list_named_actors(all_namespaces=True)  # dictionaries, with all namespaces
    for each in actors:
        if each["namespace"] == NAMESPACE and not each["name"].startswith(kind):
            ray.kill(ray.get_actor(each["name"], NAMESPACE))
