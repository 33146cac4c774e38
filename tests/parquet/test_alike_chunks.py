"""The forms of the chunks of wide files: they match chunks of the same fields and lengths, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import FormatError
from asyncpq.parquet import row_group
from asyncpq.parquet.alike_chunks import BLOCK, AlikeChunks, ChunkPositions
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.parquet.row_group import chunk_pattern
from asyncpq.parquet.thrift import CompactReader
from tests.parquet.test_mutations import chunks, mutated
from tests.parquet_bytes import parquet_bytes


def footer(table: pa.Table) -> bytes:
    stored = parquet_bytes(table, write_page_index=True)
    return stored[-8 - int.from_bytes(stored[-8:-4], "little") : -8]


def structs(table: pa.Table) -> list[bytes]:
    """The ColumnChunk structs of the only row group."""
    data = footer(table)
    starts = decode_file_metadata(data).row_groups[0].starts
    return [data[start:stop] for start, stop in itertools.pairwise(starts)]


def test_nothing_is_known_at_first() -> None:
    assert AlikeChunks().match is None


def test_a_form_matches_other_numbers_and_bytes_of_the_same_lengths() -> None:
    one, two, longer, text = structs(
        pa.table({"aa": pa.array([1]), "bb": pa.array([2**40]), "ccc": pa.array([3]), "dd": ["x"]})
    )
    alike = AlikeChunks()
    alike.learn(one, 0, len(one))
    assert alike.match is not None
    for chunk in (one, two):
        found = alike.match(b"before" + chunk + b"behind", 6)
        assert found is not None
        assert found.span() == (6, 6 + len(chunk))
    for chunk in (longer, text, one[:-1]):
        assert alike.match(chunk, 0) is None
    alike.learn(text, 0, len(text))
    assert all(alike.match(chunk, 0) is not None for chunk in (one, two, text))


def test_structs_that_no_chunk_has_are_not_learnt() -> None:
    (chunk,) = structs(pa.table({"a": [1]}))
    with_bools, with_a_long_header = b"\x19\x21\x01\x01\0", b"\x06\x50\x02\0"
    for struct in (chunk + b"\0", with_bools, with_a_long_header, b"\x17" + bytes(8) + b"\0"):
        alike = AlikeChunks()
        alike.learn(struct, 0, len(struct))
        assert alike.match is None


@given(st.data())
def test_a_form_ends_where_the_plain_skipper_does(data: st.DataObject) -> None:
    known, following = data.draw(st.sampled_from(chunks())), data.draw(st.sampled_from(chunks()))
    alike = AlikeChunks()
    learnt = data.draw(mutated(known))
    reader = CompactReader(learnt + following)
    with contextlib.suppress(FormatError):
        reader.skip_struct()
        alike.learn(reader.data, 0, reader.pos)
    changed = data.draw(mutated(learnt)) + following
    found = None if alike.match is None else alike.match(changed, 0)
    if found is not None:
        reader = CompactReader(changed)
        reader.skip_struct()
        assert found.end() == reader.pos


@given(st.data())
def test_a_form_matches_only_usual_chunks_and_ends_where_they_end(data: st.DataObject) -> None:
    known, following = data.draw(st.sampled_from(chunks())), data.draw(st.sampled_from(chunks()))
    if chunk_pattern().match(known) is None:
        return
    alike = AlikeChunks()
    alike.learn(known, 0, len(known))
    assert alike.match is not None
    for chunk in (known + following, following + known, data.draw(mutated(known)) + following):
        found, usual = alike.match(chunk, 0), chunk_pattern().match(chunk)
        assert found is not None or not chunk.startswith(known)
        if found is not None:
            assert usual is not None
            assert found.end() == usual.end()


def test_chunks_of_many_forms_are_not_looked_for() -> None:
    usual = [chunk for chunk in chunks() if chunk_pattern().match(chunk) is not None]
    alike = AlikeChunks()
    for number in range(40):
        chunk = usual[number % len(usual)]
        if alike.match is None or alike.match(chunk, 0) is None:
            alike.learn(chunk, 0, len(chunk))
    assert alike.match is None
    assert len(alike._forms) == 4


def test_wide_row_groups_are_walked_by_the_forms_of_their_chunks() -> None:
    schema = pa.schema([(f"column {number:04d}", [pa.int64(), pa.string()][number % 2]) for number in range(600)])
    data = footer(pa.table([[number] if number % 2 == 0 else [f"{number}"] for number in range(600)], schema=schema))
    with mock.patch.object(row_group, "_MANY_CHUNKS", 1 << 60):
        expected = list(decode_file_metadata(data).row_groups[0].starts)
    with mock.patch.object(CompactReader, "skip_struct", autospec=True, side_effect=CompactReader.skip_struct) as skip:
        starts = decode_file_metadata(data).row_groups[0].starts
        assert list(starts) == expected
    assert skip.call_count < 40
    assert [starts[at] for at in range(-len(expected), 0)] == expected
    assert starts[3:40:5] == expected[3:40:5]
    for beyond in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            starts[beyond]


def test_only_the_blocks_whose_chunks_are_used_are_walked() -> None:
    data = footer(pa.table({f"column {number:04d}": [number] for number in range(1000)}))
    starts = decode_file_metadata(data).row_groups[0].starts
    assert isinstance(starts, ChunkPositions)
    assert not starts._blocks
    assert starts[333] < starts[334]
    assert list(starts._blocks) == [333 // BLOCK]


@pytest.mark.parametrize("length", [500, 503, 512])
def test_the_walk_goes_on_where_a_chunk_of_another_form_stands(length: int) -> None:
    texts = {0, 17, 300, length - 1}
    table = pa.table({f"c{number:03d}": ["a"] if number in texts else [number] for number in range(length)})
    data = footer(table)
    with mock.patch.object(row_group, "_MANY_CHUNKS", 1 << 60):
        expected = list(decode_file_metadata(data).row_groups[0].starts)
    assert list(decode_file_metadata(data).row_groups[0].starts) == expected
