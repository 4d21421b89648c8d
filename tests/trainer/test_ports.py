"""A reserved port is given to nobody else, and a store of torch can listen on it."""

import socket
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch

from openrlhf_cov.trainer.ports import reserve_port


def test_nobody_who_asks_for_any_port_gets_a_reserved_one():
    with ExitStack() as stack:
        reserved = stack.enter_context(reserve_port())
        others = [stack.enter_context(reserve_port()) for _ in range(200)]
        assert len({each.getsockname()[1] for each in (reserved, *others)}) == 201


def test_a_store_listens_on_a_reserved_port():
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
        store = torch.distributed.TCPStore("127.0.0.1", port, 1, is_master=True, timeout=timedelta(seconds=30))
        store.set("key", "value")
        assert store.get("key") == b"value"
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The store listens, so a second server finds the port taken.
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
