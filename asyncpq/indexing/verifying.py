"""An index is held to the files that it speaks of, by samples of them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import DataFile
from asyncpq.errors import AsyncpqError, CorruptIndexError
from asyncpq.events import Operation
from asyncpq.indexing.file_rows import FileWork, Wanted, collect_file
from asyncpq.indexing.listed_files import IndexedFile
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.model import BY_VALUE, KeyRange, Part, Place, file_key
from asyncpq.indexing.part_slices import BY_ROW
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.resources import Resources
from asyncpq.storage.urls import safe_url


@dataclass(slots=True)
class Verified:
    """What was found.

    Attributes:
        files: that were looked at. changed: those of them that have another version now, or are gone: nothing can be
            said of them until the index is refreshed.
        rows: rows of parts that were compared.
        problems: what is wrong, in words. An index with any should be dropped and built again.
    """

    files: int = 0
    changed: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


async def verify(
    resources: Resources,
    place: Place,
    manifest: Manifest,
    files: Sequence[tuple[IndexedFile, DataFile]],
    wanted: Wanted,
    operation: Operation,
    *,
    num_rows: int,
    randomness: random.Random,
) -> Verified:
    """Make the rows of ``files`` anew, and look for them in the index.

    Args:
        files: a sample.
        num_rows: of each part that is by value, so many rows of each file are looked for.

    Raises:
        StoreError: the lake failed. What is wrong with the index is told, not raised.
    """
    found = Verified()
    await _segments(place, manifest, found, operation)
    columns, names = wanted.columns(), wanted.names()
    operation.metrics.files_total = len(files)
    for known, file in files:
        part_operation = operation.part(safe_url(file.url), 0)
        work = FileWork(id=known.id, path=known.path, file=file)
        rows = await collect_file(resources, work, wanted, columns, names, part_operation, _no_limit)
        found.files += 1
        same = (
            rows.validator is not None and known.validator is not None and rows.validator.same_version(known.validator)
        )
        if rows.gone or not same:
            found.changed += 1
        elif (rows.problem is None) is (known.num_rows is None):
            found.problems.append(
                f"{known.path}: {rows.problem or 'it can be read, and the index says that it cannot'}"
            )
        else:
            for part, table in rows.tables.items():
                if known.id in manifest.covered(part):
                    await _compare(place, manifest, part, known, table, num_rows, randomness, found, operation)
                else:
                    found.problems.append(f"{known.path}: {part} has nothing of it")
        operation.part_ended(part_operation, rows.problem, found.files)
    return found


async def _segments(place: Place, manifest: Manifest, found: Verified, operation: Operation) -> None:
    there = await place.list_segments(operation=operation)
    found.problems += [f"the segment {name} is not there" for name in sorted(manifest.names - there.keys())]


async def _compare(
    place: Place,
    manifest: Manifest,
    part: Part,
    file: IndexedFile,
    table: pa.Table,
    num_rows: int,
    randomness: random.Random,
    found: Verified,
    operation: Operation,
) -> None:
    """Whether the index has the rows of ``table``, all that one file gives to a part."""
    if part.kind in BY_VALUE:
        chosen = sorted(randomness.sample(range(table.num_rows), min(num_rows, table.num_rows)))
        table = table.take(pa.array(chosen, pa.int64()))
        ranges = [KeyRange.point(key) for key in sorted(set(table.column("key").to_pylist()))]
    else:
        ranges = [KeyRange(file_key(file.id), file_key(file.id + 1))]
    try:
        held = await _rows(place, manifest, part, ranges, operation) if ranges else []
    except CorruptIndexError as error:
        found.problems.append(str(error))
        return
    except AsyncpqError as error:
        found.problems.append(f"{part} could not be read: {error}")
        return
    expected = table.to_pylist()
    found.rows += len(expected)
    missing = _missing_postings(expected, held) if part.kind in BY_ROW else _missing(expected, held)
    if missing:
        found.problems.append(f"{file.path}: {missing} of {len(expected)} rows are not in {part}")
    if part.kind not in BY_VALUE and len(held) > len(expected):
        found.problems.append(f"{file.path}: {part} has {len(held)} rows of it, and should have {len(expected)}")


def _missing(expected: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]) -> int:
    have = {repr(row) for row in held}
    return sum(repr(row) not in have for row in expected)


def _missing_postings(expected: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]) -> int:
    """Postings of which the first or the last row is not posted: how rows are joined depends on a build's memory."""
    spans: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    for row in held:
        spans.setdefault((row["key"], row["file"]), []).append((row["row"], row["row"] + row["rows"]))
    posted = {key: RowRanges(some) for key, some in spans.items()}
    missing = 0
    for row in expected:
        rows = posted.get((row["key"], row["file"]), RowRanges())
        missing += row["row"] not in rows or row["row"] + row["rows"] - 1 not in rows
    return missing


async def _rows(
    place: Place, manifest: Manifest, part: Part, ranges: list[KeyRange], operation: Operation
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for segment in manifest.of_part(part):
        table = await place.read_segment(segment, ranges, operation=operation)
        if table is not None:
            rows += table.to_pylist()
    return rows


@asynccontextmanager
async def _no_limit(weight: int) -> AsyncIterator[None]:
    yield
