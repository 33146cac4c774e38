"""Reads of files as Spark finds columns in them: by names, whose cases may not matter, of whatever types they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from asyncpq.datasets.file_sets import FileSet, FileSource
from asyncpq.datasets.files_read import DatasetState, FilesRead
from asyncpq.datasets.model import TableField, View
from asyncpq.datasets.opened_file import Ask, OpenedFile
from asyncpq.decoding.types import field_types
from asyncpq.errors import AsyncpqError
from asyncpq.events import Operation
from asyncpq.expressions import columns
from asyncpq.spark.reads.file_columns import OwnColumns, condition_on, own_columns
from asyncpq.spark.types.read_conf import ReadConf


class SparkRead(FilesRead):
    """A read whose files may have the columns in ways of their own (:mod:`asyncpq.spark.reads.file_columns`).

    Attributes:
        variants: how files have the columns, where that is not how the dataset has them.
        needs_jvm_zone: see :class:`asyncpq.spark.reads.planning.ReadPlan`.
    """

    def __init__(self, state: DatasetState, ask: Ask, operation: Operation, conf: ReadConf) -> None:
        super().__init__(state, ask, operation, scan=True)
        self.variants: list[tuple[TableField, ...]] = []
        self.needs_jvm_zone = False
        self.conf = conf
        self._own: dict[tuple[bytes, str | None], tuple[OwnColumns, Ask]] = {}

    def _check_schema(self, opened: OpenedFile) -> None:
        super()._check_schema(opened)
        found = self._own_of(opened)
        if found is not None and found[0].fields is not None:
            opened.file = replace(opened.file, fields=found[0].fields)

    async def _prepare(self, opened: OpenedFile) -> None:
        found = self._own_of(opened)
        if found is None or found[1] is self._ask:
            await super()._prepare(opened)
            return
        self._check_schema(opened)
        size = await opened.prepare(found[1], self._state.columns, scan=self._scan, other_bytes=self._planned_bytes)
        self._planned_bytes += size
        if not opened.has_rows:
            await opened.finish()

    def _own_of(self, opened: OpenedFile) -> tuple[OwnColumns, Ask] | None:
        """How a file has the columns, and what is asked of it; None for files of which a table says so.

        Raises:
            AmbiguousColumnError: which of its columns one that is asked for is, the file does not say.
        """
        if self.is_table or opened.file.content is not None:
            return None
        key = opened.schema_bytes
        if key not in self._own:
            own = _own_columns(opened, self._state.columns.schema, self.conf)
            self._own[key] = own, self._ask_of(own)
        own, ask = self._own[key]
        if own.ambiguous:
            for name in own.ambiguous.keys() & self._tops():
                raise own.ambiguous[name].locate(url=opened.version.url)
        return own, ask

    def _tops(self) -> set[str]:
        """Names of the top-level columns that are read; perhaps of others."""
        ask, names = self._ask, self._state.columns.schema.names
        if ask.columns is None:
            return set(names)
        asked = {str(name) for name in ask.columns} | set(() if ask.where is None else columns(ask.where))
        return {name for name in names if name in asked or any(one.startswith(f"{name}.") for one in asked)}

    def _ask_of(self, own: OwnColumns) -> Ask:
        """What is asked of a file: the very same, where that means the same to it."""
        ask, lake = self._ask, self._state.columns.schema
        if own.fields is None or ask.where is None:
            return ask
        types = pa.schema([(field.name, field.type) for field in own.fields])
        where, prune = (condition_on(one, lake, types, self.conf) for one in (ask.where, ask.prune))
        same = where == ask.where and prune == ask.prune
        return ask if same else ask._replace(where=where, prune=None if where is None else prune)

    @property
    def is_table(self) -> bool:
        """Whether a table says how files have its columns."""
        return self._state.columns.fields is not None

    def variant(self, fields: tuple[TableField, ...] | None) -> int:
        """Number of a way to have the columns: 0 for the dataset's."""
        if fields is None:
            return 0
        for at, known in enumerate(self.variants):
            if known is fields or known == fields:
                return at + 1
        self.variants.append(fields)
        return len(self.variants)


def _own_columns(opened: OpenedFile, schema: pa.Schema, conf: ReadConf) -> OwnColumns:
    version, extensions = opened.version, opened.source.resources.options.read.extension_types
    opened.share_types(extensions)
    fields = version.metadata.schema.fields

    def types(ordinals: Sequence[int]) -> list[pa.DataType | None]:
        try:
            return [found.arrow.type for found in field_types(version, ordinals, extensions)]
        except AsyncpqError:  # which of them, and only whoever reads it is told
            return [None] if len(ordinals) == 1 else [kind for at in ordinals for kind in types([at])]

    found = types([field.index for field in fields])
    return own_columns(schema, [field.name for field in fields], found, opened.file.partition, conf)


class NarrowedAsks:
    """The files of another source, which is only asked by conditions that mean the same of the types that it knows:
    a :class:`asyncpq.datasets.file_sets.FileSource`.

    Args:
        known: the columns as the source knows them.
        schema: those that conditions are made for.
    """

    def __init__(self, source: FileSource, known: pa.Schema, schema: pa.Schema, conf: ReadConf) -> None:
        self.view: View = source.view
        self._source = source
        self._known = known
        self._schema = schema
        self._conf = conf

    @property
    def description(self) -> str:
        return self._source.description

    @property
    def known(self) -> FileSet | None:
        return self._source.known

    async def files(self, ask: Ask, operation: Operation, *, scan: bool = True, hurry: bool = False) -> FileSet:
        where, prune = (condition_on(one, self._schema, self._known, self._conf) for one in (ask.where, ask.prune))
        return await self._source.files(ask._replace(where=where, prune=prune), operation, scan=scan, hurry=hurry)
