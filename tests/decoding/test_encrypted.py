"""Encrypted files: with keys every verb gives what pyarrow gives; without, plain columns can be read and the
others are refused by name. Whatever is read with keys is cached for that handle alone."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.decoding.encrypted import FileDecryption, SparseFile
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.column_chunk import ColumnChunk
from asyncpq.scan.request import ScanRequest
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import DATA, requires_corpus
from tests.reads import read, view

ROWS = 1000
KEY = b"0123456789012345"
OTHER_KEY = b"1234567890123450"


class Kms(pe.KmsClient):  # type: ignore[misc]
    """Keeps its master keys in the connection's configuration, and wraps by putting them in front."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._keys = config.custom_kms_conf

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(self._keys[master_key_identifier].encode() + key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        raw = base64.b64decode(wrapped_key)
        master = self._keys[master_key_identifier].encode()
        if not raw.startswith(master):
            raise ValueError("another master key")
        return raw[len(master) :]


def factory() -> pe.CryptoFactory:
    return pe.CryptoFactory(Kms)


def connection() -> pe.KmsConnectionConfig:
    return pe.KmsConnectionConfig(custom_kms_conf={"footer": KEY.decode(), "column": OTHER_KEY.decode()})


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rows = range(ROWS)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "word": [f"word {row % 7}" if row % 9 else None for row in rows],
            "nested": [{"x": row, "y": [str(row)] * (row % 3)} for row in rows],
            "stamp": pa.array(rows, pa.timestamp("us", tz="UTC")),
        }
    )


def write(table: pa.Table, properties: Any) -> bytes:
    return parquet_bytes(table, encryption_properties=properties, row_group_size=300, write_page_index=True)


def direct(**options: Any) -> Any:
    return pe.create_encryption_properties(footer_key=KEY, **options)


def keys() -> Any:
    return pe.create_decryption_properties(footer_key=KEY)


def by_kms(columns: bool, plaintext_footer: bool) -> Any:
    chosen: dict[str, Any] = {"column_keys": {"column": ["word"]}} if columns else {"uniform_encryption": True}
    return factory().file_encryption_properties(
        connection(), pe.EncryptionConfiguration(footer_key="footer", plaintext_footer=plaintext_footer, **chosen)
    )


def kms_keys() -> Any:
    return factory().file_decryption_properties(connection())


UNIFORM: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "gcm": (direct, keys),
    "ctr": (lambda: direct(encryption_algorithm="AES_GCM_CTR_V1"), keys),
    "plaintext footer": (lambda: direct(plaintext_footer=True), keys),
    "stored prefix": (lambda: direct(aad_prefix=b"here"), keys),
    "kms": (lambda: by_kms(False, False), kms_keys),
    "kms, plaintext footer": (lambda: by_kms(False, True), kms_keys),
    "column keys, plaintext footer": (lambda: by_kms(True, True), kms_keys),
}


@pytest.mark.parametrize("name", ["gcm", "kms"])
async def test_parts_of_a_nested_column(name: str, table: pa.Table, tmp_path: Path) -> None:
    make, properties = UNIFORM[name]
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, make()))
    async with asyncpq.open_file(path, decryption_properties=properties()) as file:
        whole = table.column("nested").to_pylist()
        found = await file.take([700, 3], ["nested.y"])
        assert found.to_pylist() == [{"nested": {"y": whole[row]["y"]}} for row in (700, 3)]
        found = await file.read(["nested.y", "id"], col("nested.x").between(299, 301))
        assert found.to_pylist() == [{"nested": {"y": whole[row]["y"]}, "id": row} for row in (299, 300, 301)]


async def test_as_a_dataset_has_its_columns(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, direct()))
    schema = pa.schema(
        [("nested", pa.struct([("z", pa.int8()), ("x", pa.float64())])), ("word", pa.large_string()), ("p", pa.int8())]
    )
    async with asyncpq.open_file(path, decryption_properties=keys()) as file:
        where = (col("nested.x") == 301.0) & (col("p") == 7)
        asked = ScanRequest(where=where, view=view(file, schema, None, {"p": 7}), read_dictionary=["word"])
        found = (await read(file, asked)).table
        assert found.to_pylist() == [{"nested": {"z": None, "x": 301.0}, "word": "word 0", "p": 7}]


