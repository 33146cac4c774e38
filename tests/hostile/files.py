"""Hostile files: one lie each, made out of good files, and what must come of it.

Every file is good but for the one lie, so what is refused is refused for that. :data:`THREATS` names what lies
are told about.
"""

from __future__ import annotations

import base64
import copy
import functools
import io
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, varint
from tests.fuzz import bases
from tests.fuzz.parquet_parts import MAGIC, META, ROW_GROUPS, ChunkPart, with_trailer
from tests.fuzz.thrift_trees import Field, Items, Struct, write
from tests.hostile.bombs import bombs
from tests.hostile.lies import (
    Corrupt,
    Hostile,
    Limit,
    Unsupported,
    cached_parts,
    claim,
    contradicting_leaves,
    lying_body,
    lying_chunk,
    lying_footer,
    lying_index,
    lying_page,
    nested_field,
    parts_of,
    row_group,
    schema_element,
)

# -- footers ----------------------------------------------------------------------------------------


def _thrift() -> Iterator[Hostile]:
    for name, path in (
        ("schema", (2,)),
        ("row groups", (ROW_GROUPS,)),
        ("column chunks", (ROW_GROUPS, 0, 1)),
        ("key-values", (5,)),
        ("column orders", (7,)),
        ("encodings", (ROW_GROUPS, 0, 1, 0, META, 2)),
        ("path", (ROW_GROUPS, 0, 1, 0, META, 3)),
    ):
        for length in (1 << 20, 1 << 31, (1 << 63) - 1):
            data = lying_footer(lambda footer, path=path, length=length: claim(footer.items(*path), length))  # type: ignore[misc]
            yield Hostile("size bombs in Thrift", f"{name} of {length}", data, None, Corrupt)
    text = write(parts_of().footer)
    created_by = text.rindex(b"parquet-cpp-arrow")
    for length in (1 << 31, 1 << 62):
        long = text[: created_by - 1] + varint(length) + text[created_by:]
        yield Hostile("size bombs in Thrift", f"a string of {length}", _with_footer(long), None, Corrupt)
    many = Field(201, LIST, Items(STRUCT, []))
    many_bytes = write(Struct([many]))[:-2] + b"\xfc" + varint(6_000_000) + bytes(6_000_000)
    footer = text[:-1] + many_bytes + b"\0"
    yield Hostile("size bombs in Thrift", "6 million empty structs", _with_footer(footer), None, Limit)
    wide = Struct([Field(1, I32, 1), Field(3, I32, 0), Field(4, BINARY, b"c")])
    elements = [Struct([Field(4, BINARY, b"s"), Field(5, I32, 500_000)]), *[wide] * 500_000]
    empty = Struct([Field(1, I32, 1), Field(2, LIST, Items(STRUCT, list(elements))), Field(3, I64, 0)])
    empty.fields.append(Field(4, LIST, Items(STRUCT, [])))
    yield Hostile("size bombs in Thrift", "500,000 columns", _with_footer(write(empty)), None, Limit)


def _unknown_fields() -> Iterator[Hostile]:
    for levels in (65, 200):
        for kind in (STRUCT, LIST):
            what = "structs" if kind == STRUCT else "lists"
            field = nested_field(levels, kind)
            data = lying_footer(lambda footer, field=field: footer.fields.append(field))  # type: ignore[misc]
            yield Hostile("unknown nested fields", f"{levels} {what} in the footer", data, None, Limit)
    text = write(parts_of().footer)
    deep = text[:-1] + b"\x0c\x90\x03" + b"\x1c" * 100_000 + bytes(100_001) + b"\0"
    yield Hostile("unknown nested fields", "100,000 structs in the footer", _with_footer(deep), None, Limit)
    data = lying_page(lambda header: header.fields.append(nested_field(100)))
    yield Hostile("unknown nested fields", "100 structs in a page header", data, bases.table("plain"), Limit, "id")

    def nested(chunk: ChunkPart) -> None:
        assert chunk.offset_index is not None
        chunk.offset_index.fields.append(nested_field(100))

    data = lying_index(nested)
    yield Hostile("unknown nested fields", "100 structs in an OffsetIndex", data, bases.table("plain"), None)


