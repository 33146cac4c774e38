"""Files of a Delta table: deletion vectors against DuckDB's Delta reader, damaged vectors, and urls of data files."""

from __future__ import annotations

import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.errors import CorruptFileError, FormatError, UnsupportedFeatureError
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.tables import deleted_rows
from asyncpq.tables.deleted_rows import decode_vector
from asyncpq.tables.delta.files import DeltaRoot, VectorDescriptor, decode_z85
from asyncpq.tables.own_store import TableStore
from tests.delta_tables import (
    ID,
    DeltaWriter,
    FolderReader,
    add,
    assert_same_as_duckdb,
    column,
    encode_z85,
    ids,
    inline_vector,
    metadata,
    protocol,
    remove,
    rows_of,
    snapshot_of,
)

VECTORS = protocol("deletionVectors")


async def test_a_deletion_vector(writer: DeltaWriter) -> None:
    """Trap: lists of files do not show that rows are deleted."""
    (vector,) = writer.vector_file([0, 3, 4])
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(*range(6)), vector=vector))
    assert [row["id"] for row in await assert_same_as_duckdb(writer.folder)] == [1, 2, 5]


async def test_vectors_are_decoded_off_the_loop(writer: DeltaWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(*arguments: Any) -> RowRanges:
        threads.append(threading.current_thread())
        return decode_vector(*arguments)

    monkeypatch.setattr(deleted_rows, "decode_vector", noted)
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(0, 1), vector=inline_vector([1])))
    assert (await rows_of(await snapshot_of(writer.folder))).num_rows == 1
    assert threads
    assert threading.main_thread() not in threads


async def test_secrets_of_urls_are_not_shown() -> None:
    root = "https://user:hunter2@host/t"
    vector = VectorDescriptor.from_action(inline_vector([9]))
    assert vector is not None
    deletes = replace(vector.resolve(DeltaRoot.of(root), f"{root}/f.parquet"), url=f"{root}/v.bin")
    with pytest.raises(CorruptFileError, match=r"https://host/t/f\.parquet") as caught:
        await deletes.rows(FolderReader(), 5)
    assert "hunter2" not in str(caught.value)


@pytest.mark.heavy
async def test_where_vectors_are_kept(writer: DeltaWriter) -> None:
    first, second = writer.vector_file([1], [70000, 2], prefix="ab")
    absolute = writer.vector_file([5])[0]
    name = next(writer.folder.glob("deletion_vector_*"))
    absolute |= {"storageType": "p", "pathOrInlineDv": name.as_uri()}
    big = ids(*range(70010))
    writer.commit(
        VECTORS,
        metadata(ID),
        writer.file("a.parquet", big, vector=first),
        writer.file("b.parquet", big, vector=second),
        writer.file("c.parquet", big, vector=absolute),
        writer.file("d.parquet", big, vector=inline_vector([0, 65536, 70009])),
        writer.file("e.parquet", big, vector=inline_vector([])),
    )
    await assert_same_as_duckdb(writer.folder)
    files = (await snapshot_of(writer.folder)).data_files
    deleted = [await file.deletes.rows(FolderReader(), 70010) for file in files if file.deletes is not None]
    assert [list(rows.rows()) for rows in deleted] == [[1], [2, 70000], [5], [0, 65536, 70009], []]
    assert len({file.deletes.identity for file in files if file.deletes is not None}) == 5


async def test_the_newest_vector_of_a_file_counts(writer: DeltaWriter) -> None:
    plain = writer.file("f.parquet", ids(*range(6)))
    one, two = ({"add": plain["add"] | {"deletionVector": inline_vector(rows)}} for rows in ([1], [1, 2]))
    writer.commit(VECTORS, metadata(ID), plain)
    for before, after in ((plain, one), (one, two), (two, plain)):
        writer.commit(remove(before), after)
        await assert_same_as_duckdb(writer.folder)
    writer.commit(one, remove(plain))  # in any order
    assert len(await assert_same_as_duckdb(writer.folder)) == 5
    writer.commit(remove(plain))  # the file without a vector is not there: nothing is removed
    assert len(await assert_same_as_duckdb(writer.folder)) == 5
    writer.commit(remove(one))
    assert await assert_same_as_duckdb(writer.folder) == []


