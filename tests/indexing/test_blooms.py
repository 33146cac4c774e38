"""Bloom filters over keys: no false negatives, and about as many false positives as allowed."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.indexing import blooms
from asyncpq.indexing.blooms import key_hashes, make_bitset, may_hold
from asyncpq.indexing.index_model import file_key
from asyncpq.indexing.key_encoding import normalised
from asyncpq.parquet.bloom_filter import block_mask, block_of, xxh64
from tests.indexing.value_rows import BATCH_ENDS, FILE, collected_rows, value_table
from tests.predicates import COLUMNS, KINDS, array, arrays


@given(st.data(), st.lists(KINDS, min_size=1, max_size=2), BATCH_ENDS)
def test_blooms_hold_all_keys(data: st.DataObject, kinds: list[str], cuts: list[int]) -> None:
    kind = kinds[0]
    type_ = COLUMNS[kind][0]
    values = data.draw(arrays(kind))
    column = array(kind, values)
    table = collected_rows(value_table("bloom", fpp=0.01), [column], [type_], cuts)
    bitsets = dict(zip(table["key"].to_pylist(), table["payload"].to_pylist(), strict=True))
    ends = sorted({0, *(min(cut, len(values)) for cut in cuts), len(values)})
    assert list(bitsets) == [file_key(FILE, group) for group in range(-1, len(ends) - 1)]
    keys = normalised(column, type_).to_pylist()
    assert all(may_hold(bitsets[file_key(FILE, -1)], key) for key in keys)
    for group, (start, stop) in enumerate(pairwise(ends)):
        assert all(may_hold(bitsets[file_key(FILE, group)], key) for key in keys[start:stop])


def test_bits_of_a_bloom_filter_are_those_of_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the specification has them, for keys of many lengths, in several windows."""
    monkeypatch.setattr(blooms, "_WINDOW_BLOCKS", 32)
    monkeypatch.setattr(blooms, "_CHUNK_ROWS", 100)
    values = [f"{at}" * (at % 9) for at in range(3000)]
    keys = pc.unique(normalised(pa.array(values), pa.string()))
    hashes = sorted(map(xxh64, keys.to_pylist()))
    assert sorted(key_hashes(keys).to_pylist()) == hashes
    bitset = make_bitset(key_hashes(keys), 1e-6)
    blocks = [0] * (len(bitset) // 32)
    for hash_ in hashes:
        blocks[block_of(hash_, len(blocks))] |= block_mask(hash_)
    assert bitset == b"".join(block.to_bytes(32, "little") for block in blocks)


@pytest.mark.parametrize("fpp", [0.5, 0.1, 0.01])
def test_bloom_filters_take_about_as_many_others_for_their_own_as_they_may(fpp: float) -> None:
    held = normalised(pa.array(range(4000)), pa.int64())
    bitset = make_bitset(key_hashes(held), fpp)
    others = normalised(pa.array(range(4000, 8000)), pa.int64()).to_pylist()
    assert all(may_hold(bitset, key) for key in held.to_pylist())
    assert sum(may_hold(bitset, key) for key in others) < 2 * fpp * len(others)