def _with_footer(footer: bytes) -> bytes:
    """A file with these metadata behind the plain file's pages."""
    parts = parts_of()
    parts.place_pages()
    parts.place_indexes()
    whole = parts.file()
    return whole[: len(whole) - len(with_trailer(write(parts.footer)))] + with_trailer(footer)


def _deep_schemas() -> Iterator[Hostile]:
    for levels in (70, 100, 5000):
        elements = [Struct([Field(3, I32, 1), Field(4, BINARY, b"g"), Field(5, I32, 1)]) for _ in range(levels)]
        elements.append(Struct([Field(1, I32, 1), Field(3, I32, 0), Field(4, BINARY, b"c")]))
        footer = Struct([Field(1, I32, 1), Field(2, LIST, Items(STRUCT, list(elements))), Field(3, I64, 0)])
        footer.fields.append(Field(4, LIST, Items(STRUCT, [])))
        yield Hostile("deep schemas", f"{levels} groups", _with_footer(write(footer)), None, Limit)


def _child_counts() -> Iterator[Hostile]:
    for count in (-1, 0, 7, 9, 1 << 20, (1 << 31) - 1):
        data = lying_footer(lambda footer, count=count: schema_element(footer, 0).set(5, count))  # type: ignore[misc]
        yield Hostile("schema child counts", f"{count} children of the root, not 8", data, None, Corrupt)
        data = lying_footer(lambda footer, count=count: schema_element(footer, 2).set(5, count), "nested")  # type: ignore[misc]
        yield Hostile("schema child counts", f"{count} children of a list, not 1", data, None, Corrupt)
    data = lying_footer(lambda footer: footer.items(2).values.pop())
    yield Hostile("schema child counts", "one element too few", data, None, Corrupt)
    data = lying_footer(lambda footer: footer.items(2).values.append(footer.items(2).values[-1]))
    yield Hostile("schema child counts", "one element too many", data, None, Corrupt)


def _footer_lengths() -> Iterator[Hostile]:
    good = bases.data("plain")
    length = int.from_bytes(good[-8:-4], "little")
    for claimed in (0, length - 1, length + 1, len(good) - 12, len(good) - 11, len(good), 1 << 31, (1 << 32) - 1):
        data = good[:-8] + claimed.to_bytes(4, "little") + MAGIC
        yield Hostile("footer length", f"{claimed} instead of {length}", data, None, Corrupt)
    for cut in (1, 4, 8, 9, len(good) - 11, len(good) - 4):
        yield Hostile("footer length", f"{cut} bytes cut off", good[:-cut], None, asyncpq.NotParquetError)


def _names() -> Iterator[Hostile]:
    def rename(footer: Struct, name: bytes, *, chunks: bool = True) -> None:
        schema_element(footer, 2).set(4, name)
        for group in footer.items(ROW_GROUPS).values if chunks else ():
            assert isinstance(group, Struct)
            group.struct(1, 1, META).set(3, Items(BINARY, [name]))
        footer.drop(5)  # the stored Arrow schema has the old name

    yield Hostile("names", "not UTF-8", lying_footer(lambda footer: rename(footer, b"\xff\xfe")), None, Corrupt)
    table = _as_stored_without_schema()
    data = lying_footer(lambda footer: rename(footer, b"other", chunks=False))
    other = table.rename_columns(["other" if name == "word" else name for name in table.column_names])
    yield Hostile("names", "another one in the chunks", data, other, Corrupt, "other")
    for name in (b"id", b"a\x1b[31m\nb\0c", b"", b"a.b", b"../../etc", b"x" * 100_000):
        data = lying_footer(lambda footer, name=name: rename(footer, name))  # type: ignore[misc]
        named = table.rename_columns([name.decode() if at == 1 else old for at, old in enumerate(table.column_names)])
        yield Hostile("names", f"{name[:20]!r}", data, named, None)


@functools.cache
def _as_stored_without_schema() -> pa.Table:
    return pq.read_table(io.BytesIO(lying_footer(lambda footer: footer.drop(5))))


