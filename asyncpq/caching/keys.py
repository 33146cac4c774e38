"""Cache keys: who may read it, which bytes of which version, which part.

A content key names bytes that can never change (the validator is part of it). A pointer key names an
object by its place, and leads to the validator that was current when it was last seen.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

from asyncpq.storage.base import Validator

# "part" is a piece of a column chunk whose pages are not known: it is shared in flight, never kept
PartKind = Literal[
    "tail",
    "column_index",
    "offset_index",
    "bloom_filter",
    "dictionary",
    "page",
    "part",
    "decoded_dictionary",
    "decoded_page",
]


# A chunk of one page has the bytes of that page, but is not one: a part is never taken for a decoded page.
_DECODED: dict[PartKind, PartKind] = {"dictionary": "decoded_dictionary", "page": "decoded_page"}


class ContentKey(NamedTuple):
    """Key of one cached part.

    Attributes:
        version: 16 bytes naming the object's version (see :func:`version_digest`).
        kind: what the part is.
        start, stop: its bytes in the object.
    """

    version: bytes
    kind: PartKind
    start: int
    stop: int

    @property
    def decoded(self) -> ContentKey:
        """Under which memory keeps a page or dictionary once it is decoded; of other parts the key itself."""
        return ContentKey(self.version, _DECODED.get(self.kind, self.kind), self.start, self.stop)

    def encode(self) -> bytes:
        """32 bytes for tiers outside this process."""
        text = b"%s\0%s\0%d\0%d" % (self.version, self.kind.encode(), self.start, self.stop)
        return hashlib.sha256(text).digest()


class PointerKey(NamedTuple):
    """Key of the entry that says which version an object had when it was last seen."""

    namespace: str
    identity: str


@dataclass(slots=True)
class Pointer:
    """The last validator seen, and when (``time.monotonic()`` seconds)."""

    validator: Validator
    validated_at: float


def version_digest(namespace: str, identity: str, validator: Validator) -> bytes:
    """16 bytes that name one version of one object as one namespace sees it."""
    digest = hashlib.sha256()
    for part in (namespace.encode(), identity.encode("utf-8", "surrogateescape")):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    digest.update(validator.digest())
    return digest.digest()[:16]
