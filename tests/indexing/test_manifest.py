"""Manifests of indexes: what is written is what is read, whatever it holds; small, and never damaged unnoticed."""

from __future__ import annotations

import base64
import json
import random
import time
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptIndexError, UnsupportedFeatureError
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.commits import commit, load
from asyncpq.indexing.index_model import BY_VALUE, TABLE_SCHEMAS, IndexTable, Segment
from asyncpq.indexing.manifest import (
    FILES,
    LONG,
    ROOT_BYTES,
    Build,
    Manifest,
    decode,
    encode,
    encode_long,
    long_members,
)
from asyncpq.pruning.row_ranges import RowRanges

_TEXT = st.text(max_size=8)
_NAMES = st.text("abcdefghij0123456789-", min_size=1, max_size=20)
_COUNTS = st.integers(0, 1 << 40)
_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
_TYPES = st.sampled_from(
    [pa.int64(), pa.string(), pa.decimal128(20, 3), pa.timestamp("us", "UTC"), pa.list_(pa.struct([("a", pa.int8())]))]
)
_OPTIONS = st.integers(0, 10) | st.floats(0, 1) | _TEXT | st.tuples(st.integers(0, 3), _TEXT)


def _ranges(stop: int) -> st.SearchStrategy[RowRanges]:
    return st.lists(st.tuples(st.integers(0, stop), st.integers(0, stop)), max_size=6).map(RowRanges)


@st.composite
def _parts(draw: st.DrawFn) -> IndexTable:
    kind = draw(st.sampled_from(sorted(TABLE_SCHEMAS)))
    least = int(kind in BY_VALUE or kind == "bloom")
    columns = draw(st.lists(_TEXT, min_size=least, max_size=2 if kind == "keys" else least))
    options = draw(st.lists(st.tuples(_TEXT, _OPTIONS), max_size=2, unique_by=lambda option: option[0]))
    n = [("n", draw(st.integers(1, 8)))] if kind == "ngram" else []
    return IndexTable(kind, tuple(columns), (*(option for option in options if option[0] != "n"), *n))


@st.composite
def _segments(draw: st.DrawFn, parts: tuple[IndexTable, ...], next_file: int) -> Segment:
    return Segment(
        name=draw(_NAMES),
        table=draw(st.sampled_from(parts)),
        num_rows=draw(_COUNTS),
        size=draw(_COUNTS),
        low=draw(st.binary(max_size=12)),
        high=draw(st.binary(max_size=12)),
        files=tuple(draw(_ranges(next_file))),
        has_unknown=draw(st.booleans()),
        extra=draw(st.dictionaries(_TEXT, _JSON, max_size=2)),
    )


@st.composite
def _manifests(draw: st.DrawFn) -> Manifest:
    parts = (FILES, *draw(st.lists(_parts(), max_size=3, unique=True)))
    next_file = draw(st.integers(0, 1 << 40))
    return Manifest(
        index=draw(_NAMES),
        snapshot=draw(st.integers(1, 1 << 40)),
        commit=draw(_NAMES),
        created=draw(_TIMES),
        as_of=draw(st.none() | _TIMES),
        root=draw(_TEXT),
        dataset=draw(st.dictionaries(_TEXT, _JSON, max_size=3)),
        schema=pa.schema([(name, draw(_TYPES)) for name in draw(st.lists(_TEXT, max_size=4, unique=True))]),
        partitions=tuple(draw(st.lists(_TEXT, max_size=2))),
        field_ids=tuple(draw(st.lists(st.tuples(_TEXT, st.integers(0, 1 << 30)), max_size=2))),
        tables=parts,
        segments=tuple(draw(st.lists(_segments(parts, next_file), max_size=3, unique_by=lambda segment: segment.name))),
        next_file=next_file,
        retired=draw(_ranges(next_file)),
        num_files=draw(_COUNTS),
        num_rows=draw(_COUNTS),
        builds=tuple(draw(st.lists(st.builds(Build, _NAMES, _ranges(next_file)), max_size=2))),
        long=tuple(
            (name, draw(_segments(parts, next_file))) for name in draw(st.lists(st.sampled_from(LONG), unique=True))
        ),
    )


@given(_manifests())
def test_what_is_written_is_what_is_read(manifest: Manifest) -> None:
    content = encode(manifest)
    long = {name: encode_long(manifest, name) for name in long_members(content)}
    assert long.keys() == dict(manifest.long).keys()
    assert decode(content, long) == manifest
    assert encode(decode(content, long)) == content


@given(_manifests(), st.data())
def test_a_damaged_one_is_noticed(manifest: Manifest, data: st.DataObject) -> None:
    content = encode(manifest)
    long = {name: encode_long(manifest, name) for name in long_members(content)}
    at = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if kind == "flip":
        damaged = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    elif kind == "cut":
        damaged = content[:at]
    else:
        damaged = content[:at] + b"7" + content[at:]
    try:
        read = decode(damaged, long)
    except (CorruptIndexError, UnsupportedFeatureError):
        return
    assert read == manifest  # e.g. a space where JSON allows one


