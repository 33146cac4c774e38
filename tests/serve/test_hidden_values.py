"""Nothing that a token may not see leaves the service: every buffer of every answer, of each type and format.

Two files differ in hidden rows and columns alone, and so their answers are the same bytes. Hidden values have a mark in
their bytes, where their type is large enough for one.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.serve.access import token_digest
from asyncpq.serve.configuration import parse_configuration
from tests.buffers import buffers_of
from tests.serve.services import NORTH, TOKEN, bearer, client_of

MARKS = (b"HIDE", b"SHUT")
ROWS, ROW_GROUP = 400, 150
SEEN = (7, 8, 9, 120, 121, 199, 255, 256, 399)
NULL = (
    8,
    121,
    256,
)  # of the rows seen; the rows beside them are hidden, or come from a decoder that leaves values there
FORMATS = ("json", "ndjson", "arrow", "parquet", "csv")

NARROW = pa.dictionary(pa.int8(), pa.string())

Values = Sequence[bytes | None]  # of 8 bytes: of visible rows their number, of hidden ones the mark and their number


def texts(type_: pa.DataType, of: Callable[[bytes], Any] = bytes.hex) -> Callable[[Values], pa.Array]:
    """Strings that have the mark as text; those of visible rows are long and short."""

    def make(values: Values) -> pa.Array:
        return pa.array([None if one is None else text(one) for one in values], type_)

    return make


def text(value: bytes) -> str:
    mark, rest = (value[:4], value[4:]) if value[:4] in MARKS else (b"seen", value)
    number = int.from_bytes(rest, "little")
    return f"{mark.decode()} {number}" + " and more than views hold inline" * (number % 2)


def fixed(type_: pa.DataType, width: int) -> Callable[[Values], pa.Array]:
    """Values of ``width`` bytes, which are the mark and the number, or as much of them as there is room for."""

    def make(values: Values) -> pa.Array:
        raw = [None if one is None else (one * 4)[:width] for one in values]
        storage = pa.array(raw, pa.binary(width))
        bits, data = storage.buffers()
        return pa.Array.from_buffers(type_, len(raw), [bits, data])

    return make


def numbers(type_: pa.DataType) -> Callable[[Values], pa.Array]:
    """Values that are too small for a mark: hidden ones differ between the two files."""
    low = {None: None, MARKS[0]: 1, MARKS[1]: 0}
    return lambda values: pa.array([None if one is None else low.get(one[:4], one[0] % 2) for one in values], type_)


def extension(type_: pa.DataType, storage: Callable[[Values], pa.Array]) -> Callable[[Values], pa.Array]:
    return lambda values: pa.ExtensionArray.from_storage(type_, storage(values))


def dictionary(ordered: bool, index: pa.DataType = pa.int32()) -> Callable[[Values], pa.Array]:  # noqa: B008
    def make(values: Values) -> pa.Array:
        distinct = texts(pa.string())(sorted({one for one in values if one is not None}))
        plain = texts(pa.string())(values)
        places = pa.array(map({one: at for at, one in enumerate(distinct.to_pylist())}.get, plain.to_pylist()), index)
        return pa.DictionaryArray.from_arrays(places, distinct, ordered=ordered)

    return make


categories = dictionary(False)


def mask(values: Values) -> pa.Array:
    return pa.array([one is None for one in values])


def children(values: Values) -> Values:
    """Values without nulls, for what is below nulls."""
    return [one or MARKS[0] * 2 for one in values]


def lists(type_: Any, of: Callable[[Values], pa.Array]) -> Callable[[Values], pa.Array]:
    """Lists of two, the second of which is null."""

    def make(values: Values) -> pa.Array:
        inner = of([half for one in values if one is not None for half in (one, None)])
        sizes = [0 if one is None else 2 for one in values]
        starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
        offset = pa.int64() if type_ in (pa.LargeListArray, pa.LargeListViewArray) else pa.int32()
        if type_ in (pa.ListArray, pa.LargeListArray):
            return type_.from_arrays(pa.array(starts, offset), inner, mask=mask(values))
        return type_.from_arrays(pa.array(starts[:-1], offset), pa.array(sizes, offset), inner, mask=mask(values))

    return make


def structs(values: Values) -> pa.Array:
    fields = [pa.field("text", pa.string(), False), pa.field("kind", categories([]).type), pa.field("n", pa.int64())]
    arrays = [texts(pa.string())(children(values)), categories(values), fixed(pa.int64(), 8)(values)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask(values))


def maps(values: Values) -> pa.Array:
    sizes = [0 if one is None else 1 for one in values]
    offsets = pa.array([sum(sizes[:number]) for number in range(len(sizes) + 1)], pa.int32())
    inner = [one for one in values if one is not None]
    return pa.MapArray.from_arrays(offsets, categories(inner), texts(pa.string())(inner), mask=mask(values))


def pairs(values: Values) -> pa.Array:
    inner = fixed(pa.int64(), 8)([half for one in values for half in (one, one)])
    return pa.FixedSizeListArray.from_arrays(inner, 2, mask=mask(values))


TYPES: dict[str, Callable[[Values], pa.Array]] = {
    "int64": fixed(pa.int64(), 8),
    "uint32": fixed(pa.uint32(), 4),
    "int8": numbers(pa.int8()),
    "bool": lambda values: numbers(pa.int8())(values).cast(pa.bool_()),
    "float16": lambda values: numbers(pa.int16())(values).cast(pa.float16()),
    "float32": fixed(pa.float32(), 4),
    "float64": fixed(pa.float64(), 8),
    "decimal128": lambda values: fixed(pa.int64(), 8)(values).cast(pa.decimal128(38)),
    "decimal256": lambda values: fixed(pa.int64(), 8)(values).cast(pa.decimal256(60)),
    "date32": lambda values: numbers(pa.int32())(values).cast(pa.date32()),
    "time64": lambda values: numbers(pa.int64())(values).cast(pa.time64("us")),
    "timestamp": fixed(pa.timestamp("us", "UTC"), 8),
    "duration": fixed(pa.duration("us"), 8),
    "fixed_size_binary": fixed(pa.binary(8), 8),
    "string": texts(pa.string()),
    "large_string": texts(pa.large_string()),
    "binary": texts(pa.binary()),
    "large_binary": texts(pa.large_binary()),
    "string_view": texts(pa.string_view()),
    "binary_view": texts(pa.binary_view()),
    "uuid": extension(pa.uuid(), fixed(pa.binary(16), 16)),
    "json": extension(pa.json_(), texts(pa.string())),
    "dictionary": categories,
    "dictionary_ordered": dictionary(True, pa.int16()),
    "struct": structs,
    "list_dictionary": lists(pa.ListArray, categories),
    "list_struct": lists(pa.ListArray, structs),
    "large_list_string": lists(pa.LargeListArray, texts(pa.string())),
    "list_view_int64": lists(pa.ListViewArray, fixed(pa.int64(), 8)),
    "large_list_view": lists(pa.LargeListViewArray, texts(pa.string_view())),
    "fixed_size_list": pairs,
    "map": maps,
}


def values_of(mark: bytes) -> Values:
    return [
        (None if row in NULL else struct.pack("<q", row)) if row in SEEN else mark + struct.pack("<i", row)
        for row in range(ROWS)
    ]


def table_of(mark: bytes, *, hidden_columns: bool = True) -> pa.Table:
    values = values_of(mark)
    columns = {name: make(values) for name, make in TYPES.items()}
    columns["id"] = pa.array(range(ROWS))
    if hidden_columns:
        columns["region"] = pa.array(["north" if row in SEEN else f"{mark.decode()} south" for row in range(ROWS)])
        columns["secret"] = texts(pa.string())([mark + struct.pack("<i", row) for row in range(ROWS)])
    note = {"note": f"field metadata {mark.decode()}"}
    fields = [pa.field(name, column.type, metadata=note) for name, column in columns.items()]
    schema = pa.schema(fields, {"pandas": f"{mark.decode()} region secret", "geo": f"bbox {mark.decode()}"})
    return pa.table(list(columns.values()), schema=schema)


@asynccontextmanager
async def served(folder: Path, mark: bytes, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    path = folder / f"{mark.decode()}.parquet"
    await asyncio.to_thread(
        pq.write_table, table_of(mark), path, row_group_size=ROW_GROUP, write_page_index=True, **options
    )
    rights = {"columns": ["id", *TYPES], "rows": "region = 'north'"}
    north = {"sha256": token_digest(NORTH).hex(), "datasets": {"trips": rights}}
    everything = {"sha256": token_digest(TOKEN).hex(), "datasets": {"trips": {}}}
    settings = {"datasets": {"trips": {"url": str(path)}}, "tokens": {"north": north, "all": everything}}
    async with client_of(parse_configuration(settings), NORTH) as client:
        yield client


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *[("lookup", {"keys": {"id": ids}}) for ids in ([7], [8], [399], [7, 8, 9, 10, 11, 121], list(range(ROWS)))],
    *[("scan", body) for body in ({}, {"limit": 2}, {"where": "id > 119"}, {"where": "int64 IS NULL"})],
]


def decoded(body: bytes, format_: str) -> pa.Table:
    return pa.ipc.open_stream(body).read_all() if format_ == "arrow" else pq.ParquetFile(io.BytesIO(body)).read()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False, "compression": "none"}, {"max_rows_per_page": 20, "write_batch_size": 5}],
    ids=["dictionaries", "plain", "pages"],
)
async def test_answers_do_not_depend_on_what_a_token_may_not_see(tmp_path: Path, options: dict[str, Any]) -> None:
    visible = table_of(MARKS[0], hidden_columns=False)
    expected = [row for number in SEEN for row in visible.slice(number, 1).to_pylist()]
    async with served(tmp_path, MARKS[0], **options) as first, served(tmp_path, MARKS[1], **options) as second:
        for verb, body in REQUESTS:
            for format_ in FORMATS:
                one, two = [
                    await client.post(f"/v1/trips/{verb}?format={format_}", json=body) for client in (first, second)
                ]
                assert one.status_code == 200, one.text
                assert one.content == two.content, (verb, body, format_)
                assert {**one.headers, "etag": ""} == {**two.headers, "etag": ""}
                assert not any(word in one.content for word in (*MARKS, b"secret", b"region", b"note", b"bbox"))
                if format_ in ("arrow", "parquet"):
                    table = decoded(one.content, format_)
                    buffers = [
                        held for column in table.columns for chunk in column.chunks for held in buffers_of(chunk)
                    ]
                    assert not any(mark in (held or b"") for held in buffers for mark in MARKS)
                    ids = set(table["id"].to_pylist())
                    assert table.to_pylist() == [row for row in expected if row["id"] in ids]
                    assert ids
        for path in ("schema", "count", "explain", "explain?where=id%3D1", "count?where=id%3D1"):
            one, two = await first.get(f"/v1/trips/{path}"), await second.get(f"/v1/trips/{path}")
            assert one.content == two.content
            assert {**one.headers, "etag": ""} == {**two.headers, "etag": ""}
            assert b"secret" not in one.content
            assert b"region" not in one.content


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("between", "written"),
    [(1, {}), (40, {"row_group_size": 7}), (40, {"row_group_size": 30, "max_rows_per_page": 3})],
    ids=["few", "row groups", "pages"],
)
async def test_answers_do_not_depend_on_how_many_rows_are_hidden(
    tmp_path: Path, between: int, written: dict[str, Any]
) -> None:
    """Hidden rows have values of visible ones, in another order, and stand between them."""
    answers: list[list[bytes]] = []
    for hidden in ([], [number % 5 for number in range(between)], [4 - number % 5 for number in range(3 * between)]):
        numbers = [7, *hidden, 8, 9, *hidden, *range(40, 60), 300, *hidden, *reversed(range(100, 150)), 301]
        north = [number > 5 for number in numbers]
        values = [struct.pack("<q", number % 5 if number < 300 else number) for number in numbers]
        columns = {name: make(values) for name, make in TYPES.items() if name != "dictionary_ordered"}
        columns["region"] = pa.array(["north" if shown else "south" for shown in north])
        columns["narrow"] = pa.array([f"v{number}" for number in numbers]).dictionary_encode().cast(NARROW)
        path = tmp_path / f"{len(answers)}.parquet"
        pq.write_table(pa.table(columns), path, **written)
        rights = {"columns": [*TYPES.keys() - {"dictionary_ordered"}, "narrow"], "rows": "region = 'north'"}
        token = {"sha256": token_digest(NORTH).hex(), "datasets": {"trips": rights}}
        settings = {"datasets": {"trips": {"url": str(path)}}, "tokens": {"north": token}}
        async with client_of(parse_configuration(settings), NORTH) as client:
            answers.append([(await client.get(f"/v1/trips/scan?format={format_}")).content for format_ in FORMATS])
    assert decoded(answers[0][2], "arrow").num_rows == 75
    for others in answers[1:]:
        for format_, first, other in zip(FORMATS, answers[0], others, strict=True):
            assert first == other, format_


async def test_an_answer_of_one_row_is_small_whatever_the_column_chunk_holds(tmp_path: Path) -> None:
    """Where a token may see all rows, too."""
    async with served(tmp_path, MARKS[0]) as client:
        for format_, most in (("arrow", 700), ("parquet", 1200)):
            body = {"keys": {"id": 10}, "columns": ["dictionary"]}
            answer = await client.post(f"/v1/trips/lookup?format={format_}", json=body, headers=bearer(TOKEN))
            assert decoded(answer.content, format_).to_pylist() == [{"dictionary": "HIDE 10"}]
            assert len(answer.content) < most
