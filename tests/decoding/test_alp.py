from __future__ import annotations

import math
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding import alp as decoding
from asyncpq.decoding.alp import ABSENT, PRESENT, AlpPage, Vector, present_flags
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.thrift import varint
from tests.alp_pages import alp_file, assemble, bits_of, encoded, vector
from tests.parquet_files import I32, EditedFile
from tests.parquet_samples import CORPUS
from tests.reads import ask

TYPES = {32: (PhysicalType.FLOAT, "f"), 64: (PhysicalType.DOUBLE, "d")}
PAIRS = ((8, 4), (6, 3), (10, 10), (0, 0), (7, 0))
SPECIAL = (math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e308)


def numbers(count: int, seed: int = 1) -> list[float]:
    """Decimals of a few digits, some values that ALP has to except, and a stretch of one value."""
    pick = random.Random(seed)
    made = [pick.randrange(-(10**6), 10**6) / 100 for _ in range(count)]
    for at in range(0, count, 37):
        made[at] = pick.choice(SPECIAL)
    made[40:60] = [7.25] * len(made[40:60])
    return made


def column(count: int, type_: pa.DataType, *, nulls: bool = False, seed: int = 1) -> pa.Array:
    values: list[Any] = [value if abs(value) < 1e38 or value != value else math.inf for value in numbers(count, seed)]
    if nulls:
        values = [None if at % 7 == 3 or 100 < at < 160 else value for at, value in enumerate(values)]
    return pa.array(values, type_)


