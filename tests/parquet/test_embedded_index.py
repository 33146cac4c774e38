"""Indexes inside of Parquet files: what was embedded comes back, the rows and all else of the footer stay."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.errors import CorruptIndexError
from asyncpq.parquet.embedded_index import KEY_PREFIX, EmbeddedIndex, EmbeddedIndexEntry, check_place, chunk_spans
from asyncpq.parquet.metadata import decode_file_metadata, set_key_values
from asyncpq.parquet.thrift import DEFAULT_MAX_ELEMENTS
from tests.fuzz import thrift_trees
from tests.indexing.embedded_files import BASE, added, chunks_of, embedded, texts
from tests.parquet.test_thrift import structs, written
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import EditedFile, Items, Struct
from tests.reads import ask


@given(structs, st.dictionaries(texts, texts, max_size=3), st.binary(max_size=5))
def test_all_else_of_a_footer_stays(fields: dict[int, Any], keys: dict[str, str], rest: bytes) -> None:
    """Of any struct, with fields that nobody knows yet, and of what stands behind it."""
    fields.pop(5, None)
    metadata = written(fields) + rest
    changed = set_key_values(metadata, keys, max_elements=DEFAULT_MAX_ELEMENTS)
    tree, end = thrift_trees.parse(changed)
    assert changed[end:] == rest
    assert {key.decode(): value.decode() for key, value in pairs(tree)} == keys
    tree.drop(5)
    expected = thrift_trees.parse(metadata)[0]
    assert sorted(tree.fields, key=lambda field: field.id) == sorted(expected.fields, key=lambda field: field.id)
    again = set_key_values(changed, {}, max_elements=DEFAULT_MAX_ELEMENTS)
    assert again == changed


def pairs(tree: thrift_trees.Struct) -> list[tuple[bytes, bytes]]:
    found = tree.get(5)
    if found is None:
        return []
    assert isinstance(found, thrift_trees.Items)
    return [(pair.get(1), pair.get(2)) for pair in found.values]  # type: ignore[misc, union-attr]


def test_keys_of_others_stay() -> None:
    """Also one without a value, one that is no UTF-8, and one that occurs twice."""
    table = pa.table({"x": [1]}).replace_schema_metadata({"theirs": "text"})
    edited = EditedFile.of(table)
    kept = edited.footer.value(5)
    kept.append(Struct({1: (8, b"no value")}))
    kept.append(Struct({1: (8, b"\xff"), 2: (8, b"\xfe"), 77: (6, 5)}))
    kept.extend([Struct({1: (8, b"twice"), 2: (8, value)}) for value in (b"1", b"2")])
    kept.extend([Struct({1: (8, KEY_PREFIX.encode() + b"a"), 2: (8, value)}) for value in (b"1", b"2")])
    data = added(edited.data(), [EmbeddedIndex(name="a", kind="", version=0, data=b"")])
    found = EditedFile(data).footer.value(5)
    assert found[:-1] == [pair for pair in kept if not pair.value(1).startswith(KEY_PREFIX.encode())]
    assert found[-1].value(1) == b"asyncpq.index.a"


# -- what lies ------------------------------------------------------------------------------------

COUNTS = st.sampled_from([0, 1, 3, 4, 5, 100, 2**31, 2**63, 2**64, 10**400])
members = st.fixed_dictionaries(
    {},
    optional={
        "offset": COUNTS | st.integers(-5, 3000),
        "length": COUNTS | st.integers(-5, 3000),
        "version": st.integers(-1, 1) | st.none() | st.booleans(),
        "kind": st.text(max_size=3) | st.none(),
        "sha256": st.sampled_from(["", "0" * 64, "x" * 64, hashlib.sha256().hexdigest()]) | st.none(),
    },
)
entries_ = st.one_of(
    members.map(json.dumps),
    st.text(max_size=20),
    st.sampled_from(["{}", "[]", "null", '{"offset": NaN}', '{"offset": ' + "9" * 5000 + "}"]),
    st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5).map(json.dumps),
)


def with_key(name: str, value: str | bytes) -> bytes:
    edited = EditedFile(BASE)
    text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    keys: Items = edited.footer.value(5)
    keys.append(Struct({1: (8, (KEY_PREFIX + name).encode()), 2: (8, text)}))
    return edited.data()


@pytest.mark.heavy
@given(entries_)
def test_hostile_keys(value: str) -> None:
    """Whatever stands there: an index whose bytes have the SHA-256, or an error that names file and hint."""
    data = with_key("bad", value)

    async def question(file: asyncpq.File) -> None:
        try:
            found = await file.embedded_index("bad")
        except CorruptIndexError as error:
            told = (error.url, bool(error.hint))
        else:
            assert found is not None
            assert found.data == b""  # the only digest above that some bytes have
            return
        assert told == (file.url, True)
        good = await file.embedded_index("good")
        assert good is not None
        assert good.data == b"good bytes"
        assert (await file.read())["x"].to_pylist() == list(range(300))

    ask(data, question)


FOOTER_START = len(BASE) - 8 - int.from_bytes(BASE[-8:-4], "little")
CHUNKS = chunks_of(BASE)
ENDS = {0, 4, FOOTER_START, len(BASE), *(end for chunk in CHUNKS for end in chunk)}
PLACES = st.integers(0, len(BASE)) | st.sampled_from(sorted({end + near for end in ENDS for near in (-1, 0, 1)} - {-1}))


@given(PLACES, PLACES | st.none())
def test_places(offset: int, stop: int | None) -> None:
    """Neither outside of the file's data nor in a column chunk, by every byte of it."""
    length = 1 if stop is None else max(0, stop - offset)
    metadata = decode_file_metadata(BASE[FOOTER_START:-8])
    spans = chunk_spans(metadata)
    entry = EmbeddedIndexEntry(name="a", kind="", version=0, offset=offset, length=length, sha256="0" * 64)
    taken = set[int]().union(*[range(start, stop) for start, stop in CHUNKS])
    wanted = range(offset, offset + length)
    try:
        check_place(entry, FOOTER_START, spans)
    except CorruptIndexError:
        assert offset < 4 or offset + length > FOOTER_START or not taken.isdisjoint(wanted)
    else:
        assert offset >= 4
        assert offset + length <= FOOTER_START
        assert taken.isdisjoint(wanted)


