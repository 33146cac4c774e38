"""Open a dataset on the driver for a plan, with its columns as Spark has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from asyncpq.dataset import Dataset
from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import OpenedFile, Opener
from asyncpq.datasets.providers import FileProvider
from asyncpq.decoding.field_types import file_schema
from asyncpq.errors import AsyncpqError, InvalidOptionError, ObjectNotFoundError, SchemaMismatchError
from asyncpq.events import Operation
from asyncpq.indexing.query.indexed_files import SnapshotFiles
from asyncpq.objects.opening import held_source, load_version, open_source
from asyncpq.objects.version import FileVersion
from asyncpq.options import immutable
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.scan.request import ScanRequest
from asyncpq.session import Session
from asyncpq.spark.reads.file_reads import NarrowedRequests
from asyncpq.spark.reads.lake_types import (
    TypedFiles,
    index_of,
    lake_column,
    lake_field,
    same_to_spark,
    struct_of,
    tells_more,
    with_instants,
    with_spark_partitions,
    with_untold,
)
from asyncpq.spark.sessions import told_to_refresh
from asyncpq.spark.types.parquet_schema import ROW_METADATA_KEY, row_schema, spark_schema
from asyncpq.spark.types.read_conf import ReadConf, find_name, first_name, merged_schema, nullable_struct
from asyncpq.spark.types.special_types import has_variant
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import absolute
from asyncpq.tables import catalog_of

#: Planning uses the listing that opening made.
_LISTING_AGE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class LakeTarget:
    """Arguments of :meth:`asyncpq.Session.open_dataset`, with Spark's schema.

    Attributes:
        target: a prefix, a pattern, a list of urls, or a table.
        schema: the caller's columns; None: as Spark infers them, from the first file by path or from all files.
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

    def __post_init__(self) -> None:  # workers run in other folders, so paths become absolute
        object.__setattr__(self, "target", absolute(self.target))
        object.__setattr__(self, "index", absolute(self.index))

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
    """An opened dataset.

    Attributes:
        state: the dataset; files may lack columns of the first file.
        schema: the dataset's Arrow schema, one column for each in ``struct``.
        struct: the columns as Spark has them.
        names: the dataset's name of each column of ``struct``.
        partitioning: see :class:`asyncpq.spark.reads.splits.LakeScan`.
    """

    state: DatasetState
    schema: pa.Schema
    struct: StructType
    names: tuple[str, ...]
    partitioning: str = ""

    @property
    def is_snapshot(self) -> bool:
        """Whether an index lists the files."""
        return self.state.source.view is View.SNAPSHOT

    def columns(self, wanted: Sequence[str], conf: ReadConf) -> list[int]:
        """Positions in ``struct`` of top-level columns, by Spark's case sensitivity; unknown names are left out."""
        spellings = [one.name for one in self.struct.fields]
        found = (find_name(spellings, name, conf) for name in wanted)
        return [at for at in found if at is not None]

    def top(self, path: str, conf: ReadConf) -> str | None:
        """The top-level column of a name or dotted path; None if it does not exist."""
        for name in (path, first_name(path)):
            if found := self.columns([name], conf):
                return self.struct.fields[found[0]].name
        return None


async def open_lake(session: Session, target: LakeTarget, conf: ReadConf) -> OpenLake:
    """Open a dataset and determine its columns as Spark has them.

    Raises:
        AsyncpqError: as :meth:`asyncpq.Session.open_dataset`; or Spark does not read the type of a column.
        SchemaMismatchError: schemas are to be merged, and two files have types that Spark does not merge.
    """
    options = target.options
    is_table = catalog_of(target.target, target.format, target.version) is not None
    if not is_table:  # tables are not listed
        options["listing_max_age_s"] = _LISTING_AGE_S
    dataset = await _opened(session, target, options, conf)
    state = replace(dataset.state, unifier=None)  # Spark lets files lack columns or have other types
    operation = state.runtime.operation("open", state.url)
    partitions: Sequence[str] = ()
    first: _First | None = None
    with operation:
        if state.columns.fields is not None:
            struct = struct_of(state.columns.schema)
        else:
            merges = conf.merge_schema and target.schema is None and not is_table
            state, struct, partitions, first = await _inferred(session, state, target, conf, operation, merges)
    if target.schema is not None:
        struct = _with_partitions(nullable_struct(target.schema), struct, partitions, conf)
    schema = state.columns.schema
    names = tuple(schema.names)
    if target.schema is not None or state.columns.fields is None:
        own = None if target.schema is not None else first
        schema = _lake_schema(state, struct, partitions, own, conf)
        names = tuple(schema.names)
        if len(set(names)) != len(names):
            raise InvalidOptionError("schema: two columns name the same column of the files")
        state = replace(state, source=_narrowed(state.source, schema, partitions, conf))
    state = replace(state, columns=state.columns._replace(schema=schema))
    return OpenLake(state, schema, struct, names, repr((target.partitioning, target.partition_types)))


