"""Indexes embedded in Parquet files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import asyncpq
from asyncpq.indexing.build.embedding import EmbeddedIndexWriter, embed_indexes
from asyncpq.parquet.embedded_index import KEY_PREFIX, EmbeddedIndex, decode_entry
from tests.indexing.embedded_files import BASE, added, chunks_of, embedded, texts
from tests.parquet_files import EditedFile, Struct
from tests.parquet_samples import corpus_files, requires_corpus
from tests.random_tables import WriterOptions, tables, writer_options
from tests.reads import ask, by_pyarrow, values

indexes = st.builds(
    EmbeddedIndex,
    name=st.sampled_from(["a", "b", "a.b", "ü ß", '"\\', "nul\0"]) | texts.filter(bool),
    kind=texts,
    version=st.integers(0, 2**70),
    data=st.binary(max_size=50) | st.integers(0, 3).map(lambda n: bytes([n]) * 70_000) | st.just(b"PAR1"),
)
HUGE = {"large_string_map.brotli.parquet"}  # one page, gigabytes of text

index_lists = st.lists(indexes, max_size=4, unique_by=lambda index: index.name)


def assert_has(data: bytes, some: Sequence[EmbeddedIndex]) -> None:
    """These indexes and no others are in the file, and it reads as pyarrow reads it."""

    async def question(file: asyncpq.File) -> None:
        assert set(file.embedded_indexes) == {index.name for index in some}
        for index in some:
            assert await file.embedded_index(index.name) == index
            entry = file.embedded_indexes[index.name]
            assert data[entry.offset : entry.stop] == index.data
        assert await file.embedded_index("of no such name") is None
        assert values(await file.read()) == rows

    try:
        rows = values(by_pyarrow(data))
    except pa.ArrowInvalid:
        assume(False)  # pyarrow's writer loses nested rows where a dictionary overflows at once
        raise
    ask(data, question)


def assert_behind_all_pages(data: bytes) -> None:
    """What is embedded stands between the last chunk's end and the footer."""
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    stop = max([stop for _, stop in chunks_of(data)], default=4)
    for key, value in (metadata.metadata or {}).items():
        if key.startswith(KEY_PREFIX.encode()):
            entry = json.loads(value)
            end = entry["offset"] + entry["length"]
            assert stop <= entry["offset"] <= end <= len(data) - 8 - metadata.serialized_size


@given(tables(max_rows=40), writer_options, index_lists, st.booleans())
def test_written_with_a_file(
    table_and_kinds: tuple[pa.Table, dict[str, str]], options: WriterOptions, some: list[EmbeddedIndex], bloom: bool
) -> None:
    table, kinds = table_and_kinds
    arguments = options.arguments() | {"row_group_size": options.row_group_size}
    if bloom:
        flat = {name: {"ndv": 10} for name in kinds if not pa.types.is_boolean(table.schema.field(name).type)}
        arguments["bloom_filter_options"] = flat
    data = embedded(table, some, **arguments)
    assert_has(data, some)
    assert_behind_all_pages(data)
    plain = embedded(table, [], **arguments)
    assert values(by_pyarrow(data)) == values(by_pyarrow(plain))


@given(tables(max_rows=40), writer_options, index_lists, index_lists, st.booleans())
def test_put_into_a_file_and_into_that_again(
    table_and_kinds: tuple[pa.Table, dict[str, str]],
    options: WriterOptions,
    first: list[EmbeddedIndex],
    second: list[EmbeddedIndex],
    in_place: bool,
) -> None:
    plain = options.write(table_and_kinds[0])
    once = added(plain, first, in_place=in_place)
    assert_has(once, first)
    twice = added(once, second, in_place=in_place)
    present = {index.name: index for index in (*first, *second)}
    assert_has(twice, list(present.values()))
    for before, after in ((plain, once), (once, twice)):
        start = len(before) - 8 - int.from_bytes(before[-8:-4], "little")
        assert after[:start] == before[:start]
        assert without_keys(after) == without_keys(before)
    assert_behind_all_pages(twice)


def without_keys(data: bytes) -> Struct:
    footer = EditedFile(data).footer
    footer.pop(5, None)
    return footer


@requires_corpus
@pytest.mark.parametrize("path", [path for path in corpus_files() if path.name not in HUGE], ids=lambda path: path.name)
def test_put_into_files_of_others(path: Path, tmp_path: Path) -> None:
    """Their rows, if pyarrow can read them, and their footers."""
    target = tmp_path / "target.parquet"
    index = EmbeddedIndex(name="a", kind="k", version=1, data=b"some bytes")
    if "encrypt" in path.name or "uniform" in path.name:  # an encrypted footer, or a signed one
        with pytest.raises(asyncpq.UnsupportedFeatureError):
            embed_indexes(path, target, [index])
        assert not list(tmp_path.iterdir())
        return
    embed_indexes(path, target, [index])
    data = target.read_bytes()
    assert without_keys(data) == without_keys(path.read_bytes())
    assert read_by_pyarrow(target) == read_by_pyarrow(path)

    async def question(file: asyncpq.File) -> None:
        assert await file.embedded_index("a") == index

    ask(data, question)


def read_by_pyarrow(path: Path) -> Any:
    """The bytes of all rows, or the kind of error."""
    try:
        table = pq.read_table(path, use_threads=False).replace_schema_metadata()
    except (OSError, pa.ArrowException) as error:
        return type(error)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_two_of_one_name(tmp_path: Path) -> None:
    index = EmbeddedIndex(name="a", kind="k", version=0, data=b"")
    other = EmbeddedIndex(name="a", kind="k", version=1, data=b"")
    with EmbeddedIndexWriter(tmp_path / "a.parquet", pa.schema([("x", pa.int64())])) as writer:
        writer.embed(index)
        with pytest.raises(asyncpq.InvalidOptionError):
            writer.embed(other)
    with pytest.raises(asyncpq.InvalidOptionError):
        embed_indexes(tmp_path / "a.parquet", tmp_path / "b.parquet", [index, other])
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_an_error_while_writing_leaves_no_index(tmp_path: Path) -> None:
    """What the index says of rows that were never written would be wrong."""
    path = tmp_path / "a.parquet"
    with pytest.raises(RuntimeError), EmbeddedIndexWriter(path, pa.schema([("x", pa.int64())])) as writer:  # noqa: PT012
        writer.embed(EmbeddedIndex(name="a", kind="k", version=0, data=b"bytes"))
        writer.write_table(pa.table({"x": [1]}))
        raise RuntimeError
    assert (
        decode_entry("a", {key.decode(): value.decode() for key, value in pq.read_metadata(path).metadata.items()})
        is None
    )


def test_what_is_no_parquet_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for data in (b"", b"PAR1", b"no Parquet file at all", BASE[:-1], BASE[:-9] + BASE[-8:]):
        source.write_bytes(data)
        with pytest.raises(asyncpq.FormatError) as caught:
            embed_indexes(source, source, [])
        assert caught.value.url == str(source)
        assert source.read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    source = tmp_path / "source"
    source.write_bytes(BASE)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        embed_indexes(source, source, [EmbeddedIndex(name="a", kind="", version=0, data=b"")])
    assert source.read_bytes() == BASE
    assert list(tmp_path.iterdir()) == [source]
