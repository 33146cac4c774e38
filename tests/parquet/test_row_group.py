"""Row groups: their chunks are found with little work, and decoded at the first use."""

from __future__ import annotations

import io
import itertools
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError
from asyncpq.parquet import row_group
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.parquet.row_group import AlikeChunks, chunk_pattern
from tests.costs import python_calls
from tests.parquet.footers import footer
from tests.parquet.test_mutations import chunks, mutated
from tests.parquet_samples import metadata_of, sample


def test_chunks_are_parsed_once_when_asked_for() -> None:
    metadata = metadata_of(sample("flat_row_groups"))
    before = metadata.weight
    assert before > len(metadata.data)
    chunk = metadata.row_groups[2].chunk(3)
    after = metadata.weight
    assert after > before
    assert metadata.row_groups[2].chunk(3) is chunk
    assert metadata.weight == after
    for ordinal in (-1, len(metadata.schema.leaves)):
        with pytest.raises(IndexError):
            metadata.row_groups[0].chunk(ordinal)


def test_row_groups_whose_chunks_deny_their_rows_do_not_correct_the_footer() -> None:
    with pytest.raises(CorruptFileError, match="says 6 rows, but its row groups have 7"):
        decode_file_metadata(footer(rows=6, num_values=2))


def test_ten_thousand_columns_are_found_with_little_work() -> None:
    data = footer(columns=10_000, group_rows=(7,))
    decode_file_metadata(footer(columns=400, group_rows=(7,)))  # the pattern is compiled for so many chunks

    def last_of_many() -> None:
        metadata = decode_file_metadata(data)
        assert len(metadata.schema.leaves) == 10_000
        assert metadata.row_groups[0].chunk(9_999).path == ("c9999",)

    # 22 a column, for the schema; parsing a chunk takes 420, and walking over it without the pattern many.
    assert python_calls(last_of_many) < 300_000


def written_footer(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_index=True)
    stored = sink.getvalue()
    return stored[-8 - int.from_bytes(stored[-8:-4], "little") : -8]


def structs(table: pa.Table) -> list[bytes]:
    """The ColumnChunk structs of the only row group."""
    data = written_footer(table)
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


def test_a_struct_that_ends_elsewhere_is_an_error() -> None:
    (chunk,) = structs(pa.table({"a": [1]}))
    with pytest.raises(ValueError, match="ends at byte"):
        AlikeChunks().learn(chunk + b"\0", 0, len(chunk) + 1)


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
    columns = [[number] if number % 2 == 0 else [f"{number}"] for number in range(600)]
    data = written_footer(pa.table(columns, schema=schema))
    usual = chunk_pattern()
    with mock.patch.object(row_group, "_MANY_CHUNKS", 1 << 60):
        expected = decode_file_metadata(data).row_groups[0].starts
    with mock.patch.object(row_group, "chunk_pattern") as pattern:
        pattern.return_value.match.side_effect = usual.match
        assert decode_file_metadata(data).row_groups[0].starts == expected
    assert pattern.return_value.match.call_count < 40
