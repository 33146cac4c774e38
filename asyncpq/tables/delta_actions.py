"""Actions of a Delta table's log, and the state that they add up to.

PROTOCOL.md, "Actions" and "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from asyncpq.tables.delta_deletes import DeletionVector


@dataclass(frozen=True, slots=True)
class Add:
    """An ``add`` action: a file of the table.

    Attributes:
        stats: JSON text, or the struct that a checkpoint may have instead.
    """

    path: str
    partition_values: Mapping[str, str | None]
    size: int | None
    stats: str | pa.StructScalar | None
    vector: DeletionVector | None


@dataclass(slots=True)
class TableState:
    """What the actions of a log add up to.

    Attributes:
        files: the ``add`` actions that hold, by path, in the order in which the log first names them.
    """

    protocol: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    files: dict[str, Add] = field(default_factory=dict)

    def apply(self, action: Mapping[str, Any]) -> None:
        """Take over an action, or several that stand in one object; those that do not matter to readers change nothing.

        Raises:
            TypeError, ValueError, KeyError: it is malformed.
        """
        if (add := action.get("add")) is not None:
            found = _decode_add(add)
            self.files[found.path] = found  # the newest of a path counts
        elif (remove := action.get("remove")) is not None:
            held = self.files.get(_text(remove["path"]))
            vector = DeletionVector.from_action(remove.get("deletionVector"))
            if held is not None and _unique_id(held.vector) == _unique_id(vector):
                del self.files[held.path]
        if (metadata := action.get("metaData")) is not None:
            self.metadata = dict(metadata)
        if (protocol := action.get("protocol")) is not None:
            self.protocol = dict(protocol)


def _unique_id(vector: DeletionVector | None) -> str | None:
    return None if vector is None else vector.unique_id


def _decode_add(add: Mapping[str, Any]) -> Add:
    values, size, stats = add["partitionValues"], add.get("size"), add.get("stats")
    if isinstance(values, list):  # pyarrow's form of a map
        values = dict(values)
    if values is not None and not isinstance(values, dict):
        raise TypeError(f"partitionValues {values!r}")
    values = {name: _partition_text(value) for name, value in (values or {}).items()}
    if type(size) is not int or size < 0:
        size = None  # it says nothing of the rows, nor does a statistic that is not understood
    if not isinstance(stats, (str, pa.StructScalar)):
        stats = None
    return Add(_text(add["path"]), values, size, stats, DeletionVector.from_action(add.get("deletionVector")))


def _partition_text(value: Any) -> str | None:
    """The text of a partition value, which some writers give as a JSON number or boolean."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    raise TypeError(f"partition value {value!r}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"path {value!r}")
    return value
