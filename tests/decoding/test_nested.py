"""Nested columns: what is asked of them by path, and what their pages and leaves may not say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.decoding.field_source import FieldSource
from asyncpq.decoding.leaf_sources import PagedSource, StreamedSource
from asyncpq.decoding.nested import NestedLeaf, PartialField, merge
from asyncpq.decoding.page import DataPage
from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError, CorruptFileError, UnsupportedFeatureError
from asyncpq.expressions import columns as columns_of
from asyncpq.parquet.chunk_pages import PageWalker
from asyncpq.parquet.logical_types import PhysicalType, Repetition
from asyncpq.parquet.page_index import decode_offset_index
from asyncpq.parquet.schema import ParquetSchema, SchemaElement
from asyncpq.parquet.writer_faults import Claim, WriterFaults
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.column_resolution import ReadColumns
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import decode, encode
from tests.parquet_samples import LIMITS, OpenFile
from tests.reads import ask

ROWS = 40
STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", pa.struct([("w", pa.int32())]))])
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS)),
        "s": pa.array(
            [None if row % 9 == 8 else {"x": row % 10, "y": f"y{row}", "z": {"w": row}} for row in range(ROWS)], STRUCT
        ),
        "l": pa.array([None if row % 7 == 6 else list(range(row % 4)) for row in range(ROWS)], pa.list_(pa.int32())),
        "a.b": pa.array(range(ROWS)),
        "a": pa.array([{"b": str(row), "c": row} for row in range(ROWS)]),
    }
)
DATA = parquet_bytes(TABLE, write_page_index=True, data_page_size=1, write_batch_size=4, max_rows_per_page=4)


def read(columns: list[Any]) -> pa.Table:
    return ask(DATA, lambda file: file.read(columns))


# -- paths ------------------------------------------------------------------------------------------


def test_columns_stand_where_they_are_first_named() -> None:
    found = read(["s.z", "id", "s.x", 2])
    assert found.column_names == ["s", "id", "l"]
    assert found.schema.field("s").type == pa.struct([("x", pa.int64()), STRUCT.field("z")])
    assert found.column("s").to_pylist() == [
        None if row is None else {"x": row["x"], "z": row["z"]} for row in TABLE.column("s").to_pylist()
    ]


def test_a_column_with_a_dot_in_its_name_wins() -> None:
    assert read(["a.b"]).to_pydict() == {"a.b": list(range(ROWS))}
    assert read(["a.c"]).column("a").to_pylist() == [{"c": row} for row in range(ROWS)]


@pytest.mark.parametrize("columns", [["s", "s"], ["s", "s.x"], ["s.z.w", "s.z"], ["s.x", 1], ["s.x", "id", "s.x"]])
def test_nothing_is_asked_for_twice(columns: list[Any]) -> None:
    with pytest.raises(AmbiguousColumnError, match="twice"):
        read(columns)


@pytest.mark.parametrize(("path", "near"), [("s.q", "s.x"), ("s.z.ww", "s.z.w"), ("l.list", None), ("s.", None)])
def test_unknown_paths_name_what_may_have_been_meant(path: str, near: str | None) -> None:
    if path == "l.list":  # a group of the file, though Arrow has no name for it
        assert read([path]).column("l").to_pylist() == TABLE.column("l").to_pylist()
        return
    with pytest.raises(ColumnNotFoundError) as caught:
        read([path])
    assert caught.value.column == path
    assert near is None or near in str(caught.value.hint)


def test_two_leaves_of_one_path() -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"])
    schema = OpenFile(parquet_bytes(pa.table({"s": twice}))).metadata.schema
    assert schema.projection("s").leaves == (0, 1, 2)
    assert schema.projection("s.y").leaves == (2,)
    with pytest.raises(AmbiguousColumnError):
        schema.projection("s.x")


def test_one_path_in_two_columns() -> None:
    column = pa.array([{"x": 1}])
    schema: ParquetSchema = OpenFile(
        parquet_bytes(pa.Table.from_arrays([column, column], names=["s", "s"]))
    ).metadata.schema
    with pytest.raises(AmbiguousColumnError):
        schema.projection("s.x")


class Point(pa.ExtensionType):  # type: ignore[misc]
    """An extension type of two leaves."""

    def __init__(self) -> None:
        super().__init__(pa.struct([("x", pa.int64()), ("y", pa.string())]), "test.nested.point")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> Point:
        return cls()


@pytest.fixture
def points() -> Iterator[bytes]:
    """A file of points, and of lists of points, whose leaves have other page boundaries each."""
    pa.register_extension_type(Point())
    values = [{"x": row, "y": "y" * (row % 50)} if row % 5 else None for row in range(200)]
    array = pa.ExtensionArray.from_storage(Point(), pa.array(values, Point().storage_type))
    lists = pa.ListArray.from_arrays(pa.array(range(0, 201, 2), pa.int32()), array)
    table = pa.table({"p": array.slice(0, 100), "l": lists})
    yield parquet_bytes(table, write_page_index=True, data_page_size=200, write_batch_size=7)
    pa.unregister_extension_type("test.nested.point")


@pytest.mark.parametrize("rows", [[3], [3, 60, 99], list(range(40, 90))])
@pytest.mark.parametrize("allowed", [True, False])
def test_extension_types_of_several_leaves(points: bytes, rows: list[int], allowed: bool) -> None:
    options = asyncpq.ReadOptions(extension_types=frozenset(["test.nested.point"] if allowed else []))
    whole = ask(points, lambda file: file.read(), read=options)
    assert isinstance(whole.schema.field("p").type, Point) is allowed
    found = ask(points, lambda file: file.take(rows), read=options)
    found.validate(full=True)
    assert found.schema.equals(whole.schema)
    assert found.to_pylist() == whole.take(rows).to_pylist()


def test_a_part_of_an_extension_type(points: bytes) -> None:
    options = asyncpq.ReadOptions(extension_types=frozenset(["test.nested.point"]))
    with pytest.raises(UnsupportedFeatureError, match="part") as caught:
        ask(points, lambda file: file.take([3], ["p.x"]), read=options)
    assert caught.value.column == "p"
    assert ask(points, lambda file: file.take([3], ["p.x"])).to_pylist() == [{"p": {"x": 3}}]


# -- predicates and keys ----------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [None, ["id"], ["s.y"], ["s.x"], ["s"], []])
@pytest.mark.parametrize("with_keys", [False, True])
def test_keys_inside_a_struct(columns: list[str] | None, with_keys: bool) -> None:
    """Whichever part of the struct is returned."""
    found = ask(DATA, lambda file: file.lookup({"s.x": [3, 99, 5]}, columns, with_keys=with_keys))
    rows = [
        (number, [3, 99, 5].index(row["x"]))
        for number, row in enumerate(TABLE.column("s").to_pylist())
        if row is not None and row["x"] in (3, 5)
    ]
    wanted = ask(DATA, lambda file: file.take([row for row, _ in rows], columns))
    assert found.num_rows == len(rows)
    if with_keys:
        assert found.column("key_position").to_pylist() == [position for _, position in rows]
        found = found.drop_columns(["key_position"])
    assert found.equals(wanted)


def test_keys_inside_and_beside_a_struct() -> None:
    found = ask(DATA, lambda file: file.lookup({"s.x": [3, 5], "id": [13, 5]}, ["s.y"], with_keys=True))
    assert found.to_pylist() == [{"s": {"y": "y5"}, "key_position": 1}, {"s": {"y": "y13"}, "key_position": 0}]


def test_nulls_of_lists_and_structs_are_not_those_of_leaves() -> None:
    """Empty lists are counted among a leaf's nulls, and nulls of a struct among those of its leaves."""
    rows = TABLE.to_pylist()
    predicates = {
        "l": (col("l").is_null(), [row["l"] is None for row in rows]),
        "not l": (~col("l").is_null(), [row["l"] is not None for row in rows]),
        "s": (col("s").is_null(), [row["s"] is None for row in rows]),
        "s.z": (col("s.z").is_null(), [row["s"] is None or row["s"]["z"] is None for row in rows]),
        "s.z.w": (~col("s.z.w").is_null(), [row["s"] is not None for row in rows]),
    }
    for predicate, kept in predicates.values():
        found = ask(DATA, lambda file, where=predicate: file.read(["id"], where))  # type: ignore[misc]
        assert found.column("id").to_pylist() == [number for number, keep in enumerate(kept) if keep]