def _row_counts() -> Iterator[Hostile]:
    rows = bases.ROWS
    for count in (1, rows - 1, rows + 1, 1 << 31, (1 << 63) - 1, -1):
        data = lying_footer(lambda footer, count=count: footer.set(3, count))  # type: ignore[misc]
        # The chunks say which of the two is right, and a count that is too high tells of row groups that are lost.
        good, error = (bases.table("plain"), None) if 0 < count < rows else (None, Corrupt)
        yield Hostile("row counts", f"{count} in the footer", data, good, error)
        data = lying_footer(lambda footer, count=count: row_group(footer).set(3, count))  # type: ignore[misc]
        yield Hostile("row counts", f"{count} in a row group", data, None, Corrupt)
        more = count + bases.ROWS

        def both(footer: Struct, count: int = count, more: int = more) -> None:
            row_group(footer).set(3, count)
            footer.set(3, (more - 120) % (1 << 63))

        yield Hostile("row counts", f"{count} in a row group and the footer", lying_footer(both), None, Corrupt)
        data = lying_chunk(lambda chunk, count=count: chunk.meta.set(5, count))  # type: ignore[misc]
        yield Hostile("row counts", f"{count} in a chunk", data, bases.table("plain"), Corrupt, "id")


# -- places -----------------------------------------------------------------------------------------


def _offsets() -> Iterator[Hostile]:
    good = bases.table("plain")
    size = len(bases.data("plain"))
    for field_id, name in ((9, "first page"), (7, "compressed size")):
        for value in (-1, 0, 3, size, size + 1, 1 << 40, (1 << 63) - 1):
            data = lying_chunk(lambda chunk, field_id=field_id, value=value: chunk.meta.set(field_id, value))  # type: ignore[misc]
            yield Hostile("offsets", f"{name} {value}", data, good, Corrupt, "id")
    for value in (-5, 3, 1 << 40):
        data = lying_chunk(lambda chunk, value=value: chunk.meta.set(11, value), "dictionary")  # type: ignore[misc]
        expected = bases.table("dictionary")
        yield Hostile("offsets", f"dictionary at {value}", data, expected, Corrupt, "id")

    def overlap(footer: Struct) -> None:
        first, second = footer.struct(ROW_GROUPS, 0, 1, 0, META), footer.struct(ROW_GROUPS, 0, 1, 7, META)
        second.set(9, first.integer(9))  # "time" claims the pages of "id", both of them 64 bits wide

    yield Hostile("offsets", "two chunks of the same bytes", lying_footer(overlap), None, Corrupt)

    def into(footer: Struct) -> None:
        first, second = footer.struct(ROW_GROUPS, 0, 1, 0, META), footer.struct(ROW_GROUPS, 0, 1, 1, META)
        first.set(7, second.integer(9) + 20 - first.integer(9))

    yield Hostile("offsets", "a chunk that reaches into the next", lying_footer(into), None, Corrupt)
    for field_id, name in ((4, "OffsetIndex"), (6, "ColumnIndex")):
        for value in (-1, 0, 3, size - 4, 1 << 40, (1 << 63) - 1):
            data = lying_chunk(lambda chunk, field_id=field_id, value=value: chunk.struct.set(field_id, value))  # type: ignore[misc]
            yield Hostile("offsets", f"{name} at {value}", data, good, None)
        for value in (-1, 0, 1, 1 << 30):
            data = lying_chunk(lambda chunk, field_id=field_id, value=value: chunk.struct.set(field_id + 1, value))  # type: ignore[misc]
            yield Hostile("offsets", f"{name} of {value} bytes", data, good, None)


def _offset_indexes() -> Iterator[Hostile]:
    yield from _offset_indexes_of("plain", 0)
    yield from _offset_indexes_of("nested", 1)
    yield from _offset_indexes_of("nested_v2", 1)


