"""Conversion of SQL's LIKE to predicates.

ANSI SQL's patterns have an escape character only if an ESCAPE clause names one. Those of :class:`tree.Like` have the
backslash.
"""

from __future__ import annotations

from asyncpq.expressions import tree
from asyncpq.expressions.tree import Expression


def like(column: str, pattern: str, escape: str | None) -> Expression:
    """Return the predicate ``column LIKE pattern ESCAPE escape``; ``escape`` None means no ESCAPE clause. Raises
    ValueError if the escape character is not followed by ``%``, ``_`` or itself."""
    pieces = _pieces(pattern, escape)
    texts = [text for text, wildcard in pieces if not wildcard]
    if not any(wildcard for _, wildcard in pieces):
        return tree.Comparison(column, "==", "".join(texts))
    if not any("\\" in text for text in texts):
        return tree.Like(column, _joined(pieces))
    # pyarrow takes two backslashes for two characters in the patterns "a%", "%a" and "%a%", for one in all others
    begins, ends = pieces[0] == ("%", True), pieces[-1] == ("%", True)
    inner = pieces[begins : len(pieces) - ends]
    if any(wildcard for _, wildcard in inner):
        return tree.Like(column, _joined(pieces))
    text = "".join(texts)
    if begins and ends:
        return tree.Contains(column, text)
    if ends:
        return tree.StartsWith(column, text)
    longer = tree.Like(column, _joined([("_", True), *pieces]))
    return tree.Or((tree.Comparison(column, "==", text), longer))


def _pieces(pattern: str, escape: str | None) -> list[tuple[str, bool]]:
    """Split the pattern into pairs: a character, and whether it is a wildcard. Several ``%`` in a row become one."""
    pieces: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                wrong = f"is followed by {escaped!r}" if escaped else "ends the pattern"
                raise ValueError(f"the escape character {escape!r} {wrong}; it must be followed by %, _ or itself")
            pieces.append((escaped, False))
        elif character != "%" or not pieces or pieces[-1] != ("%", True):
            pieces.append((character, character in "%_"))
    return pieces


def _joined(pieces: list[tuple[str, bool]]) -> str:
    return "".join([text if wildcard or text not in "%_\\" else f"\\{text}" for text, wildcard in pieces])