# -- pages that lie ---------------------------------------------------------------------------------


def pages(file: OpenFile, column: int, leaf: int) -> list[DataPage]:
    """The pages of a leaf, as its OffsetIndex tells them."""
    chunk = file.chunks(column)[leaf]
    assert chunk.offset_index_range is not None
    index = decode_offset_index(file.data[slice(*chunk.offset_index_range)])
    rows = index.row_counts(file.num_rows())
    places = zip(index.offsets, index.sizes, index.first_rows, rows, strict=True)
    return [DataPage(file.data[at : at + size], first, count) for at, size, first, count in places]


def paged(file: OpenFile, column: int, leaf: int, some: list[DataPage], dictionary: bytes | None = None) -> FieldSource:
    """The field cut to one leaf, of which some pages have come."""
    number = file.field(column).first_leaf + leaf
    source = file.leaf_source(number, paged=True)
    assert not isinstance(source, StreamedSource)
    if dictionary is not None:
        source.add_dictionary(dictionary, LIMITS)
    for page in some:
        source.add(page)
    return file.joined(column, {number: source}, file.num_rows())


LISTS = pa.table({"l": pa.array([list(range(row % 4)) for row in range(ROWS)], pa.list_(pa.int32())), "s": TABLE["s"]})


@pytest.fixture(params=["1.0", "2.0"])
def lists(request: pytest.FixtureRequest) -> OpenFile:
    options = {"data_page_size": 1, "write_batch_size": 4, "max_rows_per_page": 4, "use_dictionary": False}
    return OpenFile(parquet_bytes(LISTS, write_page_index=True, data_page_version=request.param, **options))


