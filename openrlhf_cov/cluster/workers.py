"""Set up every worker process of a run before its first task, and find the class under Ray's decorator."""

import os
from typing import Any

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.utils import garbage_collection
from openrlhf_cov.utils.search_path import search_path
from openrlhf_cov.utils.terminal import clean_logs


def prepare_worker() -> None:
    """Prepare a worker process; Ray calls this first in every worker (``worker_process_setup_hook``)."""
    # Importing makes millions of objects that stay. The actors of a run resume the collection when they are made.
    garbage_collection.pause()
    clean_logs()
    os.environ["PATH"] = search_path()
    trust_remote_code(os.environ.get(cpu_host.TRUST_VARIABLE) == "1")
    cpu_host.install()
    cpu_host.compute_faster()


def trust_remote_code(trusted: bool) -> None:
    """Set for this process and the workers that it starts whether the code of a model may run."""
    if trusted:
        os.environ[cpu_host.TRUST_VARIABLE] = "1"
        return
    os.environ.pop(cpu_host.TRUST_VARIABLE, None)
    cpu_host.distrust_model_code()


def plain_class(actor_class: Any) -> type:
    """Return the class under ``@ray.remote``, because Ray refuses to subclass the decorated one.

    A subclass has to be an attribute of an importable module. Pickle then sends its name, and the worker finds the
    class under the decorator in the same way as this process. Pickle would send a copy of the plain class itself.
    """
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
