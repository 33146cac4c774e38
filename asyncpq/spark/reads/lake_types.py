"""Types of a lake's columns: Spark's types from Arrow's, Arrow's from Spark's, and typed partition values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimestampType, VariantType

from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.decoding.arrow import children_of, is_list, with_children
from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.events import Operation
from asyncpq.expressions import Expression, columns
from asyncpq.indexing.query.indexed_files import IndexedFiles, SnapshotFiles
from asyncpq.indexing.query.open_index import OpenIndex
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.reads.file_reads import sure_part
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.partition_types import partition_scalar, partition_type, unescaped
from asyncpq.spark.types.read_conf import ReadConf, find_name, nullable_struct
from asyncpq.spark.types.special_types import as_stored, has_variant

#: Returns the Arrow type of a leaf, given its type in files and Spark's type.
_Leaf: TypeAlias = Callable[[pa.DataType, DataType], pa.DataType]


# -- asyncpq's ------------------------------------------------------------------------------------


def lake_field(known: pa.Field, asked: StructField, conf: ReadConf) -> pa.Field:
    """The Arrow field with which a column, or a part of one, is read as Spark's type.

    Parts whose Arrow type Spark reads as the type asked for keep it; other parts get the Arrow type of Spark's.

    Raises:
        AmbiguousColumnError: a name matches several fields.
        UnsupportedFeatureError: PySpark takes no Arrow data of one of the types.
    """
    return _field(known, asked, conf, _asked_leaf)


def lake_column(asked: StructField) -> pa.Field:
    """The Arrow field of a column that no known file has.

    Raises:
        UnsupportedFeatureError: PySpark takes no Arrow data of its type.
    """
    stored = StructField(asked.name, as_stored(asked.dataType), asked.nullable, asked.metadata)
    return arrow_schema(StructType([stored])).field(0)


def with_instants(known: pa.Field, asked: StructField) -> pa.Field:
    """The column with zoneless timestamps as UTC where Spark reads them so, as INT96: later files may have a zone."""
    return _field(known, asked, ReadConf(case_sensitive=True), _instants)


def _field(known: pa.Field, asked: StructField, conf: ReadConf, leaf: _Leaf) -> pa.Field:
    kind = _type(known.type, asked.dataType, conf, leaf)
    # VARIANT is marked by metadata, which files lack
    return known if kind.equals(known.type) and not has_variant(asked.dataType) else pa.field(known.name, kind)


def _type(known: pa.DataType, asked: DataType, conf: ReadConf, leaf: _Leaf) -> pa.DataType:
    if isinstance(asked, StructType) and isinstance(known, pa.StructType):
        names = [child.name for child in known]
        found = [find_name(names, one.name, conf) for one in asked.fields]
        return pa.struct(
            [
                lake_column(one) if at is None else _field(known.field(at), one, conf, leaf)
                for one, at in zip(asked.fields, found, strict=True)
            ]
        )
    kinds: list[DataType] = []
    if isinstance(asked, ArrayType) and is_list(known):
        kinds = [asked.elementType]
    elif isinstance(asked, MapType) and isinstance(known, pa.MapType):
        kinds = [asked.keyType, asked.valueType]
    if not kinds:
        return leaf(known, asked)
    parts = zip(children_of(known), kinds, strict=True)
    return with_children(known, [part.with_type(_type(part.type, kind, conf, leaf)) for part, kind in parts])


def _asked_leaf(known: pa.DataType, asked: DataType) -> pa.DataType:
    stored = as_stored(asked)
    return known if _spark_type(known) == stored else lake_column(StructField("", stored)).type


def _instants(known: pa.DataType, asked: DataType) -> pa.DataType:
    is_zoneless = isinstance(asked, TimestampType) and isinstance(known, pa.TimestampType) and known.tz is None
    return to_arrow_type(asked, timezone="UTC") if is_zoneless else known


# -- Spark's --------------------------------------------------------------------------------------


def same_to_spark(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether Spark has the same type for both."""
    return one.equals(other) or (_spark_type(one) is not None and _spark_type(one) == _spark_type(other))


@cache
def _spark_type(kind: pa.DataType) -> DataType | None:
    try:
        return from_arrow_type(_taken(kind))
    except PySparkException:
        return None


