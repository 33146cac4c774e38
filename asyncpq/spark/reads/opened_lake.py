"""Open a dataset on the driver for a read plan, and find out which files and columns Spark sees in it.

Values in paths are those that Spark has. An index is asked only by conditions that its columns, which are from when it
was built, can evaluate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from asyncpq import DataFile, Dataset, Session, View, errors
from asyncpq.distributed import EngineDataset, EngineFiles, FooterFacts, refresh_hint
from asyncpq.engine.target_facts import absolute_target, hive_ignoring_case, opens_table
from asyncpq.errors import PartitionError
from asyncpq.spark.settings import with_three_slashes, without_credentials
from asyncpq.spark.types.conversion import for_other_files, lake_column, lake_field
from asyncpq.spark.types.parquet_schema import ROW_METADATA_KEY, row_schema, spark_refuses, spark_schema
from asyncpq.spark.types.partition_types import partition_scalar, partition_type, unescaped
from asyncpq.spark.types.read_conf import ReadConf, first_name, merged_schema, nullable_struct
from asyncpq.spark.types.special_types import has_variant, same_to_spark, struct_of, tells_more, with_untold

logger: logging.Logger = logging.getLogger(__name__)


def read_by_spark(files: Sequence[DataFile], root: str | None, conf: ReadConf) -> Callable[[DataFile], bool]:
    """Return a function that says whether Spark reads a file. Spark reads files that are not empty; if the folder
    ``root`` has partition folders, only files in these. ``root`` is None for patterns and lists of files.

    Raises PartitionError, as Spark does, if the folders of two files have different partition columns, or a column in
    them has no name. Names are compared with Spark's case sensitivity.
    """

    def columns_in(file: DataFile) -> tuple[str, ...]:
        folders = [] if root is None else file.url[len(root) :].split("/")[:-1]
        return tuple([conf.key(unquote(folder.partition("=")[0])) for folder in folders if "=" in folder])

    firsts: dict[tuple[str, ...], DataFile] = {}
    for file in files:
        if file.size != 0:
            firsts.setdefault(columns_in(file), file)
    nameless = next((file for names, file in firsts.items() if "" in names), None)
    if nameless is not None:
        raise PartitionError(
            "a folder has an empty name of a partition column (Spark: EMPTY_PARTITION_COLUMN_NAME)",
            url=nameless.url,
            hint="Rename the folder to key=value, or pass partitioning=None for the files' own columns.",
        )
    outside = firsts.pop((), None)
    if len(firsts) > 1:
        one, other, *_ = ("/".join(names) for names in firsts)
        raise PartitionError(
            f"the files are in folders of different partition columns, {one} and {other} (Spark:"
            " CONFLICTING_PARTITION_COLUMN_NAMES)",
            url=[*firsts.values()][1].url,
            hint="Read each of these folders by itself, or pass partitioning=None for the files' own columns.",
        )
    if firsts and outside is not None:
        logger.warning("%s and files like it are not read, as by Spark: they are beside partition folders", outside.url)
    return lambda file: file.size != 0 and (not firsts or columns_in(file) != ())


#: Planning uses the listing that opening made.
_LISTING_AGE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class LakeTarget:
    """Arguments of :meth:`asyncpq.Session.open_dataset`, with Spark's schema."""

    target: Any  # a prefix, a pattern, a list of urls, or a table
    index: Any = None
    view: Literal["snapshot", "listed", "table"] | None = None
    format: Literal["parquet", "delta", "iceberg"] | None = None
    version: Any = None
    schema: StructType | None = None  # None: as Spark infers it, from the first file by path or from all files
    schema_policy: Literal["strict", "permissive"] = "strict"
    partitioning: Literal["hive"] | Sequence[str] | None = "hive"
    partition_types: Any = None
    on_bad_file: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:  # workers run in other folders, so paths become absolute
        target: Any = self.target
        target = [*map(with_three_slashes, target)] if isinstance(target, (list, tuple)) else with_three_slashes(target)
        object.__setattr__(self, "target", absolute_target(target))
        object.__setattr__(self, "index", absolute_target(self.index))

    def options(self, conf: ReadConf) -> dict[str, Any]:
        """Return keyword arguments of :meth:`asyncpq.Session.open_dataset`."""
        names = {item.name for item in fields(self)} - {"target", "schema"}
        options = {name: getattr(self, name) for name in names}
        if self.partitioning == "hive" and not conf.case_sensitive:
            options["partitioning"] = hive_ignoring_case()
        return options


