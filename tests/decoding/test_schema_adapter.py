"""A dataset's columns as one file has them: names and paths, constants and what they fold to, ids, and bad input."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets.column_matching import view_of
from asyncpq.datasets.model import TableField
from asyncpq.decoding.arrow_expressions import from_pyarrow
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.expressions import Expression
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.scan.request import ScanRequest
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import write
from tests.parquet_samples import OpenFile
from tests.reads import FILE, ROWS, ask, count, plan, read, read_as, view

T = TypeVar("T")
INNER = pa.struct([("z", pa.int32()), ("y", pa.string()), ("x", pa.int64())])
SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("m", pa.map_(pa.string(), pa.struct([("v", pa.int64()), ("w", pa.int8())]))),
        ("l", pa.list_(pa.struct([("k", pa.int64()), ("j", pa.string())]))),
        ("s", INNER),
        ("id", pa.int64()),
        ("lacking", pa.float64()),
    ]
)
PARTITION = {"part": "p"}


def seen(question: Callable[[asyncpq.File, SchemaAdapter], Awaitable[T]], **options: Any) -> T:
    """Ask the file, seen in the dataset's terms."""

    async def run(file: asyncpq.File) -> T:
        return await question(file, view(file, SCHEMA, None, PARTITION))

    return ask(FILE, run, **options)


# -- constants ------------------------------------------------------------------------------------

TRUE: list[Expression] = [
    col("part") == "p",
    col("part").is_in(["p", None]),
    col("part").starts_with("p"),
    col("part") < "q",
    col("lacking").is_null(),
    ~col("lacking").is_in([1.0]),
    col("lacking").is_in([None]),
    col("s.z").is_null(),
    ~col("s.z").is_in([3]),
    (col("lacking") == 1.0) | (col("part") == "p"),
    ~((col("id") == 3) & (col("part") == "q")),
]
NEVER: list[Expression] = [
    col("part") != "p",
    col("part").is_null(),
    col("lacking") == 1.0,
    ~(col("lacking") == 1.0),
    col("lacking") != 1.0,
    col("lacking") == float("nan"),
    col("lacking").is_valid(),
    col("s.z") >= 0,
    ~(col("s.z") >= 0),
    (col("id") >= 0) & (col("lacking") > 0.0),
    (col("id") >= 0) & ~(col("lacking") > 0.0),
    (col("part") == "q") | (col("lacking") == 0.0),
]


@pytest.mark.parametrize("where", TRUE, ids=str)
def test_what_is_true_of_the_constants_filters_nothing(where: Expression) -> None:
    async def question(file: asyncpq.File, view: SchemaAdapter) -> None:
        assert await count(file, ScanRequest(where=where, view=view)) == ROWS
        assert file.metrics.pages_read == 0
        assert (await plan(file, ScanRequest(columns=["id"], where=where, view=view))).pruning.rows_kept == ROWS
        left = (await read(file, ScanRequest(columns=["id"], where=where & (col("id") == 7), view=view))).table
        assert left.to_pylist() == [{"id": 7}]

    seen(question)


@pytest.mark.parametrize("where", NEVER, ids=str)
def test_what_is_never_true_of_the_constants_reads_nothing(where: Expression) -> None:
    async def question(file: asyncpq.File, view: SchemaAdapter) -> None:
        found = await read(file, ScanRequest(where=where, view=view))
        assert (found.table.num_rows, found.metrics.requests, found.metrics.pages_read) == (0, 0, 0)
        assert found.table.schema.equals(SCHEMA)
        planned = await plan(file, ScanRequest(where=where, view=view))
        assert (planned.pruning.row_groups_kept, planned.num_requests, planned.cached_bytes) == (0, 0, 0)
        assert await count(file, ScanRequest(where=where, view=view)) == 0

    seen(question)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_are_told_apart_as_pyarrow_does(zero: float) -> None:
    schema = pa.schema([("id", pa.int32()), ("f", pa.float64())])
    for where, matches in ((col("f") == 0.0, True), (col("f").is_in([0.0]), str(zero) == "0.0")):
        found = read_as(FILE, schema, partition={"f": zero}, columns=["id"], where=where)
        assert found.num_rows == (ROWS if matches else 0)


