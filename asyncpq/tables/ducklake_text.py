r"""Lists, structs and maps that a DuckLake's catalog keeps as text.

DuckDB writes them in two forms: as a cast to VARCHAR does, where strings are quoted only if they must be and ``\``
stands before a quote or another ``\``; and, for the scalars directly in a column that is a struct, as SQL literals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from asyncpq.tables.ducklake_schema import Column

_WHITE = " \t\n\v\f\r"  # DuckDB's white space: it does not quote a string for any other
_SPACE = re.compile(f"[{_WHITE}]*")
_BARE = re.compile(r"[^,{}\[\]=:'\"()]*")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_KEY = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_CAST = re.compile(r"CAST\('((?:[^']|'')*)' AS [A-Z_]+(?:\(\d+, ?\d+\))?\)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def nested_of_text(text: str, column: Column) -> Any:
    """The value of a list, struct or map: lists, dicts and lists of pairs, with the texts of scalars in them.

    Raises:
        ValueError: it is not how DuckDB writes such a value, or DuckDB itself reads another one.
    """
    reader = _Reader(text)
    value = reader.value(column, is_literal=column.type_name == "struct")
    reader.end()
    return value


class _Reader:
    """What was read of a text, up to a position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, column: Column, *, is_literal: bool) -> Any:
        """
        Args:
            is_literal: scalars are SQL literals.
        """
        self._space()
        if self._text.startswith("NULL", self._at) and self._ends(self._at + 4):
            self._at += 4
            return None
        if column.type_name == "struct":
            return self._struct(column.children, is_literal)
        if column.type_name == "list":
            return self._list(column.children[0])
        if column.type_name == "map":
            return self._map(*column.children)
        return self._scalar(is_literal)

    def end(self) -> None:
        """
        Raises:
            ValueError: there is more text.
        """
        self._space()
        if self._at != len(self._text):
            raise self._error()

    def _struct(self, parts: Sequence[Column], is_literal: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._take("{")
        for part in parts:
            if found:
                self._take(",")
            self._key(part.field.name)
            self._take(":")
            found[part.field.name] = self.value(part, is_literal=is_literal)
        self._take("}")
        return found

    def _key(self, name: str) -> None:
        self._space()
        match = _KEY.match(self._text, self._at)
        if match is None or name not in (match[1].replace("''", "'"), _ESCAPE.sub(r"\1", match[1])):
            raise self._error()
        self._at = match.end()

    def _list(self, element: Column) -> list[Any]:
        found: list[Any] = []
        self._take("[")
        while not self._takes("]"):
            if found:
                self._take(",")
            found.append(self.value(element, is_literal=False))
        return found

    def _map(self, key: Column, value: Column) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        self._take("{")
        while not self._takes("}"):
            if found:
                self._take(",")
            name = self.value(key, is_literal=False)
            self._take("=")
            found.append((name, self.value(value, is_literal=False)))
        return found

    def _scalar(self, is_literal: bool) -> str:
        text, at = self._text, self._at
        cast = _CAST.match(text, at) if is_literal else None
        if cast is not None:
            self._at = cast.end()
            return cast[1].replace("''", "'")
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            bare = _BARE.match(text, at)
            assert bare is not None  # perhaps empty
            if not (found := bare[0].strip(_WHITE)):
                raise self._error()
            self._at = bare.end()
            return found
        self._at = quoted.end()
        if is_literal and ("\\" in quoted[1] or text.startswith("'", self._at)):
            raise ValueError(
                "a quote or backslash in a struct's text, which DuckDB writes in one way and reads in another"
            )
        return _ESCAPE.sub(r"\1", quoted[1])

    def _ends(self, at: int) -> bool:
        """Whether a word ends here."""
        space = _SPACE.match(self._text, at)
        assert space is not None  # perhaps empty
        return space.end() == len(self._text) or self._text[space.end()] in ",]}="

    def _space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None  # perhaps empty
        self._at = space.end()

    def _takes(self, character: str) -> bool:
        self._space()
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def _take(self, character: str) -> None:
        if not self._takes(character):
            raise self._error()

    def _error(self) -> ValueError:
        return ValueError(f"not a nested value: {self._text[:80]!r} at {self._at}")
