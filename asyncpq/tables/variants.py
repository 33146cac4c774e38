"""The columns of type VARIANT of tables: structs of the bytes of Parquet's variant encoding."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from asyncpq.datasets.model import TableField

VARIANT_PARTS: Final = tuple(TableField(name=name, type=pa.binary(), nullable=False) for name in ("metadata", "value"))
VARIANT_TYPE: Final = pa.struct([pa.field(part.name, part.type, part.nullable) for part in VARIANT_PARTS])