def test_members_of_later_versions_are_ignored() -> None:
    manifest = _small()
    record = json.loads(encode(manifest))
    del record["crc32"]
    record["something_new"] = {"a": [1, 2]}
    body = json.dumps(record).encode()[:-1]
    assert decode(body + b',"crc32":%d}' % zlib.crc32(body)) == manifest


def test_segments_of_one_build_say_their_files_once() -> None:
    """Many files were replaced one by one, and the rest merged to many segments."""
    holes = RowRanges.from_rows(sorted(random.Random(1).sample(range(100_000), 3000)))
    files, others = tuple(holes.complement(100_000)), ((100_000, 100_001),)
    segments = [
        Segment(name=f"{at}", table=FILES, num_rows=1, size=1, low=b"", high=b"", files=others if at == 5 else files)
        for at in range(70)
    ]
    manifest = _small(segments=tuple(segments), retired=holes, next_file=100_001)
    content = encode(manifest)
    assert len(content) < 40_000
    found = decode(content)
    assert found == manifest
    assert len({id(segment.files) for segment in found.segments}) == 2  # what is shared is looked at once
    assert encode(found) == content
    assert found.covered(FILES) == found.live
    body = content.replace(b'"files":0', b'"files":70').rpartition(b',"crc32":')[0]
    with pytest.raises(CorruptIndexError, match="damaged"):
        decode(body + b',"crc32":%d}' % zlib.crc32(body))


def test_later_formats_are_refused() -> None:
    content = encode(_small()).replace(b'"asyncpq_index":1', b'"asyncpq_index":2')
    with pytest.raises(UnsupportedFeatureError, match="format 2"):
        decode(content, url="s3://b/i/")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'"x"', b"\xff", b"[" * 100_000], ids=range(6))
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptIndexError, match="s3://b/i/"):
        decode(content, url="s3://b/i/")


@pytest.mark.heavy
async def test_roots_stay_small() -> None:
    """100,000 files, of which many were replaced one by one, in parts that were never merged, of a wide dataset."""
    randomness, backend = random.Random(1), MemoryBackend()
    retired = RowRanges.from_rows(file for file in range(150_000) if randomness.random() < 1 / 3)
    parts = (FILES, *(IndexTable("bounds", (f"column_{at}",)) for at in range(60)))
    segments = [
        Segment(name=f"{number:032x}-{at:016x}", table=part, num_rows=100_000, size=1 << 20, low=b"\x01" + bytes(64),
                high=b"\x01" + b"\xff" * 64, files=((at * 18_000, at * 18_000 + 18_000),), extra={"size": 1 << 20})
        for number, part in enumerate(parts) for at in range(8)
    ]  # fmt: skip
    schema = pa.schema([(f"column_{at}", pa.int64()) for at in range(5_000)])
    dataset = {"kind": "files", "target": [f"s3://b/lake/{file}.parquet" for file in range(100_000)]}
    manifest = _small(
        tables=parts, segments=tuple(segments), schema=schema, retired=retired, next_file=150_000, dataset=dataset
    )

    async def first(newest: Manifest | None) -> Manifest:
        return manifest

    written = await commit(backend, None, first, "build")
    content = await backend.manifest(1)
    assert content is not None
    assert len(content) <= ROOT_BYTES
    assert written is not None
    assert written.long
    found = await load(backend)
    assert found == written
    assert (found.segments, found.schema, found.retired) == (tuple(segments), schema, retired)
    assert found.dataset == dataset

    async def second(newest: Manifest | None) -> Manifest:
        assert newest is not None
        return replace(newest, num_rows=5)

    following = await commit(backend, found, second, "build")
    assert following is not None
    assert following.long == written.long  # what is as it was is not written again
    assert await load(backend) == following


def test_usual_roots_hold_everything() -> None:
    """100,000 files of 20 columns, as compaction leaves them."""
    parts = (FILES, *(IndexTable("bounds", (f"column_{at}",)) for at in range(20)), IndexTable("keys", ("column_1",)))
    segments = [
        Segment(name=f"{number:032x}-{at:016x}", table=part, num_rows=100_000, size=1 << 20, low=bytes(9),
                high=bytes(9), files=((0, 100_000),))
        for number, part in enumerate(parts) for at in range(4)
    ]  # fmt: skip
    schema = pa.schema([(f"column_{at}", pa.int64()) for at in range(20)])
    manifest = _small(tables=parts, segments=tuple(segments), schema=schema, next_file=100_000)
    assert len(encode(manifest)) <= ROOT_BYTES


def _small(**members: Any) -> Manifest:
    known: dict[str, Any] = {
        "index": "i",
        "snapshot": 1,
        "commit": "c",
        "created": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=1),
        "root": "s3://b/lake/",
        "schema": pa.schema([("a", pa.int64())]),
        "tables": (FILES,),
    }
    return Manifest(**(known | members))


