"""Keys of values keep their order, for every type; what an atom asks of keys holds those of all rows it is true of."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import Comparison, Contains, Expression, Has, In, IsNull, KeyIn, Like, StartsWith
from asyncpq.expressions.analysis import Truth
from asyncpq.indexing import key_encoding
from asyncpq.indexing import key_encoding as grams
from asyncpq.indexing.index_model import AFTER_ALL, NAN_KEY, NULL_KEY, file_key
from asyncpq.indexing.key_encoding import (
    bound_keys,
    composite,
    elements,
    float_key,
    integer_key,
    is_indexable,
    key_hashes,
    make_bitset,
    may_hold,
    needed_ngrams,
    ngrams,
    normalised,
    table_keys,
    text_key,
)
from asyncpq.indexing.query.key_ranges import Ranges, atom_ranges, composite_ranges
from asyncpq.parquet.bloom_filter import block_mask, block_of, xxh64
from tests.indexing.value_rows import BATCH_ENDS, FILE, collected_rows, value_table
from tests.predicates import COLUMNS, KINDS, array, arrays, atoms

_TRUTHS = {True: Truth.TRUE, False: Truth.FALSE, None: Truth.NULL}

# Beside the values that predicates are tested with: whole ranges, and strings about as long as prefixes of keys.
_LONG = st.sampled_from(["z" * 63, "z" * 64, "z" * 65, "z" * 64 + "\0", "z" * 63 + "a", "z" * 63 + "\U0010ffff"])
_DEEP_BYTES = st.binary(max_size=3) | st.binary(max_size=3).map(lambda tail: b"\xff" * 63 + tail)
_MORE: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-128, 127),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 255),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "string": st.text(max_size=5) | _LONG,
    "large_string": st.text(max_size=5) | _LONG,
    "dictionary": _LONG,
    "binary": _DEEP_BYTES,
    "fixed": st.binary(min_size=2, max_size=2),
    "decimal": st.decimals(-99999, 99999, places=2),
    "wide_decimal": st.decimals(-(10**20), 10**20, places=2),
}
_VALUES = {kind: COLUMNS[kind][1] | _MORE.get(kind, st.nothing()) for kind in COLUMNS}


def _order(value: Any) -> Any:
    """What Python orders values by, as the index should: null, values, NaN."""
    if value is None:
        return (0,)
    if value != value:
        return (2,)
    value = value.encode() if isinstance(value, str) else getattr(value, "bytes", value)
    return (1, value)


def _head(value: Any) -> Any:
    """Long strings of one prefix have keys in no order of their own."""
    order = _order(value)
    return (1, order[1][:64], len(order[1]) > 64) if len(order) > 1 and isinstance(order[1], bytes) else order


@given(st.data(), KINDS)
def test_order_of_keys_is_order_of_values(data: st.DataObject, kind: str) -> None:
    values = data.draw(st.lists(st.none() | _VALUES[kind], max_size=12))
    column = array(kind, values)
    keys = normalised(column, COLUMNS[kind][0])
    keys.validate(full=True)
    assert keys.type == pa.binary()
    assert keys.null_count == 0
    found = keys.to_pylist()
    assert normalised(column.slice(1), COLUMNS[kind][0]).to_pylist() == found[1:]
    for left, left_key in zip(values, found, strict=True):
        for right, right_key in zip(values, found, strict=True):
            assert (left_key == right_key) is (_order(left) == _order(right)), (left, right)
            if _head(left) < _head(right):
                assert left_key < right_key, (left, right)


@given(st.data(), KINDS)
def test_keys_of_bounds_enclose_keys_of_values(data: st.DataObject, kind: str) -> None:
    values = data.draw(st.lists(_VALUES[kind].filter(lambda value: value == value), min_size=1, max_size=12))
    type_ = COLUMNS[kind][0]
    values.sort(key=_order)
    column = array(kind, values)
    (low,) = bound_keys(column.slice(0, 1), type_, upper=False).to_pylist()
    (high,) = bound_keys(column.slice(len(values) - 1), type_, upper=True).to_pylist()
    assert all(low <= key <= high for key in normalised(column, type_).to_pylist())


def _holds(ranges: Ranges | None, key: bytes) -> bool:
    return ranges is None or any(key in range_ for range_ in ranges)


def _check(atom: Expression, column: pa.Array, keys: list[list[bytes]], type_: pa.DataType) -> None:
    """Each row's keys are in the ranges of the result that it has."""
    try:
        mask = compile_filter(atom, {"x": type_}).mask({"x": column}, len(column)).to_pylist()
    except PredicateTypeError:
        return
    ranges = {truth: atom_ranges(atom, truth, type_) for truth in Truth}  # type: ignore[arg-type]  # an atom
    for truth in Truth:
        found = ranges[truth]
        if found is not None:
            assert all(low < high for low, high in found if high is not None)
            assert all(one.high < other.low for one, other in pairwise(found) if one.high)
    for row, result in enumerate(mask):
        found = ranges[_TRUTHS[result]]
        assert found is None or any(_holds(found, key) for key in keys[row]), (atom, column[row], found)


