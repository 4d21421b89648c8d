from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from openrlhf_cov.rewards.pool import SECOND_OPINION_TARGET, WorkerPool, shared_pool


@pytest.fixture
def no_shared_pool() -> None:
    """The pools that other tests share are closed, so that the processes of this one are all there are."""
    shared_pool().close()
    shared_pool(target=SECOND_OPINION_TARGET).close()


@pytest.fixture
def workers() -> Callable[[], list[psutil.Process]]:
    """Gives the processes that this test has started. What other tests left (a sandbox, Python's resource tracker) is
    not counted."""
    before = set(psutil.Process().children())
    return lambda: [child for child in psutil.Process().children() if child not in before]


@pytest.fixture(scope="module")
def pool_targets():
    """Makes the targets in this folder importable, here and so in workers; the folder."""
    folder = str(Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture
def pool(pool_targets):
    """One worker."""
    with WorkerPool("pool_targets:run", 1, memory_bytes=1 << 29) as pool:
        yield pool
