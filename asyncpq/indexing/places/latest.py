"""The copy of a manifest that was the newest not long ago, with its number before it."""

from __future__ import annotations

from asyncpq.errors import CorruptIndexError

_DIGITS = 20


def encode_latest(number: int, content: bytes) -> bytes:
    """The copy."""
    return b"%0*d\n%b" % (_DIGITS, number, content)


def decode_latest(data: bytes, url: str) -> tuple[int, bytes]:
    """Number and content.

    Args:
        url: where it is, for messages.

    Raises:
        CorruptIndexError: it is no such copy.
    """
    number, found, content = data.partition(b"\n")
    if not (found and number.isdigit() and len(number) == _DIGITS):
        raise CorruptIndexError("no copy of a manifest", url=url, hint="Drop the index and build it again.")
    return int(number), content
