from pathlib import Path

import pytest

from openrlhf_cov.rewards.pool import SECOND_OPINION_TARGET, WorkerPool, shared_pool


@pytest.fixture
def no_shared_pool() -> None:
    """The pools that other tests share are closed, so that the processes of this one are all there are."""
    shared_pool().close()
    shared_pool(target=SECOND_OPINION_TARGET).close()


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
