"""A Delta table's protocol and schema: which features are read, and the table's Arrow columns.

PROTOCOL.md of delta-io/delta, "Table Features", "Column Mapping", "Type Widening", "Schema Serialization Format".
"""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import VARIANT_PARTS, VARIANT_TYPE, ColumnPaths, TableField
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.expressions.tree import MAX_DIGITS
from asyncpq.records import dataclass

#: Reader features that are read. All others are refused, such as geospatial types, and catalogManaged, where only the
#: catalog knows the newest commits.
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
_TIMESTAMPS = ("timestamp", "timestamp_ntz")  # files may store either with or without a zone, as in Spark and deltalake
_TEXT = re.compile(r"(?:var)?char\(\d+\)")
_DECIMAL = re.compile(r"decimal\(\s*([0-9]+)\s*,\s*(-?[0-9]+)\s*\)")
#: "Type Widening": the types that the type of older files may become. Two lossless changes are not in the protocol:
#: integers of at most 16 bits to float. :func:`_is_widening` compares decimals further.
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
_CHARACTERS_SHOWN = 200  # of an error's text, which may quote a part of the schema of any length


class MappingMode(enum.StrEnum):
    """The ways in which a table's columns are matched to columns of its files."""

    NONE = "none"
    NAME = "name"
    ID = "id"


@dataclass(frozen=True, slots=True)
class DeltaLeaf:
    """A primitive column, or a primitive field of a struct: only these have statistics and partition values."""

    name: str  # dotted path in the table
    path: tuple[str, ...]  # physical names, from the top
    type: pa.DataType
    was_float: bool = False  # older files hold 4-byte floats


def check_protocol(protocol: Any, url: str) -> None:
    """Raise UnsupportedFeatureError if asyncpq cannot read the protocol, CorruptFileError if it is malformed."""
    if not isinstance(protocol, dict):
        raise CorruptFileError("the Delta protocol is not a JSON object", url=url)
    version = protocol.get("minReaderVersion")
    if type(version) is not int or version < 1:
        raise CorruptFileError(f"the Delta protocol has an invalid minReaderVersion: {version!r}", url=url)
    if version > _NEWEST_READER:
        raise UnsupportedFeatureError(f"asyncpq does not support Delta reader version {version}", url=url)
    for key in ("readerFeatures", "writerFeatures"):
        features = protocol.get(key) or ()
        if not isinstance(features, (list, tuple)) or not all(isinstance(name, str) for name in features):
            raise CorruptFileError(f"the Delta protocol is malformed: {key} is not a list of names", url=url)
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - READER_FEATURES)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise UnsupportedFeatureError(f"asyncpq does not support reader features of the Delta table: {names}", url=url)


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """The rule of a Delta table for matching its columns to the columns of its files."""

    mode: MappingMode  # the mode in the table's properties
    supported: bool  # the protocol has the feature; without it, readers ignore the mode
    listed: bool = False  # the protocol lists its features, so that one it does not list has no effect

    @classmethod
    def of(cls, protocol: Mapping[str, Any], configuration: Mapping[str, str], url: str) -> ColumnMapping:
        """Decode the column mapping from a table's protocol and its properties, ``configuration``. The protocol may
        name the feature in either of its lists of features."""
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        supported = protocol["minReaderVersion"] == _COLUMN_MAPPING_READER or "columnMapping" in features
        listed = protocol["minReaderVersion"] == _NEWEST_READER
        mode = str(configuration.get("delta.columnMapping.mode") or "none").lower()
        if mode in tuple(MappingMode):
            return cls(MappingMode(mode), supported, listed)
        if supported:
            raise UnsupportedFeatureError(f"asyncpq does not support Delta column mapping mode {mode!r}", url=url)
        return cls(MappingMode.NONE, supported, listed)