def test_a_constant_is_compared_with_a_column() -> None:
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64())])
    found = read_as(
        FILE, schema, partition={"k": 7}, where=(col("id") == col("k")) | (col("k") < col("id")) & (col("id") < 9)
    )
    assert found.column("id").to_pylist() == [7, 8]


def test_constants_come_with_every_row_of_every_kind() -> None:
    kinds: list[tuple[pa.DataType, Any]] = [
        (pa.string(), "p"),
        (pa.string_view(), "p"),
        (pa.dictionary(pa.int8(), pa.string()), "p"),
        (pa.date32(), dt.date(2024, 2, 29)),
        (pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
        (pa.decimal128(9, 2), 5),
        (pa.uuid(), None),
        (pa.list_(pa.int32()), [1, None]),
        (pa.struct([("a", pa.int8())]), {"a": 1}),
        (pa.dictionary(pa.int8(), pa.string()), None),
    ]
    schema = pa.schema([pa.field(f"c{at}", kind) for at, (kind, _) in enumerate(kinds)])
    partition = {f"c{at}": value for at, (_, value) in enumerate(kinds)}
    found = read_as(FILE, schema, partition=partition, limit=3)
    assert found.schema.equals(schema)
    assert found.to_pylist() == [partition] * 3


def test_a_default_stands_where_a_file_lacks_a_column_and_only_there() -> None:
    inner = TableField(name="z", type=pa.int32(), default=5)
    fields = (
        TableField(name="id", type=pa.int64(), default=1),
        TableField(name="d", type=pa.int8(), default=pa.scalar(9, pa.int8())),
        TableField(name="s", type=pa.struct([("z", pa.int32())]), children=(inner,)),
    )
    schema = pa.schema([(field.name, field.type) for field in fields])
    found = read_as(FILE, schema, fields=fields, where=(col("id") < 4) & (col("d") == 9))
    structs = [None, {"z": 5}, {"z": 5}, None]
    assert found.to_pylist() == [{"id": row, "d": 9, "s": structs[row]} for row in range(4)]
    found = read_as(FILE, schema, fields=fields, columns=["id"], where=(col("id") < 4) & (col("s.z") == 5))
    assert found.column("id").to_pylist() == [1, 2]
    assert read_as(FILE, schema, fields=fields, where=(col("s.z") != 5) | (col("d") != 9)).num_rows == 0


def test_a_partitions_value_stands_before_the_files() -> None:
    """As in pyarrow.dataset."""
    schema = pa.schema([("id", pa.int32()), ("s", pa.struct([("x", pa.int32())]))])
    assert set(read_as(FILE, schema, partition={"id": -1}).column("id").to_pylist()) == {-1}
    assert read_as(FILE, schema, partition={"id": -1}, where=col("id") == 5).num_rows == 0


def test_a_column_of_nulls_is_a_constant() -> None:
    data = parquet_bytes(pa.table({"n": pa.nulls(5), "s": pa.array([{"n": None}] * 5, pa.struct([("n", pa.null())]))}))
    schema = pa.schema([("n", pa.decimal128(5, 2)), ("s", pa.struct([("n", pa.list_(pa.int8()))]))])
    assert read_as(data, schema).to_pylist() == [{"n": None, "s": {"n": None}}] * 5
    assert read_as(data, schema, where=col("n").is_null() & col("s.n").is_null()).num_rows == 5


def test_constants_count_as_decoded_bytes() -> None:
    with pytest.raises(asyncpq.ResourceLimitError, match="constant values"):
        read_as(
            FILE,
            pa.schema([("part", pa.string())]),
            partition={"part": "x" * 10_000},
            limits=asyncpq.LimitOptions(max_decoded_bytes=100_000),
        )


def test_a_constant_that_is_none_of_its_type_is_an_error() -> None:
    with pytest.raises(asyncpq.SchemaMismatchError, match="'seven'") as raised:
        view_of(OpenFile(FILE).version, pa.schema([("p", pa.int32())]), None, {"p": "seven"})
    assert (raised.value.column, raised.value.url) == ("p", "memory://file")


# -- names and paths ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (["s.y"], {"s": {"y": "1"}}),
        (["s.x", "id", "s.z"], {"s": {"z": None, "x": 1}, "id": 1}),
        (["s.z"], {"s": {"z": None}}),
        (["l.list.element.j"], {"l": [{"j": None}]}),
        (["l.list.element"], {"l": [{"k": 1, "j": None}]}),
        (["m.key_value.value.w"], {"m": [("a", {"w": None})]}),
        (["m.key_value.value.v", "part"], {"m": [("a", {"v": 1})], "part": "p"}),
        ([4, "lacking", 0], {"id": 1, "lacking": None, "part": "p"}),
        ([], {}),
    ],
)
def test_columns_are_named_as_the_dataset_names_them(columns: list[str | int], wanted: dict[str, Any]) -> None:
    found = read_as(FILE, SCHEMA, partition=PARTITION, columns=columns, where=col("s.x") == 1)
    assert found.to_pylist() == [wanted] if wanted else found.num_rows == 1