async def _opened(session: Session, target: LakeTarget, options: Mapping[str, Any], conf: ReadConf) -> Dataset:
    """Open the dataset; where its first file contradicts the index, with the types of the caller's schema."""
    try:
        return await session.open_dataset(target.target, **options)
    except SchemaMismatchError:
        if target.schema is None or target.index is False:
            raise
        # the index has the unified types of all files, the dataset those of its first file
        listed = await session.open_dataset(target.target, **{**options, "index": False, "view": View.LISTED.value})
        schema = listed.schema
        for asked in target.schema.fields:
            at = find_name(schema.names, asked.name, conf)
            if at is not None:
                schema = schema.set(at, lake_field(schema.field(at), asked, conf))
        return await session.open_dataset(target.target, **options, schema=schema)


class _Inferred(NamedTuple):
    """A dataset whose files define its columns.

    Attributes:
        partitions: names of the columns in paths.
        first: the file that defines the columns; None if there is no file.
    """

    state: DatasetState
    struct: StructType
    partitions: Sequence[str]
    first: _First | None


async def _inferred(
    session: Session, state: DatasetState, target: LakeTarget, conf: ReadConf, operation: Operation, merges: bool
) -> _Inferred:
    files = await _by_path(state, operation)
    if not files and state.source.view is View.SNAPSHOT:  # an overwrite removed all rows
        return _Inferred(state, _struct_of_none(state.columns.schema, conf), (), None)
    file, first = await _first(state, files, operation)
    partitions, texts = tuple(file.partition), {name: pa.string() for name in file.partition}
    kinds: dict[str, DataType] = {}
    if texts and target.partition_types is None:
        by_text = target.schema is not None or not conf.infer_partition_types
        is_indexed = index_of(state.source) is not None
        if by_text and state.source.view is View.LISTED and not (is_indexed and target.partitioning == "hive"):
            # Spark types the texts of the paths itself; the index has types of its own and is not used for them
            options = {**target.options, "listing_max_age_s": _LISTING_AGE_S, "partition_types": texts}
            if is_indexed:
                options["index"] = False
            dataset = await session.open_dataset(target.target, **options)
            state = replace(dataset.state, unifier=None)
        hive = _is_hive(state.source, target)
        state, kinds = await with_spark_partitions(state, target.schema, conf, operation, hive=hive)
    if merges:
        merged = await _merged(state, files, conf, operation)
        struct = _with_partition_types(merged, state.columns.schema, partitions, kinds, conf)
    elif target.schema is not None:  # other columns of the files may have types that Spark does not read
        struct = StructType([_partition_field(state.columns.schema, name, kinds) for name in partitions])
    elif target.schema_policy == "strict" and state.source.view is not View.SNAPSHOT:
        inferred = spark_schema(first.metadata, conf)
        struct = _with_partition_types(inferred, state.columns.schema, partitions, kinds, conf)
    else:
        struct = _struct(state.columns.schema, partitions, first, kinds, conf)
    return _Inferred(state, struct, partitions, first)


# -- columns --------------------------------------------------------------------------------------


def _with_partitions(asked: StructType, inferred: StructType, partitions: Sequence[str], conf: ReadConf) -> StructType:
    """The caller's columns, then the partition columns as Spark has them."""
    known = [find_name(asked.names, name, conf) for name in partitions]
    data = [field for at, field in enumerate(asked.fields) if at not in known]
    found = [
        inferred[name] if at is None else StructField(asked.fields[at].name, asked.fields[at].dataType)
        for name, at in zip(partitions, known, strict=True)
    ]
    return StructType([*data, *found])