def tells_more(kind: DataType) -> bool:
    """Whether Spark's type has more than Arrow's types tell: see :func:`with_untold`."""
    return has_variant(kind) or as_stored(kind) != kind


def with_untold(known: DataType, inferred: DataType, conf: ReadConf) -> DataType:
    """``known``, with VARIANT, GEOMETRY and similar types, which Arrow's types lack, restored from a file's schema."""
    if isinstance(inferred, VariantType) or (as_stored(inferred) == known != inferred):
        return inferred
    if isinstance(known, StructType) and isinstance(inferred, StructType):
        fields = []
        for field in known.fields:
            at = find_name(inferred.names, field.name, conf)
            kind = field.dataType if at is None else with_untold(field.dataType, inferred.fields[at].dataType, conf)
            fields.append(StructField(field.name, kind, field.nullable))
        return StructType(fields)
    if isinstance(known, ArrayType) and isinstance(inferred, ArrayType):
        return ArrayType(with_untold(known.elementType, inferred.elementType, conf), known.containsNull)
    if isinstance(known, MapType) and isinstance(inferred, MapType):
        values = with_untold(known.valueType, inferred.valueType, conf)
        return MapType(known.keyType, values, known.valueContainsNull)
    return known


def struct_of(schema: pa.Schema) -> StructType:
    """Spark's types for columns of which only Arrow types are known: those of tables and partitions."""
    return nullable_struct(from_arrow_schema(pa.schema([one.with_type(_taken(one.type)) for one in schema])))