@pytest.mark.parametrize("name", UNIFORM)
async def test_every_verb(name: str, table: pa.Table, tmp_path: Path) -> None:
    make, properties = UNIFORM[name]
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, make()))
    async with asyncpq.open_file(path, decryption_properties=properties()) as file:
        assert file.num_rows == ROWS
        assert file.schema.equals(table.schema)
        assert (await file.read()).equals(table)
        where = (col("id") >= 290) & (col("word") == "word 3")
        wanted = table.filter((pc.field("id") >= 290) & (pc.field("word") == "word 3"))
        assert (await file.read(["nested", "id"], where)).equals(wanted.select(["nested", "id"]))
        assert await file.count(where) == wanted.num_rows
        assert (await file.lookup({"id": [5, 999, 5000]})).equals(table.take([5, 999]))
        assert (await file.take([700, 3], ["nested"])).equals(table.select(["nested"]).take([700, 3]))
        async with file.scan(["stamp"], limit=350, batch_size=90) as scan:
            batches = [batch async for batch in scan]
        assert pa.Table.from_batches(batches).equals(table.select(["stamp"]).slice(0, 350))
        assert "encrypted, whole column chunks are read through pyarrow" in (await file.plan()).explain()


async def test_only_the_chunks_asked_for_are_fetched(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, direct()))
    requests = asyncpq.RequestOptions(tail_bytes=64, gap_bytes=0)
    async with asyncpq.open_file(path, decryption_properties=keys(), requests=requests) as file:
        await file.read(["id"], col("id") < 10)
        whole = pq.ParquetFile(path, decryption_properties=keys()).metadata.row_group(0).column(0)
        assert file.metrics.bytes_fetched == whole.total_compressed_size


@pytest.mark.parametrize(("encoding", "words"), [(10, "encoding ALP"), (11, "encoding 11")])
async def test_encodings_that_pyarrow_lacks_are_unsupported(
    encoding: int, words: str, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FileVersion.chunk

    def chunk(self: FileVersion, row_group: int, leaf: int) -> ColumnChunk:
        self.valid_chunks[row_group, leaf] = original(self, row_group, leaf)._replace(encodings=(encoding, 3))
        return self.valid_chunks[row_group, leaf]

    monkeypatch.setattr(FileVersion, "chunk", chunk)
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, direct()))
    async with asyncpq.open_file(path, decryption_properties=keys()) as file:
        with pytest.raises(asyncpq.UnsupportedFeatureError, match=words) as caught:
            await file.read(["id"])
    assert caught.value.column == "id"


async def test_without_keys(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, direct()))
    with pytest.raises(asyncpq.UnsupportedFeatureError, match="decryption_properties") as caught:
        async with asyncpq.open_file(path):
            pass
    assert caught.value.url == str(path)


@pytest.mark.parametrize("name", ["plaintext footer", "column keys, plaintext footer"])
async def test_plain_footers_without_keys(name: str, table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, UNIFORM[name][0]()))
    async with asyncpq.open_file(path) as file:
        assert file.schema.equals(table.schema)
        assert await file.count() == ROWS
        plain = ["id", "nested"] if name.startswith("column keys") else []
        for column in table.column_names:
            questions: list[Awaitable[pa.Table]] = [file.read([column]), file.take([1], [column])]
            if column in ("id", "word"):
                questions.append(file.lookup({column: table[column][1].as_py()}, []))
            for question in questions:
                if column == "stamp" and plain:
                    plain.append(column)
                if column in plain:
                    await question
                    continue
                with pytest.raises(asyncpq.UnsupportedFeatureError, match="encrypted") as caught:
                    await question
                assert caught.value.column is not None
                assert caught.value.column.split(".")[0] == column
                assert caught.value.url == str(path)
        if plain:
            found = await file.read(["id", "nested"], col("id").between(250, 350))
            assert found.equals(table.select(["id", "nested"]).slice(250, 101))


