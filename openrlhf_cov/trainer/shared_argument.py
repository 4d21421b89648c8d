"""An argument of many Ray calls, pickled once by its sender and unpickled once by every process that gets it."""

import pickle
import uuid
from typing import Any

import ray
from ray import cloudpickle

_received: dict[str, Any] = {}


def share(value: Any) -> ray.ObjectRef:
    """Return a Ray reference to a value that many calls take as an argument.

    The reference has to be the argument itself, not a part of one: the method that is called then gets the value. All
    calls that reach one process share the value there, so nobody may change it. A process keeps the last one.
    """
    return ray.put(_Shared(value))


class _Shared:
    """Pickled, it is the pickled value, which Ray does not copy; unpickled, it is the value."""

    def __init__(self, value: Any) -> None:
        self.key = uuid.uuid4().hex
        self.pickled = cloudpickle.dumps(value)  # pyright: ignore[reportPrivateImportUsage]

    def __reduce__(self) -> tuple:
        return _value, (self.key, pickle.PickleBuffer(self.pickled))


def _value(key: str, pickled: bytes) -> Any:
    if key not in _received:
        _received.clear()  # of a run before, whose engine this was
        _received[key] = pickle.loads(pickled)
    return _received[key]
