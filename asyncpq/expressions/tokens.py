"""Text as words: what ``has_tokens`` and ``has_phrase`` ask for, and what an index of words holds.

A **word** is a letter or number (Unicode general categories L and N) and all letters, numbers and marks (category M)
after it. All else separates: space, punctuation, symbols, the underscore, apostrophes, a mark that follows none of
them, and every code point that Unicode 14.0 does not know. So ``don't`` is two words, ``user_id`` too, ``3.14`` too,
and a text without spaces, such as Chinese, one.

The **tokens** of a text are its words, each brought to Unicode's compatibility form (NFKC) and case-folded
(``str.casefold``), and that split into words again: ``Straße`` and ``STRASSE`` are one token, so are ``é`` in its
two spellings and the letters that have a wide or ligature form. Accents count: ``e`` is not ``é``.

All of this is the same under every Python, as Unicode never changes what it says of these forms for a code point
that it has named. Another definition is another ``TOKENIZER_VERSION``.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final

from asyncpq.expressions.word_characters import LETTERS_AND_NUMBERS, MARKS, code_points

TOKENIZER: Final = "words"
TOKENIZER_VERSION: Final = 1

_ASCII_WORD: Final = re.compile("[0-9a-z]+")
_LAST_LOW: Final = 0xFFFF
_HIGH: Final = re.compile("[\\U00010000-\\U0010ffff]")


def tokens(text: str) -> list[str]:
    """The tokens of ``text``, in order, those that occur again too."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    # All words at once: nothing joins the space between two. One that has become several, such as a fraction, is
    # separated by what belongs to no word.
    return _words(unicodedata.normalize("NFKC", " ".join(_words(text))).casefold())


def _words(text: str) -> list[str]:
    """Runs of word characters; they begin with none of the marks."""
    return _word(_HIGH.search(text) is not None).findall(text)


@functools.cache  # it takes some 20 ms, and few programs ask for words
def _word(high: bool) -> re.Pattern[str]:
    """
    Args:
        high: with characters above U+FFFF, which makes it many times slower for all.
    """
    first, inner = [
        "".join(f"\\U{low:08x}-\\U{end:08x}" for low, end in ranges if high or end <= _LAST_LOW)
        for ranges in (code_points(LETTERS_AND_NUMBERS), code_points(LETTERS_AND_NUMBERS + MARKS))
    ]
    return re.compile(f"[{first}][{inner}]*")
