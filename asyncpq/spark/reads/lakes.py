"""What a plan is made of, opened on the driver: a dataset, and its columns as Spark has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask
from asyncpq.errors import AsyncpqError, InvalidOptionError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.fetching.opening import held_source, load_version, open_source
from asyncpq.format.metadata import FileMetadata
from asyncpq.options import immutable
from asyncpq.session import Session
from asyncpq.spark.reads.partitioned import with_spark_partitions
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.parquet_schema import spark_schema
from asyncpq.spark.types.read_conf import ReadConf, find_name, nullable_struct
from asyncpq.storage.base import RequestContext
from asyncpq.tables.opening import catalog_of

#: A plan looks at the files once: a listing that opening them made serves it.
_LISTING_AGE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class LakeTarget:
    """What is read, as :meth:`asyncpq.Session.open_dataset` takes it.

    Attributes:
        target: a prefix, a pattern, a list of urls, or a table.
        schema: columns of the caller's own; None: as Spark infers them from the first file.
        the others: as there.
    """

    target: Any
    index: Any = None
    view: Literal["snapshot", "listed", "table"] | None = None
    format: Literal["parquet", "delta", "iceberg"] | None = None
    version: Any = None
    schema: StructType | None = None
    schema_policy: Literal["strict", "permissive"] = "strict"
    partitioning: Literal["hive"] | Sequence[str] | None = "hive"
    partition_types: Any = None
    on_bad_file: Literal["raise", "skip"] = "raise"

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of :meth:`asyncpq.Session.open_dataset`."""
        names = (
            "index",
            "view",
            "format",
            "version",
            "schema_policy",
            "partitioning",
            "partition_types",
            "on_bad_file",
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class OpenLake:
    """
    Attributes:
        state: of the dataset; files need not have the columns of the first one.
        schema: the dataset's, which has a column for each one of ``struct``.
        struct: its columns as Spark has them.
        names: the dataset's name of each column of ``struct``.
        partitioning: see :class:`asyncpq.spark.reads.splits.Lake`.
    """

    state: DatasetState
    schema: pa.Schema
    struct: StructType
    names: tuple[str, ...]
    partitioning: str = ""

    def columns(self, wanted: Sequence[str], conf: ReadConf) -> list[int]:
        """Places in ``struct`` of top-level columns by Spark's rule of cases; those that it lacks are left out."""
        spellings = [one.name for one in self.struct.fields]
        found = (find_name(spellings, name, conf) for name in wanted)
        return [at for at in found if at is not None]

    def top(self, path: str, conf: ReadConf) -> str | None:
        """The top-level column that a name or a dotted path means; None where there is none."""
        for name in (path, path.strip("`"), path.partition(".")[0].strip("`")):
            if found := self.columns([name], conf):
                return self.struct.fields[found[0]].name
        return None


async def open_lake(session: Session, target: LakeTarget, conf: ReadConf) -> OpenLake:
    """Open a dataset and find out what Spark takes its columns for.

    Raises:
        AsyncpqError: as :meth:`asyncpq.Session.open_dataset`; or a column has a type that Spark does not read.
    """
    options = target.options
    if catalog_of(target.target, target.format, target.version) is None:  # tables have neither
        options["listing_max_age_s"] = _LISTING_AGE_S
        if conf.merge_schema and target.schema_policy == "strict":
            options["schema_policy"] = "permissive"
    dataset = await session.open_dataset(target.target, **options)
    state = replace(dataset._state, unifier=None)  # as to Spark, a file lacks columns or has others
    operation = state.resources.operation("open", state.url)
    partitions: Sequence[str] = ()
    with operation:
        if state.columns.fields is not None:
            struct = struct_of(state.columns.schema)
        else:
            kinds: dict[str, DataType] = {}
            file, metadata = await _first(state, operation)
            texts = {name: pa.string() for name in file.partition}
            by_text = target.schema is not None or not conf.infer_partition_types
            if texts and by_text and state.source.view is View.LISTED and target.partition_types is None:
                options["partition_types"] = texts  # other types are made of what the paths say
                dataset = await session.open_dataset(target.target, **options)
                state = replace(dataset._state, unifier=None)
            if texts and target.partition_types is None:
                state, kinds = await with_spark_partitions(state, target.schema, conf, operation)
            struct = _struct(state.columns.schema, file, metadata, kinds, conf)
            partitions = tuple(file.partition)
    schema = state.columns.schema
    names = tuple(schema.names)
    if target.schema is not None:
        asked = _with_partitions(nullable_struct(target.schema), struct, partitions, conf)
        schema, names = _asked_schema(schema, asked, conf)
        struct = asked
    state = replace(state, columns=state.columns._replace(schema=schema))
    return OpenLake(state, schema, struct, names, repr((target.partitioning, target.partition_types)))


def _with_partitions(asked: StructType, inferred: StructType, partitions: Sequence[str], conf: ReadConf) -> StructType:
    """The columns that a caller named, behind them those of the paths, as Spark has them."""
    known = [find_name(asked.names, name, conf) for name in partitions]
    data = [field for at, field in enumerate(asked.fields) if at not in known]
    found = [
        StructField(name, inferred[name].dataType if at is None else asked.fields[at].dataType)
        for name, at in zip(partitions, known, strict=True)
    ]
    return StructType([*data, *found])


def _asked_schema(known: pa.Schema, asked: StructType, conf: ReadConf) -> tuple[pa.Schema, tuple[str, ...]]:
    """The columns that a caller named, of the types that files have; and their names there."""
    lacking = arrow_schema(asked)
    columns: list[pa.Field] = []
    for at, one in enumerate(asked.fields):
        found = find_name(known.names, one.name, conf)
        columns.append(lacking.field(at) if found is None else known.field(found))
    names = tuple(one.name for one in columns)
    if len(set(names)) != len(names):
        raise InvalidOptionError("schema: two columns are the same one of the files")
    return pa.schema(columns, metadata=known.metadata), names


# -- types ----------------------------------------------------------------------------------------


def _struct(
    schema: pa.Schema, file: DataFile, metadata: FileMetadata, kinds: Mapping[str, DataType], conf: ReadConf
) -> StructType:
    """As Spark infers it from one file and the partitions' types."""
    inferred = spark_schema(metadata, conf)
    found = []
    for one in schema:
        at = None if one.name in file.partition else find_name(inferred.names, one.name, conf)
        if one.name in kinds:
            found.append(StructField(one.name, kinds[one.name]))
        else:
            found.append(struct_of(pa.schema([one])).fields[0] if at is None else inferred.fields[at])
    return StructType(found)


async def _first(state: DatasetState, operation: Operation) -> tuple[DataFile, FileMetadata]:
    """The footer of the first file that can be read, which caches have mostly."""
    known = state.source.known
    files: Sequence[DataFile] = () if known is None else known.files
    if not files:
        files = (await state.source.files(Ask(), operation)).files
    context = RequestContext(operation.metrics)
    for file in files:
        try:
            return file, await _metadata(state, file, operation, context)
        except AsyncpqError:
            if not state.skips:
                raise
    raise ObjectNotFoundError("the dataset has no file that can be read", url=state.url)


async def _metadata(state: DatasetState, file: DataFile, operation: Operation, context: RequestContext) -> FileMetadata:
    policy = immutable() if file.immutable else None
    if file.content is not None:
        source = held_source(state.resources, file.url, file.content, state.url)
    else:
        source = await open_source(state.resources, file.url, neighbours=state.url, policy=policy)
    try:
        entry = file.entry
        known = None if entry is None or entry.known is None else await entry.known(operation)
        return (await load_version(source, context, known)).metadata
    finally:
        await source.handle.close()


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
