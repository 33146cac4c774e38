"""Arrays with children, as arrays of other Arrow types: lists, maps and structs taken apart and put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType, VariantType

from asyncpq.decoding.selection import flattened, validity
from asyncpq.decoding.shredded_variant import restoring
from asyncpq.errors import AsyncpqError
from asyncpq.spark.types.leaf_conversion import Convert, mismatch
from asyncpq.spark.types.read_conf import ReadConf, find_name

#: What makes arrays of an Arrow type, of Spark's type, such of another Arrow type; None where they are.
Leaf = Callable[[pa.DataType, DataType, pa.DataType], Convert | None]

_types: Any = pa.types  # its functions lack annotations


def inside(error: AsyncpqError, name: str) -> AsyncpqError:
    """``error``, which concerns a column or a part of it; its column becomes the dotted path."""
    error.column = name if error.column is None else f"{name}.{error.column}"
    return error


class NestedConversion:
    """Conversions of columns with what is in them.

    Args:
        conf: how names are compared.
        leaf: for what has no children.
    """

    def __init__(self, conf: ReadConf, leaf: Leaf) -> None:
        self._conf = conf
        self._leaf = leaf

    def conversion(self, source: pa.DataType, target: DataType, arrow: pa.DataType) -> Convert | None:
        """What makes arrays of ``source`` such of ``arrow``, for ``target``; None where they are that."""
        if isinstance(target, UserDefinedType):
            return self.conversion(source, target.sqlType(), arrow)
        if isinstance(target, (StructType, ArrayType, MapType, VariantType)):
            if isinstance(source, pa.BaseExtensionType):
                inner = self.conversion(source.storage_type, target, arrow)
                return lambda array: array.storage if inner is None else inner(array.storage)
            if _types.is_null(source):
                return lambda array: pa.nulls(len(array), arrow)
            if isinstance(target, VariantType):
                return self._variant(source, target, arrow)
            if isinstance(target, StructType):
                return self._struct(source, target, arrow)
            return (
                self._list(source, target, arrow) if isinstance(target, ArrayType) else self._map(source, target, arrow)
            )
        return self._leaf(source, target, arrow)

    def _part(self, source: pa.DataType, target: DataType, arrow: pa.DataType, name: str) -> Convert | None:
        try:
            return self.conversion(source, target, arrow)
        except AsyncpqError as error:
            raise inside(error, name) from error.__cause__

    def _struct(self, source: pa.DataType, target: StructType, arrow: pa.DataType) -> Convert | None:
        if not isinstance(source, pa.StructType):
            raise mismatch(source, target)
        names = [source.field(at).name for at in range(source.num_fields)]
        parts: list[tuple[int | None, Convert | None, pa.DataType]] = []
        for field, child in zip(target.fields, arrow, strict=True):
            at = find_name(names, field.name, self._conf)
            convert = None if at is None else self._part(source.field(at).type, field.dataType, child.type, field.name)
            parts.append((at, convert, child.type))
        if source.equals(arrow) and [part[:2] for part in parts] == [(at, None) for at in range(len(names))]:
            return None

        def convert_struct(array: pa.Array) -> pa.Array:
            # what stands under a null struct means nothing, and must not fail
            fields = array.flatten() if array.null_count else [array.field(at) for at in range(len(names))]
            children = [
                pa.nulls(len(array), kind) if at is None else fields[at] if convert is None else convert(fields[at])
                for at, convert, kind in parts
            ]
            return pa.Array.from_buffers(arrow, len(array), [validity(array)], array.null_count, 0, children)

        return convert_struct

    def _list(self, source: pa.DataType, target: ArrayType, arrow: pa.DataType) -> Convert | None:
        kinds = (
            _types.is_list,
            _types.is_large_list,
            _types.is_fixed_size_list,
            _types.is_list_view,
            _types.is_large_list_view,
        )
        if not any(is_kind(source) for is_kind in kinds):
            raise mismatch(source, target)
        convert = self._part(source.value_type, target.elementType, arrow.value_type, "element")
        if convert is None and source.equals(arrow):
            return None

        def convert_list(array: pa.Array) -> pa.Array:
            values, offsets = flattened(array, pa.int32())
            children = [values if convert is None else convert(values)]
            buffers = [validity(array), offsets.buffers()[1]]
            return pa.Array.from_buffers(arrow, len(array), buffers, array.null_count, 0, children)

        return convert_list

    def _map(self, source: pa.DataType, target: MapType, arrow: pa.DataType) -> Convert | None:
        if not isinstance(source, pa.MapType):
            raise mismatch(source, target)
        key = self._part(source.key_type, target.keyType, arrow.key_type, "key")
        item = self._part(source.item_type, target.valueType, arrow.item_type, "value")
        if key is None and item is None and source.equals(arrow):
            return None
        entries = pa.struct([arrow.key_field, arrow.item_field])
        as_list = pa.list_(pa.field("entries", pa.struct([source.key_field, source.item_field]), nullable=False))

        def convert_map(array: pa.Array) -> pa.Array:
            values, offsets = flattened(_map_as_list(array, as_list), pa.int32())
            keys, items = values.field(0), values.field(1)
            children = [keys if key is None else key(keys), items if item is None else item(items)]
            struct = pa.Array.from_buffers(entries, len(values), [None], 0, 0, children)
            buffers = [validity(array), offsets.buffers()[1]]
            return pa.Array.from_buffers(arrow, len(array), buffers, array.null_count, 0, [struct])

        return convert_map

    def _variant(self, source: pa.DataType, target: VariantType, arrow: pa.DataType) -> Convert | None:
        if not isinstance(source, pa.StructType):
            raise mismatch(source, target)
        if {field.name for field in source} != {"value", "metadata"}:
            restore = restoring(source)

            def convert_shredded(array: pa.Array) -> pa.Array:
                return pa.Array.from_buffers(
                    arrow, len(array), [validity(array)], array.null_count, 0, list(restore(array))
                )

            return convert_shredded
        places = [source.get_field_index(field.name) for field in arrow]

        def convert_variant(array: pa.Array) -> pa.Array:
            # a null VARIANT has two null parts, where bytes are wanted
            parts = [array.field(at).cast(pa.binary()) for at in places]
            children = [pc.fill_null(part, b"") if array.null_count else part for part in parts]
            return pa.Array.from_buffers(arrow, len(array), [validity(array)], array.null_count, 0, children)

        return convert_variant


def _map_as_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    offsets = pc.add(array.offsets, pa.scalar(0, pa.int32()))  # of a slice, without what is before it
    buffers = [validity(array), offsets.buffers()[1]]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, 0, [array.values])
