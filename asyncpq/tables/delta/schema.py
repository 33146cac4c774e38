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
from typing import Any, TypedDict

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError

#: Reader features that are applied. All others are refused, such as geospatial types, and catalogManaged, whose newest
#: commits only its catalog knows.
READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
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
    "void": pa.null(),
    "decimal": pa.decimal128(10, 0),  # Spark's default
}
_TEXT = re.compile(r"(?:var)?char\(\d+\)")
_VARIANT = tuple(TableField(name=name, type=pa.binary(), nullable=False) for name in ("metadata", "value"))
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
#: "Type Widening": what a type in older files may become; and two that are not in it, which have all values, too:
#: integers of at most 16 bits as floats. Decimals are looked at by themselves.
_WIDENED = {
    "byte": {"short", "integer", "long", "float", "double", "decimal"},
    "short": {"integer", "long", "float", "double", "decimal"},
    "integer": {"long", "double", "decimal"},
    "long": {"decimal"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
    "decimal": {"decimal"},
}
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
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
    for key in ("readerFeatures", "writerFeatures"):
        features = protocol.get(key) or ()
        if not isinstance(features, (list, tuple)) or not all(isinstance(name, str) for name in features):
            raise CorruptFileError(f"Delta protocol: {key} is not a list of names", url=url)
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - READER_FEATURES)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise UnsupportedFeatureError(f"the Delta table has reader features that are not read: {names}", url=url)


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """What a table says of column mapping.

    Attributes:
        mode: as the table's properties name it.
        supported: the protocol has the feature; else the mode must be ignored.
    """

    mode: Mapped
    supported: bool

    @classmethod
    def of(cls, protocol: Mapping[str, Any], configuration: Mapping[str, str], url: str) -> ColumnMapping:
        """
        A feature is supported where either list of the protocol has it ("Supported Features").

        Raises:
            UnsupportedFeatureError: the table's properties name another mode.
        """
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        supported = protocol["minReaderVersion"] == _COLUMN_MAPPING_READER or "columnMapping" in features
        mode = str(configuration.get("delta.columnMapping.mode") or "none").lower()
        if mode in tuple(Mapped):
            return cls(Mapped(mode), supported)
        if supported:
            raise UnsupportedFeatureError(f"Delta column mapping mode {mode!r} is not read", url=url)
        return cls(Mapped.NONE, supported)


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


def decode_schema(text: str, mapping: ColumnMapping, url: str) -> Schema:
    """The columns of a ``schemaString``.

    Raises:
        CorruptFileError: it is no schema.
        UnsupportedFeatureError: a type, or a change of one, that is not read; a column whose name in the files is not
            known, since its mapping is not supported by the protocol: Spark applies that, deltalake does not.
    """
    try:
        root = json.loads(text)
        if root["type"] != "struct":
            raise CorruptFileError("Delta schema: not a struct", url=url)
        reader = _SchemaReader(mapping, url)
        fields = tuple(reader.field(entry, "") for entry in root["fields"])
        leaves = [leaf for entry in root["fields"] for leaf in reader.leaves(entry, "", ())]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptFileError(f"Delta schema: {type(error).__name__}: {error}", url=url) from error
    if len({field.name for field in fields}) != len(fields):
        raise CorruptFileError("Delta schema: two columns have one name", url=url)
    times = Counter(leaf.name for leaf in leaves)
    return Schema(fields, tuple(leaf for leaf in leaves if times[leaf.name] == 1))


class _Storage(TypedDict):
    ignores_zone: bool
    is_variant: bool


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    mapping: ColumnMapping
    url: str

    @property
    def mode(self) -> Mapped:
        """The mode that is applied."""
        return self.mapping.mode if self.mapping.supported else Mapped.NONE

    def field(self, entry: Mapping[str, Any], parent: str) -> TableField:
        name = entry["name"]
        if not isinstance(name, str):
            raise TypeError(f"a field's name is {name!r}")
        name.encode()  # Arrow has no names with half a surrogate pair: ValueError
        path = f"{parent}.{name}" if parent else name
        self._check_changes(entry, path)
        self._check_mapping(entry, path)
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
            ignores_case=True,
            **self._storage(entry["type"]),
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
        if kind == "variant":
            return pa.struct([pa.field(part.name, part.type, part.nullable) for part in _VARIANT]), _VARIANT
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
            case "udt":  # of Spark: its values are stored as those of another type
                return self._type(kind["sqlType"], path)
            case other:
                raise UnsupportedFeatureError(f"Delta type {other!r} is not read", url=self.url, column=path)

    def _part(self, name: str, kind: Any, nullable: Any, parent: str) -> TableField:
        arrow, children = self._type(kind, f"{parent}.{name}")
        return TableField(name=name, type=arrow, nullable=bool(nullable), children=children, **self._storage(kind))

    @staticmethod
    def _storage(kind: Any) -> _Storage:
        """How files may keep values of a type: timestamps with or without zone, as Spark and deltalake read them."""
        return {"ignores_zone": kind in ("timestamp", "timestamp_ntz"), "is_variant": kind == "variant"}

    def _primitive(self, kind: str, path: str) -> pa.DataType:
        arrow = _PRIMITIVES.get(kind)
        if arrow is None:
            decimal = _DECIMAL.fullmatch(kind)
            if _TEXT.fullmatch(kind) is not None:
                return pa.string()
            if decimal is None:
                raise UnsupportedFeatureError(f"Delta type {kind!r} is not read", url=self.url, column=path)
            arrow = pa.decimal128(int(decimal[1]), int(decimal[2]))
        return arrow

    def _check_mapping(self, entry: Mapping[str, Any], path: str) -> None:
        if self.mapping.supported or self.mapping.mode is Mapped.NONE:
            return
        physical = (entry.get("metadata") or {}).get(_PHYSICAL_NAME, entry["name"])
        if physical != entry["name"]:
            raise UnsupportedFeatureError(
                f"delta.columnMapping.mode is {str(self.mapping.mode)!r}, the protocol does not list columnMapping: "
                f"the files may have this column as {physical!r} or as {entry['name']!r}",
                url=self.url,
                column=path,
                hint="Add the feature columnMapping to the table's protocol, or unset the property.",
            )

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
    if before == "void":
        return True
    if names[1] not in _WIDENED.get(names[0], ()):
        return False
    old, new = kinds
    if new is None:
        return True
    whole, scale = int(new[1]) - int(new[2]), int(new[2])
    if old is None:
        return whole >= _DIGITS[before]
    return whole >= int(old[1]) - int(old[2]) and scale >= int(old[2])
