"""Reads the row groups of a segment's file that hold ranges of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import pyarrow as pa

from asyncpq.collect import collected, one_table
from asyncpq.errors import CorruptIndexError
from asyncpq.events import Operation
from asyncpq.fetching.opening import load_version
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.metadata import FileMetadata
from asyncpq.indexing.model import Part, Segment
from asyncpq.indexing.places.key_groups import KeyGroups
from asyncpq.indexing.places.segment_file import BOUNDED, digest_of
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.prepared import Preparation, Question
from asyncpq.storage.base import RequestContext


class SegmentFile:
    """A segment's file, opened for one question.

    Args:
        source: the object.
        operation: counts what it costs; whoever made it begins and ends it.

    Attributes:
        groups: its row groups.
    """

    def __init__(
        self, source: ObjectSource, part: Part, version: FileVersion, groups: KeyGroups, operation: Operation
    ) -> None:
        self._source = source
        self._part = part
        self._version = version
        self._operation = operation
        self.groups = groups

    @classmethod
    async def load(cls, source: ObjectSource, segment: Segment, operation: Operation) -> SegmentFile:
        """Bring its footer, if that is not in memory.

        Raises:
            CorruptIndexError: it is not what was written.
        """
        metrics = operation.metrics
        version = await load_version(source, RequestContext(metrics, round=metrics.rounds + 1))
        metadata = version.metadata
        if version.size != segment.size or metadata.num_rows != segment.num_rows:
            raise CorruptIndexError(
                f"{version.size} bytes and {metadata.num_rows} rows, where the index has a segment of "
                f"{segment.size} and {segment.num_rows}",
            )

        def make() -> KeyGroups:
            if digest_of(metadata.data) != segment.extra["footer"]:
                raise CorruptIndexError("its footer is not what was written")
            return row_groups(metadata)

        groups = version.derived(("row groups of a segment", segment.extra["footer"]), make, lambda made: made.weight)
        if groups.num_rows != segment.num_rows:
            raise CorruptIndexError(f"its row groups have {groups.num_rows} rows of {segment.num_rows}")
        return cls(source, segment.part, version, groups, operation)

    async def read(self, ordinals: Sequence[int], columns: Sequence[str], *, scan: bool = False) -> pa.Table:
        """All rows of some row groups, in one round where they are not too many.

        Args:
            ordinals: ascending.
            columns: in the order of the schema.
            scan: nothing of it is kept in memory.
        """
        memory, names = self._source.resources.memory, tuple(columns)
        keys = [("row group of a segment", self._version.digest, ordinal, names) for ordinal in ordinals]
        tables: list[pa.Table | None] = memory.get_many(keys, scan=scan)
        missing = [place for place, table in enumerate(tables) if table is None]
        self._operation.metrics.cache_hits += len(tables) - len(missing)
        if missing:
            fetched = await self._fetch([ordinals[place] for place in missing], names)
            keeps = not scan and fetched.nbytes * 16 <= memory.max_bytes
            start = 0
            for place in missing:
                num_rows = self.groups.num_rows_of(ordinals[place])
                table = tables[place] = fetched.slice(start, num_rows)
                start += num_rows
                if keeps:
                    memory.put(keys[place], table, table.nbytes + 500)
        return pa.concat_tables(tables) if tables else self._part.schema.empty_table().select(columns)

    async def _fetch(self, ordinals: Sequence[int], columns: Sequence[str]) -> pa.Table:
        question = Question(columns=columns, access=AccessPlan.row_groups(ordinals))
        preparation = Preparation(self._source, question, self._version, lambda version: None, self._operation)
        # Pages are not kept: they come as whole chunks, which nobody will ask for page by page
        preparation.other_bytes = self._source.resources.memory.max_bytes
        async with preparation.deadline():
            prepared, tables = await collected(preparation)
        return one_table([batch for table in tables for batch in table.to_batches()], prepared.shape.schema)


def row_groups(metadata: FileMetadata) -> KeyGroups:
    """Its bounds are parsed when a question meets them: a lookup looks at a few of some thousand."""
    groups = metadata.row_groups
    bounds = {
        leaf.dotted: (_Bound(metadata, leaf.index, least=True), _Bound(metadata, leaf.index, least=False))
        for leaf in metadata.schema.leaves
        if leaf.dotted in BOUNDED
    }
    return KeyGroups([group.num_rows for group in groups], bounds)


class _Bound(Sequence[bytes]):
    """Least or greatest values of a column, by row group."""

    def __init__(self, metadata: FileMetadata, leaf: int, *, least: bool) -> None:
        self._groups = metadata.row_groups
        self._leaf = leaf
        self._least = least
        self._known: list[bytes | None] = [None] * len(self._groups)

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        """
        Raises:
            CorruptIndexError: a row group has no bounds.
        """
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        value = self._known[at]
        if value is None:
            found = self._groups[at].parse_chunk(self._leaf).statistics
            value = None if found is None else found.min_value if self._least else found.max_value
            if value is None:
                raise CorruptIndexError("a row group without bounds of its keys")
            self._known[at] = value
        return value