@pytest.mark.parametrize(
    ("columns", "where", "error", "text"),
    [
        (["sx"], None, asyncpq.ColumnNotFoundError, "Did you mean 's'"),
        (["nothing like it"], None, asyncpq.ColumnNotFoundError, "Its columns are 'part'"),
        (["s.q"], None, asyncpq.ColumnNotFoundError, "Its parts are 's.z', 's.y', 's.x'"),
        (["l.k"], None, asyncpq.ColumnNotFoundError, "'l.list.element'"),
        (["id.k"], None, asyncpq.ColumnNotFoundError, "no part with this path"),
        (["m.key_value.key"], None, asyncpq.UnsupportedFeatureError, "Select the whole column"),
        (["s", "s.x"], None, asyncpq.AmbiguousColumnError, "requested twice"),
        (["s.x", "s.x"], None, asyncpq.AmbiguousColumnError, "requested twice"),
        ([6], None, asyncpq.ColumnNotFoundError, "no column 6"),
        (None, col("sx") == 1, asyncpq.ColumnNotFoundError, "Did you mean"),
        (None, col("s.q") == 1, asyncpq.ColumnNotFoundError, "s.q"),
        (None, col("l.list.element.k") == 1, asyncpq.PredicateTypeError, "inside a list"),
        (None, col("part") == 1, asyncpq.PredicateTypeError, "part == 1"),
        (None, col("s") == 1, asyncpq.PredicateTypeError, "Name leaves of the struct"),
    ],
)
def test_what_cannot_be_asked_of_the_dataset(
    columns: list[str | int] | None, where: Expression | None, error: type[asyncpq.AsyncpqError], text: str
) -> None:
    with pytest.raises(error, match=text):
        read_as(FILE, SCHEMA, partition=PARTITION, columns=columns, where=where)


def test_names_are_dictionary_arrays_where_asked_for() -> None:
    schema = pa.schema([("part", pa.string()), ("t", pa.large_string()), ("u", pa.string())])
    data = parquet_bytes(pa.table({"t": ["a", "b", None], "u": pa.array(["x", "y", "z"]).dictionary_encode()}))
    found = read_as(
        data,
        schema,
        partition=PARTITION,
        read_dictionary=["t", "part", "u"],
        where=(col("t") == "b") | col("t").is_null(),
    )
    assert {str(kind) for kind in found.schema.types} == {"dictionary<values=string, indices=int32, ordered=0>"}
    assert found.to_pylist() == [{"part": "p", "t": "b", "u": "y"}, {"part": "p", "t": None, "u": "z"}]
    assert found.column("u").chunk(0).dictionary.to_pylist() == ["x", "y", "z"]  # the file's own
    with pytest.raises(asyncpq.UnsupportedFeatureError, match="not nested"):
        read_as(FILE, SCHEMA, partition=PARTITION, read_dictionary=["s"])


def _duplicates() -> bytes:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    return parquet_bytes(table)


def test_a_name_that_a_file_has_twice_is_an_error_once_it_is_wanted() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert read_as(_duplicates(), schema, columns=["b"], where=col("b") == 2).to_pylist() == [{"b": 2}]
    for columns, where in ((["a"], None), (None, None), (["b"], col("a") == 1)):
        with pytest.raises(asyncpq.AmbiguousColumnError) as raised:
            read_as(_duplicates(), schema, columns=columns, where=where)
        assert (raised.value.column, raised.value.url) == ("a", "memory://reads/file.parquet")