def _flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


async def test_a_damaged_vector_is_an_error(writer: DeltaWriter) -> None:
    (vector,) = writer.vector_file([1, 2, 3])
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(*range(6)), vector=vector))
    (path,) = writer.folder.glob("deletion_vector_*")
    whole = path.read_bytes()
    (file,) = (await snapshot_of(writer.folder)).data_files
    assert file.deletes is not None
    assert (await file.deletes.rows(FolderReader(), 6)).num_rows == 3
    for at in range(1, len(whole)):  # the first byte is the file's version, which is not fetched
        _flipped(path, at)
        with pytest.raises(CorruptFileError) as caught:
            await file.deletes.rows(FolderReader(), 6)
        assert caught.value.url == str(path)
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFileError, match="in its header differs"):
        await file.deletes.rows(FolderReader(), 6)
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError, match=r"delete row 3 \(.* 0\) of .*f.parquet, which has only 3 rows"):
        await file.deletes.rows(FolderReader(), 3)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"cardinality": 4}, CorruptFileError, "has 3 rows, but the table's metadata say 4"),
        ({"sizeInBytes": 30}, CorruptFileError, "but the vector needs 30"),
        ({"pathOrInlineDv": "%%%%%"}, CorruptFileError, "overflow"),
        ({"pathOrInlineDv": "abc"}, CorruptFileError, "Z85"),
        ({"pathOrInlineDv": "ab\x00cd"}, CorruptFileError, "Z85"),
        ({"storageType": "x"}, UnsupportedFeatureError, "storage type 'x'"),
        ({"storageType": 1}, CorruptFileError, "malformed action"),
        ({"cardinality": -1}, CorruptFileError, "malformed action"),
        ({"storageType": "p", "pathOrInlineDv": "s3://b/x.bin"}, UnsupportedFeatureError, "another store"),
        (
            {"pathOrInlineDv": encode_z85(b"\x90\xd3\x39\x64" + bytes(40)), "sizeInBytes": 44},
            UnsupportedFeatureError,
            "magic",
        ),
    ],
)
async def test_a_vector_that_is_not_described_right(
    writer: DeltaWriter, change: dict[str, Any], error: type[FormatError], says: str
) -> None:
    vector = inline_vector([1, 2, 3]) | change
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(*range(6)), vector=vector))
    with pytest.raises(error, match=says):
        await rows_of(await snapshot_of(writer.folder))


@given(data=st.binary(max_size=64).map(lambda data: data + bytes(-len(data) % 4)))
def test_z85(data: bytes) -> None:
    assert decode_z85(encode_z85(data)) == data


def test_z85_of_the_specification() -> None:
    assert decode_z85("HelloWorld") == bytes.fromhex("864fd26fb559f75b")
    for text, says in (("Hello Worl", "Z85"), ("%%%%%#", "Z85"), ("#####", "overflow")):
        with pytest.raises(ValueError, match=says):
            decode_z85(text)


async def test_absolute_paths(writer: DeltaWriter, tmp_path: Path) -> None:
    pq.write_table(ids(5), tmp_path / "other %20.parquet")
    inside = writer.file("in.parquet", ids(1))
    writer.commit(protocol(), metadata(ID), add((tmp_path / "other %20.parquet").as_uri(), num_rows=1), inside)
    outside = (await snapshot_of(writer.folder)).data_files[0].url
    assert outside == str(tmp_path / "other %20.parquet")


