"""Row groups: their chunks are found with little work, and decoded at the first use."""

from __future__ import annotations

import pytest

from asyncpq.errors import CorruptFileError
from asyncpq.parquet.metadata import decode_file_metadata
from tests.costs import python_calls
from tests.parquet.footers import footer
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