@pytest.fixture(params=["numpy", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of decoding: with numpy, and where it is not installed."""
    if request.param == "python":
        monkeypatch.setitem(sys.modules, "numpy", None)
    return str(request.param)


def decoded(data: bytes, bits: int) -> bytes:
    page = AlpPage(data, 0, TYPES[bits][0], 1 << 30, "x")
    return bytes(memoryview(decoding.decoded([(page, range(page.num_vectors))])).cast("B"))


def by_values(data: bytes, bits: int) -> bytes:
    page = AlpPage(data, 0, TYPES[bits][0], 1 << 30, "x")
    return b"".join([page.value(at) for at in range(page.count)])


# -- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("log", [3, 4, 7, 10, 15])
def test_a_page_decodes_to_the_bits_that_were_written(bits: int, log: int, way: str) -> None:
    values = [value for value in numbers(2500) if abs(value) < 1e38 or value != value]
    plain = struct.pack(f"<{len(values)}{TYPES[bits][1]}", *values)
    assert decoded(encoded(plain, bits, log=log, pairs=PAIRS), bits) == plain


@pytest.mark.parametrize("bits", [32, 64])
def test_every_bit_width_wraps_as_integers_of_the_columns_size_do(bits: int, way: str) -> None:
    pick = random.Random(bits)
    for width in range(bits + 1):
        for reference in (0, 5, -(1 << bits - 1), (1 << bits - 1) - 1):
            integers = [pick.getrandbits(width) if width else 0 for _ in range(11)]
            packed = sum(integer << at * width for at, integer in enumerate(integers))
            head = struct.pack("<BBH" + ("i" if bits == 32 else "q") + "B", 0, 0, 0, reference, width)
            body = head + packed.to_bytes(11 * width + 7 >> 3, "little")
            half = 1 << bits - 1
            wanted = [((integer + reference + half) % (1 << bits)) - half for integer in integers]
            page = assemble([body], 11)
            assert decoded(page, bits) == struct.pack(f"<11{TYPES[bits][1]}", *wanted)


@pytest.mark.property
@given(st.data())
def test_any_floats_come_back_bit_by_bit(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([32, 64]))
    raw = data.draw(st.lists(st.binary(min_size=bits >> 3, max_size=bits >> 3), max_size=70))
    log = data.draw(st.integers(3, 6))
    largest = {32: 10, 64: 18}[bits]
    exponent = data.draw(st.integers(0, largest))
    pair = (exponent, data.draw(st.integers(0, exponent)))
    plain = b"".join(raw)
    if bits == 32:  # Python quiets signalling NaNs of binary32 on the way through the encoder
        plain = struct.pack(f"<{len(raw)}f", *struct.unpack(f"<{len(raw)}f", plain))
    page = encoded(plain, bits, log=log, pairs=[pair])
    assert decoded(page, bits) == plain
    assert by_values(page, bits) == plain


# -- files ------------------------------------------------------------------------------------------


def same(data: bytes, table: pa.Table, rows: Sequence[Sequence[int]] = (), **options: Any) -> None:
    """Hold a whole read, and takes, to the written table."""

    async def question(file: asyncpq.File) -> list[pa.Table]:
        return [await file.read(), *[await file.take(list(some)) for some in rows]]

    got, *taken = ask(data, question, **options)
    for name in table.column_names:
        assert bits_of(got[name]) == bits_of(table[name]), name
        for some, part in zip(rows, taken, strict=True):
            assert bits_of(part[name]) == bits_of(table[name].take(pa.array(some, pa.int64()))), (name, some)


ROWS = ([0], [999], [1, 500, 501, 998], range(100, 190), range(0, 1000, 11), [99, 100, 103, 159, 160])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("index", [False, True])
def test_flat_columns_give_the_written_rows(
    type_: pa.DataType, nulls: bool, version: str, index: bool, way: str
) -> None:
    table = pa.table({"id": pa.array(range(1000)), "x": column(1000, type_, nulls=nulls)})
    for rows_per_page in (1000, 300):
        data = alp_file(table, [1], index=index, rows_per_page=rows_per_page, data_page_version=version, alp={"log": 5})
        same(data, table, ROWS)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "brotli", "zstd", "lz4_raw"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_codec(codec: str, version: str) -> None:
    table = pa.table({"x": column(1000, pa.float64(), nulls=True)})
    data = alp_file(table, [0], codec=codec, rows_per_page=250, data_page_version=version, alp={"log": 6})
    same(data, table, ROWS)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("some", [slice(None), slice(1, None, 2)])
def test_nested_columns(version: str, some: slice, way: str) -> None:
    values = column(400, pa.float64(), nulls=True).to_pylist()
    lists = [None if at % 13 == 0 else values[at : at + at % 5] for at in range(400)]
    table = pa.table(
        {
            "list": pa.array(lists, pa.list_(pa.float64())),
            "struct": pa.array([None if at % 17 == 1 else {"a": value, "b": at} for at, value in enumerate(values)]),
            "deep": pa.array([[{"f": value}] * (at % 3) for at, value in enumerate(values)]),
        }
    )
    data = alp_file(table, [0, 1, 3], index=False, some=some, data_page_version=version, alp={"log": 4})
    same(data, table, ([0], [17, 18, 20], range(40, 90)))
    struct = table.select(["struct"])
    data = alp_file(struct, [0], some=some, data_page_version=version, rows_per_page=60, alp={"log": 4})
    same(data, struct, ([0], [17, 18, 20], range(40, 90)))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_chunks_that_mix_dictionary_and_alp_pages(version: str) -> None:
    values = [float(at % 4) for at in range(400)] + [at / 4 for at in range(600)]
    table = pa.table({"x": pa.array(values)})
    data = alp_file(
        table,
        [0],
        use_dictionary=True,
        dictionary_pagesize_limit=300,
        rows_per_page=100,
        data_page_version=version,
        alp={"log": 5},
    )
    encodings = {
        page.header.value(5 if page.kind == 0 else 8).value(2 if page.kind == 0 else 4)
        for page in EditedFile(data).pages()
        if page.kind != 2
    }
    assert encodings == {8, 10}
    same(data, table, ROWS)

    async def question(file: asyncpq.File) -> pa.Table:
        return await file.read(where=asyncpq.col("x") == 2.0)

    assert ask(data, question).equals(table.filter(pa.compute.equal(table["x"], 2.0)))


def test_a_page_of_nulls() -> None:
    table = pa.table({"x": pa.array([None] * 30 + [1.5, 2.5] * 15, pa.float64())})
    same(alp_file(table, [0], rows_per_page=30), table, ([3], [29, 30], range(10)))


# -- how much is decoded ----------------------------------------------------------------------------


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the vectors that are opened, one for each time."""
    numbers: list[int] = []
    original = AlpPage.vector

    def vector_(self: AlpPage, number: int) -> Vector:
        numbers.append(number)
        return original(self, number)

    monkeypatch.setattr(AlpPage, "vector", vector_)
    return numbers


@pytest.mark.parametrize("nulls", [False, True])
def test_take_decodes_only_the_vectors_that_hold_its_rows(touched: list[int], nulls: bool) -> None:
    table = pa.table({"x": column(10_000, pa.float64(), nulls=nulls)})
    data = alp_file(table, [0], rows_per_page=10_000)
    for rows in ([4321], [0, 9999], range(2100, 2400), [*range(50), *range(6500, 6550)]):
        touched.clear()
        wanted = table["x"].take(pa.array(rows, pa.int64()))

        async def question(file: asyncpq.File, rows: Sequence[int] = rows) -> pa.Table:
            return await file.take(list(rows))

        assert bits_of(ask(data, question)["x"]) == bits_of(wanted)
        values = table["x"].to_pylist()
        present = [row for row in rows if values[row] is not None]
        places = [sum(value is not None for value in values[:row]) >> 10 for row in present]
        assert set(touched) == set(places)
        assert len(touched) <= 2


def test_a_lookup_decodes_one_vector_of_the_columns_that_it_returns(touched: list[int]) -> None:
    table = pa.table({"id": pa.array(range(10_000)), "x": column(10_000, pa.float64())})
    data = alp_file(table, [1], rows_per_page=10_000)

    async def question(file: asyncpq.File) -> pa.Table:
        return await file.lookup({"id": 7000})

    assert bits_of(ask(data, question)["x"]) == bits_of(table["x"].slice(7000, 1))
    assert touched == [7000 >> 10]


# -- what is refused --------------------------------------------------------------------------------


def _refused(data: bytes, bits: int = 64) -> AsyncpqError:
    """The error of a page's values, which the whole decode and single values raise alike."""
    with pytest.raises(AsyncpqError) as whole:
        decoded(data, bits)
    with pytest.raises(AsyncpqError) as single:
        by_values(data, bits)
    assert type(single.value) is type(whole.value)
    assert whole.value.column == "x"
    return whole.value


def _damaged() -> dict[str, bytes]:
    good = vector([struct.pack("<d", value) for value in (1.5, 2.5, math.nan)], 64, 2, 1)
    page = assemble([good], 3)

    def put(at: int, form: str, value: int) -> bytes:
        changed = bytearray(page)
        struct.pack_into("<" + form, changed, at, value)
        return bytes(changed)

    two = assemble([good, good], 1027)
    return {
        "cut in the header": page[:5],
        "cut in the offsets": page[:9],
        "cut in the vector": page[:-1],
        "longer": page + b"\0",
        "values without bytes": assemble([], 5)[:7],
        "bytes without values": assemble([], 0) + b"\0",
        "log too small": put(2, "B", 2),
        "log too large": put(2, "B", 16),
        "count negative": put(3, "i", -1),
        "count too large": put(3, "i", 0x7FFFFFFF),
        "offset into the offsets": put(7, "I", 0),
        "offset past the end": put(7, "I", 0xFFFFFFFF),
        "offsets descend": two[:11] + struct.pack("<I", 4) + two[15:],
        "exponent": put(11, "B", 19),
        "factor above the exponent": put(12, "B", 3),
        "exceptions": put(13, "H", 4),
        "width": put(23, "B", 65),
        "position": page[:-10] + struct.pack("<H", 3) + page[-8:],
    }


@pytest.mark.parametrize("name", list(_damaged()))
def test_malformed_pages_are_corrupt(name: str, way: str) -> None:
    assert isinstance(_refused(_damaged()[name]), CorruptFileError)


@pytest.mark.parametrize(
    ("mode", "integers", "words"), [(1, 0, "ALP-RD"), (7, 0, "mode 7"), (0, 1, "integer encoding 1")]
)
def test_what_is_not_defined_is_unsupported(mode: int, integers: int, words: str) -> None:
    error = _refused(assemble([], 0, mode=mode, integers=integers))
    assert isinstance(error, UnsupportedFeatureError)
    assert words in str(error)
    assert "ALP" in str(error)


@pytest.mark.property
@given(st.data())
def test_any_damage_gives_values_or_a_typed_error(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([32, 64]))
    plain = struct.pack(f"<40{TYPES[bits][1]}", *[value / 4 if value % 9 else math.inf for value in range(40)])
    page = bytearray(encoded(plain, bits, log=4, pairs=[(2, 0), (2, 1)]))
    for _ in range(data.draw(st.integers(1, 3))):
        page[data.draw(st.integers(0, len(page) - 1))] = data.draw(st.integers(0, 255))
    page = page[: data.draw(st.integers(len(page) - 3, len(page)))]
    try:
        whole: bytes | None = decoded(bytes(page), bits)
    except AsyncpqError:
        whole = None
    try:
        single: bytes | None = by_values(bytes(page), bits)
    except AsyncpqError:
        single = None
    assert single == whole


def _edited(change: Any, **options: Any) -> bytes:
    """A file with columns ``id`` and ``x``, whose first page of ``x`` is changed."""
    table = pa.table({"id": pa.array(range(100)), "x": pa.array([at / 4 for at in range(100)])})
    file = EditedFile(alp_file(table, [1], rows_per_page=100, **options))
    (page,) = file.pages(1)
    file.set_pages([change(page)], 1)
    return file.data()


def _other_columns(data: bytes) -> None:
    async def question(file: asyncpq.File) -> pa.Table:
        return await file.read(columns=["id"])

    assert ask(data, question)["id"].to_pylist() == list(range(100))


async def _whole(file: asyncpq.File) -> pa.Table:
    return await file.read()


async def _one(file: asyncpq.File) -> pa.Table:
    return await file.take([50])


@pytest.mark.parametrize("question", [_whole, _one])
def test_a_count_that_is_not_that_of_the_levels_is_corrupt(question: Any) -> None:
    def change(page: Any) -> Any:
        start = 4 + int.from_bytes(page.payload[:4], "little")
        body = encoded(struct.pack("<99d", *[at / 4 for at in range(99)]), 64)
        payload = page.payload[:start] + body
        page.header.put(2, len(payload), I32)
        page.header.put(3, len(payload), I32)
        return page._replace(payload=payload)

    data = _edited(change)
    with pytest.raises(CorruptFileError, match="99 values") as error:
        ask(data, question)
    assert error.value.column == "x"
    _other_columns(data)


@pytest.mark.parametrize("question", [_whole, _one])
@pytest.mark.parametrize("encoding", [10, 11, 1])
def test_unknown_encodings_name_the_column_and_leave_the_others_readable(question: Any, encoding: int) -> None:
    def change(page: Any) -> Any:
        if encoding == 10:  # of an unknown mode
            start = 4 + int.from_bytes(page.payload[:4], "little")
            return page._replace(payload=page.payload[:start] + b"\1" + page.payload[start + 1 :])
        page.header.value(5).put(2, encoding, I32)
        return page

    file = EditedFile(_edited(change))
    file.meta(1).value(2).append(encoding)
    data = file.data()
    with pytest.raises(UnsupportedFeatureError, match="encoding") as error:
        ask(data, question)
    assert error.value.column == "x"
    _other_columns(data)


def test_vectors_of_no_bytes_are_bounded_before_they_are_decoded() -> None:
    head = struct.pack("<BBHqB", 0, 0, 0, 7, 0)  # 32,768 values in 13 bytes
    body = assemble([head] * 64, 64 << 15, 15)
    with pytest.raises(CorruptFileError, match="values"):
        AlpPage(body, 0, PhysicalType.DOUBLE, 1000, "x")


# -- the writer's own files -------------------------------------------------------------------------

GROUND = CORPUS / "ground"


@pytest.mark.skipif(not GROUND.is_dir(), reason=f"no files of newer writers at {GROUND}; set ASYNCPQ_CORPUS")
@pytest.mark.parametrize("name", ["alp_f64", "alp_f32_v2", "alp_f64_nullpage", "alp_f64_random", "alp_fallback"])
def test_files_of_the_rust_crate_are_read_as_it_reads_them(name: str, way: str) -> None:
    with pa.ipc.open_file(str(GROUND / f"{name}.arrow")) as answer:
        table = answer.read_all()
    last = table.num_rows - 1
    rows = ([0], [last], [5, last // 2, last], range(300, 700), range(0, table.num_rows, 9))
    same((GROUND / f"{name}.parquet").read_bytes(), table, rows)


# Runs of levels, relative to the largest level: repeated ones, or groups of eight that are packed.
runs = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 7), st.integers(1, 300)),
        st.lists(st.lists(st.integers(0, 7), min_size=8, max_size=8), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=6,
)


def encode(runs: list[tuple[int, int] | list[list[int]]], level: int) -> tuple[bytes, list[int]]:
    """Return the encoded levels, and the levels; each is at most ``level``."""
    width = level.bit_length()
    encoded, levels = b"", list[int]()
    for run in runs:
        if isinstance(run, tuple):
            value, count = min(run[0], level), run[1]
            encoded += varint(count << 1) + value.to_bytes((width + 7) // 8, "little")
            levels += [value] * count
        else:
            packed = [min(value, level) for group in run for value in group]
            bits = sum(value << number * width for number, value in enumerate(packed))
            encoded += varint(len(run) << 1 | 1) + bits.to_bytes(len(run) * width, "little")
            levels += packed
    return encoded, levels


@pytest.mark.property
@given(runs, st.integers(1, 7), st.integers(0, 7))
def test_flags_say_which_levels_are_the_largest(
    runs: list[tuple[int, int] | list[list[int]]], level: int, padding: int
) -> None:
    encoded, levels = encode(runs, level)
    count = max(1, len(levels) - padding)  # the last group of eight may hold fewer values
    expected = b"".join([PRESENT if value == level else ABSENT for value in levels[:count]])
    assert present_flags(encoded, count, level) == expected


def test_a_required_column_has_no_levels() -> None:
    assert present_flags(b"", 3, 0) == PRESENT * 3


@pytest.mark.property
@given(runs, st.integers(1, 7))
def test_levels_that_are_cut_off_are_an_error(runs: list[tuple[int, int] | list[list[int]]], level: int) -> None:
    encoded, levels = encode(runs, level)
    with pytest.raises(CorruptFileError):
        present_flags(encoded, len(levels) + 1, level)
    with pytest.raises(CorruptFileError):
        present_flags(encoded[:-1], len(levels), level)