@dataclass(frozen=True, slots=True)
class DeltaSchema:
    """The decoded schema of a Delta table."""

    fields: tuple[TableField, ...]
    # the columns and struct parts that can have statistics, partition columns included. Dotted paths that name two
    # leaves are left out.
    leaves: tuple[DeltaLeaf, ...]


def decode_schema(text: str, mapping: ColumnMapping, url: str) -> DeltaSchema:
    """Decode a ``schemaString``, the JSON text of a schema.

    Raises CorruptFileError if the text is malformed; UnsupportedFeatureError for an unsupported type or type change,
    or a column that has a physical name while the protocol is older than column mapping: Spark applies such names,
    deltalake does not.
    """
    try:
        root = json.loads(text)
        if root["type"] != "struct":
            raise CorruptFileError("the Delta schema is not a struct", url=url)
        reader = _SchemaReader(mapping, url)
        fields = tuple(reader.field(entry, "") for entry in root["fields"])
        leaves = [leaf for entry in root["fields"] for leaf in reader.leaves(entry, "", ())]
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        message = f"the Delta schema is malformed: {type(error).__name__}: {str(error)[:_CHARACTERS_SHOWN]}"
        raise CorruptFileError(message, url=url) from error
    if len({field.name for field in fields}) != len(fields):
        raise CorruptFileError("the Delta schema is malformed: two columns have one name", url=url)
    times = Counter(leaf.name for leaf in leaves)
    return DeltaSchema(fields, tuple(leaf for leaf in leaves if times[leaf.name] == 1))


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    mapping: ColumnMapping
    url: str
    paths: ColumnPaths = field(default_factory=ColumnPaths)

    @property
    def mode(self) -> MappingMode:
        """The mapping mode in effect; NONE if the protocol does not support column mapping."""
        return self.mapping.mode if self.mapping.supported else MappingMode.NONE

    def field(self, entry: Mapping[str, Any], parent: str) -> TableField:
        name = entry["name"]
        if not isinstance(name, str):
            raise TypeError(f"a field's name must be a string, not {name!r}")
        name.encode()  # ValueError for half a surrogate pair, which Arrow names cannot hold
        path = self.paths.join(parent, name)
        self._check_changes(entry, path)
        self._check_mapping(entry, path)
        arrow, children = self._type(entry["type"], path)
        field_id = None
        if self.mode is MappingMode.ID:
            field_id = entry["metadata"][_ID]
            if not isinstance(field_id, int):
                raise TypeError(f"{_ID} of {path} must be an integer, not {field_id!r}")
        return TableField(
            name=name,
            type=arrow,
            nullable=bool(entry["nullable"]),
            field_id=field_id,
            names=self._names_in_files(entry),
            children=children,
            ignores_case=True,
            ignores_zone=entry["type"] in _TIMESTAMPS,
            is_variant=entry["type"] == "variant",
        )

    def leaves(self, entry: Mapping[str, Any], parent: str, above: tuple[str, ...]) -> Iterator[DeltaLeaf]:
        name = self.paths.join(parent, entry["name"])
        path = (*above, self._physical(entry))
        delta_type = entry["type"]
        if isinstance(delta_type, str):
            changes = (entry.get("metadata") or {}).get(_TYPE_CHANGES, ())
            was_float = any(change.get("fromType") == "float" for change in changes)
            yield DeltaLeaf(name, path, self._type(delta_type, name)[0], was_float)
        elif delta_type["type"] == "struct":
            for child in delta_type["fields"]:
                yield from self.leaves(child, name, path)

    def _physical(self, entry: Mapping[str, Any]) -> str:
        if self.mode is MappingMode.NONE:
            return str(entry["name"])
        name = entry["metadata"][_PHYSICAL_NAME]
        if not isinstance(name, str):
            raise TypeError(f"{_PHYSICAL_NAME} must be a string, not {name!r}")
        return name

    def _names_in_files(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        if self.mode is not MappingMode.NONE:
            return (self._physical(entry),)
        if self.mapping.mode is MappingMode.NONE:
            return ()
        # deltalake 1.6.6 does not list the mapping beside features such as timestampNtz, and writes the columns' own
        # names. A file of a writer that applies the mapping all the same would have nulls alone.
        return (entry["name"], (entry.get("metadata") or {}).get(_PHYSICAL_NAME, entry["name"]))

    def _type(self, delta_type: Any, path: str) -> tuple[pa.DataType, tuple[TableField, ...]]:
        if delta_type == "variant":
            return VARIANT_TYPE, VARIANT_PARTS
        if isinstance(delta_type, str):
            return self._primitive(delta_type, path), ()
        match delta_type["type"]:
            case "struct":
                children = tuple(self.field(entry, path) for entry in delta_type["fields"])
                return pa.struct([pa.field(child.name, child.type, child.nullable) for child in children]), children
            case "array":
                element = self._part("element", delta_type["elementType"], delta_type["containsNull"], path)
                return pa.list_(pa.field("element", element.type, element.nullable)), (element,)
            case "map":
                key = self._part("key", delta_type["keyType"], False, path)
                value = self._part("value", delta_type["valueType"], delta_type["valueContainsNull"], path)
                arrow = pa.map_(pa.field("key", key.type, False), pa.field("value", value.type, value.nullable))
                return arrow, (key, value)
            case "udt":  # Spark's user-defined type: stored as another type
                return self._type(delta_type["sqlType"], path)
            case other:
                raise UnsupportedFeatureError(
                    f"asyncpq does not support Delta type {other!r}", url=self.url, column=path
                )

    def _part(self, name: str, delta_type: Any, nullable: Any, parent: str) -> TableField:
        arrow, children = self._type(delta_type, self.paths.join(parent, name))
        return TableField(
            name=name,
            type=arrow,
            nullable=bool(nullable),
            children=children,
            ignores_zone=delta_type in _TIMESTAMPS,
            is_variant=delta_type == "variant",
        )

    def _primitive(self, delta_type: str, path: str) -> pa.DataType:
        if delta_type in _PRIMITIVES:
            return _PRIMITIVES[delta_type]
        if _TEXT.fullmatch(delta_type) is not None:
            return pa.string()
        decimal = _DECIMAL.fullmatch(delta_type)
        if decimal is None:
            raise UnsupportedFeatureError(
                f"asyncpq does not support Delta type {delta_type!r}", url=self.url, column=path
            )
        precision, scale = int(decimal[1]), int(decimal[2])
        if not (0 < precision <= MAX_DIGITS and abs(scale) <= MAX_DIGITS):  # Arrow takes any scale, and fails later
            raise ValueError(f"{delta_type[:_CHARACTERS_SHOWN]}: decimals have 1 to {MAX_DIGITS} digits")
        return pa.decimal128(precision, scale)

    def _check_mapping(self, entry: Mapping[str, Any], path: str) -> None:
        if self.mapping.supported or self.mapping.listed or self.mapping.mode is MappingMode.NONE:
            return
        physical = (entry.get("metadata") or {}).get(_PHYSICAL_NAME, entry["name"])
        if physical != entry["name"]:
            raise UnsupportedFeatureError(
                f"delta.columnMapping.mode is {str(self.mapping.mode)!r}, but the protocol lacks columnMapping: "
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
                    f"asyncpq cannot read a Delta column whose type was changed from {before} to {after}",
                    url=self.url,
                    column=path,
                )


def _is_widening(before: str, after: str) -> bool:
    """Return whether the protocol allows the type change and every value of ``before`` is a value of ``after``."""
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if before == "void":
        return True
    if ("decimal" if new else after) not in _WIDENED.get("decimal" if old else before, ()):
        return False
    if new is None:
        return True
    whole, scale = int(new[1]) - int(new[2]), int(new[2])
    if old is None:
        return whole >= _DIGITS[before]
    return whole >= int(old[1]) - int(old[2]) and scale >= int(old[2])