@dataclass(frozen=True, slots=True)
class OpenLake:
    """An opened dataset, with its columns as Spark infers them."""

    state: EngineDataset  # files may lack columns of the first file
    struct: StructType  # the columns as Spark has them
    conf: ReadConf
    partitioning: str = ""  # how values in paths are read
    partitions: tuple[str, ...] = ()  # names of the columns in paths
    differs: str = ""  # why Spark's own reader may not return these columns from these files; "" if it does
    row_bytes: float = 0.0  # bytes of a row in the first file; 0 if unknown
    # of a loaded table: its own storage options, such as its endpoint, without credentials
    storage: Mapping[str, Any] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema with which asyncpq reads the columns of ``struct``, in the same order."""
        return self.state.columns.schema

    @property
    def names(self) -> list[str]:
        """Names of the columns in ``schema``; a column of ``struct`` may differ in case."""
        names: list[str] = self.schema.names
        return names

    def columns(self, wanted: Sequence[str]) -> list[int]:
        """Return the positions in ``struct`` of the top-level columns named in ``wanted``; names that do not exist
        are skipped. Names are compared with Spark's case sensitivity."""
        names = self.struct.names
        places = (self.conf.find(names, name) for name in wanted)
        return [place for place in places if place is not None]

    def known_top(self, path: str) -> str:
        """Return the name that ``struct`` has for the top-level column of ``path``, a name or dotted path. Raises
        ColumnNotFoundError if the column does not exist."""
        places = self.columns([path]) or self.columns([first_name(path)])
        if not places:
            raise self.missing(path)
        return self.struct.fields[places[0]].name

    def missing(self, name: str) -> errors.ColumnNotFoundError:
        """Return the error to raise for a column that the lake does not have."""
        hint = errors.nearest_column(name, self.struct.names)
        return errors.ColumnNotFoundError("the lake has no such column", url=self.state.url, column=name, hint=hint)


async def open_lake(session: Session, target: LakeTarget, conf: ReadConf) -> OpenLake:
    """Open a dataset and determine its columns as Spark has them.

    Raises:
        AsyncpqError: :meth:`asyncpq.Session.open_dataset` failed, or Spark does not support the type of a column.
        SchemaMismatchError: a setting says to merge the files' schemas, and Spark cannot merge a column's types.
    """
    if conf.ignore_corrupt_files:
        target = replace(target, on_bad_file="skip")
    options = target.options(conf)
    is_table = opens_table(target.target, target.format, target.version)
    if not is_table:  # tables are not listed
        options["listing_max_age_s"] = _LISTING_AGE_S
    dataset = await _opened(session, target, options, conf)
    lake = _LakeOpener(session, target, conf, dataset, merges=conf.merge_schema and not is_table)
    with lake.operation:
        struct = await lake.struct()
    partitioning = repr((target.partitioning, target.partition_types))
    differs = lake.differs(struct)
    own = lake.state.own_storage(session)
    storage = None if own is None else without_credentials(own)
    return OpenLake(
        lake.state, struct, conf, partitioning, lake.partitions, differs, row_bytes=lake.row_bytes, storage=storage
    )


async def _opened(session: Session, target: LakeTarget, options: Mapping[str, Any], conf: ReadConf) -> Dataset:
    """Open the dataset. If the types of its first file contradict those in the index, open it with the value types of
    dictionaries, and with the types of the caller's schema."""
    try:
        return await session.open_dataset(target.target, **options)
    except errors.SchemaMismatchError:
        if target.index is False:
            raise
        # the index has the unified types of all files, the dataset those of its first file
        listed = await session.open_dataset(target.target, **{**options, "index": False, "view": View.LISTED.value})
        schema = pa.schema([_without_dictionary(field) for field in listed.schema])
        if target.schema is None and schema == listed.schema:
            raise
        asked: dict[int, StructField] = {}
        for field in () if target.schema is None else target.schema.fields:
            at = conf.find(schema.names, field.name)
            if at is not None:
                asked[at] = field
                schema = schema.set(at, lake_field(schema.field(at), field, conf))
        while True:
            try:
                return await session.open_dataset(target.target, **options, schema=schema)
            except errors.SchemaMismatchError as error:
                name = error.column or ""
                at = schema.get_field_index(name if name in schema.names else first_name(name))
                wider = for_other_files(schema.field(at), asked[at]) if at in asked else None
                if wider is None or wider == schema.field(at):
                    raise
                schema = schema.set(at, wider)


