"""What runs first in a process that a worker of a run spawns, as vLLM does for the core of an engine.

Python's multiprocessing runs the main module of the parent there. That of a worker is Ray's, which imports Ray; on a
CPU host ``prepare_spawned_processes`` puts this module in its place.
"""

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.utils import garbage_collection

if __name__ == "__mp_main__":
    garbage_collection.pause()
    cpu_host.leave_out_the_compiler()
