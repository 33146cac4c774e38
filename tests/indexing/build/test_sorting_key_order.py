"""The order of keys against that of Python's bytes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.indexing.build.sorting import key_order
from asyncpq.indexing.index_model import NAN_KEY, NULL_KEY, VALUE_TAG
from asyncpq.indexing.key_encoding import integer_key


@given(
    keys=st.lists(
        st.sampled_from([NULL_KEY, NAN_KEY, VALUE_TAG + b"\xff" * 8, VALUE_TAG + bytes(8), VALUE_TAG + b"text"])
        | st.integers(-(2**63), 2**63 - 1).map(lambda value: integer_key(value, 8, signed=True)),
        max_size=30,
    )
    | st.lists(
        st.integers(-3, 3).map(lambda value: integer_key(value, 8, signed=True)) | st.just(NAN_KEY + bytes(8)),
        max_size=30,
    ),
    data=st.data(),
)
def test_the_order_of_keys_is_that_of_their_bytes(keys: list[bytes], data: st.DataObject) -> None:
    then = data.draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys)))
    last = data.draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys)))
    if data.draw(st.booleans()):
        pairs = sorted(zip(then, last, strict=True))
        then, last = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    array = pa.array(keys, pa.binary())
    positions = range(len(keys))
    assert key_order(array).to_pylist() == sorted(positions, key=lambda at: keys[at])
    assert key_order(array, pa.array(then, pa.int64())).to_pylist() == sorted(
        positions, key=lambda at: (keys[at], then[at])
    )
    assert key_order(array, pa.array(then, pa.int64()), pa.array(last, pa.int64())).to_pylist() == sorted(
        positions, key=lambda at: (keys[at], then[at], last[at])
    )


@pytest.mark.heavy
@given(
    seed=st.integers(0, 2**32),
    number=st.sampled_from([4095, 4096, 5000, 33_000, 70_000]),
    bits=st.sampled_from([0, 1, 11, 12, 13, 24, 31, 48, 64]),
    outliers=st.booleans(),
    run=st.sampled_from([1, 3, 900, 20_000]),
    text=st.booleans(),
)
def test_many_keys_are_in_order(seed: int, number: int, bits: int, outliers: bool, run: int, text: bool) -> None:
    rng = random.Random(seed)
    values = [rng.getrandbits(bits) - (1 << 63) if bits else 5 for _ in range(number)]
    if outliers:
        values[rng.randrange(number)] = (1 << 63) - 1
        values[rng.randrange(number)] = -(1 << 63)
    for start in range(0, number, run):
        values[start : start + run] = sorted(values[start : start + run])
    keys = [integer_key(value, 8, signed=True) for value in values]
    if text:
        keys = [VALUE_TAG + b"%d" % value for value in values]
    array = pa.array([VALUE_TAG, *keys], pa.binary()).slice(1)
    wanted = sorted(range(number), key=lambda at: keys[at])
    assert key_order(array).to_pylist() == wanted
    file, row = [rng.randrange(4) for _ in range(number)], [rng.randrange(1 << 40) for _ in range(number)]
    wanted.sort(key=lambda at: (keys[at], file[at]))
    assert key_order(array, pa.array(file)).to_pylist() == wanted
    wanted.sort(key=lambda at: (keys[at], file[at], row[at]))
    assert key_order(array, pa.array(file, pa.int32()), pa.array(row)).to_pylist() == wanted