@pytest.mark.parametrize("column", [0, 1])
def test_pages_as_they_are(lists: OpenFile, column: int) -> None:
    some = pages(lists, column, 0)[2:5]
    rows = RowRanges([(some[0].first_row, some[-1].stop_row)])
    whole = lists.whole(column).select(RowRanges.all(ROWS), LIMITS)
    wanted = whole if column == 0 else pa.StructArray.from_arrays([whole.field(0)], names=["x"], mask=whole.is_null())
    found = paged(lists, column, 0, some).select(rows, LIMITS)
    assert found.to_pylist() == wanted.slice(rows.start, rows.num_rows).to_pylist()


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("change", [1, -1])
def test_a_page_that_holds_other_rows_than_planned(lists: OpenFile, column: int, change: int) -> None:
    page = pages(lists, column, 0)[3]
    page = page._replace(num_rows=page.num_rows + change)
    source = paged(lists, column, 0, [page])
    with pytest.raises(CorruptFileError, match="rows"):
        source.select(RowRanges([(page.first_row, page.stop_row)]), LIMITS)


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("change", [1, -1])
def test_a_shifted_boundary_between_two_pages(lists: OpenFile, column: int, change: int) -> None:
    """Their rows add up, and yet it shows."""
    first, second = pages(lists, column, 0)[3:5]
    some = [
        first._replace(num_rows=first.num_rows + change),
        second._replace(first_row=second.first_row + change, num_rows=second.num_rows - change),
    ]
    source = paged(lists, column, 0, some)
    with pytest.raises(CorruptFileError, match="rows"):
        source.select(RowRanges([(first.first_row, second.stop_row)]), LIMITS)


@pytest.mark.parametrize("change", [1, -1])
def test_rows_that_v2_headers_make_up(change: int) -> None:
    """Of pages apart, decoded together: their rows add up, headers and index agree, and the levels do not."""
    options = {"data_page_size": 1, "write_batch_size": 4, "max_rows_per_page": 4, "use_dictionary": False}
    file = OpenFile(parquet_bytes(LISTS, write_page_index=True, data_page_version="2.0", **options))
    whole = pages(file, 0, 0)
    some: list[DataPage] = []
    for page, more in ((whole[3], change), (whole[6], -change)):
        header, start = decode(bytes(page.data))
        rows = page.num_rows + more
        header.value(8).put(3, rows)
        some.append(DataPage(encode(header) + page.data[start:], page.first_row, rows))
    with pytest.raises(CorruptFileError, match="the rows of a page"):
        paged(file, 0, 0, some).select(RowRanges([(page.first_row, page.stop_row) for page in some]), LIMITS)


def leaf_of_each(files: list[OpenFile], num_rows: int, *, paged: bool) -> FieldSource:
    """The first field, its leaves from one file each, by their pages or as whole chunks."""
    sources: dict[int, PagedSource | StreamedSource | NestedLeaf] = {}
    for leaf, file in enumerate(files):
        source = sources[leaf] = file.leaf_source(leaf, paged=paged, num_rows=num_rows)
        if paged:
            assert not isinstance(source, StreamedSource)
            source.add(pages(file, 0, leaf)[0])
        else:
            assert not isinstance(source, PagedSource)
            source.feed(file.bytes_of(file.version.chunk(0, leaf)))
    return files[0].joined(0, sources, num_rows)


