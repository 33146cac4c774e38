"""Keys, pointers, and the encoding of entries for tiers outside this process (cache/ENTRY.md). No I/O.

A content key names bytes that can never change: the object's validator is part of it. A pointer key names an object by
its url; its pointer has the validator that was last seen. Any process that can write to a tier can put any bytes there,
so a doubtful entry is a miss, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import struct
from collections.abc import Mapping
from typing import Any, Final, Literal

from asyncpq.errors import InvalidOptionError
from asyncpq.records import NamedTuple, dataclass
from asyncpq.storage.base import Validator

MAGIC: Final = b"APQE"
VERSION: Final = 1
KEY_BYTES: Final = 32
HEADER_BYTES: Final = 48
"""Bytes of an entry's header, which precedes its value."""

_AUTHENTICATED = 1  # flag: the tag is an HMAC
_FIXED = struct.Struct("<4sHHQ")  # magic, version, flags, length of the value
_POINTER = struct.Struct("<dQ")  # age in seconds, size of the object
_LENGTH = struct.Struct("<i")  # of a string; -1: None


class EntryCodec:
    """Encodes values to entries and decodes entries. ``secret`` is the key of the HMAC-SHA256 over header, key and
    value. If ``secret`` is None, a plain SHA-256 takes its place, which detects damage but not a malicious writer. An
    empty secret raises InvalidOptionError."""

    def __init__(self, secret: bytes | None) -> None:
        if secret is not None and not secret:
            raise InvalidOptionError("the secret of cache entries is empty", hint="Omit it, or pass a non-empty one.")
        self._flags = 0 if secret is None else _AUTHENTICATED
        self._keyed = None if secret is None else hmac.new(secret, digestmod=hashlib.sha256)

    def __repr__(self) -> str:
        return f"EntryCodec(authenticated={self._keyed is not None})"

    def encode(self, key: bytes, value: bytes) -> bytes:
        """Return the entry, as bytes, that stores ``value`` under ``key`` (32 bytes)."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes, expected {KEY_BYTES}")
        fixed = _FIXED.pack(MAGIC, VERSION, self._flags, len(value))
        return b"".join((fixed, self._tag(fixed, key, value), value))

    def decode(self, key: bytes, entry: bytes) -> bytes | None:
        """Check ``entry`` and return the value that it stores for ``key``; None if the entry is damaged, not authentic
        or was encoded for another key. Never raises."""
        if len(key) != KEY_BYTES or self.entry_bytes(entry) != len(entry):
            return None
        value = entry[HEADER_BYTES:]
        tag = self._tag(entry[: _FIXED.size], key, value)
        return value if hmac.compare_digest(tag, entry[_FIXED.size : HEADER_BYTES]) else None

    def entry_bytes(self, head: bytes) -> int | None:
        """Return the length of an entry in bytes, as its header states it. ``head`` begins with the header, and may be
        longer. None if ``head`` is too short, or this codec would not decode the entry."""
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
    """Encode a pointer: the object's ``validator``, and ``age_s``, the seconds from its validation to this write
    (infinite if unknown). Raises ValueError if the validator's size is 2**64 or more, or the age is negative."""
    if not 0 <= validator.size < 1 << 64 or not age_s >= 0:
        raise ValueError(f"a pointer has size {validator.size} and age {age_s}; expected 0 <= size < 2**64, age >= 0")
    parts = [_POINTER.pack(age_s, validator.size)]
    for text in (validator.etag, validator.last_modified, validator.version):
        if text is None:
            parts.append(_LENGTH.pack(-1))
        else:
            # surrogatepass keeps every str, also the surrogates that surrogateescape made of odd header bytes
            encoded = text.encode("utf-8", "surrogatepass")
            parts += [_LENGTH.pack(len(encoded)), encoded]
    return b"".join(parts)


def decode_pointer(value: bytes) -> tuple[Validator, float] | None:
    """Decode what :func:`encode_pointer` made: return the validator, and its age in seconds when it was written (at
    least 0, perhaps infinite). None for other bytes. Never raises."""
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


