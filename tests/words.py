"""The words of a text, character by character, as ``asyncpq.expressions.tokens`` describes them."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.expressions.tokens import UNICODE_VERSION, word_characters

KNOWN = {chr(code) for ranges in word_characters() for first, last in ranges for code in range(first, last + 1)}
# What this Python's Unicode has named since, or put elsewhere
OTHERS = (
    set()
    if unicodedata.unidata_version == UNICODE_VERSION
    else {chr(code) for code in range(sys.maxunicode + 1) if (unicodedata.category(chr(code))[0] in "LMN")} ^ KNOWN
)


def words(text: str) -> list[str]:
    """The tokens of a text without :data:`OTHERS`."""
    found: list[str] = []
    for word in _runs(text):
        found += _runs(unicodedata.normalize("NFKC", word).casefold())
    return found


def _runs(text: str) -> Iterator[str]:
    run = ""
    for char in text:
        kind = unicodedata.category(char)[0]
        if kind in "LN" or (kind == "M" and run):
            run += char
        elif run:
            yield run
            run = ""
    if run:
        yield run


def has_tokens(text: str, asked: list[str]) -> bool:
    found = words(text)
    return all(token in found for token in asked)


def has_phrase(text: str, asked: list[str]) -> bool:
    found = words(text)
    return any(found[at : at + len(asked)] == asked for at in range(len(found)))


# -- the same as functions of pyarrow's, so that its engine is the oracle for the trees they are in ------------


def _register(name: str, test: Any, type_: pa.DataType) -> None:
    def evaluate(_: Any, texts: Any, asked: Any) -> Any:
        wanted = asked.as_py().split(" ")
        if isinstance(texts, pa.Scalar):
            return pa.scalar(None if not texts.is_valid else test(texts.as_py(), wanted), pa.bool_())
        return pa.array([None if text is None else test(text, wanted) for text in texts.to_pylist()], pa.bool_())

    docs = {"summary": name, "description": name}
    pc.register_scalar_function(evaluate, name, docs, {"text": type_, "asked": pa.string()}, pa.bool_())


_register("has_tokens", has_tokens, pa.large_string())
_register("has_phrase", has_phrase, pa.large_string())


def _has(_: Any, lists: Any, asked: Any) -> Any:
    if isinstance(lists, pa.Scalar):
        return pa.scalar(asked.as_py() in lists.as_py() if lists.is_valid else None, pa.bool_())
    return pa.array([None if row is None else asked.as_py() in row for row in lists.to_pylist()], pa.bool_())


pc.register_scalar_function(
    _has,
    "has",
    {"summary": "has", "description": "has"},
    {"lists": pa.list_(pa.int32()), "asked": pa.int64()},
    pa.bool_(),
)


def by_pyarrow_has(field: pc.Expression, asked: object) -> pc.Expression:
    """Whether a list of 32-bit integers has one, as an expression that pyarrow evaluates."""
    return pc.Expression._call("has", [field, pc.scalar(pa.scalar(asked, pa.int64()))])


def by_pyarrow(name: str, field: pc.Expression, asked: tuple[str, ...]) -> pc.Expression:
    """``name`` of the tokens, as an expression that pyarrow evaluates."""
    return pc.Expression._call(name, [field.cast(pa.large_string()), pc.scalar(" ".join(asked))])
