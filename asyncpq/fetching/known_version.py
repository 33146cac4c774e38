"""What is known of a version of an object without asking its store: from an index beside it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asyncpq.caching.keys import ContentKey
from asyncpq.format.metadata import FileMetadata
from asyncpq.storage.base import Validator


class MadeIndex(NamedTuple):
    """A page index of a column chunk that was written without one.

    Attributes:
        offsets: OffsetIndex as Thrift.
        bounds: ColumnIndex as Thrift; None where nothing is known of its pages' values.
    """

    offsets: bytes
    bounds: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class KnownVersion:
    """
    Attributes:
        validator: of the version, as a GET has it.
        metadata: its footer; of some leaves alone, perhaps; None where only its pages are known.
        leaves: ordinals of those leaves; None for all.
        footer_start: where the footer begins; 0 without one.
        spans: pieces of the object by where they begin: its page indexes.
        made: page indexes by row group and leaf, where the file has none.
    """

    validator: Validator
    metadata: FileMetadata | None
    leaves: frozenset[int] | None
    footer_start: int
    spans: Sequence[tuple[int, bytes]] = ()
    made: Mapping[tuple[int, int], MadeIndex] | None = None


class Spans:
    """Pieces of an object that are known without asking its store."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[bytes] = []
        self.weight = 0

    def add(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Pieces of the same version by where they begin; they do not overlap."""
        known = dict(zip(self._starts, self._pieces, strict=True))
        known.update(pieces)
        self._starts = sorted(known)
        self._pieces = [known[start] for start in self._starts]
        self.weight = sum([len(piece) + 120 for piece in self._pieces])

    def cut_out(self, keys: Iterable[ContentKey]) -> dict[ContentKey, bytes]:
        """The parts that are in here."""
        found: dict[ContentKey, bytes] = {}
        for key in keys:
            at = bisect_right(self._starts, key.start) - 1
            if at >= 0:
                start, piece = self._starts[at], self._pieces[at]
                if key.stop - start <= len(piece):
                    found[key] = piece[key.start - start : key.stop - start]
        return found
