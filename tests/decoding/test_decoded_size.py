"""Small files that would decode to large tables are refused before they do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import LimitOptions
from asyncpq.decoding.decoded_size import nested_bytes, prefix_bytes, taken_bytes
from asyncpq.errors import CorruptFileError, ResourceLimitError
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from asyncpq.pruning.row_ranges import RowRanges
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import LIMITS, MIB, OpenFile, limited

LONG = "x" * 100_000
COUNT = 1500  # times LONG is 150 MB

# Each is made when a test needs it: together they take more than a GiB.
BOMBS: dict[str, tuple[Callable[[], pa.Array], dict[str, Any]]] = {
    "delta": (lambda: pa.array([LONG] * COUNT), {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}),
    "delta fixed": (
        lambda: pa.array([LONG.encode()] * COUNT, pa.binary(len(LONG))),
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    ),
    "dictionary": (lambda: pa.array([LONG] * COUNT), {}),
    "dictionary of few large": (lambda: pa.array([LONG] * COUNT + ["y"] * 100), {}),
    "nested dictionary": (lambda: pa.array([[LONG, LONG]] * (COUNT // 2)), {}),
    "nested delta": (
        lambda: pa.array([[LONG, LONG]] * (COUNT // 2)),
        {"use_dictionary": False, "column_encoding": {"x.list.element": "DELTA_BYTE_ARRAY"}},
    ),
    "struct dictionary": (lambda: pa.array([{"a": 1, "b": LONG}] * COUNT), {}),
    "map dictionary": (lambda: pa.array([[("k", LONG)]] * COUNT, pa.map_(pa.string(), pa.string())), {}),
    "nulls": (lambda: pa.nulls(30_000_000, pa.int64()), {"row_group_size": 30_000_000}),
    "booleans": (lambda: pa.nulls(30_000_000, pa.bool_()), {"row_group_size": 30_000_000}),
    "null lists of fixed size": (lambda: pa.nulls(3_000, pa.list_(pa.float64(), 5_000)), {}),
    "plain": (
        lambda: pa.array([LONG + str(row) for row in range(COUNT)]),
        {"use_dictionary": False, "compression": "zstd"},
    ),
}

DECODE = """
import sys
import pyarrow as pa
from tests.parquet_samples import LIMITS, OpenFile, limited
from asyncpq.errors import ResourceLimitError
from asyncpq.pruning.row_ranges import RowRanges
from tests.leaks import peak_bytes

file = OpenFile(open(sys.argv[1], "rb").read())
limits = limited(16 << 20)
flat = file.metadata.schema.leaves[0].is_flat
before = peak_bytes()
try:
    source = file.streamed(limits=limits) if flat else file.whole()
    if flat:
        source.feed(file.bytes_of(file.chunks(0)[0]))
    source.select(RowRanges.all(file.num_rows()), limits)
except ResourceLimitError as error:
    print(error.column, "max_decoded_bytes" in str(error))
print(pa.default_memory_pool().max_memory() >> 20, peak_bytes() - before >> 20)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("name", list(BOMBS))
def test_memory_stays_bounded(name: str, tmp_path: Path) -> None:
    bomb, options = BOMBS[name]
    path = tmp_path / "bomb.parquet"
    path.write_bytes(parquet_bytes(pa.table({"x": bomb()}), **options))
    assert path.stat().st_size < 2 * MIB
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    refusal, peaks = done.stdout.splitlines()
    column, says = refusal.split()
    assert column.split(".")[0] == "x"
    assert says == "True"
    allocated, resident = map(int, peaks.split())
    assert allocated < 32
    assert resident < 48