# "part": a piece of a column chunk with unknown pages; shared in flight, never kept. "learnt": page locations found in
# such a chunk, or in an index beside the object; "learnt_bounds": bounds from that index. The last two are not bytes of
# the object, and stay in memory. "range": bytes that another reader of the object asked for, through asyncpq.fsspec.
PartKind = Literal[
    "tail",
    "footer",
    "column_index",
    "offset_index",
    "learnt",
    "learnt_bounds",
    "bloom_filter",
    "dictionary",
    "page",
    "part",
    "embedded_index",
    "range",
]


class ContentKey(NamedTuple):
    """Key of one cached part of an object, such as its footer or a page. The memory cache has the part's bytes or the
    parsed part; other tiers have bytes.

    Attributes:
        version: 16 bytes that name the object's version (see :func:`version_digest`).
        kind: kind of part.
        start, stop: offsets of the part's bytes in the object, the end exclusive.
    """

    version: bytes
    kind: PartKind
    start: int
    stop: int

    def encode(self) -> bytes:
        """Return the 32 bytes that stand for this key in cache tiers outside this process."""
        text = b"%s\0%s\0%d\0%d" % (self.version, self.kind.encode(), self.start, self.stop)
        return hashlib.sha256(text).digest()


class PointerKey(NamedTuple):
    """Key of the pointer to the version that an object had when it was last seen."""

    namespace: str
    identity: str

    @property
    def weight(self) -> int:
        """Approximate bytes of the key in memory."""
        return 200 + len(self.namespace) + len(self.identity)

    def encode(self) -> bytes:
        """Return the 32 bytes, unique to this ContentKey, that stand for this key in tiers outside this process."""
        return _digest_texts(b"asyncpq pointer key\0", self.namespace, self.identity).digest()


@dataclass(slots=True)
class Pointer:
    """The validator that an object had when it was last validated, and the time of that validation.

    Attributes:
        validated_at: ``time.monotonic()`` when the validating request was sent; minus infinity if unknown.
    """

    validator: Validator  # of the object
    validated_at: float

    @property
    def weight(self) -> int:
        """Approximate bytes of the pointer in memory."""
        texts = (self.validator.etag, self.validator.last_modified, self.validator.version)
        return 400 + sum([len(text) for text in texts if text is not None])


def version_digest(namespace: str, identity: str, validator: Validator) -> bytes:
    """Return 16 bytes that name one version of one object within one namespace. ``identity`` is that of
    :class:`asyncpq.storage.base.StoredObject`."""
    digest = _digest_texts(b"", namespace, identity)
    digest.update(validator.digest())
    return digest.digest()[:16]


def _digest_texts(prefix: bytes, *texts: str) -> hashlib._Hash:
    """Return a SHA-256 of ``prefix`` and ``texts``. The length of each text is hashed too, so that different lists of
    texts never hash the same bytes."""
    digest = hashlib.sha256(prefix)
    for text in texts:
        part = text.encode("utf-8", "surrogateescape")
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest


def storage_namespace(protocol: str, options: Mapping[str, Any]) -> str:
    """Return a text that separates cached bytes by storage options: other credentials or another endpoint give another
    namespace. If an option's value is an arbitrary object, each call returns a new namespace."""
    canonical = _canonical(options)
    if canonical is None:
        return f"{protocol}:{os.urandom(16).hex()}"
    return f"{protocol}:{hashlib.sha256(canonical.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def _canonical(value: object) -> str | None:
    """Return a text that is equal for equal values in every process, and different for different values. None if
    ``value`` is or contains anything but plain values (str, numbers, lists, mappings, ...)."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, Mapping):
        names = [_canonical(name) for name in value]
        items = [_canonical(item) for item in value.values()]
        if None in names or None in items:
            return None
        return f"{{{','.join(sorted(f'{name}:{item}' for name, item in zip(names, items, strict=True)))}}}"
    if type(value) in (list, tuple, set, frozenset):
        parts = [_canonical(part) for part in value]  # type: ignore[attr-defined]
        if None in parts:
            return None
        texts = [str(part) for part in parts]
        return f"({','.join(texts)})" if type(value) in (list, tuple) else f"set({','.join(sorted(texts))})"
    from pathlib import PurePath  # most options hold none

    return f"path({str(value)!r})" if isinstance(value, PurePath) else None
