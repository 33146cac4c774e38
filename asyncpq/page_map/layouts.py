"""Convert layouts, fates (what became of each page) and requests to the compact form that the page embeds: rows of
numbers instead of objects.

100,000 pages take about a megabyte: sizes and numbers of rows are listed, and the starts of pages only where they do
not follow each other. Texts that repeat are kept once, in a list of words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, TypedDict

from asyncpq.errors import printable

if TYPE_CHECKING:
    from asyncpq.reports.documents import Chunk, ChunkFates, FileFates, Inspection, PageLists, Request


class Layout(TypedDict):
    """The layout of one file: its row groups, columns, chunks and pages. ``fates`` is present if the file was read,
    or would be by a plan."""

    url: str
    size: int
    facts: list[list[str]]  # label and text
    words: list[str]
    footer: list[int]  # [start, stop]
    columns: list[list[Any]]  # name, type, how it is sorted
    groups: list[list[int]]  # first row, rows, start, stop
    chunks: list[list[Any]]  # see _chunk
    fates: Fates | None


class Fates(TypedDict):
    """The fate (read, cached, or what ruled it out) of each row group and page of one file, in compact form."""

    groups: list[str]
    chunks: list[list[Any]]  # row group, column, whole, predicate, then runs of pages: [start, stop, fate, ...]


class Words:
    """A list of distinct texts, which other parts of the picture refer to by position."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the position of ``text`` in the list; append the text if it is new."""
        return self.found.setdefault(printable(text), len(self.found))

    def texts(self) -> list[str]:
        """Return all texts, in the order of their positions."""
        return list(self.found)


def layout(document: Inspection, fates: FileFates | None) -> Layout:
    """Return the layout of one file in compact form. ``document``: its inspection; ``fates``: what became of its row
    groups and pages in a read, None if it was only inspected."""
    words = Words()
    facts = [
        ["Version", printable(document["version"])],
        ["Writer", printable(document["writer"] or "not stated")],
        ["Sorted by", ", ".join(map(printable, document["sorted_by"])) or "no column, as far as statistics show"],
    ]
    if document["embedded_indexes"]:
        facts.append(["Embedded indexes", ", ".join(map(printable, document["embedded_indexes"]))])
    return Layout(
        url=printable(document["url"]),
        size=document["size"],
        facts=facts,
        footer=document["footer"],
        columns=[
            [printable(column["name"]), printable(column["arrow_type"]), column["sorted"] or 0]
            for column in document["columns"]
        ],
        groups=[[group["first_row"], group["rows"], *group["bytes"]] for group in document["row_groups"]],
        chunks=[
            _chunk(group["ordinal"], chunk, group["rows"], words)
            for group in document["row_groups"]
            for chunk in group["chunks"]
        ],
        words=words.texts(),
        fates=None if fates is None else compact_fates(fates),
    )


def _chunk(group: int, chunk: Chunk, rows: int, words: Words) -> list[Any]:
    """Return a column chunk as a list: row group, column, start, stop, dictionary, OffsetIndex, ColumnIndex, Bloom
    filter, codec and encodings (a position in ``words``), uncompressed bytes, values, nulls, distinct values, min, max
    and pages.

    0 stands for a missing range or text.
    """
    return [
        group,
        chunk["column"],
        *chunk["bytes"],
        chunk["dictionary"] or 0,
        chunk["offset_index"] or 0,
        chunk["column_index"] or 0,
        chunk["bloom_filter"] or 0,
        words.number(f"{chunk['codec']}, {', '.join(chunk['encodings'])}"),
        chunk["uncompressed_bytes"],
        chunk["values"],
        chunk["nulls"],
        chunk["distinct"],
        _short(chunk["min"]),
        _short(chunk["max"]),
        0 if chunk["pages"] is None else _pages(chunk["pages"], rows),
    ]


def _short(text: str | None) -> str | int:
    if text is None:
        return 0
    return printable(text if len(text) <= 40 else f"{text[:39]}\u2026")


def _pages(pages: PageLists, rows: int) -> list[Any]:
    """Return the pages of a chunk as lists of their sizes, rows and starts. ``rows``: rows of the row group.

    If the pages are contiguous, only the first start is listed.
    """
    starts, sizes = pages["starts"], pages["sizes"]
    lengths = [stop - start for start, stop in pairwise([*pages["first_rows"], rows])]
    if starts and starts == list(accumulate(sizes[:-1], initial=starts[0])):
        starts = starts[:1]
    return [sizes, lengths, starts]


