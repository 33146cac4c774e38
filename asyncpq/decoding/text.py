"""Predicates on texts, as functions of Arrow arrays.

Whether text is UTF-8, which pyarrow's Parquet reader does not ask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.conform import children_of
from asyncpq.decoding.selection import take
from asyncpq.expressions import Contains, HasPhrase, HasTokens, Like, StartsWith
from asyncpq.expressions.tokens import tokens

Kernel: TypeAlias = Callable[[Any], Any]

_TEXTS = frozenset({pa.string(), pa.large_string()})
_NULL = pa.scalar(None, pa.bool_())
_GAP = r"[\x00-/:-@\[-`{-\x7f]"  # what is neither letter nor number in ASCII
_MAX_PATTERN = 10_000  # characters; pyarrow refuses patterns that take much memory


def is_text(type_: pa.DataType) -> bool:
    """Whether values of the type have words."""
    return type_ in _TEXTS


def text_kernel(expr: StartsWith | Contains | Like) -> Kernel:
    """The predicate on strings or binary values."""
    if isinstance(expr, StartsWith):
        return lambda values: pc.starts_with(values, expr.prefix)
    if isinstance(expr, Contains):
        return lambda values: pc.match_substring(values, expr.text)
    return lambda values: pc.match_like(values, expr.pattern)


# -- words ----------------------------------------------------------------------------------------


def words_kernel(expr: HasTokens | HasPhrase) -> Kernel:
    """The predicate on strings.

    Words of ASCII between what is ASCII are found by pyarrow: that decides for texts that are ASCII as a whole.
    Others are looked at one by one, where it has not found them.
    """
    asked = expr.tokens
    if isinstance(expr, HasTokens):
        patterns = [_pattern((token,)) for token in asked]
        test: Callable[[list[str]], bool] = frozenset(asked).issubset
    else:
        patterns = [_pattern(asked)]
        test = functools.partial(_has_run, list(asked))
    in_ascii = all(map(str.isascii, asked))
    too_long = in_ascii and max(map(len, patterns)) > _MAX_PATTERN

    def kernel(values: Any) -> Any:
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array([kernel(chunk) for chunk in values.chunks], pa.bool_())
        found = pc.if_else(pc.is_valid(values), in_ascii and not too_long, _NULL)
        for pattern in patterns if in_ascii and not too_long else ():
            found = pc.and_(found, pc.match_substring_regex(values, pattern))
        undecided = pc.is_valid(values) if too_long else pc.invert(pc.string_is_ascii(values))
        undecided = pc.and_not(undecided, found).fill_null(False)
        if undecided.true_count:
            # As bytes, since a file may hold strings that are no UTF-8
            texts = values.filter(undecided).cast(_bytes_of(values.type)).to_pylist()
            answers = [test(tokens(text.decode("utf-8", "replace"))) for text in texts]
            found = pc.replace_with_mask(found, undecided, pa.array(answers, pa.bool_()))
        return found

    return kernel


def _bytes_of(type_: pa.DataType) -> pa.DataType:
    return pa.large_binary() if pa.types.is_large_string(type_) else pa.binary()


def _pattern(asked: tuple[str, ...]) -> str:
    """A regular expression (RE2) that finds ASCII words one after another, whole, between ASCII characters."""
    return f"(?i:(?:^|{_GAP}){f'{_GAP}+'.join(asked)}(?:{_GAP}|$))"


def _has_run(asked: list[str], words: list[str]) -> bool:
    """Whether ``asked`` are among ``words`` one after another."""
    first, size = asked[0], len(asked)
    return any(word == first and words[at : at + size] == asked for at, word in enumerate(words))


_ALL_TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})


def has_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, at whatever depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_text(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return has_text(kind.value_type)
    return kind in _ALL_TEXTS or any(has_text(child.type) for child in children_of(kind))


def first_invalid(values: pa.Array) -> int | None:
    """The position of the first value with text that is no UTF-8; None if there is none.

    Text outside of the array's slice, under nulls, and in entries of a dictionary that no value uses does not count.
    """
    if _is_whole(values) or _is_valid(values):
        return None
    low, high = 0, len(values)  # the first one is in between
    while high - low > 1:
        middle = (low + high) // 2
        if _is_valid(values.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _is_whole(values: pa.Array) -> bool:
    """Whether all is valid that the array holds, asked for or not."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_valid(values: pa.Array) -> bool:
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _is_valid(values.storage)
    if isinstance(kind, pa.DictionaryType):  # each entry once: decoded, they may be as many times larger
        return _is_valid(take(values.dictionary, pc.unique(values.indices).drop_null()))
    if isinstance(kind, pa.StructType):
        return all(map(_is_valid, values.flatten()))
    if isinstance(kind, pa.MapType):
        copy = pa.concat_arrays([values])
        return _is_valid(copy.keys) and _is_valid(copy.items)
    if children_of(kind):
        return _is_valid(values.flatten())
    return kind not in _ALL_TEXTS or _is_whole(pa.concat_arrays([values]))