async def test_wrong_keys(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for properties in (direct(), direct(plaintext_footer=True)):
        path.write_bytes(write(table, properties))
        wrong = pe.create_decryption_properties(footer_key=OTHER_KEY)
        with pytest.raises(asyncpq.CorruptFileError, match="decryption_properties") as caught:
            async with asyncpq.open_file(path, decryption_properties=wrong):
                pass
        assert caught.value.url == str(path)


async def test_plain_files_with_keys(table: pa.Table, tmp_path: Path) -> None:
    """As in pyarrow: refused, since somebody may have put it in the encrypted one's place, unless allowed."""
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, None))
    with pytest.raises(asyncpq.InvalidOptionError, match="allow_plaintext_files=True") as caught:
        async with asyncpq.open_file(path, decryption_properties=keys()):
            pass
    assert caught.value.url == str(path)
    allowed = pe.create_decryption_properties(footer_key=KEY, allow_plaintext_files=True)
    async with asyncpq.open_file(path, decryption_properties=allowed) as file:
        assert (await file.lookup({"id": 5})).equals(table.slice(5, 1))
        assert not any("encrypted" in reason for reason in file.metrics.fallbacks)


FAILURES: list[tuple[Exception, type[asyncpq.AsyncpqError]]] = [
    (PermissionError("no"), asyncpq.AccessDeniedError),
    (ConnectionError("no"), asyncpq.TransportError),
    (TimeoutError("no"), asyncpq.TransportError),
    (ValueError("no"), asyncpq.AsyncpqError),
    (KeyError("no"), asyncpq.AsyncpqError),
    (RuntimeError("no"), asyncpq.AsyncpqError),
    (FileNotFoundError("no"), asyncpq.AsyncpqError),
]


class FailingKms(Kms):
    """Raises ``failure`` once it is set."""

    failure: Exception | None = None

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        if FailingKms.failure is not None:
            raise FailingKms.failure
        return super().unwrap_key(wrapped_key, master_key_identifier)


@pytest.mark.parametrize(("failure", "kind"), FAILURES)
@pytest.mark.parametrize("opened", [False, True])
async def test_a_kms_client_that_fails(
    failure: Exception,
    kind: type[asyncpq.AsyncpqError],
    opened: bool,
    table: pa.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, by_kms(True, True)))
    properties = pe.CryptoFactory(FailingKms).file_decryption_properties(connection())
    if opened:  # keys are unwrapped once and kept: the column's fails first when it is asked for
        monkeypatch.setattr(FailingKms, "unwrap_key", _only_the_footer_s)
    monkeypatch.setattr(FailingKms, "failure", failure)
    async with asyncpq.Session() as session:
        with pytest.raises(kind, match="the KMS client failed") as caught:
            await (await session.open_file(path, decryption_properties=properties)).read(["word"])
    assert type(caught.value) is kind
    assert caught.value.__cause__ is failure
    assert caught.value.url == str(path)
    assert caught.value.column == ("word" if opened else None)


def _only_the_footer_s(client: FailingKms, wrapped_key: bytes, master_key_identifier: str) -> bytes:
    if master_key_identifier == "column" and client.failure is not None:
        raise client.failure
    return Kms.unwrap_key(client, wrapped_key, master_key_identifier)


async def test_a_column_key_under_an_encrypted_footer(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, by_kms(True, False)))
    async with asyncpq.open_file(path, decryption_properties=kms_keys()) as file:
        with pytest.raises(asyncpq.UnsupportedFeatureError, match="a key of its own") as caught:
            await file.read()
        assert caught.value.column == "word"
        assert "with pyarrow" in str(caught.value)
        assert "decryption_properties" not in str(caught.value)
        assert (await file.read(["id"])).equals(table.select(["id"]))


@pytest.mark.heavy
@pytest.mark.parametrize("plaintext_footer", [False, True])
async def test_changed_bytes_are_noticed(table: pa.Table, tmp_path: Path, plaintext_footer: bool) -> None:
    """What is not noticed is not used: a page index, a length that is known otherwise."""
    path = tmp_path / "x.parquet"
    good = write(table, direct(plaintext_footer=plaintext_footer))
    rng = random.Random(0)
    noticed = 0
    for at in (4, 40, 1000, len(good) - 100, *rng.sample(range(len(good)), 60)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :])
        try:
            async with asyncpq.open_file(path, decryption_properties=keys()) as file:
                assert (await file.read()).equals(table)
        except asyncpq.FormatError as error:
            noticed += error.url == str(path)
    assert noticed > 30


