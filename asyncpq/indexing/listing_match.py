"""How the files of a listing or a table relate to those that a snapshot of an index knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from asyncpq.datasets.model import DataFile
from asyncpq.indexing.entries import Entry
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.slices import Slices
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges


@dataclass(frozen=True, slots=True)
class ListingMatch:
    """Which files of one listing one snapshot of an index knows. Made once for both, and used by all reads.

    Attributes:
        files: of the listing.
        manifest: of the snapshot.
        by_id: positions in ``files`` and entries of the files that have the version which the index knows.
        ids: keys of ``by_id``.
        unsure: positions and entries of the files whose version the listing does not tell: the version is compared
            when the file is opened.
        unknown: positions of the files that are new to the index, or have another version: they are read without it.
    """

    files: Sequence[DataFile]
    manifest: Manifest
    by_id: Mapping[int, tuple[int, Entry]]
    ids: RowRanges
    unsure: Sequence[tuple[int, Entry]]
    unknown: Sequence[int]

    def left(self, slices: Slices) -> Iterator[tuple[int, Entry | None, AccessPlan]]:
        """Positions of the files that may match, their entries, and which of their rows may: those of ``by_id``, of
        ``unsure`` and of ``unknown``, one after another."""
        for file in (slices.files & self.ids).rows():
            position, entry = self.by_id[file]
            access = slices.plan(file)
            if entry.may_match(access):
                yield position, entry, access
        for position, entry in self.unsure:
            yield position, entry, slices.plan(entry.file.id)
        for position in self.unknown:
            yield position, None, AccessPlan.all()


def match_listing(files: Sequence[DataFile], manifest: Manifest, catalog: Mapping[str, Entry]) -> ListingMatch:
    """Compare versions, file by file.

    Args:
        catalog: entries of the index by url.
    """
    by_id: dict[int, tuple[int, Entry]] = {}
    unsure: list[tuple[int, Entry]] = []
    unknown: list[int] = []
    for position, file in enumerate(files):
        entry = catalog.get(file.url)
        if entry is None or entry.file.id in by_id:  # a list may name a file twice
            unknown.append(position)
        elif entry.file.is_version_of(file):
            by_id[entry.file.id] = (position, entry)
        elif file.validator is None and not file.immutable and entry.file.validator is not None:
            unsure.append((position, entry))
        else:
            unknown.append(position)
    return ListingMatch(files, manifest, by_id, RowRanges.from_rows(sorted(by_id)), unsure, unknown)