@pytest.mark.parametrize("is_paged", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("sizes", [[3, 2, 1], [1, 1, 4], [1, 2, 4], [1, 2, 1]])
def test_a_leaf_whose_lists_are_not_its_neighbours(version: str, is_paged: bool, sizes: list[int]) -> None:
    """As many values on the page, in other lists, or more, or fewer: pyarrow asks one leaf only how long they are."""
    kind = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.int32())]))
    options: dict[str, Any] = {"write_page_index": True, "data_page_version": version, "use_dictionary": False}
    values = [[[{"a": 1, "b": 2}] * size for size in each] for each in ([1, 2, 3], sizes)]
    files = [OpenFile(parquet_bytes(pa.table({"l": pa.array(rows, kind)}), **options)) for rows in values]
    for some in (files, files[::-1]):
        source = leaf_of_each(some, 3, paged=is_paged)
        for _ in range(2):
            with pytest.raises(CorruptFileError, match="lengths of the lists"):
                source.select(RowRanges.all(3), LIMITS)
    good = leaf_of_each([files[0], files[0]], 3, paged=is_paged).select(RowRanges.all(3), LIMITS)
    assert good.to_pylist() == values[0]


@pytest.mark.parametrize("is_paged", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_leaf_whose_struct_is_null_where_its_neighbours_is_not(version: str, is_paged: bool) -> None:
    kind = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    options: dict[str, Any] = {"write_page_index": True, "data_page_version": version, "use_dictionary": False}
    row, empty = {"a": 1, "b": 2}, {"a": None, "b": None}
    good, *others = (
        OpenFile(parquet_bytes(pa.table({"s": pa.array(rows, kind)}), **options))
        for rows in ([row, None, row], [row, row, row], [row, empty, row], [None, row, row])
    )
    for other in others:
        for some in ([good, other], [other, good]):
            with pytest.raises(CorruptFileError, match="disagree about the rows"):
                leaf_of_each(some, 3, paged=is_paged).select(RowRanges.all(3), LIMITS)
    found = leaf_of_each([good, good], 3, paged=is_paged).select(RowRanges.all(3), LIMITS)
    assert found.to_pylist() == [row, None, row]


def test_a_dictionary_where_a_page_belongs() -> None:
    file = OpenFile(parquet_bytes(LISTS, write_page_index=True, use_dictionary=True))
    chunk = file.chunks(0)[0]
    start = chunk.dictionary_page_offset
    assert start is not None
    dictionary = file.data[start : chunk.data_page_offset]
    rows = RowRanges.all(ROWS)
    with pytest.raises(CorruptFileError, match="DICTIONARY_PAGE where a data page is expected"):
        paged(file, 0, 0, [DataPage(dictionary, 0, ROWS)]).select(rows, LIMITS)
    (page,) = pages(file, 0, 0)
    with pytest.raises(CorruptFileError, match="where a dictionary page is expected"):
        paged(file, 0, 0, [page], bytes(page.data)).select(rows, LIMITS)
    with pytest.raises(CorruptFileError):
        paged(file, 0, 0, [page]).select(rows, LIMITS)
    found = paged(file, 0, 0, [page], dictionary).select(rows, LIMITS)
    assert found.to_pylist() == LISTS.column("l").to_pylist()


@pytest.mark.parametrize(
    ("created_by", "aligned"),
    [
        ("parquet-cpp-arrow version 26.0.1", True),
        ("parquet-cpp-arrow version 13.0.0", False),
        ("parquet-mr version 1.13.1 (build 4e9c2d)", True),
        ("parquet-mr version 1.10.1 (build 4e9c2d)", False),
        ("parquet-rs version 57.0.0", True),
        ("parquet-go version 18.4.0", False),
        (None, False),
        ("", False),
    ],
)
def test_writers_that_begin_pages_on_rows(created_by: str | None, aligned: bool) -> None:
    leaf = OpenFile(parquet_bytes(LISTS)).metadata.schema.leaves[0]
    assert (WriterFaults(created_by).find(Claim.PAGE_ROWS, leaf) is None) is aligned


# -- leaves that contradict each other --------------------------------------------------------------

KIND = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.int32())]))


def part(leaf: int, values: list[Any]) -> PartialField:
    name = "ab"[leaf]
    rows = [None if row is None else [None if each is None else {name: each} for each in row] for row in values]
    return PartialField((leaf,), pa.array(rows, pa.list_(pa.struct([(name, pa.int32())]))))