async def test_what_was_read_with_keys_is_not_shared(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, direct()))
    async with asyncpq.Session() as session:
        file = await session.open_file(path, decryption_properties=keys())
        await file.read()
        with pytest.raises(asyncpq.UnsupportedFeatureError):
            await session.open_file(path)
        with pytest.raises(asyncpq.CorruptFileError):
            await session.open_file(path, decryption_properties=pe.create_decryption_properties(footer_key=OTHER_KEY))


@pytest.mark.parametrize("values", [["y" * 1000] * 300, [str(row) * 200 for row in range(300)]])
async def test_limits(values: list[str], tmp_path: Path) -> None:
    """Of what comes out, and before that of what the footer says."""
    path = tmp_path / "x.parquet"
    path.write_bytes(write(pa.table({"x": values}), direct()))
    limits = asyncpq.LimitOptions(max_decoded_bytes=100_000)
    async with asyncpq.open_file(path, decryption_properties=keys(), limits=limits) as file:
        with pytest.raises(asyncpq.ResourceLimitError, match="max_decoded_bytes"):
            await file.read()


async def test_many_nulls_are_refused_before_they_are_decrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(pa.table({"x": pa.nulls(300, pa.int64())}), direct()))
    monkeypatch.delattr(FileDecryption, "read")
    limits = asyncpq.LimitOptions(max_decoded_bytes=1_000)
    async with asyncpq.open_file(path, decryption_properties=keys(), limits=limits) as file:
        with pytest.raises(asyncpq.ResourceLimitError, match="max_decoded_bytes"):
            await file.read()


async def test_what_are_no_keys() -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match="decryption_properties"):
        async with asyncpq.open_file("x.parquet", decryption_properties=b"secret"):
            pass


def test_blocking(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(table, direct()))
    with asyncpq.blocking.Session() as session:
        file = session.open_file(path, decryption_properties=keys())
        assert file.read().equals(table)


@given(data=st.data())
def test_sparse_files(data: st.DataObject) -> None:
    whole = bytes(range(1, 101))
    edges = sorted(data.draw(st.sets(st.integers(0, 100), max_size=8)))
    pieces = [(start, whole[start:stop]) for start, stop in zip(edges[::2], edges[1::2], strict=False)]
    there = bytearray(100)
    for start, piece in pieces:
        there[start : start + len(piece)] = piece
    file = SparseFile(100, data.draw(st.permutations(pieces)))
    start, size = data.draw(st.integers(0, 110)), data.draw(st.integers(-1, 120))
    assert file.seek(start) == start
    stop = 100 if size < 0 else start + size
    assert file.read(size) == there[start:stop]
    assert file.tell() == max(start, min(100, stop)) if size else file.tell() == start
    assert file.seek(-10, io.SEEK_END) == 90


@requires_corpus
async def test_uniform_encryption_of_other_writers() -> None:
    path = DATA / "uniform_encryption.parquet.encrypted"
    async with asyncpq.open_file(path, decryption_properties=keys()) as file:
        assert (await file.read()).equals(pq.read_table(path, decryption_properties=keys()))


COLUMN_KEYS = [
    "encrypt_columns_and_footer.parquet.encrypted",
    "encrypt_columns_and_footer_aad.parquet.encrypted",
    "encrypt_columns_and_footer_ctr.parquet.encrypted",
    "encrypt_columns_plaintext_footer.parquet.encrypted",
]


@requires_corpus
@pytest.mark.parametrize("name", COLUMN_KEYS)
async def test_columns_of_other_keys(name: str) -> None:
    """The footer's key alone: columns that are not encrypted, or with this key, are read."""
    plain = pq.read_table(DATA / "uniform_encryption.parquet.encrypted", decryption_properties=keys())
    async with asyncpq.open_file(DATA / name, decryption_properties=keys()) as file:
        for column in file.schema.names:
            if column in ("float_field", "double_field"):
                with pytest.raises((asyncpq.UnsupportedFeatureError, asyncpq.CorruptFileError)) as caught:
                    await file.read([column])
                assert caught.value.column == column
            else:
                assert (await file.read([column])).column(0).equals(plain[column])