def transposed(chunks: Sequence[Sequence[Any]], groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Convert the chunks of a layout from one list for each chunk to one list for each field. The JSON is a third as
    long, and a browser creates a tenth of the objects.

    A range becomes two numbers: its distance from the end of the chunk before (for a dictionary, from the start of its
    chunk), and its length, which is 0 for a missing range. The pages of a chunk with a single page become 1. A list of
    equal values becomes one value.

    Args:
        chunks, groups: as :func:`layout` returns them.
    """
    lists: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    stops = dict.fromkeys(_RANGES, 0)
    for chunk in chunks:
        group, column, start, stop, dictionary, *indexes = chunk[:8]
        spans = ([start, stop], dictionary, *indexes)
        for name, span in zip(_RANGES, spans, strict=True):
            before = start if name == "dictionary" else stops[name]
            lists[f"{name}_at"].append(span[0] - before if span else 0)
            lists[f"{name}_length"].append(span[1] - span[0] if span else 0)
            stops[name] = span[1] if span else stops[name]
        data = dictionary[1] if dictionary else start
        pages = 1 if chunk[15] == [[stop - data], [groups[group][1]], [data]] else chunk[15]
        for name, value in zip(_VALUES, (group, column, *chunk[8:15], pages), strict=True):
            lists[name].append(value)
    return {name: _one_value(values) for name, values in lists.items()}


_RANGES: Final = ("bytes", "dictionary", "offset_index", "column_index", "bloom")
_VALUES: Final = (*("group", "column", "coding", "uncompressed", "values", "nulls", "distinct", "min", "max", "pages"),)
_FIELDS: Final = (*_VALUES, *[f"{name}_{part}" for name in _RANGES for part in ("at", "length")])


def _one_value(values: list[Any]) -> Any:
    first = values[0] if values else 0
    return first if not isinstance(first, list) and all(value == first for value in values) else values


def compact_fates(fates: FileFates) -> Fates:
    """Return the fates of one file's row groups and pages in compact form."""
    return Fates(groups=list(fates["row_groups"]), chunks=[_chunk_fates(chunk) for chunk in fates["chunks"]])


def _chunk_fates(chunk: ChunkFates) -> list[Any]:
    each = chunk.get("fates") or [chunk["fate"]] * len(chunk["pages"])
    head = [chunk["row_group"], chunk["column"], int(chunk["whole"]), int(chunk["predicate"])]
    runs: list[Any] = []
    for page, fate in zip(chunk["pages"], each, strict=True):
        if runs and runs[-2] == page and runs[-1] == fate:
            runs[-2] = page + 1
        else:
            runs += [page, page + 1, fate]
    return [*head, *runs] if runs else [*head, 0, -1, chunk["fate"]]  # -1: to the last page


class Requests(TypedDict):
    """The requests of a read or plan in compact form: each is a list of numbers."""

    words: list[str]
    urls: list[str]
    timed: bool
    #: url, purpose, start, stop, round, columns (a word, or -1), useful bytes (-1: not known), and of sent requests the
    #: beginning, seconds to the first byte (-1: not known) and to the end in microseconds, status, received bytes,
    #: marks (a word, or -1)
    rows: list[list[int]]


def requests(sent: Sequence[Request]) -> Requests | None:
    """Return the requests ``sent`` in compact form, ordered by the time when they began; None if there are none."""
    if not sent:
        return None
    words, urls = Words(), Words()
    timed = any("began_s" in one for one in sent)
    ordered = sorted(sent, key=lambda one: one.get("began_s") or 0.0) if timed else sent
    rows = [[urls.number(one["url"]), words.number(one["purpose"]), *_request(one, words, timed)] for one in ordered]
    return Requests(words=words.texts(), urls=urls.texts(), timed=timed, rows=rows)


def _request(one: Request, words: Words, timed: bool) -> Iterable[int]:
    columns = one.get("columns") or []
    shown = ", ".join(columns[:8]) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
    yield from one["bytes"]
    yield one["round"]
    yield words.number(shown) if shown else -1
    yield one.get("useful_bytes", -1)
    if timed:
        first = one.get("first_byte_s")
        yield _microseconds(one.get("began_s", 0.0))
        yield -1 if first is None else _microseconds(first)
        yield _microseconds(one.get("seconds", 0.0))
        yield one.get("status", 0)
        yield one.get("received", 0)
        marks = _marks(one)
        yield words.number(marks) if marks else -1


def _marks(one: Request) -> str:
    marks = []
    if one.get("attempt", 1) > 1:
        marks.append(f"attempt {one.get('attempt')}")
    if one.get("hedge"):
        marks.append("hedge")
    if one.get("throttled"):
        marks.append("throttled")
    return ", ".join(marks)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
