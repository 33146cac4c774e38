"""What an index says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.model import Part


@dataclass(frozen=True, slots=True)
class PartReport:
    """One table of an index.

    Attributes:
        kind, columns, options: what it knows.
        files: of how many it has all there is.
        rows, size, segments: of the table; bytes, roughly.
    """

    kind: str
    columns: tuple[str, ...]
    options: dict[str, Any]
    files: int
    rows: int
    size: int
    segments: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """How the files have changed since the snapshot: how many.

    Attributes:
        new, changed, gone: one whose version cannot be told without opening it counts as changed.
    """

    new: int
    changed: int
    gone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """What an index knows.

    Attributes:
        place: where it is kept.
        snapshot: number of the newest.
        created: when that was made.
        as_of: when the files were looked for that it lists; None: its first build has not ended.
        files, rows: that it lists; rows of those that could be read.
        size: bytes of its segments, roughly.
        parts: of which it consists.
        builds: under way or broken off.
        staleness: None where that was not asked for.
    """

    place: str
    snapshot: int
    created: datetime
    as_of: datetime | None
    files: int
    rows: int
    size: int
    parts: tuple[PartReport, ...]
    builds: int
    staleness: Staleness | None = None

    def __str__(self) -> str:
        when = "not built to its end" if self.as_of is None else f"files of {self.as_of:%Y-%m-%d %H:%M:%S %Z}"
        lines = [
            f"index at {self.place}, snapshot {self.snapshot}, {when}",
            f"  {self.files} files, {self.rows} rows, {self.size} bytes"
            + (f", {self.builds} builds under way or broken off" if self.builds else ""),
        ]
        for part in self.parts:
            name = f"{part.kind}({', '.join(part.columns)})" if part.columns else part.kind
            lines.append(
                f"  {name}: {part.rows} rows of {part.files} files, {part.size} bytes in {part.segments} segments"
            )
        if self.staleness is not None:
            now = self.staleness
            lines.append(f"  since then {now.new} files are new, {now.changed} changed, {now.gone} gone")
        return "\n".join(lines)


def part_report(manifest: Manifest, part: Part) -> PartReport:
    """Of one part, by one snapshot."""
    segments = manifest.of_part(part)
    return PartReport(
        kind=part.kind,
        columns=part.columns,
        options=dict(part.options),
        files=(manifest.covered(part) & manifest.live).num_rows,
        rows=sum(segment.num_rows for segment in segments),
        size=sum(segment.size for segment in segments),
        segments=len(segments),
    )
