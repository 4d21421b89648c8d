import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """One torch thread: small matrices gain nothing from two, and on a busy machine two wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
