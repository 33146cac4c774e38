"""Random tables, nested types among them, and the options of writers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume
from hypothesis import strategies as st

from tests.parquet_bytes import parquet_bytes
from tests.predicates import COLUMNS, LIST, array

CODECS = ["none", "snappy", "zstd", "gzip", "lz4", "brotli"]


@dataclass(frozen=True)
class WriterOptions:
    """One way to write a file."""

    row_group_size: int
    data_page_size: int
    max_rows_per_page: int
    codec: str
    dictionary: bool
    dictionary_limit: int
    version: str
    page_index: bool
    statistics: bool
    checksums: bool
    store_schema: bool
    batch_size: int | None = None  # levels written between two looks at the page's size; default: a page's rows

    def write(self, table: pa.Table) -> bytes:
        """The file's bytes."""
        return parquet_bytes(table, row_group_size=self.row_group_size, **self.arguments())

    def arguments(self) -> dict[str, Any]:
        """Of pyarrow's ``ParquetWriter``."""
        return {
            "data_page_size": self.data_page_size,
            "max_rows_per_page": self.max_rows_per_page,
            "write_batch_size": self.batch_size or max(1, min(self.max_rows_per_page, 64)),
            "compression": self.codec,
            "use_dictionary": self.dictionary,
            "dictionary_pagesize_limit": self.dictionary_limit,
            "data_page_version": self.version,
            "write_page_index": self.page_index,
            "write_statistics": self.statistics,
            "write_page_checksum": self.checksums,
            "store_schema": self.store_schema,
        }


writer_options = st.builds(
    WriterOptions,
    row_group_size=st.sampled_from([7, 50, 1000]),
    data_page_size=st.sampled_from([1, 64, 1024, 1 << 20]),
    max_rows_per_page=st.sampled_from([1, 3, 10, 20_000]),
    codec=st.sampled_from(CODECS),
    dictionary=st.booleans(),
    dictionary_limit=st.sampled_from([8, 64, 1 << 20]),
    version=st.sampled_from(["1.0", "2.0"]),
    page_index=st.sampled_from([True, True, False]),
    statistics=st.sampled_from([True, True, True, False]),
    checksums=st.booleans(),
    store_schema=st.sampled_from([True, True, False]),
)

# Nested columns, by name: type and values.
NESTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(0, 9), max_size=4)),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.none() | st.sampled_from(["a", "b"])}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int32()),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)).map(lambda d: list(d.items())),
    ),
    "lists": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.sampled_from(["p", "q"]), max_size=2), max_size=3)),
    "list_of_struct": (
        pa.list_(pa.struct([("k", pa.int32())])),
        st.lists(st.fixed_dictionaries({"k": st.integers(0, 9)}), max_size=3),
    ),
}


@st.composite
def tables(draw: st.DrawFn, *, max_rows: int = 120, nested: bool = True) -> tuple[pa.Table, dict[str, str]]:
    """A table, and the kinds of the columns that predicates may name. Values repeat and are often sorted."""
    kinds = {f"c{at}": draw(st.sampled_from(list(COLUMNS))) for at in range(draw(st.integers(1, 4)))}
    num_rows = draw(st.integers(0, max_rows))
    columns: dict[str, pa.Array] = {}
    for name, kind in kinds.items():
        columns[name] = array(kind, _stretched(draw, st.none() | COLUMNS[kind][1], num_rows))
    if nested:
        for name in draw(st.lists(st.sampled_from(list(NESTED)), unique=True, max_size=2)):
            kind_, values = NESTED[name]
            columns[name] = pa.array(_stretched(draw, st.none() | values, num_rows), kind_)
            if name == LIST:
                kinds[name] = LIST
    return pa.table(columns), kinds


