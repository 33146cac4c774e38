"""Keys and names that come from elsewhere, and batches that go there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncpq.decoding.compact import compact_batch, without_metadata
from asyncpq.scan.keys import key_value

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_names", "compact_batch", "key_value", "without_metadata"]


def check_names(schema: pa.Schema, names: Sequence[str]) -> None:
    """Check names of columns, or dotted paths of fields of structs, as a read of a dataset with ``schema`` would.

    Raises:
        ColumnNotFoundError: no column has the name; the hint has the nearest one.
        AmbiguousColumnError: a name occurs twice.
    """
    from asyncpq.datasets.schemas import output_schema  # the command line needs it for nothing else

    output_schema(schema, [], names, ())