def test_deep_json() -> None:
    async def question(file: asyncpq.File) -> None:
        with pytest.raises(CorruptIndexError, match="is not JSON"):
            await file.embedded_index("deep")

    ask(with_key("deep", "[" * 100_000), question)


@given(st.integers(0, 9), st.integers(1, 255))
def test_a_changed_byte_is_noticed(at: int, change: int) -> None:
    start = BASE.index(b"good bytes")
    data = bytearray(BASE)
    data[start + at] ^= change

    async def question(file: asyncpq.File) -> None:
        for _ in range(2):  # nothing of it is kept
            with pytest.raises(CorruptIndexError, match="SHA-256") as caught:
                await file.embedded_index("good")
            assert caught.value.byte_range == (start, start + 10)
            assert caught.value.url == file.url

    ask(bytes(data), question)


def test_keys_that_a_rewrite_carried_along() -> None:
    """pyarrow gives a file's keys with its schema, and writes them into the next file: the bytes are not there."""
    table = pq.ParquetFile(pa.BufferReader(BASE)).read()
    data = parquet_bytes(table.slice(5, 100))

    async def stale(file: asyncpq.File) -> None:
        assert list(file.embedded_indexes) == ["good"]
        with pytest.raises(CorruptIndexError) as caught:
            await file.embedded_index("good")
        assert "embed the index again" in str(caught.value)

    ask(data, stale)

    async def dropped(file: asyncpq.File) -> None:
        assert file.embedded_indexes == {}

    ask(embedded(table, []), dropped)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"name": ""}, {"name": 1}, {"name": "\ud800"}, {"kind": None}, {"version": -1}, {"version": True}, {"data": "x"}],
)
def test_no_such_index(wrong: dict[str, Any]) -> None:
    with pytest.raises(asyncpq.InvalidOptionError):
        EmbeddedIndex(**{"name": "a", "kind": "k", "version": 0, "data": b"", **wrong})
