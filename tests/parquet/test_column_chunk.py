"""Column chunks: contradictions, advisory statements, and where their pages may lie."""

from __future__ import annotations

from typing import Any

import pytest

from asyncpq.errors import CorruptFileError, FormatError, UnsupportedFeatureError
from asyncpq.parquet.column_chunk import validate_chunk
from asyncpq.parquet.metadata import decode_file_metadata
from tests.parquet.footers import footer


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"type": 1}, CorruptFileError, "physical type 1"),
        ({"type": 99}, CorruptFileError, "physical type 99"),
        ({"type": None}, CorruptFileError, "type is missing"),
        ({"num_values": -1}, CorruptFileError, "num_values"),
        ({"total_compressed_size": -1}, CorruptFileError, "total_compressed_size"),
        ({"data_page_offset": -4}, CorruptFileError, "data_page_offset"),
        ({"data_page_offset": None}, CorruptFileError, "data_page_offset is missing"),
        ({"has_metadata": False}, CorruptFileError, "no metadata"),
        ({"has_metadata": False, "has_crypto": True}, UnsupportedFeatureError, "encrypted"),
    ],
)
def test_contradictions_in_a_chunk(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    metadata = decode_file_metadata(footer(**changes))  # which does not look
    with pytest.raises(error, match=words) as caught:
        metadata.row_groups[0].chunk(0)
    assert isinstance(caught.value, FormatError)
    assert caught.value.column == "c0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": b"other"}, "names the column 'other'"),
        ({"path": b"\xff"}, "names the column"),
        ({"num_values": 8}, "8 values in a row group of 3 rows"),
    ],
)
def test_what_a_chunk_says_in_vain(changes: dict[str, Any], words: str) -> None:
    """Its place says which column it is, and the row group how many values a leaf that is not repeated has."""
    chunk = decode_file_metadata(footer(**changes)).row_groups[0].chunk(0)
    (what,) = chunk.dropped
    assert words in what
    assert chunk.num_values == 3
    assert decode_file_metadata(footer()).row_groups[0].chunk(0).dropped == ()


@pytest.mark.parametrize("size", [None, -1, 0])
def test_an_uncompressed_size_that_cannot_be(size: int | None) -> None:
    chunk = decode_file_metadata(footer(total_uncompressed_size=size)).row_groups[0].chunk(0)
    assert chunk.total_uncompressed_size == 0


@pytest.mark.parametrize(
    ("dictionary", "data", "start"), [(None, 50, 50), (0, 50, 50), (4, 50, 4), (50, 50, 50), (60, 50, 50), (-1, 50, 50)]
)
def test_where_a_chunk_starts(dictionary: int | None, data: int, start: int) -> None:
    metadata = decode_file_metadata(footer(dictionary_page_offset=dictionary, data_page_offset=data))
    chunk = metadata.row_groups[0].chunk(0)
    assert (chunk.start, chunk.stop) == (start, start + 100)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"data_page_offset": 3}, CorruptFileError),
        ({"data_page_offset": 2**62}, CorruptFileError),
        ({"total_compressed_size": 197}, CorruptFileError),
        ({"total_compressed_size": 2**62}, CorruptFileError),
        ({"total_compressed_size": 0}, CorruptFileError),
        ({"dictionary_page_offset": 4, "data_page_offset": 104}, CorruptFileError),
        ({"file_path": b"http://elsewhere/x"}, UnsupportedFeatureError),
        ({"has_crypto": True}, UnsupportedFeatureError),
    ],
)
def test_chunks_outside_the_file(changes: dict[str, Any], error: type[Exception]) -> None:
    metadata = decode_file_metadata(footer(**changes))
    with pytest.raises(error) as caught:
        validate_chunk(metadata.row_groups[0].chunk(0), metadata.schema.leaves[0], 1000, 200)
    assert "elsewhere" not in str(caught.value)


@pytest.mark.parametrize("changes", [{}, {"data_page_offset": 100}, {"total_compressed_size": 196}])
def test_chunks_inside_the_file(changes: dict[str, Any]) -> None:
    metadata = decode_file_metadata(footer(**changes))
    validate_chunk(metadata.row_groups[0].chunk(0), metadata.schema.leaves[0], 1000, 200)


def test_chunks_without_values_may_be_anywhere() -> None:
    metadata = decode_file_metadata(footer(rows=0, group_rows=(0,), data_page_offset=0, total_compressed_size=14))
    validate_chunk(metadata.row_groups[0].chunk(0), metadata.schema.leaves[0], 1000, 200)
