"""How far a stream of files has come: what Spark writes into its checkpoint, and which files are new. No I/O.

A version of a file is read once. It is known by a mark of 8 bytes, and its key is (modified, name). An offset names a
key, up to which everything counts as read, and the marks of what was read beyond it. So a file may show up later than
its time says, as uploads do that take long: as long as its key is beyond the offset's. The offset's key moves up only
over files that were read and are older than the newest one by ``max_age_s``, or of which more are known than
``REMEMBERED``; never over a file that was not read.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from asyncpq.errors import UsageError
from asyncpq.pruning.row_ranges import EMPTY, RowRanges
from asyncpq.storage.base import Validator

#: Marks of files that an offset keeps beside those of its own batch.
REMEMBERED: Final = 4096

_MARK_BYTES: Final = 8
_VERSION: Final = 1


class NewFile(NamedTuple):
    """A version of a file that is there.

    Attributes:
        modified_us: microseconds since the epoch, by the store's clock.
        name: behind the folder.
        url: of the file.
        size: bytes.
        validator: None where the listing does not tell versions apart.
    """

    modified_us: int
    name: str
    url: str
    size: int
    validator: Validator | None

    @property
    def key(self) -> tuple[int, str]:
        return self.modified_us, self.name

    @property
    def mark(self) -> bytes:
        version = b"" if self.validator is None else self.validator.digest()
        text = f"{self.modified_us}\0{self.size}\0{self.name}\0".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text + version, digest_size=_MARK_BYTES).digest()


@dataclass(frozen=True)
class ListedOffset:
    """Of a stream whose files are listed.

    Attributes:
        after: everything up to this key counts as read.
        marks: of further files that were read.
    """

    after: tuple[int, str] = (-(2**63), "")
    marks: frozenset[bytes] = frozenset()

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """
        Raises:
            UsageError: it is of another kind of stream.
        """
        _check(value, "after")
        modified_us, name = value["after"]
        packed = base64.b64decode(value["marks"])
        marks = (packed[at : at + _MARK_BYTES] for at in range(0, len(packed), _MARK_BYTES))
        return cls((modified_us, name), frozenset(marks))

    def to_json(self) -> dict[str, Any]:
        packed = base64.b64encode(b"".join(sorted(self.marks))).decode()
        return {"version": _VERSION, "after": list(self.after), "marks": packed}

    def has_read(self, file: NewFile) -> bool:
        return file.key <= self.after or file.mark in self.marks

    def new(self, listed: Iterable[NewFile]) -> list[NewFile]:
        """Files that were not read, the oldest first."""
        return sorted((file for file in listed if not self.has_read(file)), key=lambda file: file.key)

    def advanced(self, listed: Sequence[NewFile], batch: Sequence[NewFile], max_age_s: float) -> Self:
        """The offset behind ``batch``, the first of :meth:`new`.

        Args:
            listed: all files that are there.
        """
        taken = {file.mark for file in batch}
        left = min((file.key for file in listed if not self.has_read(file) and file.mark not in taken), default=None)
        known = sorted(
            (file for file in listed if file.key > self.after and file.mark in self.marks), key=lambda f: f.key
        )
        newest_us = max((file.modified_us for file in (*known[-1:], *batch)), default=0)
        oldest_us = newest_us - round(max_age_s * 1e6)
        after, forgotten = self.after, 0
        for number, file in enumerate(known):
            enough = file.modified_us >= oldest_us and len(known) - number <= REMEMBERED
            if enough or (left is not None and file.key > left):
                break
            after, forgotten = file.key, number + 1
        return type(self)(after, frozenset(taken.union(file.mark for file in known[forgotten:])))

    def until(self, end: Self, listed: Iterable[NewFile]) -> tuple[list[NewFile], int]:
        """Those of the files between this offset and ``end`` that are still there, the oldest first; and how many
        there were."""
        marks = end.marks - self.marks
        found = {file.mark: file for file in listed if file.mark in marks and not self.has_read(file)}
        return sorted(found.values(), key=lambda file: file.key), len(marks)


@dataclass(frozen=True)
class IndexOffset:
    """Of a stream that follows the snapshots of an index, whose files have ids that only grow.

    Attributes:
        index: names the index.
        next_file: all files in use below this id were read,
        pending: but for these.
        num_files: in the batch that ends here.
    """

    index: str
    next_file: int = 0
    pending: RowRanges = EMPTY
    num_files: int = 0

    @classmethod
    def parse(cls, value: Mapping[str, Any], index: str) -> Self:
        """
        Raises:
            UsageError: it is of another index, or of another kind of stream.
        """
        _check(value, "index")
        if value["index"] not in ("", index):
            raise UsageError(
                "the stream's checkpoint is of another index", hint="The index was built anew: begin a new checkpoint."
            )
        pending = RowRanges([(start, stop) for start, stop in value["pending"]])
        return cls(index, value["next"], pending, value["files"])

    def to_json(self) -> dict[str, Any]:
        pending = [[start, stop] for start, stop in self.pending]
        return {
            "version": _VERSION,
            "index": self.index,
            "next": self.next_file,
            "pending": pending,
            "files": self.num_files,
        }

    def new(self, live: RowRanges) -> RowRanges:
        """Files in use that were not read; the order of their ids is that in which they are read."""
        return live & (self.pending | RowRanges([(self.next_file, max(self.next_file, live.stop))]))

    def advanced(self, new: RowRanges, batch: RowRanges, reserved: RowRanges, next_file: int) -> Self:
        """The offset behind ``batch``, which begins :meth:`new`.

        Args:
            reserved: ids of those who have not committed yet.
            next_file: the first id that nobody has.
        """
        left = new - batch
        reached = max(self.next_file, batch.stop) if left else max(self.next_file, next_file)
        waiting = (left | reserved) & (self.pending | RowRanges([(self.next_file, reached)]))
        return type(self)(self.index, reached, waiting, batch.num_rows)

    def until(self, end: Self, live: RowRanges) -> RowRanges:
        """Those of the ids between this offset and ``end`` that are still in use."""
        return self.new(live).clip(0, end.next_file) - end.pending


def _check(value: Mapping[str, Any], member: str) -> None:
    if value.get("version") != _VERSION or member not in value:
        raise UsageError(
            "the stream's checkpoint is of another kind of stream, or of another version of asyncpq",
            hint="A stream over files and one over an index's snapshots cannot go on from one another.",
        )


class Sized(Protocol):
    """A file with its size."""

    @property
    def size(self) -> int: ...


F = TypeVar("F", bound=Sized)


def limited(files: Sequence[F], *, max_files: int | None, max_bytes: int | None) -> Sequence[F]:
    """The first of the files, within the limits; one, if even that is too large."""
    found: list[F] = []
    total = 0
    for file in files:
        total += file.size
        full = max_files is not None and len(found) >= max_files
        if found and (full or (max_bytes is not None and total > max_bytes)):
            break
        found.append(file)
    return found
