"""The entry: how tiers outside this process keep a value as bytes (cache/ENTRY.md). Pure, no I/O.

Whoever can write to a tier can put any bytes there, so decoding takes nothing on trust: a doubtful entry
is a miss. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from typing import Final

from asyncpq.errors import InvalidOptionError
from asyncpq.storage.base import Validator

MAGIC: Final = b"APQE"
VERSION: Final = 1
KEY_BYTES: Final = 32
HEADER_BYTES: Final = 48
"""What an entry has beyond its value: in this version the header, and never more than these bytes."""

_AUTHENTICATED = 1  # flag: the tag is an HMAC
_FIXED = struct.Struct("<4sHHQ")  # magic, version, flags, length of the value
_POINTER = struct.Struct("<dQ")  # age in seconds, size of the object
_LENGTH = struct.Struct("<i")  # of a string; -1: None


class EntryCodec:
    """Values to entries and back, for one secret.

    Args:
        secret: key of the HMAC-SHA256 over header, key and value. None: a SHA-256 instead, which notices
            damage, but not a writer who means harm.

    Raises:
        InvalidOptionError: the secret is empty.
    """

    def __init__(self, secret: bytes | None) -> None:
        if secret is not None and not secret:
            raise InvalidOptionError("the secret of cache entries is empty", hint="leave it out, or give one")
        self._flags = 0 if secret is None else _AUTHENTICATED
        self._keyed = None if secret is None else hmac.new(secret, digestmod=hashlib.sha256)

    def __repr__(self) -> str:
        return f"EntryCodec(authenticated={self._keyed is not None})"

    def encode(self, key: bytes, value: bytes) -> bytes:
        """The entry that holds ``value`` under ``key`` (32 bytes)."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes: must be {KEY_BYTES}")
        fixed = _FIXED.pack(MAGIC, VERSION, self._flags, len(value))
        return b"".join((fixed, self._tag(fixed, key, value), value))

    def decode(self, key: bytes, entry: bytes) -> bytes | None:
        """The value that was put under ``key``, or None for any other bytes. Never raises."""
        if len(key) != KEY_BYTES or self.entry_bytes(entry) != len(entry):
            return None
        value = entry[HEADER_BYTES:]
        tag = self._tag(entry[: _FIXED.size], key, value)
        return value if hmac.compare_digest(tag, entry[_FIXED.size : HEADER_BYTES]) else None

    def entry_bytes(self, head: bytes) -> int | None:
        """Length of the whole entry that begins with ``head`` (its header, or more), as the header claims.

        None where ``head`` is too short, or this codec would not decode the entry.
        """
        if len(head) < HEADER_BYTES:
            return None
        magic, version, flags, length = _FIXED.unpack_from(head)
        if magic != MAGIC or version != VERSION or flags != self._flags:
            return None
        return HEADER_BYTES + int(length)

    def _tag(self, fixed: bytes, key: bytes, value: bytes) -> bytes:
        digest = hashlib.sha256() if self._keyed is None else self._keyed.copy()
        digest.update(fixed)
        digest.update(key)
        digest.update(value)
        return digest.digest()


def encode_pointer(validator: Validator, age_s: float) -> bytes:
    """The value of a pointer's entry.

    Args:
        validator: kept exactly; its size is below 2**64.
        age_s: seconds since the validation, as of writing; infinite where nobody knows.

    Raises:
        ValueError: the size or the age cannot be written.
    """
    if not 0 <= validator.size < 1 << 64 or not age_s >= 0:
        raise ValueError(f"a pointer of size {validator.size} and age {age_s}")
    parts = [_POINTER.pack(age_s, validator.size)]
    for text in (validator.etag, validator.last_modified, validator.version):
        if text is None:
            parts.append(_LENGTH.pack(-1))
        else:
            # surrogatepass: any str comes back as it was, also what surrogateescape made of odd header bytes
            encoded = text.encode("utf-8", "surrogatepass")
            parts += [_LENGTH.pack(len(encoded)), encoded]
    return b"".join(parts)


def decode_pointer(value: bytes) -> tuple[Validator, float] | None:
    """Validator and age in seconds (as of writing, at least 0, perhaps infinite), or None. Never raises."""
    try:
        age_s, size = _POINTER.unpack_from(value)
        offset = _POINTER.size
        texts: list[str | None] = []
        for _ in range(3):
            (length,) = _LENGTH.unpack_from(value, offset)
            offset += _LENGTH.size
            if length == -1:
                texts.append(None)
                continue
            if not 0 <= length <= len(value) - offset:
                return None
            texts.append(value[offset : offset + length].decode("utf-8", "surrogatepass"))
            offset += length
    except (struct.error, UnicodeDecodeError):
        return None
    if offset != len(value) or math.isnan(age_s) or age_s < 0:
        return None
    return Validator(size, *texts), age_s
