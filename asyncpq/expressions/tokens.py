"""Text as words, for ``has_tokens`` and ``has_phrase`` and for the index of words.

A **word** is a letter or number (Unicode general categories L and N) and all letters, numbers and marks (category M)
after it. Everything else separates words: space, punctuation, symbols, the underscore, apostrophes, a mark that follows
no letter, and every code point that Unicode 14.0 does not define. ``don't``, ``user_id`` and ``3.14`` are two words
each; a text without spaces, such as Chinese, is one.

The **tokens** of a text are its words in Unicode's compatibility form (NFKC), case-folded (``str.casefold``) and split
into words again: ``Straße`` and ``STRASSE`` are one token, so are the two spellings of ``é``, and wide letters and
ligatures equal plain ones. Accents count: ``e`` is not ``é``.

The tables in ``word_characters.txt`` make this the same under every Python: Unicode keeps these properties of the code
points that it has defined. A change of the definition needs a new ``TOKENIZER_VERSION``.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final

from asyncpq.records import NamedTuple

TOKENIZER: Final = "words"
TOKENIZER_VERSION: Final = 1

_ASCII_WORD: Final = re.compile("[0-9a-z]+")
_LAST_LOW: Final = 0xFFFF
_HIGH: Final = re.compile("[\\U00010000-\\U0010ffff]")
UNICODE_VERSION: Final = "14.0.0"


class WordCharacters(NamedTuple):
    """Ranges of the Unicode characters that words consist of, as pairs of first and last code point."""

    letters_and_numbers: list[tuple[int, int]]
    marks: list[tuple[int, int]]


def word_characters() -> WordCharacters:
    """Read the ranges of word characters from the package's ``word_characters.txt``."""
    from importlib.resources import files  # few programs need the tables

    text = (files(__package__) / "word_characters.txt").read_text("ascii")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    kinds = "\n".join(lines).split("\n\n")
    ends = [[part.split("-") for part in kind.split()] for kind in kinds]
    return WordCharacters(*([(int(end[0], 16), int(end[-1], 16)) for end in ranges] for ranges in ends))


def tokens(text: str) -> list[str]:
    """Return the tokens (words, case folded) of ``text`` in order, repeated tokens included."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    # All words at once: nothing joins the space between two. One that has become several, such as a fraction, is
    # separated by characters that belong to no word.
    return _words(unicodedata.normalize("NFKC", " ".join(_words(text))).casefold())


def _words(text: str) -> list[str]:
    """Return the runs of word characters in ``text`` that begin with a letter or number."""
    return _word(_HIGH.search(text) is not None).findall(text)


@functools.cache  # compiling takes some 20 ms, which few programs need
def _word(high: bool) -> re.Pattern[str]:
    """Return a pattern that matches one word.

    ``high``: include characters above U+FFFF, which make the pattern many times slower.
    """
    first, marks = [
        "".join(f"\\U{low:08x}-\\U{end:08x}" for low, end in ranges if high or end <= _LAST_LOW)
        for ranges in word_characters()
    ]
    return re.compile(f"[{first}][{first}{marks}]*")