def _stretched(draw: st.DrawFn, values: st.SearchStrategy[Any], num_rows: int) -> list[Any]:
    """``num_rows`` values out of few drawn ones, in runs: sorted columns and constant pages are common."""
    few = draw(st.lists(values, min_size=1, max_size=8))
    if draw(st.booleans()):
        return [few[row * len(few) // max(1, num_rows)] for row in range(num_rows)]
    step = draw(st.integers(1, 7))
    return [few[row * step // 3 % len(few)] for row in range(num_rows)]


class Kind(NamedTuple):
    """A type and a strategy for its values, null apart."""

    type: pa.DataType
    values: st.SearchStrategy[Any]


LEAVES = (
    Kind(pa.int32(), st.integers(0, 9)),
    Kind(pa.int64(), st.integers(-(2**60), 2**60)),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.float64(), st.sampled_from([0.5, -0.0, float("nan")])),
    Kind(pa.string(), st.sampled_from(["", "a", "bb", "a long one" * 5])),
    Kind(pa.large_string(), st.sampled_from(["", "a", "bb"])),
    Kind(pa.binary(), st.sampled_from([b"", b"\0", b"abc"])),
    Kind(pa.binary(3), st.sampled_from([b"abc", b"xyz"])),
    Kind(pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    Kind(pa.timestamp("us", "UTC"), st.integers(0, 2**40)),
    Kind(pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["p", "q", "r"])),
)


@st.composite
def _field(draw: st.DrawFn, name: str, kind: Kind) -> tuple[pa.Field, st.SearchStrategy[Any]]:
    nullable = draw(st.sampled_from([True, True, False]))
    return pa.field(name, kind.type, nullable=nullable), st.none() | kind.values if nullable else kind.values


@st.composite
def kinds(draw: st.DrawFn, depth: int = 4) -> Kind:
    """A type of at most ``depth`` levels."""
    shape = draw(
        st.sampled_from(["struct", "struct", "leaf", "list", "large_list", "fixed_size_list", "map", "list_view"])
    )
    if depth <= 1 or shape == "leaf":
        leaf: Kind = draw(st.sampled_from(LEAVES))
        return leaf
    if shape == "struct":
        children = [draw(_field(name, draw(kinds(depth - 1)))) for name in "abc"[: draw(st.sampled_from([2, 3, 1]))]]
        values = {field.name: inside for field, inside in children}
        return Kind(pa.struct([field for field, _ in children]), st.fixed_dictionaries(values))
    item, inside = draw(_field("item", draw(kinds(depth - 1))))
    if shape == "fixed_size_list":
        size = draw(st.integers(1, 3))
        return Kind(pa.list_(item, size), st.lists(inside, min_size=size, max_size=size))
    if shape == "map":
        keys = draw(st.sampled_from([Kind(pa.string(), st.sampled_from("xyz")), Kind(pa.int32(), st.integers(0, 5))]))
        pairs = st.lists(st.tuples(keys.values, inside), max_size=3, unique_by=lambda pair: pair[0])
        return Kind(pa.map_(keys.type, item.with_name("value")), pairs)
    make = {"list": pa.list_, "large_list": pa.large_list, "list_view": pa.list_view}[shape]
    return Kind(make(item), st.lists(inside, max_size=3))


PLAIN = [LEAVES[0], LEAVES[1], LEAVES[2], LEAVES[4]]


@st.composite
def structs(draw: st.DrawFn) -> Kind:
    """A struct with a plain leaf ``x``, or a struct ``s`` with one, and perhaps something else beside it."""
    fields = [draw(_field("x", draw(st.sampled_from(PLAIN))))]
    if draw(st.booleans()):
        inner = Kind(pa.struct([fields[0][0]]), st.fixed_dictionaries({"x": fields[0][1]}))
        fields = [draw(_field("s", inner))]
    if draw(st.booleans()):
        fields.insert(draw(st.integers(0, 1)), draw(_field("y", draw(kinds(2)))))
    values = {field.name: inside for field, inside in fields}
    return Kind(pa.struct([field for field, _ in fields]), st.fixed_dictionaries(values))


class NestedFile(NamedTuple):
    """A file with the flat column ``id`` (the row number) and nested columns ``n0``, ``n1``, ...

    Attributes:
        data: the file.
        table: what pyarrow reads of it.
        writer: how it was written.
    """

    data: bytes
    table: pa.Table
    writer: WriterOptions

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """What pyarrow reads of some columns or leaf paths."""
        try:
            found = pq.ParquetFile(pa.BufferReader(self.data)).read(columns=columns)
        except pa.ArrowInvalid:
            assume(False)
            raise
        assume(found.num_rows == self.table.num_rows)  # of a leaf alone it loses rows behind a page without values
        return found


@st.composite
def nested_files(draw: st.DrawFn, of: st.SearchStrategy[Kind] | None = None) -> NestedFile:
    """A file that pyarrow can write and read.

    Args:
        of: what nested columns it may have; default: any.
    """
    num_rows = draw(st.integers(1, 50))
    columns: dict[str, pa.Array] = {"id": pa.array(range(num_rows), pa.int32())}
    fields = [pa.field("id", pa.int32())]
    for at in range(draw(st.integers(1, 2))):
        kind = draw(kinds().filter(lambda kind: pa.types.is_nested(kind.type)) if of is None else of)
        field, values = draw(_field(f"n{at}", kind))
        few = draw(st.lists(values, min_size=1, max_size=12))
        step = draw(st.integers(1, 7))
        fields.append(field)
        columns[field.name] = pa.array([few[row * step // 3 % len(few)] for row in range(num_rows)], kind.type)
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    # page boundaries of the leaves differ where sizes decide, looked at often
    writer = replace(
        draw(writer_options),
        batch_size=draw(st.sampled_from([1, 3, None])),
        data_page_size=draw(st.sampled_from([20, 60, 1, 200, 1 << 20])),
        max_rows_per_page=draw(st.sampled_from([20_000, 10, 1])),
    )
    try:
        data = writer.write(table)
        read = pq.ParquetFile(pa.BufferReader(data)).read()
        read.validate(full=True)
    except (pa.ArrowException, OSError):
        assume(False)  # what pyarrow itself cannot write or read
        raise
    assume(repr(read.to_pylist()) == repr(table.to_pylist()))  # it loses booleans behind a page without values
    return NestedFile(data, read, writer)


def leaf_paths(data: bytes) -> list[str]:
    """The dotted paths of all leaves, and of the groups around them."""
    schema = pq.ParquetFile(pa.BufferReader(data)).schema
    paths: dict[str, None] = {}
    for at in range(len(schema)):
        parts = schema.column(at).path.split(".")
        paths.update(dict.fromkeys(".".join(parts[:depth]) for depth in range(1, len(parts) + 1)))
    return list(paths)