@pytest.mark.parametrize(
    ("struct", "paths"),
    [
        ({"a": 1, "a.b": 10}, [("a",), ("a.b",)]),
        ({"a.b": 10, "a": {"c": 1}}, [("a.b",), ("a", "c")]),
        ({"a": {"q": 1}, "a.b": {"c": 10}}, [("a", "q"), ("a.b", "c")]),
        ({"o": {"x.y": 1, "x": 10}}, [("o", "x.y"), ("o", "x")]),
        ({"a": 1, "a.b": {"c": 10}, "a.b.c.d": 100}, [("a",), ("a.b", "c"), ("a.b.c.d",)]),
    ],
)
def test_dots_in_names_of_struct_fields(struct: dict[str, Any], paths: list[tuple[str, ...]]) -> None:
    """A path that fits the beginning of several names is the field that exists."""

    def times(value: Any, row: int) -> Any:
        return {name: times(part, row) for name, part in value.items()} if isinstance(value, dict) else value * row

    table = pa.table({"n": range(5), "st": [times(struct, row) for row in range(5)]})
    data = parquet_bytes(table)
    for path in paths:
        field = pc.field("st", *path)
        values = pc.struct_field(table["st"], list(path))
        for value in values.to_pylist():
            wanted = pq.read_table(io.BytesIO(data), filters=field == value)["n"].to_pylist()
            for where in (from_pyarrow(field == value, table.schema), col(".".join(("st", *path))) == value):
                assert read_as(data, table.schema, columns=["n"], where=where)["n"].to_pylist() == wanted
        (only,) = read_as(data, table.schema, columns=[".".join(("st", *path))]).columns
        assert pc.struct_field(only, list(path)).equals(values)


def test_a_path_of_two_fields_of_a_struct_is_an_error() -> None:
    table = pa.table({"st": [{"a.b": 1, "a": {"b": 10}}]})
    with pytest.raises(asyncpq.AmbiguousColumnError, match="2 fields have this path"):
        read_as(parquet_bytes(table), table.schema, where=col("st.a.b") == 1)


def test_a_path_into_two_columns_is_an_error() -> None:
    table = pa.table({"st.a": [{"b": 1, "c": 2}], "st": [{"a": {"b": 10}}]})
    for where in (col("st.a.b") == 1, from_pyarrow(pc.field("st", "a", "b") == 10, table.schema)):
        with pytest.raises(asyncpq.AmbiguousColumnError, match="2 fields have this path"):
            read_as(parquet_bytes(table), table.schema, where=where)
    assert read_as(parquet_bytes(table), table.schema, where=col("st.a.c") == 2).num_rows == 1


# -- pruning --------------------------------------------------------------------------------------


def test_statistics_page_indexes_and_bloom_filters_are_asked_by_the_files_names() -> None:
    """The plan is as sharp as for the file's own names and types."""
    ids = pa.array([row * 7919 % 10_007 for row in range(5000)], pa.int32())
    table = pa.table({"n": pa.array(range(5000), pa.int32()), "s": pa.StructArray.from_arrays([ids], ["k"])})
    data = write(
        table, ["s.k"], rows_per_group=500, ndv=500, write_statistics=True, write_page_index=True, max_rows_per_page=50
    )
    inner = TableField(name="key", type=pa.int64(), names=("k",))
    fields = (
        TableField(name="number", type=pa.float64(), names=("n",)),
        TableField(name="struct", type=pa.struct([("key", pa.int64())]), names=("s",), children=(inner,)),
    )
    schema = pa.schema([(field.name, field.type) for field in fields])

    async def question(file: asyncpq.File) -> None:
        seen = view(file, schema, fields)
        for own, viewed in (
            ((col("n") > 100) & (col("n") <= 120), (col("number") > 100.0) & (col("number") <= 120)),
            (col("s.k") == 7919, col("struct.key") == 7919),
            ((col("s.k") == 7919) & (col("n") < 100), (col("struct.key") == 7919.0) & (col("number") < 100)),
        ):
            wanted = await plan(file, ScanRequest(where=own))
            found = await plan(file, ScanRequest(where=viewed, view=seen))
            assert found.pruning == wanted.pruning
            assert wanted.pruning.rows_kept < 600
            assert found.requests == wanted.requests
            rows = (await read(file, ScanRequest(where=own))).table
            assert (await read(file, ScanRequest(where=viewed, view=seen))).table.column("number").to_pylist() == [
                float(value) for value in rows.column("n").to_pylist()
            ]
        assert (
            await plan(file, ScanRequest(where=col("struct.key") == 7919, view=seen))
        ).pruning.row_groups_by_bloom > 5

    ask(data, question, requests=asyncpq.RequestOptions(bloom_filters="always"))


