"""The files of a lake, with the values in their paths as Spark has them.

An index is asked only by conditions that its columns, which are from when it was built, can evaluate.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.types import DataType

from asyncpq import DataFile, Expression, View, errors
from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.distributed import file_sets
from asyncpq.events import Operation
from asyncpq.expressions import columns, implied, simplify
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.types.partition_types import partition_scalar, unescaped
from asyncpq.spark.types.read_conf import ReadConf


@dataclass(frozen=True)
class PartitionTypes:
    """Spark's types of partition columns whose values are parsed from the texts in paths. Picklable."""

    dtypes: tuple[tuple[str, DataType], ...]
    hive: bool  # parse the texts of `key=value` folders; otherwise the texts are asyncpq's partition values


class SparkFiles:
    """The files of another provider, ``source``, with partition values of Spark's types.

    Implements :class:`asyncpq.datasets.providers.FileProvider`. ``schemas`` are the columns of the lake and those of
    the index, which are from when it was built: the index gets only conditions that these columns can evaluate. None:
    it gets all. With ``typed``, the files of ``source`` have Spark's values already.
    """

    def __init__(
        self,
        source: FileProvider,
        conf: ReadConf,
        types: PartitionTypes | None = None,
        *,
        typed: bool = False,
        schemas: tuple[pa.Schema, pa.Schema] | None = None,
    ) -> None:
        self.view: View = source.view
        self.types = types
        self.source = source
        self._conf = conf
        self._is_typed = typed
        self._dtypes = {} if types is None else dict(types.dtypes)
        self._schemas = schemas
        self._values: dict[str, dict[str, Any]] = {}

    @property
    def index(self) -> Any:
        """The index that prunes files before they are opened. None if there is no index, or if its columns have other
        types than the lake's."""
        return self.source.index if self._schemas is None else None

    @property
    def description(self) -> str:
        return self.source.description

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]:
        return self.source.indexes

    @property
    def known(self) -> FileSet | None:
        return None if self._dtypes else self.source.known

    async def files(
        self, request: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        may_be_stale = allow_stale and not self._dtypes  # the renewal would have other values
        found = await self.source.files(self._request(request), operation, scan=scan, allow_stale=may_be_stale)
        return self._with_values(found)

    async def sets(self, request: ScanRequest, operation: Operation, *, most_files: int) -> AsyncGenerator[FileSet]:
        """Yield the files of :meth:`files` as :func:`file_sets` does."""
        async with aclosing(file_sets(self.source, self._request(request), operation, most_files)) as sets:
            async for found in sets:
                yield self._with_values(found)

    def _with_values(self, found: FileSet) -> FileSet:
        if self._is_typed or not self._dtypes:
            return found
        return found._replace(files=[self._typed(file) for file in found.files])

    def _request(self, request: ScanRequest) -> ScanRequest:
        where, prune = self._asked(request.where), self._asked(request.prune)
        return request._replace(where=where, prune=None if where is None or prune is None else simplify(prune))

    def _asked(self, where: Expression | None) -> Expression | None:
        """Return the part of the condition ``where`` that ``source`` can evaluate with its own partition values and
        columns."""
        if where is not None and self._dtypes:
            where = implied(where, lambda atom: atom if self._dtypes.keys().isdisjoint(columns(atom)) else None)
        return where if self._schemas is None else self._conf.condition_on(where, *self._schemas)

    def _typed(self, file: DataFile) -> DataFile:
        folder = file.url.rpartition("/")[0]
        if self.types is not None and folder not in self._values:
            texts = _path_texts(file, self._dtypes, self._conf, hive=self.types.hive)
            scalars = {
                name: partition_scalar(texts.get(name), dtype, self._conf) for name, dtype in self._dtypes.items()
            }
            self._values[folder] = {name: scalar.as_py() for name, scalar in scalars.items()}
        return replace(file, partition={**file.partition, **self._values[folder]})


def narrowed_for_index(
    source: FileProvider, schema: pa.Schema, partitions: Collection[str], conf: ReadConf
) -> FileProvider:
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


async def all_files(state: DatasetState, operation: Operation) -> AsyncGenerator[Sequence[DataFile]]:
    """Yield all files of a dataset, those of its last listing or of a new one if there was none, as
    :func:`file_sets` does."""
    known = state.source.known
    if known is not None and known.files:
        yield known.files
        return
    async with aclosing(file_sets(state.source, ScanRequest(), operation)) as sets:
        async for found in sets:
            yield found.files


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
