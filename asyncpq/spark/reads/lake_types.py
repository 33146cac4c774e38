"""Types of a lake's columns: as Spark has them, where asyncpq's are known, and as asyncpq is to have them.

Files whose partition values have the types and values that Spark gives them.
"""

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

from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import DatasetRequest
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.decoding.arrow import children_of, is_list, with_children
from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.events import Operation
from asyncpq.expressions import Expression, columns
from asyncpq.indexing.query.indexed_files import IndexedFiles, SnapshotFiles
from asyncpq.indexing.query.open_index import OpenIndex
from asyncpq.spark.reads.file_reads import sure_part
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.partition_types import partition_scalar, partition_type, unescaped
from asyncpq.spark.types.read_conf import ReadConf, find_name, nullable_struct
from asyncpq.spark.types.special_types import as_stored, has_variant

#: The type of what has no children, by that of files and Spark's.
_Leaf: TypeAlias = Callable[[pa.DataType, DataType], pa.DataType]


# -- asyncpq's ------------------------------------------------------------------------------------


def lake_field(known: pa.Field, asked: StructField, conf: ReadConf) -> pa.Field:
    """A column, or a part of one, of the type that is asked for: what files are known to have of it stays as it is
    where Spark takes that for the type, all else is of Spark's own types.

    Raises:
        AmbiguousColumnError: which of its fields is meant cannot be said.
        UnsupportedFeatureError: PySpark takes no Arrow data of one of the types.
    """
    return _field(known, asked, conf, _asked_leaf)


def lake_column(asked: StructField) -> pa.Field:
    """One that no file is known to have.

    Raises:
        UnsupportedFeatureError: PySpark takes no Arrow data of its type.
    """
    stored = StructField(asked.name, as_stored(asked.dataType), asked.nullable, asked.metadata)
    return arrow_schema(StructType([stored])).field(0)


def with_instants(known: pa.Field, asked: StructField) -> pa.Field:
    """The column with times of UTC where Spark takes those without a zone for that, as it does INT96: as files may have
    them that were written later."""
    return _field(known, asked, ReadConf(case_sensitive=True), _instants)


def _field(known: pa.Field, asked: StructField, conf: ReadConf, leaf: _Leaf) -> pa.Field:
    kind = _type(known.type, asked.dataType, conf, leaf)
    # a VARIANT is known by metadata, which files do not have
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
    """Whether Spark has one type for both."""
    return one.equals(other) or (_spark_type(one) is not None and _spark_type(one) == _spark_type(other))


@cache
def _spark_type(kind: pa.DataType) -> DataType | None:
    try:
        return from_arrow_type(_taken(kind))
    except PySparkException:
        return None


def tells_more(kind: DataType) -> bool:
    """Whether Arrow's types do not tell all of it: see :func:`with_untold`."""
    return has_variant(kind) or as_stored(kind) != kind


def with_untold(known: DataType, inferred: DataType, conf: ReadConf) -> DataType:
    """``known``, from which Arrow's types leave out what is VARIANT, GEOMETRY and the like, with those of a file."""
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
    """Spark's types for columns whose Arrow types alone are known: those of tables, and of partitions."""
    return nullable_struct(from_arrow_schema(pa.schema([one.with_type(_taken(one.type)) for one in schema])))


@cache
def _taken(kind: pa.DataType) -> pa.DataType:
    """An Arrow type that PySpark has a type for."""
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
    """Can be pickled.

    Attributes:
        kinds: of the columns whose values are made of the paths' texts, by name; others are asyncpq's.
        hive: the texts are those of ``key=value`` folders; else what asyncpq has made of them.
    """

    kinds: tuple[tuple[str, DataType], ...]
    hive: bool


async def with_spark_partitions(
    state: DatasetState, asked: StructType | None, conf: ReadConf, operation: Operation, *, hive: bool
) -> tuple[DatasetState, dict[str, DataType]]:
    """The dataset with partition columns as Spark has them, and their types.

    Args:
        asked: the caller's schema, whose types count; or None.
        hive: folders are ``key=value``.

    Raises:
        PartitionError: a path has a value that is none of its column's type.
        InvalidOptionError: a value is of a time zone that nobody said.
        UnsupportedFeatureError: a column that Spark names in another way than asyncpq does.
    """
    known = state.source.known
    files: Sequence[DataFile] = () if known is None else known.files
    if not files:
        files = (await state.source.files(DatasetRequest(), operation)).files
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
            continue  # the same to asyncpq
        kinds[name] = kind
        schema = schema.set(at, pa.field(name, arrow))
    if not kinds:
        return state, kinds
    source = TypedFiles(state.source, PartitionTypes(tuple(kinds.items()), hive), conf)
    own = state.columns._replace(schema=schema, token=object())
    return replace(state, source=source, columns=own), kinds


def is_index_list(source: FileProvider) -> bool:
    """Whether the files are those that :func:`index_of` lists; else the index only prunes them."""
    return isinstance(source.source if isinstance(source, TypedFiles) else source, SnapshotFiles)


def index_of(source: FileProvider) -> OpenIndex | None:
    """The index by which files are left out unopened; None for none."""
    inner = source.source if isinstance(source, TypedFiles) else source
    return inner.index if isinstance(inner, (SnapshotFiles, IndexedFiles)) else None


def partition_types_of(source: FileProvider) -> PartitionTypes | None:
    """How the partition values of files are made; None: as asyncpq has them."""
    return source.types if isinstance(source, TypedFiles) else None


class TypedFiles:
    """The files of another source, with partition values of Spark's: a
    :class:`asyncpq.datasets.providers.FileProvider`.

    Args:
        typed: the files have these values already; only what the source is asked is another.
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
        self, ask: DatasetRequest, operation: Operation, *, scan: bool = True, hurry: bool = False
    ) -> FileSet:
        found = await self.source.files(self._without_kinds(ask), operation, scan=scan)
        return found if self._is_typed else found._replace(files=[self._typed(file) for file in found.files])

    def _without_kinds(self, ask: DatasetRequest) -> DatasetRequest:
        """What an index can be asked, which has other values of these columns."""

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
    """What the paths say of each column."""
    folders = {file.url.rpartition("/")[0]: file for file in files}
    found: dict[str, set[str | None]] = {name: set() for name in names}
    for file in folders.values():
        for name, text in _path_texts(file, names, hive=hive).items():
            found[name].add(text)
    return found


def _path_texts(file: DataFile, names: Collection[str], *, hive: bool) -> dict[str, str | None]:
    """A path's values, with what Spark undoes by itself.

    Raises:
        UnsupportedFeatureError: a folder's name is another one to Spark.
    """
    if not hive:
        texts = ((name, file.partition.get(name)) for name in names)
        return {name: None if text is None else text.replace("%", "%25") for name, text in texts}
    found: dict[str, str | None] = {}
    for segment in reversed(file.url.split("/")[:-1]):  # above the dataset's root others may have such names
        key, equals, text = segment.partition("=")
        name = unquote(key) if equals else ""
        if name in names and name in file.partition and name not in found:
            if unescaped(key) != name:
                raise UnsupportedFeatureError(
                    f"the folder {segment!r} is of a column that Spark names {unescaped(key)!r}",
                    column=name,
                    hint="Rename the folder, or read it with spark.read.parquet.",
                )
            found[name] = text
    return found