def _with_partition_types(
    merged: StructType, schema: pa.Schema, partitions: Sequence[str], kinds: Mapping[str, DataType], conf: ReadConf
) -> StructType:
    """The files' columns with the types of partition columns where names agree, then the other partition columns."""
    found = {name: _partition_field(schema, name, kinds) for name in partitions}
    by_key = {conf.key(name): name for name in partitions}
    fields = [found.pop(by_key[key]) if (key := conf.key(one.name)) in by_key else one for one in merged.fields]
    return StructType([*fields, *found.values()])


def _partition_field(schema: pa.Schema, name: str, kinds: Mapping[str, DataType]) -> StructField:
    return StructField(name, kinds[name]) if name in kinds else struct_of(pa.schema([schema.field(name)])).fields[0]


def _lake_schema(
    state: DatasetState, struct: StructType, partitions: Sequence[str], first: _First | None, conf: ReadConf
) -> pa.Schema:
    """The Arrow schema with which asyncpq reads the columns of ``struct``.

    Args:
        first: the file from which ``struct`` is inferred; None if the caller gave it.
    """
    known = state.columns.schema
    inferred = StructType([]) if first is None else spark_schema(first.metadata, conf)
    columns: list[pa.Field] = []
    for one in struct.fields:
        part = find_name(partitions, one.name, conf)
        if part is not None:
            columns.append(known.field(partitions[part]))
            continue
        at = find_name(known.names, one.name, conf)
        if at is None:
            columns.append(lake_column(one))
            continue
        field = known.field(at)
        if state.columns.fields is not None:
            columns.append(field)
        elif (
            first is not None and one in inferred.fields and _has(first.schema, field) and not has_variant(one.dataType)
        ):
            columns.append(field if index_of(state.source) is not None else with_instants(field, one))
        else:
            columns.append(lake_field(field, one, conf))
    return pa.schema(columns, metadata=known.metadata)


def _has(schema: pa.Schema, field: pa.Field) -> bool:
    at = schema.get_field_index(field.name)
    return at >= 0 and bool(schema.field(at).type.equals(field.type))


def _is_hive(source: FileProvider, target: LakeTarget) -> bool:
    """Whether folders are named ``key=value``."""
    if isinstance(source, SnapshotFiles):
        return bool(source.index.manifest.dataset.get("partitioning") == "hive")
    return target.partitioning == "hive"


def _narrowed(source: FileProvider, schema: pa.Schema, partitions: Sequence[str], conf: ReadConf) -> FileProvider:
    """Restrict what an index in ``source`` prunes by.

    The index has the columns of the time when it was built. It is used for those whose type in ``schema`` is the same.
    """
    if isinstance(source, TypedFiles):
        inner = _narrowed(source.source, schema, partitions, conf)
        return source if inner is source.source else TypedFiles(inner, source.types, conf)
    index = index_of(source)
    if index is None:
        return source
    known = index.manifest.schema
    fields = [one for one in schema if one.name not in partitions and one.name in known.names]
    same = all(one.type.equals(known.field(one.name).type) for one in fields)
    return source if same else NarrowedRequests(source, known, schema, conf)


# -- types ----------------------------------------------------------------------------------------


def _struct(
    schema: pa.Schema, partitions: Sequence[str], first: _First, kinds: Mapping[str, DataType], conf: ReadConf
) -> StructType:
    """The columns as Spark infers them from one file; the dataset's types where these are wider."""
    inferred = spark_schema(first.metadata, conf)
    found = []
    data = {conf.key(name) for name in schema.names if name not in partitions}
    for one in schema:
        if one.name in partitions:
            if conf.key(one.name) not in data:
                found.append(_partition_field(schema, one.name, kinds))
            continue
        at, own = find_name(inferred.names, one.name, conf), first.schema.get_field_index(one.name)
        is_own = own >= 0 and same_to_spark(first.schema.field(own).type, one.type)
        if at is not None and is_own:
            found.append(inferred.fields[at])
            continue
        known = struct_of(pa.schema([one])).fields[0]
        if at is not None and tells_more(inferred.fields[at].dataType):
            known = StructField(known.name, with_untold(known.dataType, inferred.fields[at].dataType, conf))
        found.append(known)
    return _with_partition_types(StructType(found), schema, partitions, kinds, conf)