def test_leaves_that_agree() -> None:
    parts = [part(0, [[1, None], None, []]), part(1, [[3, None], None, []])]
    assert merge(parts, KIND, 0, KIND).to_pylist() == [[{"a": 1, "b": 3}, None], None, []]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([[3, None], None], "of values: 3, 2"),
        ([[3], None, [None]], "about the lengths of the lists"),
        ([[3, None], [], []], "disagree about the rows"),
        ([[3, 4], None, []], "disagree about the rows"),
    ],
)
def test_leaves_that_do_not(other: list[Any], message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        merge([part(0, [[1, None], None, []]), part(1, other)], KIND, 0, KIND)


def test_what_stands_under_a_null_means_nothing() -> None:
    """Of a required struct in one that is null, pyarrow says now this, now that."""
    inner = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    kind = pa.struct([pa.field("s", inner, nullable=False)])
    arrays: list[pa.Array] = []
    for name, mask in (("x", [False, False]), ("y", [True, False])):
        leaf = pa.StructArray.from_arrays([pa.array([None, 5], pa.int32())], names=[name], mask=pa.array(mask))
        arrays.append(pa.StructArray.from_arrays([leaf], names=["s"], mask=pa.array([True, False])))
    found = merge([PartialField((0,), arrays[0]), PartialField((1,), arrays[1])], kind, 0, kind)
    assert found.to_pylist() == [None, {"s": {"x": 5, "y": 5}}]
    with pytest.raises(CorruptFileError, match="disagree"):
        merge([PartialField((0,), arrays[0].field(0)), PartialField((1,), arrays[1].field(0))], inner, 0, inner)


def test_pages_without_values() -> None:
    """pyarrow writes them in front of booleans, and reads no row behind one of a leaf alone."""
    table = pa.table({"m": pa.array([None, [("k", True)]], pa.map_(pa.string(), pa.bool_()))})
    pages = {"data_page_size": 1, "max_rows_per_page": 1, "write_batch_size": 1}
    data = parquet_bytes(
        table, data_page_version="2.0", use_dictionary=False, compression="none", write_page_index=True, **pages
    )
    file = OpenFile(data)
    walked = PageWalker(file.chunks(0)[1], max_page_bytes=1 << 20).feed(file.bytes_of(file.chunks(0)[1]))
    assert 0 in [page.header.num_values for page in walked]
    found = ask(data, lambda file: file.read(["m.key_value.value"]))
    assert found.column("m").to_pylist() == [None, [{"value": True}]]
    assert ask(data, lambda file: file.take([1, 0])).equals(table.take([1, 0]))


def test_a_repeated_leaf_is_not_pruned_by_its_statistics() -> None:
    """Its counts are those of values, not of rows, even where it is a top-level column (legacy lists)."""

    def element(name: str, kind: PhysicalType | None, repetition: Repetition, children: int = 0) -> SchemaElement:
        return SchemaElement(name, kind, None, repetition, children, None, None, None, None, None, 0, 0)

    root = element("schema", None, Repetition.REQUIRED, 3)
    flat = element("flat", PhysicalType.INT32, Repetition.OPTIONAL)
    repeated = element("repeated", PhysicalType.INT32, Repetition.REPEATED)
    group = element("group", None, Repetition.OPTIONAL, 1)
    schema = ParquetSchema([root, flat, repeated, group, element("leaf", PhysicalType.INT32, Repetition.OPTIONAL)])
    where = col("flat").is_null() & col("repeated").is_null() & col("group").is_null() & col("group.leaf").is_null()
    read = ReadColumns(schema, (), columns_of(where))
    assert {name: leaf.dotted for name, leaf in read.bounded.items()} == {"flat": "flat", "group.leaf": "group.leaf"}
    assert read.predicate.keys() == {"flat", "repeated", "group", "group.leaf"}


def test_a_session_reads_leaves_of_any_file_as_one_field() -> None:
    """Leaves with other page boundaries, some page by page and some whole."""
    rows = [0, 3, 4, 17, 39]
    for columns in (["s"], ["s.y", "s.z"], ["l", "s.x"]):
        wanted = ask(DATA, lambda file, some=columns: file.read(some))  # type: ignore[misc]
        found = ask(DATA, lambda file, some=columns: file.take(rows, some))  # type: ignore[misc]
        assert found.to_pylist() == wanted.take(rows).to_pylist()