@cache
def _taken(kind: pa.DataType) -> pa.DataType:
    """The nearest Arrow type for which PySpark has a type."""
    if isinstance(kind, pa.DictionaryType):
        return _taken(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _taken(kind.storage_type)
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
    if kind in wider:
        return wider[kind]
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", kind.tz)
    if isinstance(kind, pa.StructType):
        return pa.struct([one.with_type(_taken(one.type)) for one in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(_taken(kind.key_type), _taken(kind.item_type))
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return pa.list_(_taken(kind.value_type))
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


@dataclass(frozen=True)
class PartitionTypes:
    """Partition columns with Spark's types. Picklable.

    Attributes:
        kinds: name and type of the columns whose values come from the texts of paths; others keep asyncpq's values.
        hive: the texts are those of ``key=value`` folders; otherwise they are the values that asyncpq has.
    """

    kinds: tuple[tuple[str, DataType], ...]
    hive: bool


async def with_spark_partitions(
    state: DatasetState, asked: StructType | None, conf: ReadConf, operation: Operation, *, hive: bool
) -> tuple[DatasetState, dict[str, DataType]]:
    """Return the dataset with partition columns of Spark's types, and these types.

    Args:
        asked: the caller's schema, whose types take precedence; or None.
        hive: folders are ``key=value``.

    Raises:
        PartitionError: a value in a path does not fit its column's type.
        InvalidOptionError: a value needs a time zone, and none is set.
        UnsupportedFeatureError: Spark names a column differently.
    """
    known = state.source.known
    files: Sequence[DataFile] = () if known is None else known.files
    if not files:
        files = (await state.source.files(ScanRequest(), operation)).files
    schema = state.columns.schema
    names = list(dict.fromkeys(name for file in files[:1] for name in file.partition))
    if not hive:
        names = [name for name in names if pa.types.is_string(schema.field(name).type)]
    texts = _texts(files, names, hive=hive)
    kinds: dict[str, DataType] = {}
    for name in names:
        at = schema.get_field_index(name)
        values = sorted(text for text in texts[name] if text is not None)
        try:
            kind = partition_type(values, conf)
            if asked is not None and (place := find_name(asked.names, name, conf)) is not None:
                kind = asked.fields[place].dataType
            for value in values[:1]:
                partition_scalar(value, kind, conf)
        except AsyncpqError as error:
            raise error.locate(url=state.url, column=name) from error.__cause__
        arrow = to_arrow_type(kind, timezone="UTC")
        if arrow == schema.field(at).type and not any("%" in value for value in values):
            continue  # asyncpq has the same type
        kinds[name] = kind
        schema = schema.set(at, pa.field(name, arrow))
    if not kinds:
        return state, kinds
    source = TypedFiles(state.source, PartitionTypes(tuple(kinds.items()), hive), conf)
    own = state.columns._replace(schema=schema, token=object())
    return replace(state, source=source, columns=own), kinds


def is_index_list(source: FileProvider) -> bool:
    """Whether the index of :func:`index_of` lists the files; otherwise it only prunes them."""
    return isinstance(source.source if isinstance(source, TypedFiles) else source, SnapshotFiles)


def index_of(source: FileProvider) -> OpenIndex | None:
    """The index that prunes files before they are opened; None for none."""
    inner = source.source if isinstance(source, TypedFiles) else source
    return inner.index if isinstance(inner, (SnapshotFiles, IndexedFiles)) else None


def partition_types_of(source: FileProvider) -> PartitionTypes | None:
    """Spark's types of partition columns; None if asyncpq's are used."""
    return source.types if isinstance(source, TypedFiles) else None


class TypedFiles:
    """The files of another provider with partition values of Spark's types: a
    :class:`asyncpq.datasets.providers.FileProvider`.

    Args:
        typed: the files have these values already; only requests to the provider change.
    """

    def __init__(self, source: FileProvider, types: PartitionTypes, conf: ReadConf, *, typed: bool = False) -> None:
        self.view: View = source.view
        self._is_typed = typed
        self.source = source
        self.types = types
        self._kinds = dict(types.kinds)
        self._conf = conf
        self._values: dict[str, dict[str, Any]] = {}

    @property
    def description(self) -> str:
        return self.source.description

    @property
    def known(self) -> FileSet | None:
        return None

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        found = await self.source.files(self._without_kinds(ask), operation, scan=scan)
        return found if self._is_typed else found._replace(files=[self._typed(file) for file in found.files])

    def _without_kinds(self, ask: ScanRequest) -> ScanRequest:
        """The request without conditions on these columns, of which the index has other values."""

        def is_sure(part: Expression) -> bool:
            return self._kinds.keys().isdisjoint(columns(part))

        where, prune = (None if one is None else sure_part(one, is_sure) for one in (ask.where, ask.prune))
        return ask._replace(where=where, prune=None if where is None else prune)

    def _typed(self, file: DataFile) -> DataFile:
        folder = file.url.rpartition("/")[0]
        if folder not in self._values:
            texts = _path_texts(file, self._kinds, hive=self.types.hive)
            own = {name: partition_scalar(texts.get(name), kind, self._conf) for name, kind in self._kinds.items()}
            self._values[folder] = {name: value.as_py() for name, value in own.items()}
        return replace(file, partition={**file.partition, **self._values[folder]})


# -- paths ----------------------------------------------------------------------------------------


def _texts(files: Sequence[DataFile], names: Collection[str], *, hive: bool) -> dict[str, set[str | None]]:
    """The texts of each column in all paths."""
    folders = {file.url.rpartition("/")[0]: file for file in files}
    found: dict[str, set[str | None]] = {name: set() for name in names}
    for file in folders.values():
        for name, text in _path_texts(file, names, hive=hive).items():
            found[name].add(text)
    return found


def _path_texts(file: DataFile, names: Collection[str], *, hive: bool) -> dict[str, str | None]:
    """The texts in one path, before Spark's own unescaping.

    Raises:
        UnsupportedFeatureError: Spark reads a different column name from a folder.
    """
    if not hive:
        texts = ((name, file.partition.get(name)) for name in names)
        return {name: None if text is None else text.replace("%", "%25") for name, text in texts}
    found: dict[str, str | None] = {}
    for segment in reversed(file.url.split("/")[:-1]):  # folders above the dataset's root may repeat a name
        key, equals, text = segment.partition("=")
        name = unquote(key) if equals else ""
        if name in names and name in file.partition and name not in found:
            if unescaped(key) != name:
                raise UnsupportedFeatureError(
                    f"the folder {segment!r} has a column that Spark names {unescaped(key)!r}",
                    column=name,
                    hint="Rename the folder, or read it with spark.read.parquet.",
                )
            found[name] = text
    return found
