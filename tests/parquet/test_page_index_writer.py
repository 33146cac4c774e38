"""Page indexes that are written read back as they were, and footers taken apart go together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError
from asyncpq.parquet.metadata import decode_file_metadata, join_pieces, leaf_pieces, shared_pieces
from asyncpq.parquet.page_index import (
    BoundaryOrder,
    ColumnIndex,
    OffsetIndex,
    decode_column_index,
    decode_offset_index,
    encode_column_index,
    encode_offset_index,
)
from asyncpq.parquet.row_group import UnknownLeafError
from tests.parquet_files import metadata_of
from tests.random_tables import NestedFile, nested_files

_numbers = st.integers(0, 2**62)


@given(pages=st.lists(st.tuples(_numbers, st.integers(0, 2**31 - 1), _numbers), max_size=40))
def test_offset_indexes_read_back(pages: list[tuple[int, int, int]]) -> None:
    index = OffsetIndex(*(tuple([page[part] for page in pages]) for part in range(3)))
    found = decode_offset_index(encode_offset_index(index))
    assert (found.offsets, found.sizes, found.first_rows) == (index.offsets, index.sizes, index.first_rows)


@given(
    pages=st.lists(st.tuples(st.booleans(), st.binary(max_size=200), st.binary(max_size=9), _numbers), max_size=40),
    order=st.sampled_from(BoundaryOrder),
    nulls=st.booleans(),
    nans=st.booleans(),
)
def test_column_indexes_read_back(
    pages: list[tuple[bool, bytes, bytes, int]], order: BoundaryOrder, nulls: bool, nans: bool
) -> None:
    counts = [page[3] + 1 for page in pages]
    index = ColumnIndex(
        [page[0] for page in pages],
        [page[1] for page in pages],
        [page[2] for page in pages],
        order,
        counts if nulls else None,
        counts if nans else None,
    )
    found = decode_column_index(encode_column_index(index))
    for name in ColumnIndex.__slots__:
        assert getattr(found, name) == getattr(index, name), name


@given(file=nested_files(), data=st.data())
def test_footers_go_together_again(file: NestedFile, data: st.DataObject) -> None:
    metadata = metadata_of(file.data)
    leaves = range(len(metadata.schema.leaves))
    shared = shared_pieces(metadata)
    pieces = {leaf: leaf_pieces(metadata, leaf) for leaf in leaves}
    assert join_pieces(shared, pieces, len(leaves)) == metadata.data
    some = data.draw(st.sets(st.sampled_from(leaves)))
    partial = decode_file_metadata(join_pieces(shared, {leaf: pieces[leaf] for leaf in some}, len(leaves)))
    assert [leaf.path for leaf in partial.schema.leaves] == [leaf.path for leaf in metadata.schema.leaves]
    assert partial.key_value_metadata == metadata.key_value_metadata
    for group, whole in zip(partial.row_groups, metadata.row_groups, strict=True):
        assert (group.num_rows, group.first_row) == (whole.num_rows, whole.first_row)
        for leaf in leaves:
            if leaf in some:
                found, wanted = group.chunk(leaf), whole.chunk(leaf)
                assert found._replace(raw_start=0, raw_stop=0) == wanted._replace(raw_start=0, raw_stop=0)
            else:
                with pytest.raises(UnknownLeafError):
                    group.chunk(leaf)


def test_pieces_of_two_footers_are_refused() -> None:
    for leaves in ({0: [b""]}, {2: [b"", b""]}):
        with pytest.raises(CorruptFileError):
            join_pieces([b"a", b"b", b"c"], leaves, 2)