@given(st.data(), KINDS)
def test_ranges_hold_the_keys_of_all_rows_with_that_result(data: st.DataObject, kind: str) -> None:
    type_ = COLUMNS[kind][0]
    values = data.draw(st.lists(st.none() | _VALUES[kind], max_size=12))
    atom = data.draw(atoms("x", kind, own=_VALUES[kind]))
    column = array(kind, values)
    _check(atom, column, [[key] for key in normalised(column, type_).to_pylist()], type_)


@given(st.data(), st.sampled_from(["string", "binary"]))
def test_ranges_of_text_predicates(data: st.DataObject, kind: str) -> None:
    values = data.draw(st.lists(st.none() | _VALUES[kind], max_size=12))
    text = data.draw(
        st.sampled_from(["", "a", "ab", "z" * 64, "z" * 65]).flatmap(lambda t: st.sampled_from([t, t + "%"]))
    )
    literal = text if kind == "string" else text.encode()
    atom = data.draw(st.sampled_from([Contains("x", literal), Like("x", literal)]))
    column = array(kind, values)
    _check(atom, column, [[key] for key in normalised(column, column.type).to_pylist()], column.type)


@given(st.data(), st.sampled_from(["int32", "float64", "string", "timestamp_us"]))
def test_ranges_of_lists(data: st.DataObject, kind: str) -> None:
    item, element = COLUMNS[kind]
    type_ = data.draw(st.sampled_from([pa.list_(item), pa.large_list(item), pa.list_(item, 2), pa.list_view(item)]))
    size = 2 if pa.types.is_fixed_size_list(type_) else None
    one = st.lists(st.none() | element, min_size=size or 0, max_size=size or 3)
    lists = data.draw(st.lists(st.none() | one, max_size=6))
    column = pa.array(lists, type_)
    start = data.draw(st.integers(0, len(lists)))
    column, lists = column.slice(start), lists[start:]
    inner, rows = elements(column)
    keys: list[list[bytes]] = [[] for _ in lists]
    for key, row in zip(normalised(inner, item).to_pylist(), rows.to_pylist(), strict=True):
        keys[row].append(key)
    expected = [[None] if value is None else value for value in lists]
    assert [sorted(found) for found in keys] == [
        sorted(normalised(pa.array(v, item), item).to_pylist()) for v in expected
    ]
    _check(data.draw(st.builds(Has, st.just("x"), element) | st.builds(IsNull, st.just("x"))), column, keys, type_)


@given(st.data(), st.lists(KINDS, min_size=2, max_size=3))
def test_composite_keys(data: st.DataObject, kinds: list[str]) -> None:
    number = data.draw(st.integers(1, 6))
    types = [COLUMNS[kind][0] for kind in kinds]
    columns = [
        array(kind, data.draw(st.lists(st.none() | _VALUES[kind], min_size=number, max_size=number))) for kind in kinds
    ]
    parts = [normalised(column, type_).to_pylist() for column, type_ in zip(columns, types, strict=True)]
    rows = list(zip(*parts, strict=True))
    keys = table_keys(columns, types).to_pylist()
    for left, left_key in zip(rows, keys, strict=True):
        for right, right_key in zip(rows, keys, strict=True):
            assert (left < right) is (left_key < right_key)
            assert (left == right) is (left_key == right_key)
    # All the keys that the columns' ranges take in, and for single keys before one range no others.
    asked = [
        atom_ranges(data.draw(atoms("x", kind)), Truth.TRUE, type_)  # type: ignore[arg-type]  # atoms
        for kind, type_ in zip(kinds, types, strict=True)
    ]
    ranges = composite_ranges(asked, types, data.draw(st.sampled_from([1, 2, 1000])))
    first = asked[0]
    for row, key in zip(rows, keys, strict=True):
        if all(_holds(found, part) for found, part in zip(asked, row, strict=True)):
            assert _holds(ranges, key)
        if ranges is not None and first is not None and len(first) == 1 and not _holds(first, row[0]):
            assert not _holds(ranges, key)