# -- manifests that ask too much -------------------------------------------------------------------


def _changed(**members: Any) -> bytes:
    """A small manifest, whose JSON has other members and the right checksum."""
    record = json.loads(encode(_small(segments=(_segment(),), next_file=9)))
    del record["crc32"]
    body = json.dumps(record | members).encode()[:-1]
    return body + b',"crc32":%d}' % zlib.crc32(body)


def _segment(**members: Any) -> Segment:
    known: dict[str, Any] = {"name": "a-1", "table": FILES, "num_rows": 1, "size": 100, "low": b"", "high": b""}
    return Segment(**(known | {"files": ((0, 9),)} | members))


def _record(**members: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(encode(_small(segments=(_segment(),), next_file=9)))["segments"][0]
    return record | members


def _ids(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"retired": _ids(b"\x80" * 9 + b"\x01\x01")}, "more than 9 bytes"),
        ({"retired": _ids(b"\xff" * 500_000)}, "more than 9 bytes"),
        ({"retired": _ids(b"\xff" * 8 + b"\x7f\x01")}, "never assigned"),
        ({"retired": _ids(b"\x01" * ((1 << 19) + 50_000)), "next_file": 1 << 40}, "its own bytes"),
        ({"retired": _ids(b"\x01" * 100_000)}, "never assigned"),
        ({"schema": _ids(bytes(2 << 20))}, "its own bytes"),
        ({"builds": [{"id": "b", "files": _ids(b"\x01" * (1 << 18))}] * 4, "next_file": 1 << 40}, "its own bytes"),
        ({"schema": _ids(b"")}, "damaged"),
        ({"snapshot": (1 << 63) - 1}, "greatest number"),
        ({"snapshot": 10**30}, "whole number"),
        ({"snapshot": True}, "whole number"),
        ({"next_file": 1 << 63}, "whole number"),
        ({"num_rows": -1}, "whole number"),
        ({"field_ids": [["a", float("inf")]]}, "whole number"),
        ({"segments": [_record(extra=None)]}, "not an object"),
        ({"segments": [_record(extra=[["tail", 1]])]}, "not an object"),
        ({"segments": [_record(extra={"tail": "x"})]}, "footer"),
        ({"segments": [_record(extra={"tail": 60, "packed": 60})]}, "footer"),
        ({"segments": [_record(extra={"tail": -1})]}, "footer"),
        ({"segments": [_record(extra={"whole": 5})]}, "expected a string"),
        ({"segments": [_record(extra={"directory": None})]}, "expected a string"),
        ({"segments": [_record(name="../../other/secret")]}, "not the name of a segment"),
        ({"segments": [_record(name="..")]}, "not the name of a segment"),
        ({"segments": [_record(name="x" * 201)]}, "xxx..."),
        ({"segments": [_record(), _record()]}, "two segments"),
        ({"segments": [_record(part={"kind": "ngram", "columns": ["a"], "options": [["n", 10**9]]})]}, "n=1000000000"),
        ({"segments": [_record(part={"kind": "ngram", "columns": ["a"], "options": []})]}, "n-grams"),
        ({"segments": [_record(part={"kind": "bounds", "columns": [], "options": []})]}, "0 columns"),
        (
            {"segments": [_record(part={"kind": "set", "columns": ["a"], "options": [["max_values", "x"]]})]},
            "max_values",
        ),
        ({"segments": [_record(part={"kind": "set", "columns": ["\ud800"], "options": []})]}, "surrogates"),
        ({"partitions": ["\ud800"]}, "surrogates"),
        ({"dataset": {"kind": "files"}}, "target"),
        ({"dataset": {"target": 5}}, "target"),
        ({"dataset": {"target": "s3://b/", "partitioning": 5}}, "partitioning"),
        ({"dataset": {"target": "s3://b/", "partitioning": "hive"}, "partitions": ["none"]}, "partition column"),
        ({"dataset": [["kind", "files"]]}, "not an object"),
        ({"created": "9" * 5000}, "damaged"),
    ],
)
def test_numbers_and_names_are_bounded(members: dict[str, Any], match: str) -> None:
    began = time.monotonic()
    with pytest.raises(CorruptIndexError, match=match) as caught:
        decode(_changed(**members))
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - began < 5  # an endless number took minutes


def test_numbers_at_their_bounds() -> None:
    assert decode(_changed(snapshot=(1 << 63) - 2)).snapshot == (1 << 63) - 2
    ids = RowRanges([(1, 5), ((1 << 63) - 2, (1 << 63) - 1)])
    assert decode(encode(_small(retired=ids, next_file=(1 << 63) - 1))).retired == ids


@pytest.mark.heavy
def test_sets_in_a_regular_order_are_read_again() -> None:
    """Every second file of two million was replaced: these ids deflate to a thousandth."""
    ids = RowRanges.from_parallel(range(1, 2_000_000, 2), range(2, 2_000_001, 2))
    assert decode(encode(_small(retired=ids, next_file=2_000_001))).retired == ids
