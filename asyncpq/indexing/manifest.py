"""One snapshot of an index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from asyncpq.indexing.model import Part, Segment
from asyncpq.pruning.row_ranges import RowRanges

FILES: Final = Part("files")


@dataclass(frozen=True, slots=True)
class Build:
    """A build that has begun, and has not brought its files yet.

    Attributes:
        id: names it in the place, and begins the names of its segments.
        files: ids that it may give. They are among ``Manifest.retired``: nobody sees them until it ends.
    """

    id: str
    files: RowRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an index holds in one snapshot.

    Attributes:
        index: names the index; another one at the same place has another.
        snapshot: number, from 1.
        commit: names the commit that made it.
        created: when that was, by its maker's clock; with a zone.
        as_of: when the files were looked for that it lists; None before the first build has ended.
        root: url that the paths of files are relative to; "" where they are whole urls.
        dataset: what the files are of, as JSON has it; whoever opens the dataset says what stands there.
        schema: the dataset's columns; keys are of their types.
        partitions: names of the columns whose values are the files' paths' or the table's.
        field_ids: of a table, the field ids of indexed columns, by name: a name may come to mean another column.
        parts: what is known, "files" first.
        segments: where it is.
        next_file: the id of the next file; none is given twice.
        retired: ids below that which are not, or not yet, in use.
        num_files, num_rows: of the files in use; rows of those that could be read.
        builds: under way or broken off.
        long: where members of the root were written that the root has no room for.
    """

    index: str
    snapshot: int
    commit: str
    created: datetime
    as_of: datetime | None = None
    root: str
    dataset: Mapping[str, Any] = field(default_factory=dict)
    schema: pa.Schema
    partitions: tuple[str, ...] = ()
    field_ids: tuple[tuple[str, int], ...] = ()
    parts: tuple[Part, ...]
    segments: tuple[Segment, ...] = ()
    next_file: int = 0
    retired: RowRanges = field(default_factory=RowRanges)
    num_files: int = 0
    num_rows: int = 0
    builds: tuple[Build, ...] = ()
    long: tuple[tuple[str, Segment], ...] = ()
    #: By the monotonic clock of the process that has it.
    known_since: float = field(default_factory=time.monotonic, init=False, compare=False, repr=False)
    # what follows from these, once it was asked for: lookups ask each time, and files may be many
    _ids: dict[tuple[str, Part], RowRanges] = field(default_factory=dict, init=False, compare=False, repr=False)
    _by_part: dict[Part, tuple[Segment, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def live(self) -> RowRanges:
        """Ids of the files in use."""
        return self._known("live", FILES, lambda: self.retired.complement(self.next_file))

    @property
    def reserved(self) -> RowRanges:
        """Ids of builds that have not ended."""
        return union(build.files for build in self.builds)

    @property
    def is_built(self) -> bool:
        """Whether a build has ended."""
        return self.as_of is not None

    def of_part(self, part: Part) -> tuple[Segment, ...]:
        """The segments of one part."""
        found = self._by_part.get(part)
        if found is None:
            found = self._by_part[part] = tuple(segment for segment in self.segments if segment.part == part)
        return found

    def covered(self, part: Part) -> RowRanges:
        """Ids of files of which the part holds all there is."""
        return self._known("covered", part, lambda: _files_of(self.of_part(part)))

    def unknown(self, part: Part) -> RowRanges:
        """Ids of files in use of which the part holds nothing."""
        return self._known("unknown", part, lambda: self.live - self.covered(part))

    def _known(self, name: str, part: Part, make: Callable[[], RowRanges]) -> RowRanges:
        found = self._ids.get((name, part))
        if found is None:
            found = self._ids[name, part] = make()
        return found

    @property
    def names(self) -> frozenset[str]:
        """Of all segments that it takes to read this snapshot."""
        return frozenset(segment.name for segment in (*self.segments, *(held for _, held in self.long)))


def _files_of(segments: Iterable[Segment]) -> RowRanges:
    lists = {id(segment.files): segment.files for segment in segments}  # those of one build share it
    return union(RowRanges(files) for files in lists.values())


def union(some: Iterable[RowRanges]) -> RowRanges:
    """All rows of ``some``."""
    return RowRanges(one for ranges in some for one in ranges)
