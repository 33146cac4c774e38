"""A Delta table's log: which commits and which checkpoint make up a version.

PROTOCOL.md, "Delta Log Entries" and "Checkpoints". The folder is listed, so ``_last_checkpoint`` is not needed;
log compaction files and checksum files are optional, and not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asyncpq.errors import CorruptFileError, InvalidOptionError

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:(\d{10})\.(\d{10})\.parquet|parquet|([0-9a-fA-F-]+)\.(?:json|parquet))"
)


@dataclass(frozen=True, slots=True)
class Segment:
    """What is read of the log for one version: names in its folder.

    Attributes:
        checkpoint: the parts of the newest complete checkpoint that is not newer than the version; () for none.
        commits: all that follow it, oldest first.
    """

    version: int
    checkpoint: tuple[str, ...]
    commits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """The log's folder.

    Attributes:
        commits: versions that have a commit.
        checkpoints: names of the parts of a complete checkpoint, by version.
        url: of the log, for messages.
    """

    commits: frozenset[int]
    checkpoints: Mapping[int, tuple[str, ...]]
    url: str

    @classmethod
    def of(cls, names: Iterable[str], url: str) -> Listing:
        """Of a folder's names."""
        commits: set[int] = set()
        whole: dict[int, str] = {}
        parts: dict[tuple[int, int], dict[int, str]] = {}
        for name in names:
            if match := _COMMIT.fullmatch(name):
                commits.add(int(match[1]))
            elif match := _CHECKPOINT.fullmatch(name):
                if match[3] is None:
                    whole[int(match[1])] = name  # any of those of one version will do
                else:
                    parts.setdefault((int(match[1]), int(match[3])), {})[int(match[2])] = name
        checkpoints: dict[int, tuple[str, ...]] = {version: (name,) for version, name in whole.items()}
        for (version, count), found in parts.items():
            if set(found) == set(range(1, count + 1)):
                checkpoints.setdefault(version, tuple(found[part] for part in range(1, count + 1)))
        return cls(frozenset(commits), checkpoints, url)

    @property
    def latest(self) -> int:
        """The newest version.

        Raises:
            CorruptFileError: there is none.
        """
        if not self.commits and not self.checkpoints:
            raise CorruptFileError("the Delta log has neither commits nor a complete checkpoint", url=self.url)
        return max((*self.commits, *self.checkpoints))

    def segment(self, version: int) -> Segment:
        """What ``version`` is made of.

        Raises:
            InvalidOptionError: there is no such version.
            CorruptFileError: parts of the log that it needs are missing.
        """
        if version > self.latest:
            raise InvalidOptionError(f"version={version}: the newest version is {self.latest}", url=self.url)
        base = max((known for known in self.checkpoints if known <= version), default=-1)
        needed = range(base + 1, version + 1)
        missing = [number for number in needed if number not in self.commits]
        if missing:
            kept = min((*self.commits, *self.checkpoints))
            if version < kept:
                raise InvalidOptionError(f"version={version}: the oldest version that is kept is {kept}", url=self.url)
            shown = ", ".join(map(str, missing[:3]))
            raise CorruptFileError(
                f"the Delta log is incomplete: version {version} needs commits that are not there: {shown}",
                url=self.url,
                hint="Choose a version at or after the oldest checkpoint that is kept.",
            )
        names = tuple(f"{number:020}.json" for number in needed)
        return Segment(version, self.checkpoints.get(base, ()), names)
