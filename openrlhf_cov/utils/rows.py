"""Values of rows of data, whose keys may be nested (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

# The default of ``value_at`` that means: raise an error.
REQUIRED = object()


def value_at(row: Mapping[str, Any], key: str, default: Any = REQUIRED) -> Any:
    """Return the value that a row has for a key.

    A key of the row itself comes first. Otherwise dots lead into nested mappings: ``reward_model.ground_truth`` is
    ``row["reward_model"]["ground_truth"]``. What a null holds is null.

    Args:
        row: A row of a data set.
        key: A key, or several keys with dots between them.
        default: Returned where the row has no such key.

    Raises:
        KeyError: The row has no such key, and no default is given.
    """
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            if default is REQUIRED:
                raise KeyError(key)
            return default
        value = value[part]
    return value


def column_of(columns: Sequence[str], key: str) -> str | None:
    """Return the column of a table that holds the values of a key; None where no column can.

    Args:
        columns: Names of the columns.
        key: A key, or several keys with dots between them, as in ``value_at``.
    """
    if key in columns:
        return key
    return next((column for column in columns if key.startswith(f"{column}.")), None)
