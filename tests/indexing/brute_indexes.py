"""Indexes made value by value in plain Python, for tests of what reads them."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from asyncpq.expressions.tokens import TOKENIZER, TOKENIZER_VERSION, tokens
from asyncpq.indexing.index_model import (
    AFTER_ALL,
    BY_VALUE,
    NAN_KEY,
    NULL_KEY,
    TABLE_SCHEMAS,
    UNKNOWN_KEY,
    VALUE_TAG,
    IndexBackend,
    IndexTable,
    Segment,
    file_key,
)
from asyncpq.indexing.key_encoding import composite, key_hashes, make_bitset, normalised, text_key
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator

TEXT = (("tokenizer", TOKENIZER), ("version", TOKENIZER_VERSION))
NGRAM = (("max_ngrams", 1000), ("n", 2))
WHEN = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


@dataclass(frozen=True)
class BruteFile:
    """A version of a file.

    Attributes:
        table: all of its rows, in the dataset's types.
        groups: rows of each row group.
        path, validator: as the index lists it.
        live: whether it is in use.
        unknown: parts that know nothing of it: by a row that says so, or by leaving its id out.
    """

    table: pa.Table
    groups: tuple[int, ...]
    path: str = ""
    validator: Validator | None = None
    live: bool = True
    unknown: Mapping[IndexTable, str] | None = None


def keys_of(table: pa.Table, part: IndexTable) -> list[list[bytes]]:
    """For each row the keys that a part of values has for it."""
    columns = [table.column(name).combine_chunks() for name in part.columns]
    if len(columns) > 1:
        types = [column.type for column in columns]
        keys = composite([normalised(column, column.type) for column in columns], types)
        return [[key] for key in keys.to_pylist()]
    (column,) = columns
    if pa.types.is_list(column.type):
        rows = column.to_pylist()
        kind = column.type.value_type
        return [[NULL_KEY] if row is None else normalised(pa.array(row, kind), kind).to_pylist() for row in rows]
    if part.kind in ("text", "ngram"):
        found: list[list[bytes]] = []
        for value in column.to_pylist():
            if value is None:
                found.append([])
            elif part.kind == "text":
                found.append([text_key(token.encode()) for token in dict.fromkeys(tokens(value))])
            else:
                data = value.encode() if isinstance(value, str) else value
                n = int(dict(part.options)["n"])
                found.append([VALUE_TAG + data[at : at + n] for at in range(len(data) - n + 1)])
        return found
    return [[key] for key in normalised(column, column.type).to_pylist()]


def rows_of(part: IndexTable, files: Sequence[BruteFile]) -> list[dict[str, Any]]:
    """The rows of a part, by key."""
    rows: list[dict[str, Any]] = []
    for number, file in enumerate(files):
        how = (file.unknown or {}).get(part)
        if part == FILES:
            rows.append(_entry(number, file))
        elif how == "row":
            rows.append({"key": UNKNOWN_KEY, "max": AFTER_ALL, "file": number, "group": -1, "row": 0, "rows": 0})
        elif how is None:
            rows.extend(_known(part, number, file))
    return sorted(rows, key=lambda row: (row["key"], row.get("file", 0), row.get("row", 0), row.get("group", 0)))


def _entry(number: int, file: BruteFile) -> dict[str, Any]:
    validator = file.validator or Validator(1)
    return {
        "key": file_key(number),
        "path": file.path,
        "size": validator.size,
        "etag": validator.etag,
        "last_modified": validator.last_modified,
        "version": validator.version,
        "num_rows": file.table.num_rows,
        "row_groups": list(file.groups),
        "problem": None,
    }


def _known(part: IndexTable, number: int, file: BruteFile) -> Iterable[dict[str, Any]]:
    keys = keys_of(file.table, part)
    if part.kind in ("keys", "text"):
        for row, some in enumerate(keys):
            yield from ({"key": key, "file": number, "row": row, "rows": 1} for key in some)
        return
    if part.kind in ("set", "ngram"):
        yield from ({"key": key, "file": number} for key in {key for some in keys for key in some})
        return
    first = 0
    for group, count in enumerate((len(keys), *file.groups), -1):
        mine = keys if group < 0 else keys[first : first + count]
        first += 0 if group < 0 else count
        held = {key for some in mine for key in some}
        if part.kind == "bloom":
            payload = make_bitset(key_hashes(pa.array(sorted(held), pa.binary())), 0.1)
            yield {"key": file_key(number, group), "payload": payload}
            continue
        values = sorted(held - {NULL_KEY, NAN_KEY})
        spans = [(values[0], values[-1])] if values else []
        spans += [(key, key) for key in (NULL_KEY, NAN_KEY) if key in held]
        for low, high in spans:
            yield {"key": low, "max": high, "file": number, "group": group, "values": None}


async def write_index(
    backend: IndexBackend,
    parts: Sequence[IndexTable],
    files: Sequence[BruteFile],
    schema: pa.Schema,
    *,
    cuts: Sequence[int] = (),
    root: str = "",
    snapshot: int = 1,
    more: Mapping[IndexTable, pa.Table] | None = None,
) -> Manifest:
    """Write an index of the files into a place, and the manifest with it.

    Args:
        cuts: file ids where another segment of each part begins.
        more: rows of parts that are not made of values.
    """
    segments: list[Segment] = []
    edges = [0, *cuts, len(files)]
    for part in (FILES, *parts):
        if more is not None and part in more:
            segments.append(await _write(backend, part, more[part], [(0, len(files))], f"{snapshot}-{len(segments)}"))
            continue
        rows = rows_of(part, files)
        for start, stop in itertools.pairwise(edges):
            by_key = part.kind not in BY_VALUE
            mine = [row for row in rows if start <= (_id(row["key"]) if by_key else row["file"]) < stop]
            covered = [(at, at + 1) for at in range(start, stop) if (files[at].unknown or {}).get(part) != "absent"]
            table = pa.Table.from_pylist(mine, schema=TABLE_SCHEMAS[part.kind])
            segments.append(await _write(backend, part, table, covered, f"{snapshot}-{len(segments)}"))
    retired = RowRanges((number, number + 1) for number, file in enumerate(files) if not file.live)
    manifest = Manifest(
        index="brute",
        snapshot=snapshot,
        commit=f"commit {snapshot}",
        created=WHEN,
        as_of=WHEN,
        root=root,
        schema=schema,
        tables=(FILES, *parts),
        segments=tuple(segments),
        next_file=len(files),
        retired=retired,
        num_files=len(files) - retired.num_rows,
    )
    return manifest


def _id(key: bytes) -> int:
    return int.from_bytes(key[:8], "big")


async def _write(
    backend: IndexBackend, part: IndexTable, table: pa.Table, covered: Sequence[tuple[int, int]], name: str
) -> Segment:
    async def batches() -> AsyncIterator[pa.RecordBatch]:
        for batch in table.to_batches():
            yield batch

    keys = [key for key in table.column("key").to_pylist() if key != UNKNOWN_KEY]
    size, extra = await backend.write_segment(name, part, batches())
    return Segment(
        name=name,
        table=part,
        num_rows=table.num_rows,
        size=size,
        low=keys[0] if keys else b"",
        high=keys[-1] if keys else b"",
        files=tuple(RowRanges(covered)),
        has_unknown=len(keys) < table.num_rows,
        extra=extra,
    )
