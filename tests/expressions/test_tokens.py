"""Tokens are the words that their module's description names, under every Python; prefixes of LIKE hold."""

from __future__ import annotations

import hashlib
import sys
import unicodedata

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.expressions import Like
from asyncpq.expressions.tokens import TOKENIZER, TOKENIZER_VERSION, UNICODE_VERSION, tokens, word_characters
from tests.example_counts import examples
from tests.words import OTHERS, words

_CHARACTERS = st.characters(exclude_categories=["Cs"]).filter(lambda char: char not in OTHERS)
_MARKS = "\u0301\u0308\u0345\u3099\u093f\u20e3\ufe0f"
_ODD = (
    "aAbB zZ09_'-.\u00bd\u00df\u0130\u03a3\u1e9e\ufb01\uff21\u212a\u2122\ufdfa\u0e33\uff9e\u1100\u1161\u11a8" + _MARKS
)
TEXTS = st.text(st.sampled_from(_ODD) | _CHARACTERS, max_size=20)


@settings(max_examples=examples(300, thorough=1000))
@given(TEXTS)
def test_tokens_are_as_described(text: str) -> None:
    assert tokens(text) == words(text)


@settings(max_examples=examples(200, thorough=500))
@given(TEXTS)
def test_spellings_of_one_text_have_the_same_tokens(text: str) -> None:
    for form in ("NFC", "NFD"):
        assert tokens(unicodedata.normalize(form, text)) == tokens(text)


@given(TEXTS, TEXTS)
def test_texts_apart_keep_their_tokens(left: str, right: str) -> None:
    assert tokens(f"{left} {right}") == tokens(left) + tokens(right)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("Don't PANIC: user_id=3.14", ["don", "t", "panic", "user", "id", "3", "14"]),
        ("Stra\u00dfe STRASSE \u1e9e", ["strasse", "strasse", "ss"]),
        ("\u039f\u0394\u039f\u03a3 \u03bf\u03b4\u03bf\u03c2", ["\u03bf\u03b4\u03bf\u03c3"] * 2),
        ("e\u0301 \u00e9 e", ["\u00e9", "\u00e9", "e"]),
        ("\ufb01sh \uff26\uff35\uff2c\uff2c m\u00b2", ["fish", "full", "m2"]),
        ("\u00bd Foo\u2122", ["1", "2", "foo"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 \u4e2d\u6587", ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u4e2d\u6587"]),
        ("\u2764\ufe0f \u0301", []),
        ("\ud800a", ["a"]),
    ],
)
def test_words(text: str, found: list[str]) -> None:
    assert tokens(text) == found


@pytest.mark.heavy
def test_version_1_never_changes() -> None:
    """What every character is, between letters and before marks; changed rules are another version."""
    assert (TOKENIZER, TOKENIZER_VERSION) == ("words", 1)
    digest = hashlib.sha256()
    for code in (*range(0x32000), *range(0xE0000, 0xE0200)):  # none of the others is named
        char = chr(code)
        digest.update("\0".join(tokens(f"x{char}x {char}\u0301\u0323")).encode("utf-8", "surrogatepass"))
    assert digest.hexdigest() == "1916b1a38f2e47c4afc6577c012f5f2306f228f4b4ac2aa0976a915f754ffae0"


@pytest.mark.skipif(unicodedata.unidata_version != UNICODE_VERSION, reason="this Python knows another Unicode")
@pytest.mark.parametrize(("ranges", "groups"), [*zip(word_characters(), ["LN", "M"], strict=True)])
def test_the_tables_are_unicode_s(ranges: list[tuple[int, int]], groups: str) -> None:
    listed = {code for first, last in ranges for code in range(first, last + 1)}
    assert listed == {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in groups}


# -- LIKE -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("", ""),
        ("abc", "abc"),
        ("a%b", "a"),
        ("_a", ""),
        ("a\\%b\\_c_", "a%b_c"),
        ("a\\\\b%", "a"),
        ("a\\", "a"),
        ("\u00e9\n%", "\u00e9\n"),
        (b"\xff%", b"\xff"),
    ],
)
def test_prefixes(pattern: str | bytes, prefix: str | bytes) -> None:
    assert Like("x", pattern).prefix == prefix


_LETTERS = st.text("ab%_\\\u00e9\n", max_size=6)


@settings(max_examples=examples(200, thorough=500))
@given(_LETTERS, st.lists(_LETTERS))
def test_matches_begin_with_the_prefix(pattern: str, others: list[str]) -> None:
    unescaped = pattern.replace("\\", "")
    texts = pa.array([*others, pattern, unescaped, unescaped.replace("%", "").replace("_", "a")])
    for text in texts.filter(pc.match_like(texts, pattern)).to_pylist():
        assert text.startswith(Like("x", pattern).prefix)
