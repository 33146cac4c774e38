"""n-grams of strings, and those that a predicate needs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.expressions import Comparison, Contains, Expression, In, KeyIn, Like, StartsWith
from asyncpq.expressions.analysis import Truth
from asyncpq.indexing import key_encoding as grams
from asyncpq.indexing.key_encoding import needed_ngrams, ngrams

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
