"""Datasets of the Hugging Face hub."""

from dataclasses import dataclass
from typing import Any

from openrlhf_cov.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A split of a dataset on the Hugging Face hub, and its fields."""

    path: str
    split: str = "test"
    config: str | None = None
    problem: str = "problem"
    answer: str = "answer"
    # Field with the id of a row; None: rows are numbered.
    id: str | None = None
    # Row count where it is not that of our file.
    rows: int | None = None


def download(hub: HubDataset, place: str, instead: str) -> Any:
    """Return a split of a dataset on the Hugging Face hub, a ``datasets.Dataset``.

    Args:
        hub: Path, configuration and split of the dataset.
        place: Name of the dataset in a message.
        instead: The file that the user can give in ``--data_dir`` instead, for the message.

    Raises:
        UsageError: The dataset cannot be loaded.
    """
    import datasets  # seconds, and only needed here

    try:
        return datasets.load_dataset(hub.path, hub.config, split=hub.split)
    except Exception as error:  # the library raises its own, its backends' and the network's errors
        raise UsageError(
            f"{place}: cannot be loaded from the Hugging Face hub: {type(error).__name__}: "
            f"{' '.join(str(error).split())}; without the hub, give --data_dir with {instead}"
        ) from error
