"""Which columns hold VARIANT, by PySpark's types."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType


def is_variant(kind: pa.DataType) -> bool:
    """Whether it is the type that PySpark has for VARIANT: files have others, by what each one shreds."""
    at = kind.get_field_index("metadata") if isinstance(kind, pa.StructType) else -1
    return at >= 0 and (kind.field(at).metadata or {}).get(b"variant") == b"true"


def has_variant(kind: DataType) -> bool:
    """Whether it is VARIANT, or one is in it."""
    if isinstance(kind, StructType):
        return any(has_variant(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return has_variant(kind.elementType)
    if isinstance(kind, MapType):
        return has_variant(kind.valueType) or has_variant(kind.keyType)
    return isinstance(kind, VariantType)