def test_a_struct_of_one_leaf_is_not_that_leaf() -> None:
    kind = pa.struct([("x", pa.int32())])
    columns = {"s": pa.array([{"x": None}] * 5, kind), "t": pa.array([None, {"x": 1}, None, {"x": 1}, None], kind)}
    data = parquet_bytes(pa.table(columns), write_page_index=True)
    schema = pa.schema([(name, pa.struct([("x", pa.int64())])) for name in "st"])
    for where, wanted in ((col("s").is_valid(), 5), (col("s").is_null(), 0), (col("t").is_valid(), 2)):
        assert read_as(data, schema, where=where).num_rows == wanted
    assert read_as(data, schema, where=col("s.x").is_null()).num_rows == 5
    version = OpenFile(data).version
    assert view_of(version, schema, None, {}).leaf(version, "s")[0] is None
    leaf, _ = view_of(version, schema, None, {}).leaf(version, "s.x")
    assert leaf is not None
    assert leaf.dotted == "s.x"


# -- versions -------------------------------------------------------------------------------------


def test_a_view_is_of_one_version() -> None:
    async def question(file: asyncpq.File) -> None:
        other = view_of(OpenFile(parquet_bytes(pa.table({"id": [1]}))).version, SCHEMA, None, {})
        with pytest.raises(asyncpq.ObjectChangedError, match="matched"):
            await read(file, ScanRequest(view=other))
        assert file.metrics.restarts == 0

    ask(FILE, question)


def test_rows_are_those_of_the_file() -> None:
    async def question(file: asyncpq.File, view: SchemaAdapter) -> None:
        asked = ScanRequest(columns=["id", "part"], access=AccessPlan.rows([3, 500]), view=view)
        assert (await read(file, asked)).table.to_pylist() == [{"id": 3, "part": "p"}, {"id": 500, "part": "p"}]
        assert await count(file, asked) == 2

    seen(question)


def test_instants_of_int96_become_zoned_timestamps() -> None:
    moment = dt.datetime(2024, 2, 29, 12, 0, 0, 1)
    table = pa.table({"t": pa.array([moment, None], pa.timestamp("us")), "l": pa.array([[moment], None])})
    data = parquet_bytes(table, use_deprecated_int96_timestamps=True)
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.timestamp("us", "UTC")))])
    instant = moment.replace(tzinfo=dt.UTC)
    found = read_as(data, schema, where=col("t") == instant)
    assert found.to_pylist() == [{"t": instant, "l": [instant]}]


def test_explain_names_the_datasets_columns() -> None:
    async def question(file: asyncpq.File, view: SchemaAdapter) -> asyncpq.Plan:
        return await plan(
            file, ScanRequest(columns=["s.x", "part"], where=(col("id") >= 950) & (col("part") == "p"), view=view)
        )

    planned = seen(question)
    assert planned.columns == ("s", "part")
    assert planned.pruning.row_groups_kept == 1
    assert planned.where == "(id >= 950) and (part == 'p')"


# -- predicates in other forms --------------------------------------------------------------------


def test_pyarrows_expressions_mean_the_datasets_columns() -> None:
    async def question(file: asyncpq.File, view: SchemaAdapter) -> None:
        where = (pc.field("id") < 4) & (pc.field("part") == "p") & pc.field("lacking").is_null()
        found = (await read(file, ScanRequest(columns=["id"], unbound=where, view=view))).table
        assert found.column("id").to_pylist() == [0, 1, 2, 3]

    seen(question)


def test_relative_times_are_resolved_for_the_datasets_types() -> None:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    moments = [now - dt.timedelta(days=days) for days in range(4)]
    data = parquet_bytes(pa.table({"t": pa.array(moments, pa.timestamp("ms", "UTC"))}))
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("p", pa.timestamp("us"))])
    partition = {"p": now.replace(tzinfo=None)}
    day = dt.timedelta(days=1)
    recent = (col("t") > asyncpq.now() - 1.5 * day) & (col("p") > asyncpq.now() - day)
    assert read_as(data, schema, partition=partition, where=recent).column("t").to_pylist() == moments[:2]
    assert read_as(data, schema, partition=partition, where=col("p") > asyncpq.now() + day).num_rows == 0