def _struct_of_none(schema: pa.Schema, conf: ReadConf) -> StructType:
    """The columns of an index without files: as Spark wrote them, or else from Arrow's types."""
    text = (schema.metadata or {}).get(ROW_METADATA_KEY.encode())
    written = None if text is None else row_schema(text.decode("utf-8", "replace"))
    if written is not None and [conf.key(name) for name in written.names] == [conf.key(name) for name in schema.names]:
        return written
    return struct_of(schema)


async def _merged(state: DatasetState, files: Sequence[DataFile], conf: ReadConf, operation: Operation) -> StructType:
    """The columns that Spark infers from all files, those of the first file first.

    Raises:
        SchemaMismatchError: two files have types that Spark does not merge; names one of them.
    """
    merged: StructType | None = None
    seen: set[object] = set()

    async def look(opened: OpenedFile) -> tuple[object, FileMetadata]:
        metadata = opened.version.metadata
        return (opened.schema_bytes, metadata.key_value_metadata.get(ROW_METADATA_KEY)), metadata

    def skip(number: int, part: Operation, error: AsyncpqError) -> None:
        operation.part_ended(part, error, number + 1)

    opener = Opener(
        state.runtime,
        operation,
        rounds=operation.metrics.rounds,
        tail_hint=state.url,
        restarts=state.runtime.options.limits.max_restarts,
        skip=skip if state.skips else None,
    )
    async with aclosing(opener.files(enumerate(files), look)) as opened_files:
        async for opened, (key, metadata) in opened_files:
            await opened.close()
            operation.part_ended(opened.operation, None, opened.number + 1)
            if key in seen:
                continue
            seen.add(key)
            try:
                one = spark_schema(metadata, conf)
                merged = one if merged is None else merged_schema([merged, one], conf)
            except AsyncpqError as error:
                raise error.locate(url=opened.version.url) from error.__cause__
    if merged is None:
        raise ObjectNotFoundError("the dataset has no file that can be read", url=state.url)
    return merged


# -- files ----------------------------------------------------------------------------------------


class _First(NamedTuple):
    """The first readable file.

    Attributes:
        metadata: its footer.
        schema: its Arrow schema.
    """

    metadata: FileMetadata
    schema: pa.Schema


async def _by_path(state: DatasetState, operation: Operation) -> list[DataFile]:
    """All files in the order in which Spark visits them."""
    known = state.source.known
    files: Sequence[DataFile] = () if known is None else known.files
    if not files:
        files = (await state.source.files(ScanRequest(), operation)).files
    return sorted(files, key=lambda file: file.url)


async def _first(state: DatasetState, files: Sequence[DataFile], operation: Operation) -> tuple[DataFile, _First]:
    """The first file that can be read. Caches usually have it."""
    context = RequestContext(operation.metrics)
    extensions = state.runtime.options.read.extension_types
    for file in files:
        try:
            with told_to_refresh(state.source.view is View.SNAPSHOT):
                version = await _version(state, file, operation, context)
            return file, _First(
                version.metadata, file_schema(version, version.metadata.schema.whole_fields, extensions)
            )
        except AsyncpqError:
            if not state.skips:
                raise
    raise ObjectNotFoundError("the dataset has no file that can be read", url=state.url)


async def _version(state: DatasetState, file: DataFile, operation: Operation, context: RequestContext) -> FileVersion:
    policy = immutable() if file.immutable else None
    if file.content is not None:
        source = held_source(state.runtime, file.url, file.content, state.url)
    else:
        source = await open_source(state.runtime, file.url, tail_hint=state.url, policy=policy)
    try:
        entry = file.entry
        known = None if entry is None or entry.known is None else await entry.known(operation)
        return await load_version(source, context, known)
    finally:
        await source.handle.close()