def _offset_indexes_of(base: str, at: int) -> Iterator[Hostile]:
    """Lies about where the pages of one chunk are."""
    good = bases.table(base)

    def change(said: str, tell: Callable[[list[Struct]], object], error: Any = None) -> Hostile:
        def index(chunk: ChunkPart) -> None:
            assert chunk.offset_index is not None
            locations = chunk.offset_index.items(1)
            pages = [value for value in locations.values if isinstance(value, Struct)]
            tell(pages)
            locations.values = list(pages)

        if base != "plain":
            error = Corrupt  # the size of such a page does not say much, so it is met when it is read
        return Hostile("OffsetIndex", f"{said}, {base}", lying_index(index, base, at), good, error)

    yield change("begins at row 1", lambda pages: pages[0].set(3, 1))
    yield change("an inner page begins one row late", lambda pages: pages[1].set(3, 41), Corrupt)
    yield change("an inner page begins one row early", lambda pages: pages[1].set(3, 39), Corrupt)
    yield change("two pages begin at one row", lambda pages: pages[2].set(3, 40))
    yield change("a page begins behind the last row", lambda pages: pages[2].set(3, 120))
    yield change("a negative row", lambda pages: pages[1].set(3, -40))
    yield change("a page less", lambda pages: pages.pop(), Corrupt)
    yield change("no pages", lambda pages: pages.clear())
    yield change("a page twice", lambda pages: pages.insert(1, copy.deepcopy(pages[1])))
    yield change("pages swapped", lambda pages: pages.reverse())
    yield change("a page outside the chunk", lambda pages: pages[2].set(1, 1 << 30))
    yield change("a page in another chunk", lambda pages: pages[2].set(1, pages[2].integer(1) + 400))
    yield change("a page of another offset", lambda pages: pages[1].set(1, pages[1].integer(1) + 1))
    yield change("a negative offset", lambda pages: pages[1].set(1, -4))
    yield change("a page too short", lambda pages: pages[1].set(2, pages[1].integer(2) - 1), Corrupt)
    yield change("a page too long", lambda pages: pages[1].set(2, pages[1].integer(2) + 1))
    yield change("a page of 2 GiB", lambda pages: pages[2].set(2, (1 << 31) - 1))
    yield change("a page of no bytes", lambda pages: pages[1].set(2, 0))

    def claims(chunk: ChunkPart) -> None:
        assert chunk.offset_index is not None
        claim(chunk.offset_index.items(1), 1 << 40)

    yield Hostile("OffsetIndex", f"a million million pages, {base}", lying_index(claims, base, at), good, None)


def _column_indexes() -> Iterator[Hostile]:
    """Lies that can be noticed; others cannot, for which there is ``trust_statistics=False``."""
    good = bases.table("plain")

    def change(said: str, tell: Callable[[Struct], object], at: int = 0) -> Hostile:
        def index(chunk: ChunkPart) -> None:
            assert chunk.column_index is not None
            tell(chunk.column_index)

        return Hostile("ColumnIndex", said, lying_index(index, at=at), good, None)

    def swap(index: Struct) -> None:
        mins, maxs = index.items(2), index.items(3)
        mins.values, maxs.values = maxs.values, mins.values

    yield change("min above max", swap)
    for field_id, name in ((1, "null pages"), (2, "mins"), (3, "maxs"), (5, "null counts")):
        yield change(f"one of its {name} less", lambda index, at=field_id: index.items(at).values.pop())  # type: ignore[misc]
        yield change(f"no {name}", lambda index, at=field_id: index.items(at).values.clear())  # type: ignore[misc]
        yield change(f"{name} without number", lambda index, at=field_id: claim(index.items(at), 1 << 50))  # type: ignore[misc]
    yield change("null pages of 0 nulls", lambda index: index.items(1).values.__setitem__(0, True))
    yield change("unknown order", lambda index: index.set(4, 9))
    yield change("descending, though it ascends", lambda index: index.set(4, 2))
    yield change("a bound of 3 bytes", lambda index: index.items(2).values.__setitem__(1, b"abc"))
    yield change("more nulls than rows", lambda index: index.items(5).values.__setitem__(0, 1 << 40))
    yield change("negative nulls", lambda index: index.items(5).values.__setitem__(0, -1))


# -- pages ------------------------------------------------------------------------------------------


