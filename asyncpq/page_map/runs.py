"""Group neighbouring pages with the same fate into runs, which the SVG draws. ``js/model.js`` does so in the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from asyncpq.page_map import palette
from asyncpq.page_map.layouts import Layout


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring pages of one column chunk with the same fate: read, cached, or what ruled them out. If page
    locations are unknown, the run is the whole chunk."""

    fate: str
    start: int  # bytes of the file
    stop: int
    first_row: int  # of the row group
    stop_row: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One column chunk, divided into runs of its pages."""

    group: int
    column: int
    runs: Sequence[Run]


def cells(layout: Layout) -> Iterator[Cell]:
    """Yield all chunks of a file with the fates of their pages."""
    fates = layout["fates"]
    read: dict[tuple[int, int], list[Any]] = {}
    if fates is not None:
        read = {(chunk[0], chunk[1]): chunk for chunk in fates["chunks"]}
    wanted = {column for _, column in read}
    for chunk in layout["chunks"]:
        group, column, start, stop, dictionary = chunk[:5]
        rows = layout["groups"][group][1]
        data = (dictionary[1] if dictionary else start, stop)
        chunk_fates = read.get((group, column))
        if fates is None:
            fate = "plain" if chunk[-1] else "unlocated"
        elif chunk_fates is None:
            fate = _unread(fates["groups"][group], not wanted or column in wanted)
        elif not chunk[-1] or chunk_fates[2]:
            fate = chunk_fates[6]
        else:
            yield Cell(group, column, list(_page_runs(chunk[-1], chunk_fates[4:], rows)))
            continue
        yield Cell(group, column, [Run(fate, *data, 0, rows)])


def _unread(group_fate: str, wanted: bool) -> str:
    if not wanted:
        return "unread"
    return "late" if palette.FATES[group_fate].rank >= palette.FETCHED else group_fate


def _page_runs(pages: list[Any], read: list[Any], rows: int) -> Iterator[Run]:
    """Yield the runs of pages that are read (those in ``read``), and between them the runs that the page index ruled
    out."""
    sizes, lengths, starts = pages
    count = len(sizes)
    if len(starts) < count:
        starts = list(accumulate(sizes[:-1], initial=starts[0])) if starts else []
    firsts = [*accumulate(lengths[:-1], initial=0), rows]
    at = 0
    for first, stop, fate in zip(read[::3], read[1::3], read[2::3], strict=True):
        stop = count if stop < 0 else min(count, stop)
        for begin, end, what in ((at, first, "page index"), (first, stop, fate)):
            if begin < end:
                last = end - 1
                yield Run(what, starts[begin], starts[last] + sizes[last], firsts[begin], firsts[end])
        at = stop
    if at < count:
        yield Run("page index", starts[at], starts[-1] + sizes[-1], firsts[at], rows)


def _dictionary_fate(cell: Cell) -> str:
    """Return the fate of a chunk's dictionary: read if any page of the chunk is, because each page needs it."""
    fate = max((run.fate for run in cell.runs), key=lambda fate: palette.FATES[fate].rank)
    return "fetched dictionary" if fate == "read" else fate


def structures(layout: Layout, file_cells: Sequence[Cell]) -> Iterator[tuple[str, int, int]]:
    """Yield the byte range (start, stop) and the kind of each dictionary, index and Bloom filter, and of the footer.

    ``file_cells``: the cells of the file, as :func:`cells` returns them.
    """
    for chunk, cell in zip(layout["chunks"], file_cells, strict=True):
        dictionary = "dictionary page" if layout["fates"] is None else _dictionary_fate(cell)
        names = (dictionary, "offset index", "column index", "bloom filter")
        for name, span in zip(names, chunk[4:8], strict=True):
            if span:
                yield name, span[0], span[1]
    yield "footer", layout["footer"][0], layout["footer"][1]