@pytest.mark.parametrize(
    ("root", "path", "url"),
    [
        ("s3://bucket/t/", "a%20b.parquet", "s3://bucket/t/a b.parquet"),
        ("s3://bucket/t", "p=x%2520y/f.parquet", "s3://bucket/t/p=x%20y/f.parquet"),
        ("s3://bucket/t", "p=1%3A2%2B3+4/f.parquet", "s3://bucket/t/p=1:2+3+4/f.parquet"),
        ("s3://bucket/t", "s3://other/x%20y", "s3://other/x y"),
        ("s3://bucket/t", "s3a://other/x", "s3://other/x"),
        ("gs://bucket/t", "gs://other/x", "gs://other/x"),
        ("abfss://c@account/t", "abfss://c@account/x%25", "abfss://c@account/x%"),
        ("/tmp/t", "file:/data/x", "/data/x"),
        ("/tmp/t", "file:///data/x%20", "/data/x "),
        ("/tmp/t", "/data/x", "/data/x"),
        ("/tmp/t", "sub/x", "/tmp/t/sub/x"),
        ("memory://t", "x", "memory://t/x"),
    ],
)
def test_where_files_are(root: str, path: str, url: str) -> None:
    assert DeltaRoot.of(root).resolve(path) == url


def test_a_relative_path_needs_no_look_at_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has a path for each file."""

    def looked(table: str, url: str) -> TableStore:
        raise AssertionError(url)

    monkeypatch.setattr(TableStore, "of", looked)
    assert DeltaRoot.of("s3://bucket/t").resolve("p=1/f.parquet") == "s3://bucket/t/p=1/f.parquet"


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("s3://bucket/t", "file:///etc/passwd"),
        ("s3://bucket/t", "/etc/passwd"),
        ("s3://bucket/t", "https://host/x"),
        ("/tmp/t", "s3://bucket/x"),
        ("abfss://c@account/t", "abfss://c@other/x"),
        ("https://host/t", "https://other/x"),
        ("https://host/t", "http://host/x"),
    ],
)
def test_a_log_does_not_choose_stores(root: str, path: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="another store"):
        DeltaRoot.of(root).resolve(path)


@pytest.mark.parametrize("change", [{"offset": 1 << 31}, {"sizeInBytes": 1 << 31}, {"cardinality": 1 << 63}])
async def test_numbers_of_vectors_beyond_the_protocol_s_are_refused(
    writer: DeltaWriter, change: dict[str, int]
) -> None:
    (vector,) = writer.vector_file([0])
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(0, 1), vector=vector | change))
    with pytest.raises(CorruptFileError, match="too large number"):
        await snapshot_of(writer.folder)


@pytest.mark.parametrize("number", [1 << 63, -1, 10**100])
async def test_counts_that_no_file_has_are_unknown(writer: DeltaWriter, number: int) -> None:
    added = writer.file("f.parquet", ids(0, 1), stats={"numRecords": number, "nullCount": {"id": number}})
    added["add"]["size"] = number
    writer.commit(protocol(), metadata(ID), added)
    (file,) = (await snapshot_of(writer.folder)).data_files
    assert (file.num_rows, file.size, file.bounds.get("id")) == (None, None, None)
    async with asyncpq.open_dataset(str(writer.folder), format="delta") as dataset:
        assert await dataset.count() == 2


@pytest.mark.parametrize("text", ["1e-100000000", "0e-100000000", "1e100000000", "1e-3", "9" * 5000, "NaN"])
async def test_decimals_that_crash_pyarrow_are_no_partition_values(writer: DeltaWriter, text: str) -> None:
    added = writer.file("f.parquet", ids(0), partition={"p": text})
    writer.commit(protocol(), metadata(ID, column("p", "decimal(9,2)"), partition_columns=["p"]), added)
    if text.startswith("0e"):
        assert (await rows_of(await snapshot_of(writer.folder)))["p"].to_pylist() == [Decimal(0)]
        return
    with pytest.raises(CorruptFileError, match=r"is not of type decimal128\(9, 2\)"):
        await snapshot_of(writer.folder)
