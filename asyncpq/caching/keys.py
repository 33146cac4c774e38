"""Cache keys: who may read it, which bytes of which version, which part.

A content key names bytes that can never change (the validator is part of it). A pointer key names an
object by its place, and leads to the validator that was current when it was last seen.

The namespace that cached bytes are shared in, where the session is given none.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from asyncpq.storage.base import Validator

# "part" is a piece of a column chunk whose pages are not known: it is shared in flight, never kept.
# "learnt" are page locations that such a chunk told, or an index beside the object, "learnt_bounds" what that said
# of their values: they are no bytes of the object, and stay in memory.
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
]


class ContentKey(NamedTuple):
    """Key of one cached part. Memory holds its bytes, or what they were parsed or decoded to; other tiers bytes.

    Attributes:
        version: 16 bytes naming the object's version (see :func:`version_digest`).
        kind: what the part is.
        start, stop: its bytes in the object.
    """

    version: bytes
    kind: PartKind
    start: int
    stop: int

    def encode(self) -> bytes:
        """32 bytes for tiers outside this process."""
        text = b"%s\0%s\0%d\0%d" % (self.version, self.kind.encode(), self.start, self.stop)
        return hashlib.sha256(text).digest()


class PointerKey(NamedTuple):
    """Key of the entry that says which version an object had when it was last seen."""

    namespace: str
    identity: str

    @property
    def weight(self) -> int:
        """Approximate bytes it holds."""
        return 200 + len(self.namespace) + len(self.identity)

    def encode(self) -> bytes:
        """32 bytes for tiers outside this process; no content key has the same."""
        return _digest_texts(b"asyncpq pointer key\0", self.namespace, self.identity).digest()


@dataclass(slots=True)
class Pointer:
    """The last validator seen, and when (``time.monotonic()`` seconds).

    Attributes:
        validator: what the object had.
        validated_at: when a request was sent whose answer said so; minus infinity if that is not known.
    """

    validator: Validator
    validated_at: float

    @property
    def weight(self) -> int:
        """Approximate bytes it holds."""
        texts = (self.validator.etag, self.validator.last_modified, self.validator.version)
        return 400 + sum([len(text) for text in texts if text is not None])


def version_digest(namespace: str, identity: str, validator: Validator) -> bytes:
    """16 bytes that name one version of one object as one namespace sees it."""
    digest = _digest_texts(b"", namespace, identity)
    digest.update(validator.digest())
    return digest.digest()[:16]


def _digest_texts(prefix: bytes, *texts: str) -> hashlib._Hash:
    """A digest in which no two lists of texts meet: each is preceded by its length."""
    digest = hashlib.sha256(prefix)
    for text in texts:
        part = text.encode("utf-8", "surrogateescape")
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest


def storage_namespace(protocol: str, options: Mapping[str, Any]) -> str:
    """Names who reads: whoever configures other credentials or another endpoint shares nothing.

    Nor does anyone share where an option is an object, whose value nobody can tell: each call gives another name.
    """
    canonical = _canonical(options)
    if canonical is None:
        return f"{protocol}:{secrets.token_hex(16)}"
    return f"{protocol}:{hashlib.sha256(canonical.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def _canonical(value: object) -> str | None:
    """The same text in every process for the same plain value, and for no other; None for what is no plain value."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, PurePath):
        return f"path({str(value)!r})"
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
    return None