@pytest.mark.parametrize(
    "name", ["delta", "delta fixed", "dictionary", "nested dictionary", "struct dictionary", "map dictionary", "plain"]
)
def test_what_fits_is_read(name: str) -> None:
    """The sizes that are computed are near the truth: 1 % more than that is enough."""
    bomb, options = BOMBS[name]
    values = bomb()[:300]
    file = OpenFile(parquet_bytes(pa.table({"x": values}), **options))
    size = values.nbytes
    for limit, fits in ((size + size // 100 + 250_000, True), (size - size // 100, False)):
        if file.metadata.schema.leaves[0].is_flat:
            source: Any = file.paged()
            for page in file.pages()[1]:
                source.add(page)
        else:
            source = file.whole()
        if fits:
            assert source.select(RowRanges.all(300), limited(limit)).equals(values)
        else:
            with pytest.raises(ResourceLimitError, match="max_decoded_bytes"):
                source.select(RowRanges.all(300), limited(limit))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
@pytest.mark.parametrize("nullable", [True, False])
def test_prefixes_of_a_page(version: str, codec: str, nullable: bool) -> None:
    words = [f"{'ab' * (row % 5)}{row}" for row in range(500)]
    values = [None if nullable and row % 3 == 0 else word for row, word in enumerate(words)]
    schema = pa.schema([pa.field("x", pa.string(), nullable=nullable)])
    options = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "compression": codec}
    file = OpenFile(parquet_bytes(pa.table([values], schema=schema), data_page_version=version, **options))
    _, (page,) = file.pages()
    header = decode_page_header(page.data, complete=True)
    assert isinstance(header, PageHeader)
    expected, last = 0, ""
    for word in values:
        if word is not None:
            expected += next(
                (at for at, (a, b) in enumerate(zip(last, word, strict=False)) if a != b), min(len(last), len(word))
            )
            last = word
    leaf, codec_code = file.metadata.schema.leaves[0], file.chunks(0)[0].codec
    assert prefix_bytes(page.data, header, leaf, codec_code) == expected
    assert prefix_bytes(page.data, header, leaf, 5) >= expected  # Hadoop's framing of LZ4 is not taken apart
    cut = header._replace(num_values=10)
    with pytest.raises(CorruptFileError, match="prefix lengths"):
        prefix_bytes(page.data, cut, leaf, codec_code)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_binary(), pa.string_view(), pa.binary(3), pa.json_(), pa.uuid()], ids=str
)
def test_expanded_size_is_exact(kind: pa.DataType) -> None:
    """One large value among small ones: neither the mean nor the largest says what comes out."""
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    width = storage.byte_width if pa.types.is_fixed_size_binary(storage) else None
    raw = [b"a" * (width or 1), b"b" * (width or 5000), b"c" * (width or 2)]
    dictionary = pa.array(raw if width or "binary" in str(storage) else [value.decode() for value in raw], storage)
    if storage is not kind:
        dictionary = pa.ExtensionArray.from_storage(kind, dictionary)
    indices = pa.array([0, 2, 2, None, 0] * 50, pa.int32())
    lengths = sum(len(raw[index]) for index in indices.to_pylist() if index is not None)
    slot = {"string": 4, "large_binary": 8, "string_view": 16}.get(str(storage), 4)
    expected = 250 * width if width else lengths + 250 * slot
    assert taken_bytes(dictionary, indices, kind) == expected


def test_measured_size_is_that_of_the_array() -> None:
    for values in (
        pa.array([["a", None, "ccc"], None, []] * 40),
        pa.array([{"a": ["x", "yy"], "b": 1.5}, None] * 40),
        pa.array([[("k", [1, 2])], []] * 40, pa.map_(pa.string(), pa.list_(pa.int16()))),
        pa.array([[[1, 2], [3, 4]], None] * 40, pa.large_list(pa.list_(pa.float32(), 2))),
        pa.array([[1.0, 2.0], None] * 40, pa.list_(pa.float64(), 2)),
    ):
        measured = nested_bytes(values, values.type)
        assert 0.8 * values.nbytes <= measured <= values.nbytes + len(values)


def test_all_pages_of_a_selection_count_together() -> None:
    values = pa.array([f"{row:0100d}" for row in range(5000)])
    file = OpenFile(
        parquet_bytes(
            pa.table({"x": values}), use_dictionary=False, write_page_index=True, data_page_size=1, write_batch_size=50
        )
    )
    _, pages = file.pages()

    def select(rows: RowRanges, limit: int) -> pa.Array:
        source = file.paged(keep=lambda _: None)  # page by page
        for page in pages:
            source.add(page)
        return source.select(rows, limited(limit))

    some = RowRanges([(row, row + 5) for row in range(0, 5000, 50)])
    with pytest.raises(ResourceLimitError, match="max_decoded_bytes"):
        select(some, 200_000)  # slices hold on to their pages
    assert select(some, 2_000_000).equals(pc.take(values, pa.array(some.rows())))
    picked = RowRanges([(row, row + 1) for row in range(0, 5000, 50)])  # copies do not
    assert select(picked, 200_000).equals(pc.take(values, pa.array(picked.rows())))


def test_rows_that_a_nested_chunk_cannot_have() -> None:
    file = OpenFile(parquet_bytes(pa.table({"x": [[1], [2]]})))
    source = file.whole(num_rows=1 << 40)
    with pytest.raises(CorruptFileError, match="2 values"):
        source.select(RowRanges.all(2), LIMITS)


@pytest.mark.parametrize(("columns", "row_group_size"), [(12, 500), (1, 40)], ids=["columns", "row groups"])
async def test_what_a_scan_holds_is_bounded_over_columns_and_row_groups(
    columns: int, row_group_size: int, tmp_path: Path
) -> None:
    """Each column of each row group fits the limit, all together do not; what is emitted is not counted on."""
    table = pa.table({f"c{number}": ["x" * 10_000] * 500 for number in range(columns)})
    path = str(tmp_path / "bomb.parquet")
    pq.write_table(table, path, row_group_size=row_group_size, compression="zstd")
    one = table.nbytes // columns // (500 // row_group_size)
    limits = LimitOptions(max_decoded_bytes=one * 3 // 2 + 10_000)
    async with asyncpq.open_file(path, limits=limits) as file, file.scan() as scan:
        with pytest.raises(ResourceLimitError, match="max_decoded_bytes"):
            async for _ in scan:
                pass
    async with asyncpq.open_file(path, limits=LimitOptions(max_decoded_bytes=table.nbytes + 100_000)) as file:
        assert (await file.read()).equals(table)
        async with file.scan() as scan:
            assert sum([batch.num_rows async for batch in scan]) == 500