def _pages() -> Iterator[Hostile]:
    good = bases.table("plain")
    for value in (-1, 0, 39, 41, 1 << 20, (1 << 31) - 1):
        data = lying_page(lambda header, value=value: header.struct(5).set(1, value))  # type: ignore[misc]
        yield Hostile("pages", f"{value} values instead of 40", data, good, Corrupt, "id")
    for field_id, name in ((2, "uncompressed"), (3, "compressed")):
        for value in (-1, 0, 7, (1 << 31) - 1):
            data = lying_page(lambda header, field_id=field_id, value=value: header.set(field_id, value))  # type: ignore[misc]
            yield Hostile("pages", f"{value} {name} bytes", data, good, asyncpq.FormatError, "id")
    for encoding in (1, 3, 5, 7, 8, 9, 77, -1):
        data = lying_page(lambda header, encoding=encoding: header.struct(5).set(2, encoding))  # type: ignore[misc]
        yield Hostile("pages", f"the encoding {encoding}", data, good, Corrupt, "id")
    for kind in (1, 2, 3, 9, -1):
        data = lying_page(lambda header, kind=kind: header.set(1, kind))  # type: ignore[misc]
        yield Hostile("pages", f"the type {kind}", data, good, Corrupt, "id")
    yield Hostile("pages", "without its struct", lying_page(lambda header: header.drop(5)), good, Corrupt, "id")
    data = lying_page(lambda header: header.set(4, header.integer(4) ^ 1))
    yield Hostile("pages", "another CRC", data, good, Corrupt, "id")
    v2 = bases.table("plain_v2")
    for field_id, name, value in (
        (1, "values", 41),
        (2, "nulls", 41),
        (2, "nulls", -1),
        (3, "rows", 39),
        (3, "rows", -1),
        (5, "bytes of definition levels", 1 << 30),
        (5, "bytes of definition levels", -1),
        (6, "bytes of repetition levels", 9),
    ):
        data = lying_page(lambda header, at=field_id, value=value: header.struct(8).set(at, value), "plain_v2")  # type: ignore[misc]
        yield Hostile("pages", f"V2, {value} {name}", data, v2, Corrupt, "id")
    for bit in (0, 7, 100, 1000):
        at, mask = bit // 8, 1 << bit % 8
        for base in ("plain", "dictionary", "plain_v2", "encodings_v2"):
            if at < len(cached_parts(base).chunks[0].pages[0].body):
                data = lying_body(lambda body, at=at, mask=mask: _flipped(body, at, mask), base)  # type: ignore[misc]
                yield Hostile("pages", f"bit {bit} flipped, {base}", data, bases.table(base), Corrupt, "id")
    data = lying_body(lambda body: body[:-8])
    yield Hostile("pages", "a value missing", data, good, Corrupt, "id")
    data = lying_page(lambda header: header.struct(7).set(1, 3), "dictionary")
    yield Hostile("pages", "a dictionary of 3 values", data, bases.table("dictionary"), Corrupt, "id")
    parts = parts_of("dictionary")
    parts.chunks[0].pages.insert(1, parts.chunks[0].pages[0])
    yield Hostile("pages", "a second dictionary", parts.rebuilt(), bases.table("dictionary"), Corrupt, "id")
    parts = parts_of("dictionary")
    parts.chunks[0].pages.pop(0)
    parts.chunks[0].meta.drop(11)
    yield Hostile("pages", "no dictionary", parts.rebuilt(), bases.table("dictionary"), Corrupt, "id")


def _flipped(body: bytes, at: int, mask: int) -> bytes:
    return body[:at] + bytes([body[at] ^ mask]) + body[at + 1 :]


# -- what points elsewhere, and what is hidden --------------------------------------------------------


def _file_paths() -> Iterator[Hostile]:
    for place in ("other.parquet", "s3://lake/other.parquet", "http://127.0.0.1:1/x", "/etc/passwd", ""):
        data = lying_chunk(lambda chunk, place=place: chunk.struct.fields.insert(0, Field(1, BINARY, place.encode())))  # type: ignore[misc]
        yield Hostile("file_path", repr(place), data, bases.table("plain"), Unsupported, "id")