@pytest.mark.parametrize("kind", ["int64", "uint64", "float64", "string"])
def test_one_value_has_the_key_that_many_have(kind: str) -> None:
    type_ = COLUMNS[kind][0]
    values: dict[str, list[Any]] = {
        "int64": [-(2**63), -1, 0, 2**63 - 1],
        "uint64": [0, 1, 2**63, 2**64 - 1],
        "float64": [-math.inf, -1.5, -0.0, 0.0, 5e-324, math.inf],
        "string": ["", "a", "é" * 40],
    }
    one: dict[str, Callable[[Any], bytes]] = {
        "int64": lambda value: integer_key(value, 8, signed=True),
        "uint64": lambda value: integer_key(value, 8, signed=False),
        "float64": float_key,
        "string": lambda value: text_key(value.encode()),
    }
    assert normalised(pa.array(values[kind], type_), type_).to_pylist() == [one[kind](value) for value in values[kind]]


@pytest.mark.parametrize(
    ("column", "wide"),
    [
        (pa.array([-1, None, 3], pa.int8()), pa.int64()),
        (pa.array([1, None, 3], pa.uint32()), pa.int64()),
        (pa.array([-0.5, None, math.inf], pa.float32()), pa.float64()),
        (pa.array([Decimal("-1.25"), None], pa.decimal128(5, 2)), pa.decimal128(30, 2)),
        (pa.array([-1, None, 3], pa.int32()).cast(pa.date32()), pa.date64()),
        (pa.array(["a", None]), pa.large_string()),
        (pa.nulls(2), pa.int64()),
    ],
    ids=lambda given: str(given if isinstance(given, pa.DataType) else given.type),
)
def test_widening_changes_no_key(column: pa.Array, wide: pa.DataType) -> None:
    assert normalised(column, column.type).equals(normalised(column.cast(wide), wide))


def test_nulls_come_first_and_nan_last() -> None:
    keys = normalised(pa.array([None, math.nan, -math.nan, math.inf]), pa.float64()).to_pylist()
    assert keys[:3] == [NULL_KEY, NAN_KEY, NAN_KEY]
    assert NULL_KEY < keys[3] < NAN_KEY < AFTER_ALL


def test_composite_keys_delimit_themselves() -> None:
    text = normalised(pa.array(["a", "a\0", "a\0b", "ab", ""]), pa.string())
    number = normalised(pa.array([2**63 - 1] * 5), pa.int64())
    keys = composite([text, number], [pa.string(), pa.int64()]).to_pylist()
    assert sorted(keys) == [keys[4], keys[0], keys[1], keys[2], keys[3]]


@pytest.mark.parametrize(
    ("type_", "wanted"),
    [
        (pa.int8(), True),
        (pa.null(), True),
        (pa.uuid(), True),
        (pa.json_(), True),
        (pa.dictionary(pa.int8(), pa.string()), True),
        (pa.list_(pa.string()), True),
        (pa.list_view(pa.string()), True),
        (pa.float16(), False),
        (pa.string_view(), True),
        (pa.month_day_nano_interval(), False),
        (pa.struct([("a", pa.int8())]), False),
        (pa.map_(pa.string(), pa.int8()), False),
        (pa.list_(pa.list_(pa.int8())), False),
        (pa.list_(pa.struct([("a", pa.int8())])), False),
    ],
    ids=str,
)
def test_types_that_have_keys(type_: pa.DataType, wanted: bool) -> None:
    assert is_indexable(type_) is wanted


def test_what_stands_under_a_null_list_is_none_of_its_elements() -> None:
    values = pa.array([1, 2, 3, 4], pa.int8())
    mask = pa.array([True, False])
    for lists in (
        pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), values, mask=mask),
        pa.FixedSizeListArray.from_arrays(values, 2, mask=mask),
    ):
        inside, rows = elements(lists)
        assert (inside.to_pylist(), rows.to_pylist()) == ([3, 4, None], [1, 1, 0])


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
    monkeypatch.setattr(key_encoding, "_WINDOW_BLOCKS", 32)
    monkeypatch.setattr(key_encoding, "_CHUNK_ROWS", 100)
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


