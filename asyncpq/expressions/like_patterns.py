"""What an SQL LIKE pattern says of the texts in its matches."""

from __future__ import annotations

import re
from typing import Final

# Plain characters, and wildcards made plain. A backslash before another character ends it: pyarrow takes that for
# a character in some patterns, and passes over it in others.
_LITERAL: Final = re.compile(rb"(?:[^%_\\]|\\[%_])*", re.DOTALL)
_PIECE: Final = re.compile(rb"((?:[^%_\\]|\\[%_])+)|[%_]", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\([%_])")


def like_prefix(pattern: str | bytes) -> str | bytes:
    """The text before the first wildcard of ``pattern``: every value that matches begins with it."""
    raw = _bytes(pattern)
    prefix = _LITERAL.match(raw)
    assert prefix is not None, "it may be empty"
    return _as(pattern, prefix[0])


def like_texts(pattern: str | bytes) -> tuple[str | bytes, ...]:
    """The texts between the wildcards of ``pattern``: every value that matches contains them."""
    raw, pieces, end = _bytes(pattern), [], 0
    while (piece := _PIECE.match(raw, end)) is not None:
        if piece[1]:
            pieces.append(_as(pattern, piece[1]))
        end = piece.end()
    return tuple(pieces)


def _bytes(pattern: str | bytes) -> bytes:
    # Only ASCII counts here, so bytes that are no characters stay as they are.
    return pattern.encode("utf-8", "surrogatepass") if isinstance(pattern, str) else pattern


def _as(pattern: str | bytes, raw: bytes) -> str | bytes:
    plain = _ESCAPED.sub(rb"\1", raw)
    return plain.decode("utf-8", "surrogatepass") if isinstance(pattern, str) else plain
