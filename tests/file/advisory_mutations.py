"""Files of which one advisory field of the footer, a page header or an OffsetIndex says something else.

What is advisory no row depends on: where the pages are, how they are encoded and how many values they hold is said
elsewhere. Readers are not to refuse a file for it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from asyncpq.parquet.thrift import BINARY, I32, I64, LIST, STRUCT
from tests.fuzz import bases
from tests.fuzz.parquet_parts import ROW_GROUPS, ChunkPart, ParquetParts
from tests.fuzz.thrift_trees import Field, Items, Struct

BASES = ("plain", "dictionary", "plain_v2", "dictionary_v2", "encodings", "no_index", "nested", "nested_v2")


@dataclass(frozen=True)
class Mutant:
    """A changed file, which is made when it is asked for.

    Attributes:
        name: what was changed, and to what.
        base: see ``bases``.
        make: makes its bytes.
    """

    name: str
    base: str
    make: Callable[[], bytes]

    @functools.cached_property
    def data(self) -> bytes:
        """Its bytes."""
        return self.make()


Change = Callable[[Struct], object]


def mutants(base: str) -> Iterator[Mutant]:
    """All of one base."""
    for name, change in _footers(base):
        yield Mutant(f"footer: {name}", base, partial(_changed, base, footer=change))
    for name, change_chunk in _chunks(base):
        yield Mutant(f"chunk: {name}", base, partial(_changed, base, chunk=change_chunk))
    for name, change in _headers(base):
        yield Mutant(f"page header: {name}", base, partial(_changed, base, header=change))
        yield Mutant(f"one page header: {name}", base, partial(_changed, base, header=change, only=1))
    for name, change_pages in _locations() if _parts(base).chunks[0].offset_index is not None else ():
        yield Mutant(f"OffsetIndex: {name}", base, partial(_changed, base, locations=change_pages))


@functools.cache
def _parts(base: str) -> ParquetParts:
    return ParquetParts(bases.data(base))


def _changed(
    base: str,
    *,
    footer: Change | None = None,
    chunk: Callable[[ChunkPart], object] | None = None,
    header: Change | None = None,
    locations: Callable[[list[Struct]], object] | None = None,
    only: int | None = None,
) -> bytes:
    """The base with a change to its footer, to every chunk, data page header or OffsetIndex, everything else put right.

    Args:
        only: position of the data page of each chunk whose header is changed.
    """
    parts = copy.deepcopy(_parts(base))
    if header is not None:
        for some in parts.chunks:
            for at, page in enumerate(some.data_pages):
                if only in (None, at):
                    header(page.header)
    parts.place_pages()
    for some in parts.chunks if locations is not None else ():
        assert locations is not None
        assert some.offset_index is not None
        locations([value for value in some.offset_index.items(1).values if isinstance(value, Struct)])
    parts.place_indexes()
    if footer is not None:
        footer(parts.footer)
    if chunk is not None:
        for some in parts.chunks:
            chunk(some)
    return parts.file()


# -- footers ----------------------------------------------------------------------------------------


def _footers(base: str) -> Iterator[tuple[str, Change]]:
    for value in (0, 3, -1, 1 << 30):
        yield f"version {value}", _setting(value, 1)
        yield f"total_byte_size {value}", _of_groups(lambda group, value=value: group.set(2, value))  # type: ignore[misc]
        yield f"file_offset {value}", _of_groups(lambda group, value=value: group.set(5, value))  # type: ignore[misc]
        yield f"compressed size of the row group {value}", _of_groups(lambda group, value=value: group.set(6, value))  # type: ignore[misc]
        yield f"repetition of the root {value}", _setting(value, 2, 0, 3)
    yield "no repetition of the root", lambda footer: footer.struct(2, 0).drop(3)
    yield "another name of the root", _setting(b"other", 2, 0, 4)
    yield "ordinals alike", _of_groups(lambda group: group.set(7, 0))
    yield "no ordinals", _of_groups(lambda group: group.drop(7))
    for name, columns in (("of no column", -1), ("of a column that is not there", 99)):
        sorting = Struct([Field(1, I32, columns), Field(2, 1, False), Field(3, 1, False)])
        yield (
            f"sorted by a column {name}",
            _of_groups(
                lambda group, sorting=sorting: group.set(4, Items(STRUCT, [sorting]), LIST)  # type: ignore[misc]
            ),
        )
    for change in (-1, 1, 5):
        yield f"{change:+} column orders", lambda footer, change=change: _resize(footer.items(7), change)  # type: ignore[misc]
    yield "no column orders", lambda footer: footer.drop(7)
    yield "an empty list of column orders", lambda footer: footer.items(7).values.clear()
    yield "no key-values", lambda footer: footer.drop(5)
    for writer in (b"", b"parquet-cpp-arrow version 11.0.0", b"parquet-mr version 1.10.1 (build x)", b"\xff"):
        yield f"created by {writer!r}", _setting(writer, 6)
    yield "no created_by", lambda footer: footer.drop(6)
    required = [
        at
        for at, element in enumerate(_parts(base).footer.items(2).values)
        if isinstance(element, Struct) and at and element.get(3) == 0
    ]
    for at in required[:1]:
        yield "an element without repetition", lambda footer, at=at: footer.struct(2, at).drop(3)  # type: ignore[misc]


def _setting(value: int | bytes, *path: int) -> Change:
    def change(footer: Struct) -> None:
        owner = footer if len(path) == 1 else footer.struct(*path[:-1])
        owner.set(path[-1], value, BINARY if isinstance(value, bytes) else I32)

    return change


def _of_groups(change: Change) -> Change:
    def all_groups(footer: Struct) -> None:
        for group in footer.items(ROW_GROUPS).values:
            assert isinstance(group, Struct)
            change(group)

    return all_groups


def _resize(items: Items, change: int) -> None:
    items.values = items.values[:change] if change < 0 else items.values + items.values[:1] * change


# -- chunks -----------------------------------------------------------------------------------------


def _chunks(base: str) -> Iterator[tuple[str, Callable[[ChunkPart], object]]]:
    for value in (0, 1, -1, 1 << 40):
        yield f"total_uncompressed_size {value}", _of_meta(lambda meta, value=value: meta.set(6, value))  # type: ignore[misc]
        yield f"index_page_offset {value}", _of_meta(lambda meta, value=value: meta.set(10, value))  # type: ignore[misc]
        yield f"file_offset {value}", lambda chunk, value=value: chunk.struct.set(2, value)  # type: ignore[misc]
    yield "half of its total_uncompressed_size", _of_meta(lambda meta: meta.set(6, meta.integer(6) // 2))
    yield "no encodings", _of_meta(lambda meta: meta.items(2).values.clear())
    for encoding in (0, 3, 4, 99, -1):
        yield (
            f"encodings {encoding}",
            _of_meta(
                lambda meta, encoding=encoding: meta.set(2, Items(I32, [encoding]))  # type: ignore[misc]
            ),
        )
    yield "no encodings of pages", _of_meta(_without_encodings)
    for path in ([], [b"other"], [b"word"], [b"\xff"], [b"schema", b"id"]):
        yield f"path {path}", _of_meta(lambda meta, path=path: meta.set(3, Items(BINARY, list(path))))  # type: ignore[misc]
    yield "a value more", _of_meta(lambda meta: meta.set(5, meta.integer(5) + 1))
    yield "twice the values", _of_meta(lambda meta: meta.set(5, meta.integer(5) * 2))
    yield "a value less", _of_meta(lambda meta: meta.set(5, meta.integer(5) - 1))
    yield "no values", _of_meta(lambda meta: meta.set(5, 0))
    yield "no encoding_stats", _of_meta(lambda meta: meta.drop(13))
    yield "empty encoding_stats", _of_meta(lambda meta: meta.set(13, Items(STRUCT, []), LIST))
    stats = Struct([Field(1, I32, 0), Field(2, I32, 99), Field(3, I32, -1)])
    yield "encoding_stats of nothing", _of_meta(lambda meta: meta.set(13, Items(STRUCT, [stats]), LIST))
    yield "no statistics", _of_meta(lambda meta: meta.drop(12))
    yield "no size statistics", _of_meta(lambda meta: meta.drop(16))
    histograms = Struct([Field(1, I64, -5), Field(2, LIST, Items(I64, [7])), Field(3, LIST, Items(I64, []))])
    yield "wrong size statistics", _of_meta(lambda meta: meta.set(16, histograms, STRUCT))
    yield "a dictionary at 0", _of_meta(lambda meta: meta.set(11, 0) if meta.get(11) is None else None)
    yield "a bloom filter at 0", _of_meta(lambda meta: meta.set(14, 0))
    for field_id, name in ((4, "OffsetIndex"), (6, "ColumnIndex")):
        yield f"{name} at 0", lambda chunk, field_id=field_id: chunk.struct.set(field_id, 0)  # type: ignore[misc]
        yield f"{name} of 1 byte", lambda chunk, field_id=field_id: chunk.struct.set(field_id + 1, 1, I32)  # type: ignore[misc]
    if base in ("dictionary", "dictionary_v2"):
        yield "a dictionary that is not named", _of_meta(_unname_dictionary)


def _of_meta(change: Change) -> Callable[[ChunkPart], object]:
    return lambda chunk: change(chunk.meta)


def _without_encodings(meta: Struct) -> None:
    meta.set(2, Items(I32, [99]))
    meta.drop(13)


def _unname_dictionary(meta: Struct) -> None:
    """As older writers have it: data_page_offset is that of the dictionary page."""
    dictionary = meta.get(11)
    if isinstance(dictionary, int):
        meta.set(9, dictionary)
        meta.drop(11)


# -- page headers -----------------------------------------------------------------------------------


def _headers(base: str) -> Iterator[tuple[str, Change]]:
    yield "no CRC", lambda header: header.drop(4)
    if _parts(base).chunks[0].data_pages[0].header.get(1) == 3:
        for value in (0, 1, -1, 1 << 30):
            yield f"num_rows {value}", lambda header, value=value: header.struct(8).set(3, value)  # type: ignore[misc]
            yield f"num_nulls {value}", lambda header, value=value: header.struct(8).set(2, value)  # type: ignore[misc]
        yield "num_rows as num_values", lambda header: header.struct(8).set(3, header.struct(8).integer(1))
        yield "no statistics", lambda header: header.struct(8).drop(8)
    else:
        yield "no statistics", lambda header: header.struct(5).drop(5)
        yield "statistics of nothing", lambda header: header.struct(5).set(5, Struct([Field(3, I64, -9)]), STRUCT)


# -- OffsetIndexes ----------------------------------------------------------------------------------


def _locations() -> Iterator[tuple[str, Callable[[list[Struct]], object]]]:
    def each(change: Callable[[Struct], object]) -> Callable[[list[Struct]], object]:
        return lambda pages: [change(page) for page in pages]

    yield "sizes without the header", each(lambda page: page.set(2, page.integer(2) - 20))
    for value in (0, 1, -1, 1 << 30):
        yield f"sizes of {value}", each(lambda page, value=value: page.set(2, value))  # type: ignore[misc]
    yield "the last size too small", lambda pages: pages[-1].set(2, pages[-1].integer(2) - 1)
    yield "the first size too small", lambda pages: pages[0].set(2, pages[0].integer(2) - 1)
    yield "no first rows", each(lambda page: page.set(3, 0))
    yield "first rows one late", lambda pages: each(lambda page: page.set(3, page.integer(3) + 1))(pages[1:])