def _arrow_schemas() -> Iterator[Hostile]:
    bare = _as_stored_without_schema()
    stored = bases.table("plain").schema

    def with_schema(value: bytes) -> bytes:
        def change(footer: Struct) -> None:
            footer.set(5, Items(STRUCT, [Struct([Field(1, BINARY, b"ARROW:schema"), Field(2, BINARY, value)])]), LIST)

        return lying_footer(change)

    message = stored.serialize().to_pybytes()
    for said, value in (
        ("not base64", b"\xff\xfe%%%"),
        ("not a message", base64.b64encode(b"garbage" * 20)),
        ("cut off", base64.b64encode(message[: len(message) // 2])),
        ("empty", b""),
        ("other names", base64.b64encode(stored.remove(0).serialize().to_pybytes())),
        ("names that are not UTF-8", base64.b64encode(message.replace(b"word", b"\xff\xfe\xff\xfe"))),
        ("100 KB of zeros", base64.b64encode(bytes(100_000))),
    ):
        yield Hostile("ARROW:schema", said, with_schema(value), bare, None)
    extension = {b"ARROW:extension:name": b"evil.type", b"ARROW:extension:metadata": b"x"}
    field = stored.field(0).with_metadata(extension)
    asks = base64.b64encode(stored.set(0, field).serialize().to_pybytes())
    yield Hostile("ARROW:schema", "an extension type", with_schema(asks), bases.table("plain"), None)
    wrong = stored.set(0, pa.field("id", pa.list_(pa.int64())))
    value = base64.b64encode(wrong.serialize().to_pybytes())
    yield Hostile("ARROW:schema", "another type for a column", with_schema(value), bases.table("plain"), Corrupt)


def _encryption() -> Iterator[Hostile]:
    good = bases.data("plain")
    yield Hostile("encryption", "PARE for PAR1", good[:-4] + b"PARE", None, Unsupported)

    def crypto(chunk: ChunkPart) -> None:
        chunk.struct.set(8, Struct([Field(1, STRUCT, Struct())]), STRUCT)

    yield Hostile("encryption", "an encrypted column", lying_chunk(crypto), bases.table("plain"), Unsupported, "id")

    def hidden(chunk: ChunkPart) -> None:
        crypto(chunk)
        chunk.struct.set(9, b"\x01" * 80, BINARY)
        chunk.struct.drop(META)

    data = lying_chunk(hidden)
    yield Hostile("encryption", "encrypted metadata", data, bases.table("plain"), Unsupported, "id")


def _bloom_filters() -> Iterator[Hostile]:
    good, size = bases.table("bloom"), len(bases.data("bloom"))
    for value in (-1, 0, 3, size, 1 << 40, (1 << 63) - 1):
        data = lying_chunk(lambda chunk, value=value: chunk.meta.set(14, value), "bloom")  # type: ignore[misc]
        yield Hostile("bloom filters", f"at {value}", data, good, None)
    for value in (-1, 0, 1, 16, 1 << 30):
        data = lying_chunk(lambda chunk, value=value: chunk.meta.set(15, value), "bloom")  # type: ignore[misc]
        yield Hostile("bloom filters", f"of {value} bytes", data, good, None)
    for said, at, byte in (("another size", 1, 0x02), ("a negative size", 1, 0x01), ("not Thrift", 0, 0xFF)):
        parts = parts_of("bloom")
        filter_bytes = parts.chunks[0].bloom_filter
        assert filter_bytes is not None
        parts.chunks[0].bloom_filter = filter_bytes[:at] + bytes([byte]) + filter_bytes[at + 1 :]
        yield Hostile("bloom filters", said, parts.rebuilt(), good, None)


_MAKERS: dict[str, Callable[[], Iterator[Hostile]]] = {
    "size bombs in Thrift": _thrift,
    "unknown nested fields": _unknown_fields,
    "deep schemas": _deep_schemas,
    "schema child counts": _child_counts,
    "footer length": _footer_lengths,
    "names": _names,
    "row counts": _row_counts,
    "offsets": _offsets,
    "OffsetIndex": _offset_indexes,
    "ColumnIndex": _column_indexes,
    "pages": _pages,
    "leaves of one field": contradicting_leaves,
    "bombs": bombs,
    "file_path": _file_paths,
    "ARROW:schema": _arrow_schemas,
    "encryption": _encryption,
    "bloom filters": _bloom_filters,
}
THREATS = tuple(_MAKERS)


def hostile_files(threat: str) -> Iterator[Hostile]:
    """The files of one of :data:`THREATS`, one after another: some are large."""
    yield from _MAKERS[threat]()


def main(folder: str, step: str, *threats: str) -> None:
    """Write every ``step``-th file of each threat, pickled: making some takes more memory than reading them may."""
    files = [case for threat in threats for case in itertools.islice(hostile_files(threat), 0, None, int(step))]
    for number, case in enumerate(files):
        (Path(folder) / f"{number:04d}").write_bytes(pickle.dumps(case))


if __name__ == "__main__":
    main(*sys.argv[1:])
