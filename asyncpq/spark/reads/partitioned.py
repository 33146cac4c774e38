"""Files whose partition values have the types and values that Spark gives them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from asyncpq.datasets.file_sets import FileSet, FileSource
from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask
from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.events import Operation
from asyncpq.expressions import Expression, columns
from asyncpq.indexing.indexed_files import IndexedFiles
from asyncpq.indexing.open_index import OpenIndex
from asyncpq.indexing.snapshot_files import SnapshotFiles
from asyncpq.spark.reads.file_columns import sure_part
from asyncpq.spark.types.partition_types import partition_scalar, partition_type, unescaped
from asyncpq.spark.types.read_conf import ReadConf, find_name


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
        files = (await state.source.files(Ask(), operation)).files
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


def is_index_list(source: FileSource) -> bool:
    """Whether the files are those that :func:`index_of` lists; else the index only prunes them."""
    return isinstance(source.source if isinstance(source, TypedFiles) else source, SnapshotFiles)


def index_of(source: FileSource) -> OpenIndex | None:
    """The index by which files are left out unopened; None for none."""
    inner = source.source if isinstance(source, TypedFiles) else source
    return inner.index if isinstance(inner, (SnapshotFiles, IndexedFiles)) else None


def partition_types_of(source: FileSource) -> PartitionTypes | None:
    """How the partition values of files are made; None: as asyncpq has them."""
    return source.types if isinstance(source, TypedFiles) else None


class TypedFiles:
    """The files of another source, with partition values of Spark's: a
    :class:`asyncpq.datasets.file_sets.FileSource`.

    Args:
        typed: the files have these values already; only what the source is asked is another.
    """

    def __init__(self, source: FileSource, types: PartitionTypes, conf: ReadConf, *, typed: bool = False) -> None:
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

    async def files(self, ask: Ask, operation: Operation, *, scan: bool = True, hurry: bool = False) -> FileSet:
        found = await self.source.files(self._without_kinds(ask), operation, scan=scan)
        return found if self._is_typed else found._replace(files=[self._typed(file) for file in found.files])

    def _without_kinds(self, ask: Ask) -> Ask:
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