def _without_dictionary(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if isinstance(field.type, pa.DictionaryType) else field


class _LakeOpener:
    """Determines Spark's columns of an opened dataset, and replaces ``state`` by one with these columns."""

    def __init__(self, session: Session, target: LakeTarget, conf: ReadConf, dataset: Dataset, *, merges: bool) -> None:
        self.state = EngineDataset.of(dataset, skips_missing=conf.ignore_missing_files)
        self.operation = self.state.opening()
        self._session = session
        self._target = target
        self._conf = conf
        self._merges = merges
        self._is_table = self.state.columns.fields is not None
        self.partitions: tuple[str, ...] = ()  # names of the columns in paths
        self._dtypes: dict[str, DataType] = {}  # their types, where Spark's differ from asyncpq's
        self._first: pa.Schema | None = None  # of the first file, if it defines the columns
        self._inferred = StructType([])  # what Spark infers from that file
        self._by_spark: StructType | None = None  # what Spark infers from all files and paths, without a schema
        self.row_bytes = 0.0  # of that file, for each row
        self._refuses = ""  # why Spark cannot decode that file
        self._reads: Callable[[DataFile], bool] = lambda file: True  # whether Spark reads a file

    async def struct(self) -> StructType:
        """Return the columns as Spark has them; set the columns of ``state`` to the Arrow schema that reads them."""
        asked = self._target.schema
        struct = struct_of(self.state.columns.schema) if self._is_table else await self._infer()
        if asked is not None:
            struct = self._with_partitions(nullable_struct(asked), struct)
        if asked is not None or not self._is_table:
            schema = self._lake_schema(struct)
            if len(set(schema.names)) != len(schema.names):
                raise errors.InvalidOptionError(
                    "schema: two of its columns match the same column of the files",
                    option="schema",
                    hint="Leave one of them out, or set spark.sql.caseSensitive=true.",
                )
            source = narrowed_for_index(self.state.source, schema, self.partitions, self._conf)
            self.state = replace(self.state, source=source, columns=self.state.columns._replace(schema=schema))
        return struct

    def differs(self, struct: StructType) -> str:
        """Return why Spark's own reader may not return the columns ``struct`` from these files; "" if it certainly
        does."""
        target = self._target
        if self._is_table:
            return "a table defines the files' columns and may delete rows"
        if self.state.skips:
            return "bad files are skipped"
        if self.partitions and (target.partitioning != "hive" or target.partition_types is not None):
            return "partitioning= or partition_types= say how paths are read"
        if target.schema is None and struct != self._by_spark:
            return "the dataset has wider types than Spark infers"
        return self._refuses

    async def _infer(self) -> StructType:
        """Infer the columns from the files and their paths; only partition columns if the caller passed a schema."""
        target, view = self._target, self.state.source.view
        files = await self._visited()
        if view is View.LISTED:
            folder = EngineDataset.folder_of(target.target) if target.partitioning == "hive" else None
            self._choose(read_by_spark(files, folder, self._conf))
            files = [file for file in files if self._reads(file)]
        if not files and view is View.SNAPSHOT:  # an overwrite removed all rows
            return _struct_of_none(self.state.columns.schema, self._conf)
        file, metadata, first = await self._first_file(files)
        self.partitions = tuple(file.partition)
        if len({*map(self._conf.key, self.partitions)}) < len(self.partitions):
            raise errors.PartitionError(
                f"the index has the partition columns {', '.join(self.partitions)}, of which some differ only in case;"
                " Spark reads them as one",
                url=self.state.url,
                hint='Pass view="listed" to read the folders, or rename them and build the index again.',
            )
        if self.partitions and target.partition_types is None:
            await self._type_partitions()
        self._refuses = spark_refuses(metadata)
        if file.validator is not None and metadata.num_rows:
            self.row_bytes = file.validator.size / metadata.num_rows
        if target.schema is not None:  # other columns of the files may have types that Spark does not read
            return StructType([self._partition_field(name) for name in self.partitions])
        merged = await self._merged(files) if self._merges else None
        self._first, self._inferred = first, spark_schema(metadata, self._conf)
        self._by_spark = self._with_partition_types(self._inferred if merged is None else merged)
        if merged is not None or (target.schema_policy == "strict" and view is not View.SNAPSHOT):
            return self._by_spark
        return self._with_partition_types(self._known_struct(first))

    async def _visited(self) -> Sequence[DataFile]:
        """Return the files in the order in which Spark visits them; of an index, which may list very many, only the
        first one if none may be left out and schemas are not merged."""
        source, state = self.state.source, self.state
        first_of = getattr(source, "first", None)  # of a list that an index has
        if first_of is not None and not (self._merges or state.skips or state.skips_missing):
            first: Sequence[DataFile] = await first_of(1, self.operation)
            return first
        files = [file async for files in state.files(self.operation) for file in files]
        return sorted(files, key=lambda file: file.url)

    def _choose(self, reads: Callable[[DataFile], bool]) -> None:
        """Leave out the files for which ``reads`` is false, because Spark does not read them."""
        self._reads = reads
        known = self.state.source.known
        if known is not None and not all(map(reads, known.files)):
            self.state = replace(self.state, source=EngineFiles(self.state.source, self._conf, reads=reads))

    # -- columns ----------------------------------------------------------------------------------

    def _with_partitions(self, asked: StructType, inferred: StructType) -> StructType:
        """Return the columns ``asked``, from the caller, followed by the other partition columns of ``inferred``, as
        Spark orders them."""
        known = [self._conf.find(asked.names, name) for name in self.partitions]
        data = [field for at, field in enumerate(asked.fields) if at not in known]
        partitions = [
            inferred[name] if at is None else StructField(asked.fields[at].name, asked.fields[at].dataType)
            for name, at in zip(self.partitions, known, strict=True)
        ]
        return StructType([*data, *partitions])

    def _with_partition_types(self, columns: StructType) -> StructType:
        """Return ``columns``, those of the files, followed by the other partition columns. A file's column with the
        name of a partition column gets the partition column's type."""
        key = self._conf.key
        rest = {name: self._partition_field(name) for name in self.partitions}
        by_key = {key(name): name for name in self.partitions}
        data = [rest.pop(by_key.get(key(field.name), ""), field) for field in columns.fields]
        return StructType([*data, *rest.values()])

    def _partition_field(self, name: str) -> StructField:
        if name in self._dtypes:
            return StructField(name, self._dtypes[name])
        return struct_of(pa.schema([self.state.columns.schema.field(name)])).fields[0]

    def _known_struct(self, first: pa.Schema) -> StructType:
        """Return the columns as Spark infers them from the first file, with the dataset's types where they are wider.
        ``first`` is the file's Arrow schema."""
        inferred, conf = self._inferred, self._conf
        columns, schema = [], self.state.columns.schema
        data = {conf.key(name) for name in schema.names if name not in self.partitions}
        for field in schema:
            if field.name in self.partitions:
                if conf.key(field.name) not in data:
                    columns.append(self._partition_field(field.name))
                continue
            at, own = conf.find(inferred.names, field.name), first.get_field_index(field.name)
            if at is not None and own >= 0 and same_to_spark(first.field(own).type, field.type):
                columns.append(inferred.fields[at])
                continue
            known = struct_of(pa.schema([field])).fields[0]
            if at is not None and tells_more(inferred.fields[at].dataType):
                known = StructField(known.name, with_untold(known.dataType, inferred.fields[at].dataType, conf))
            columns.append(known)
        return StructType(columns)

    def _lake_schema(self, struct: StructType) -> pa.Schema:
        """Return the Arrow schema with which asyncpq reads the columns of ``struct``."""
        known = self.state.columns.schema
        return pa.schema([self._lake_column(known, field) for field in struct.fields], metadata=known.metadata)

    def _lake_column(self, known: pa.Schema, asked: StructField) -> pa.Field:
        conf, first = self._conf, self._first
        part = conf.find(self.partitions, asked.name)
        if part is not None:
            return known.field(self.partitions[part])
        at = conf.find(known.names, asked.name)
        if at is None:
            return lake_column(asked)
        field = known.field(at)
        if self._is_table:
            return field
        is_indexed = self.state.source.index is not None  # which has the types of all files
        if first is not None and asked in self._inferred.fields and not has_variant(asked.dataType):
            own = first.get_field_index(field.name)
            if own >= 0 and first.field(own).type.equals(field.type):
                return field if is_indexed else for_other_files(field, asked)
        field = lake_field(field, asked, conf)
        return field if is_indexed else for_other_files(field, asked)

    # -- files ------------------------------------------------------------------------------------

    async def _first_file(self, files: Sequence[DataFile]) -> tuple[DataFile, FooterFacts, pa.Schema]:
        """Return the first file that can be read, its footer and its Arrow schema. The footer is usually cached."""
        state = self.state
        with refresh_hint(state.source.view is View.SNAPSHOT):
            async with aclosing(state.footers(files, self.operation, first=True)) as footers:
                first = await anext(footers)
        return first.file, first.facts, first.schema

    async def _merged(self, files: Sequence[DataFile]) -> StructType:
        """Merge the columns that Spark infers from each file, those of the first file first. Errors name the file."""
        merged = StructType([])
        seen: set[object] = set()
        async with aclosing(self.state.footers(files, self.operation)) as footers:
            async for footer in footers:
                key = footer.schema_bytes, footer.facts.key_values.get(ROW_METADATA_KEY)
                if key not in seen:
                    seen.add(key)
                    with errors.located(url=footer.url):
                        merged = merged_schema([merged, spark_schema(footer.facts, self._conf)], self._conf)
        return merged

    async def _type_partitions(self) -> None:
        """Set Spark's types for the partition columns. Raises an AsyncpqError with the column's name if a value in a
        path does not have the column's type."""
        asked, conf = self._target.schema, self._conf
        hive, source = self._target.partitioning == "hive", self.state.source
        by_text = asked is not None or not conf.infer_partition_types
        is_indexed = source.index is not None
        if by_text and source.view is View.LISTED and not (is_indexed and hive):
            # Spark types the texts of the paths itself; the index has types of its own and is not used for them
            texts = {name: pa.string() for name in self.partitions}
            options = {**self._target.options(conf), "listing_max_age_s": _LISTING_AGE_S, "partition_types": texts}
            if is_indexed:
                options["index"] = False
            dataset = await self._session.open_dataset(self._target.target, **options)
            self.state = EngineDataset.of(dataset, skips_missing=conf.ignore_missing_files)
            self._choose(self._reads)
        if self.state.source.view is View.SNAPSHOT:
            hive = self.state.source.index.manifest.dataset.get("partitioning") == "hive"
        schema = self.state.columns.schema
        texts_of: dict[str, set[str | None]] = {}
        async for files in self.state.files(self.operation):
            names = list(dict.fromkeys(name for file in files[:1] for name in file.partition))
            if not hive:
                names = [name for name in names if pa.types.is_string(schema.field(name).type)]
            for name, values_of_set in texts_in_paths(files, names, conf, hive=hive).items():
                texts_of.setdefault(name, set()).update(values_of_set)
        for name, all_texts in texts_of.items():
            at = schema.get_field_index(name)
            values = sorted(text for text in all_texts if text is not None)
            with errors.located(url=self.state.url, column=name):
                dtype = partition_type(values, conf)
                if asked is not None and (place := conf.find(asked.names, name)) is not None:
                    dtype = asked.fields[place].dataType
                for value in values[:1]:
                    partition_scalar(value, dtype, conf)
            arrow = to_arrow_type(dtype, timezone="UTC")
            if arrow == schema.field(at).type and not any("%" in value for value in values):
                continue  # asyncpq has the same type
            self._dtypes[name] = dtype
            schema = schema.set(at, pa.field(name, arrow))
        if self._dtypes:
            typed = SparkFiles(self.state.source, conf, PartitionTypes(tuple(self._dtypes.items()), hive))
            own = self.state.columns._replace(schema=schema, token=object())
            self.state = replace(self.state, source=typed, columns=own)


def _struct_of_none(schema: pa.Schema, conf: ReadConf) -> StructType:
    """Return the columns of a lake whose index lists no files: those of Spark's schema in the index's metadata, or
    else of its Arrow types."""
    text = (schema.metadata or {}).get(ROW_METADATA_KEY.encode())
    written = None if text is None else row_schema(text.decode("utf-8", "replace"))
    if written is not None and [conf.key(name) for name in written.names] == [conf.key(name) for name in schema.names]:
        return written
    return struct_of(schema)


# -- paths and files ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionTypes:
    """Spark's types of partition columns whose values are parsed from the texts in paths. Picklable."""

    dtypes: tuple[tuple[str, DataType], ...]
    hive: bool  # parse the texts of `key=value` folders; otherwise the texts are asyncpq's partition values


class SparkFiles(EngineFiles):
    """The files of another provider with partition values of Spark's types, ``types``. With ``typed``, the files of
    ``source`` have Spark's values already. ``schemas``: see :class:`asyncpq.distributed.EngineFiles`."""

    def __init__(
        self,
        source: Any,
        conf: ReadConf,
        types: PartitionTypes | None = None,
        *,
        typed: bool = False,
        schemas: tuple[pa.Schema, pa.Schema] | None = None,
    ) -> None:
        values = None if types is None or typed else partial(_values, types, conf, {})
        retyped = () if types is None else dict(types.dtypes)
        super().__init__(source, conf, values=values, retyped=retyped, schemas=schemas)
        self.types = types


def _values(
    types: PartitionTypes, conf: ReadConf, known: dict[str, Mapping[str, Any]], file: DataFile
) -> Mapping[str, Any]:
    """Return Spark's values for a file; ``known`` keeps them by folder."""
    folder = file.url.rpartition("/")[0]
    if folder not in known:
        dtypes = dict(types.dtypes)
        texts = _path_texts(file, dtypes, conf, hive=types.hive)
        known[folder] = {name: partition_scalar(texts.get(name), dtype, conf).as_py() for name, dtype in dtypes.items()}
    return known[folder]


def narrowed_for_index(source: Any, schema: pa.Schema, partitions: Collection[str], conf: ReadConf) -> Any:
    """Return ``source``, or a wrapper that passes only some conditions to an index whose column types differ from the
    lake's ``schema``. Types of the columns ``partitions``, which come from paths, are not compared."""
    index = source.index
    if index is None:
        return source
    known = index.manifest.schema
    columns = [field for field in schema if field.name not in partitions and field.name in known.names]
    if all(field.type.equals(known.field(field.name).type) for field in columns):
        return source
    inner, types = (source.source, source.types) if isinstance(source, SparkFiles) else (source, None)
    return SparkFiles(inner, conf, types, schemas=(schema, known))


def texts_in_paths(
    files: Sequence[DataFile], names: Collection[str], conf: ReadConf, *, hive: bool
) -> dict[str, set[str | None]]:
    """Return the texts of each partition column in all paths, with their ``%xx`` escapes. With ``hive``, texts are
    parsed from ``key=value`` folders; otherwise they are asyncpq's partition values."""
    folders = {file.url.rpartition("/")[0]: file for file in files}
    texts: dict[str, set[str | None]] = {name: set() for name in names}
    for file in folders.values():
        for name, text in _path_texts(file, names, conf, hive=hive).items():
            texts[name].add(text)
    return texts


def _path_texts(file: DataFile, names: Collection[str], conf: ReadConf, *, hive: bool) -> dict[str, str | None]:
    if not hive:
        values = ((name, file.partition.get(name)) for name in names)
        return {name: None if text is None else text.replace("%", "%25") for name, text in values}
    texts: dict[str, str | None] = {}
    by_key = {conf.key(name): name for name in names}
    for segment in reversed(file.url.split("/")[:-1]):  # folders above the dataset's root may repeat a name
        key, equals, text = segment.partition("=")
        spelled = unquote(key) if equals else ""
        name = by_key.get(conf.key(spelled), "")
        if name in file.partition and name not in texts:
            if unescaped(key) != spelled:
                raise errors.UnsupportedFeatureError(
                    f"from the folder {segment!r}, Spark reads the column name {unescaped(key)!r}, asyncpq {spelled!r}",
                    column=name,
                    hint="Rename the folder, or read it with spark.read.parquet.",
                )
            texts[name] = text
    return texts