_FULL = st.text(st.sampled_from("abc é\0%_\\"), max_size=8)


# -- n-grams --------------------------------------------------------------------------------------


def _brute_grams(values: list[Any], n: int) -> set[bytes]:
    raw = [value.encode() if isinstance(value, str) else value for value in values if value is not None]
    return {value[at : at + n] for value in raw for at in range(len(value) - n + 1)}


@given(st.lists(st.none() | _FULL | st.text(max_size=12), max_size=6), st.integers(1, 8))
def test_ngrams_of_strings(values: list[str | None], n: int) -> None:
    expected = _brute_grams(values, n)
    for type_ in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        found = ngrams(pa.array(values, type_), n).to_pylist()
        assert len(found) == len(set(found))
        assert set(found) == expected


@given(st.lists(st.none() | st.binary(max_size=12), max_size=6), st.integers(1, 8))
def test_ngrams_of_binary_are_a_superset(values: list[bytes | None], n: int) -> None:
    assert set(ngrams(pa.array(values, pa.binary()), n).to_pylist()) >= _brute_grams(values, n)


def test_ngrams_of_more_text_than_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grams, "_CHUNK_BYTES", 100)
    values = [f"{at:07d}" for at in range(400)] + ["x" * 500 + "end"]
    assert set(ngrams(pa.array(values), 3).to_pylist()) == _brute_grams(values, 3)


_ATOMS: dict[str, st.SearchStrategy[Expression]] = {
    "contains": st.builds(Contains, st.just("x"), _FULL),
    "starts with": st.builds(StartsWith, st.just("x"), _FULL),
    "like": st.builds(Like, st.just("x"), _FULL),
    "==": st.builds(Comparison, st.just("x"), st.just("=="), _FULL),
    "in": st.builds(In, st.just("x"), _FULL.map(lambda text: (text,))),
    "key in": st.builds(KeyIn, st.just("x"), _FULL.map(lambda text: (text,))),
}


def _matches(atom: Any, value: str) -> bool:
    column = pa.array([value])
    match atom:
        case Contains(_, str(text)):
            return text in value
        case StartsWith(_, str(prefix)):
            return value.startswith(prefix)
        case Like(_, pattern):
            return bool(pc.match_like(column, pattern)[0].as_py())
        case Comparison(_, _, literal):
            return bool(value == literal)
    return value in atom.values


@pytest.mark.parametrize("form", list(_ATOMS))
@given(data=st.data())
def test_a_value_that_matches_has_all_ngrams_that_are_needed(form: str, data: st.DataObject) -> None:
    atom = data.draw(_ATOMS[form])
    literal = next(
        getattr(atom, name) for name in ("text", "prefix", "pattern", "value", "values") if hasattr(atom, name)
    )
    plain = literal[0] if isinstance(literal, tuple) else literal
    value = data.draw(_FULL | st.just(plain) | st.builds(lambda a, b: a + plain.replace("%", a) + b, _FULL, _FULL))
    n = data.draw(st.integers(1, 4))
    needed = needed_ngrams(atom, Truth.TRUE, n)  # type: ignore[arg-type]  # an atom
    assert needed_ngrams(atom, Truth.FALSE, n) is None  # type: ignore[arg-type]  # an atom
    if needed is not None and _matches(atom, value):
        assert set(needed) <= _brute_grams([value], n), (atom, value)


@pytest.mark.parametrize(
    ("atom", "needed"),
    [
        (Contains("x", "abcd"), (b"abc", b"bcd")),
        (Contains("x", "ab"), None),
        (Contains("x", "é1"), (b"\xc3\xa91",)),
        (Like("x", "%abc_def%g"), (b"abc", b"def")),
        (Like("x", r"a\%bc"), (b"a%b", b"%bc")),
        (Like("x", r"abc\ndef"), (b"abc",)),
        (Comparison("x", "==", "abc"), (b"abc",)),
        (Comparison("x", "!=", "abc"), None),
        (In("x", ("abc", "abd")), None),
        (In("x", (None,)), None),
    ],
    ids=str,
)
def test_needed_ngrams(atom: Any, needed: tuple[bytes, ...] | None) -> None:
    assert needed_ngrams(atom, Truth.TRUE, 3) == needed
