"""What a plan says of itself: which row groups, pages and rows were left out, and by what."""

from __future__ import annotations

from typing import NamedTuple

from asyncpq.pruning.row_ranges import RowRanges


class PruningReport(NamedTuple):
    """What pruning left.

    Attributes:
        row_groups: of the file.
        row_groups_accessed: those that have rows and that the access plan lets be read.
        row_groups_after_statistics: of those, not ruled out by the footer's statistics.
        row_groups_by_bloom: of those, ruled out by bloom filters.
        row_groups_kept: not ruled out by page indexes either.
        row_groups_proven: statistics prove that all their rows match.
        pages: data pages, known by OffsetIndex, of the columns read in the row groups kept.
        pages_kept: those that hold rows which may match.
        rows, rows_accessed, rows_kept: rows of the file; that the access plan lets be read; that may match.
    """

    row_groups: int = 0
    row_groups_accessed: int = 0
    row_groups_after_statistics: int = 0
    row_groups_by_bloom: int = 0
    row_groups_kept: int = 0
    row_groups_proven: int = 0
    pages: int = 0
    pages_kept: int = 0
    rows: int = 0
    rows_accessed: int = 0
    rows_kept: int = 0


class BloomReport(NamedTuple):
    """What bloom filters ruled out.

    Attributes:
        columns: whose filters they are.
        asked: ordinals of the row groups that they were asked about.
        dropped: those that hold no matching row.
    """

    columns: tuple[str, ...]
    asked: RowRanges
    dropped: RowRanges
