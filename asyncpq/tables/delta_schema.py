"""A Delta table's protocol and schema: what may be read, and which Arrow columns it has.

PROTOCOL.md of delta-io/delta, "Table Features", "Column Mapping", "Type Widening", "Schema Serialization Format".
"""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError

#: Reader features that are applied. All others are refused, such as variantType, variantShredding, geospatial types,
#: collations, and catalogManaged, whose newest commits only its catalog knows.
READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_NEWEST_READER = 3  # the version whose features are listed one by one
_COLUMN_MAPPING_READER = 2

_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_INTEGERS = ("byte", "short", "integer", "long")
#: "Type Widening": what a type in older files may become. Decimals are looked at by themselves.
_WIDENED = {
    "byte": {"short", "integer", "long", "double", "decimal"},
    "short": {"integer", "long", "double", "decimal"},
    "integer": {"long", "double", "decimal"},
    "long": {"decimal"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
    "decimal": {"decimal"},
}
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_ID = "delta.columnMapping.id"
_TYPE_CHANGES = "delta.typeChanges"


class Mapped(enum.StrEnum):
    """How the table's columns are found in its files."""

    NONE = "none"
    NAME = "name"
    ID = "id"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column, or a leaf of structs alone, as statistics and partition values have it.

    Attributes:
        name: dotted path in the table.
        path: physical names, from the top.
        type: Arrow type.
        was_float: values of older files were written as 4-byte floats.
    """

    name: str
    path: tuple[str, ...]
    type: pa.DataType
    was_float: bool = False


def check_protocol(protocol: Any, url: str) -> None:
    """
    Raises:
        UnsupportedFeatureError: the table needs a reader that knows more.
        CorruptFileError: it is no protocol.
    """
    if not isinstance(protocol, dict):
        raise CorruptFileError("Delta protocol: no object", url=url)
    version = protocol.get("minReaderVersion")
    if type(version) is not int or version < 1:
        raise CorruptFileError(f"Delta protocol: minReaderVersion {version!r}", url=url)
    if version > _NEWEST_READER:
        raise UnsupportedFeatureError(f"Delta reader version {version} is not read", url=url)
    features = protocol.get("readerFeatures") or ()
    if not isinstance(features, (list, tuple)) or not all(isinstance(name, str) for name in features):
        raise CorruptFileError("Delta protocol: readerFeatures is not a list of names", url=url)
    unknown = sorted(set(features) - READER_FEATURES)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise UnsupportedFeatureError(f"the Delta table has reader features that are not read: {names}", url=url)


def mapping_mode(protocol: Mapping[str, Any], configuration: Mapping[str, str], url: str) -> Mapped:
    """The mode that the table's properties name, where its protocol allows column mapping."""
    version = protocol["minReaderVersion"]
    if version != _COLUMN_MAPPING_READER and "columnMapping" not in (protocol.get("readerFeatures") or ()):
        return Mapped.NONE
    mode = configuration.get("delta.columnMapping.mode", "none")
    if mode not in tuple(Mapped):
        raise UnsupportedFeatureError(f"Delta column mapping mode {mode!r} is not read", url=url)
    return Mapped(mode)


@dataclass(frozen=True, slots=True)
class Schema:
    """What a Delta schema says.

    Attributes:
        fields: the columns.
        leaves: those that can have statistics, partition columns included; a dotted path that is not unique is
            left out.
    """

    fields: tuple[TableField, ...]
    leaves: tuple[Leaf, ...]


def decode_schema(text: str, mode: Mapped, url: str) -> Schema:
    """The columns of a ``schemaString``.

    Raises:
        CorruptFileError: it is no schema.
        UnsupportedFeatureError: a type, or a change of one, that is not read.
    """
    try:
        root = json.loads(text)
        if root["type"] != "struct":
            raise CorruptFileError("Delta schema: not a struct", url=url)
        reader = _SchemaReader(mode, url)
        fields = tuple(reader.field(entry, "") for entry in root["fields"])
        leaves = [leaf for entry in root["fields"] for leaf in reader.leaves(entry, "", ())]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptFileError(f"Delta schema: {type(error).__name__}: {error}", url=url) from error
    if len({field.name for field in fields}) != len(fields):
        raise CorruptFileError("Delta schema: two columns have one name", url=url)
    times = Counter(leaf.name for leaf in leaves)
    return Schema(fields, tuple(leaf for leaf in leaves if times[leaf.name] == 1))


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    mode: Mapped
    url: str

    def field(self, entry: Mapping[str, Any], parent: str) -> TableField:
        name = entry["name"]
        if not isinstance(name, str):
            raise TypeError(f"a field's name is {name!r}")
        name.encode()  # Arrow has no names with half a surrogate pair: ValueError
        path = f"{parent}.{name}" if parent else name
        self._check_changes(entry, path)
        arrow, children = self._type(entry["type"], path)
        field_id = None
        if self.mode is Mapped.ID:
            field_id = entry["metadata"][_ID]
            if not isinstance(field_id, int):
                raise TypeError(f"{_ID} of {path} is {field_id!r}")
        return TableField(
            name=name,
            type=arrow,
            nullable=bool(entry["nullable"]),
            field_id=field_id,
            names=() if self.mode is Mapped.NONE else (self._physical(entry),),
            children=children,
        )

    def leaves(self, entry: Mapping[str, Any], parent: str, above: tuple[str, ...]) -> Iterator[Leaf]:
        name = f"{parent}.{entry['name']}" if parent else entry["name"]
        path = (*above, self._physical(entry))
        kind = entry["type"]
        if isinstance(kind, str):
            changes = (entry.get("metadata") or {}).get(_TYPE_CHANGES, ())
            was_float = any(change.get("fromType") == "float" for change in changes)
            yield Leaf(name, path, self._type(kind, name)[0], was_float)
        elif kind["type"] == "struct":
            for child in kind["fields"]:
                yield from self.leaves(child, name, path)

    def _physical(self, entry: Mapping[str, Any]) -> str:
        if self.mode is Mapped.NONE:
            return str(entry["name"])
        name = entry["metadata"][_PHYSICAL_NAME]
        if not isinstance(name, str):
            raise TypeError(f"{_PHYSICAL_NAME} is {name!r}")
        return name

    def _type(self, kind: Any, path: str) -> tuple[pa.DataType, tuple[TableField, ...]]:
        if isinstance(kind, str):
            return self._primitive(kind, path), ()
        match kind["type"]:
            case "struct":
                children = tuple(self.field(entry, path) for entry in kind["fields"])
                return pa.struct([pa.field(child.name, child.type, child.nullable) for child in children]), children
            case "array":
                element = self._part("element", kind["elementType"], kind["containsNull"], path)
                return pa.list_(pa.field("element", element.type, element.nullable)), (element,)
            case "map":
                key = self._part("key", kind["keyType"], False, path)
                value = self._part("value", kind["valueType"], kind["valueContainsNull"], path)
                arrow = pa.map_(pa.field("key", key.type, False), pa.field("value", value.type, value.nullable))
                return arrow, (key, value)
            case other:
                raise UnsupportedFeatureError(f"Delta type {other!r} is not read", url=self.url, column=path)

    def _part(self, name: str, kind: Any, nullable: Any, parent: str) -> TableField:
        arrow, children = self._type(kind, f"{parent}.{name}")
        return TableField(name=name, type=arrow, nullable=bool(nullable), children=children)

    def _primitive(self, kind: str, path: str) -> pa.DataType:
        arrow = _PRIMITIVES.get(kind)
        if arrow is None:
            decimal = _DECIMAL.fullmatch(kind)
            if decimal is None:
                raise UnsupportedFeatureError(f"Delta type {kind!r} is not read", url=self.url, column=path)
            arrow = pa.decimal128(int(decimal[1]), int(decimal[2]))
        return arrow

    def _check_changes(self, entry: Mapping[str, Any], path: str) -> None:
        for change in (entry.get("metadata") or {}).get(_TYPE_CHANGES, ()):
            before, after = str(change["fromType"]), str(change["toType"])
            if not _is_widening(before, after):
                raise UnsupportedFeatureError(
                    f"a Delta column's type was changed from {before} to {after}, which is not read",
                    url=self.url,
                    column=path,
                )


def _is_widening(before: str, after: str) -> bool:
    """Whether every value of ``before`` is one of ``after``, by a change that the protocol has."""
    kinds = [_DECIMAL.fullmatch(kind) for kind in (before, after)]
    names = ["decimal" if kind is not None else name for kind, name in zip(kinds, (before, after), strict=True)]
    if names[1] not in _WIDENED.get(names[0], ()):
        return False
    old, new = kinds
    if new is None:
        return True
    whole, scale = int(new[1]) - int(new[2]), int(new[2])
    if old is None:
        return whole >= (20 if before == "long" else 10)
    return whole >= int(old[1]) - int(old[2]) and scale >= int(old[2])
