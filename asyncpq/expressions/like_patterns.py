"""What an SQL LIKE pattern says of how its matches begin."""

from __future__ import annotations

import re
from typing import Final

# Plain characters, and wildcards made plain. A backslash before another character ends it: pyarrow takes that for
# a character in some patterns, and passes over it in others.
_LITERAL: Final = re.compile(rb"(?:[^%_\\]|\\[%_])*", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\([%_])")


def like_prefix(pattern: str | bytes) -> str | bytes:
    """How every value begins that matches ``pattern``: what stands before its first wildcard."""
    if isinstance(pattern, str):
        # Bytes that are no characters of their own stay as they are: all that matters here is ASCII.
        raw = like_prefix(pattern.encode("utf-8", "surrogatepass"))
        assert isinstance(raw, bytes)
        return raw.decode("utf-8", "surrogatepass")
    found = _LITERAL.match(pattern)
    assert found is not None, "it may be empty"
    return _ESCAPED.sub(rb"\1", found[0])
