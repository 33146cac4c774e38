"""The map step of an index build: a task reads its files, and gives their rows, sorted, in pieces.

A piece is one row for Spark, however many postings it has: what Spark moves are a few large values, and rows of parts
are sorted by those who sort them everywhere else (:mod:`asyncpq.indexing.build.sorting`).

Files are spread over tasks by what they cost: one large file takes as long as thousands of tiny ones.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from asyncpq.indexing.build.executor import SortedParts, collect_files
from asyncpq.indexing.build.file_rows import FileWork, Wanted
from asyncpq.indexing.manifest.manifest import FILES
from asyncpq.indexing.model import Part
from asyncpq.options import KIB, MIB, BuildOptions
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.settings import SparkSettings

#: Number of the part "files", the first one.
FILES_NUMBER: Final = 0
_PIECE_BYTES: Final = 512 * KIB
_WRITE: Final = pa.ipc.IpcWriteOptions(compression="lz4")

#: What a row of a part is sorted by: key, file, and place in it.
Order: TypeAlias = tuple[bytes, int, int]

_ORDER: Final = pa.struct([("key", pa.binary()), ("file", pa.int64()), ("at", pa.int64())])

#: A piece: ``num_rows`` rows of ``part`` with ``num_bytes`` in memory, and what three of them are sorted by; ``digest``
#: names the versions of all files of ``task`` that were read.
PIECES: Final = pa.schema(
    [
        pa.field("task", pa.int32()),
        pa.field("part", pa.int32()),
        pa.field("digest", pa.binary()),
        pa.field("num_rows", pa.int64()),
        pa.field("num_bytes", pa.int64()),
        pa.field("first", _ORDER),
        pa.field("middle", _ORDER),
        pa.field("last", _ORDER),
        pa.field("payload", pa.binary()),
    ]
)


@dataclass(frozen=True)
class CollectFiles:
    """For ``mapInArrow``: given numbers of tasks, and their files where ``works`` has them not, gives pieces.

    Attributes:
        parts: of the index, "files" first.
        works: pickled lists of files, by task; None: they come as "payload".
    """

    settings: SparkSettings
    wanted: Wanted
    parts: tuple[Part, ...]
    works: tuple[bytes, ...] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                data = row["payload"] if self.works is None else self.works[row["id"]]
                yield from sessions.batches(self.settings, partial(self._gathered, row["id"], pickle.loads(data)))

    async def _gathered(self, task: int, works: Sequence[FileWork], session: Session) -> Any:
        wanted = replace(self.wanted, options=local_options(self.wanted.options))
        return _gathered(session, task, works, wanted, self.parts)


def shipped(works: Sequence[FileWork]) -> bytes:
    """Files for a task, with what is needed to collect their rows."""
    return pickle.dumps([replace(work, file=replace(work.file, deletes=None, bounds={}, entry=None)) for work in works])


def local_options(options: BuildOptions) -> BuildOptions:
    """The same, with local files where Spark has its own."""
    local = os.environ.get("SPARK_LOCAL_DIRS")
    return options if options.folder is not None or not local else replace(options, folder=local.split(",")[0])


@asynccontextmanager
async def _gathered(
    session: Session, task: int, works: Sequence[FileWork], wanted: Wanted, parts: Sequence[Part]
) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
    runtime = session.runtime
    operation = runtime.operation("build", wanted.neighbours)
    operation.begin()
    error: BaseException | None = None
    rows_of_parts = SortedParts(runtime, parts, wanted.options)
    try:
        async with aclosing(collect_files(runtime, works, wanted, operation)) as found:
            async for rows, part in found:
                await rows_of_parts.add(rows)
                operation.part_ended(part, rows.problem, 0)
        async with aclosing(_pieces(task, rows_of_parts, parts)) as pieces:
            yield pieces
    except BaseException as raised:
        error = raised
        raise
    finally:
        operation.end(error)
        await rows_of_parts.close()


async def _pieces(task: int, rows_of_parts: SortedParts, parts: Sequence[Part]) -> AsyncGenerator[pa.RecordBatch]:
    files = [batch async for batch in await rows_of_parts.batches(FILES)]
    digest = hashlib.sha256(repr([batch.to_pylist() for batch in files]).encode()).digest()[:16]
    for batch in files:
        yield _piece(task, FILES_NUMBER, digest, pa.Table.from_batches([batch]))
    for number, part in enumerate(parts):
        if number == FILES_NUMBER:
            continue
        pending: list[pa.RecordBatch] = []
        held = 0
        async for batch in await rows_of_parts.batches(part):
            step = max(1, _PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                pending.append(batch.slice(start, step))
                held += pending[-1].nbytes
                if held >= _PIECE_BYTES:
                    yield _piece(task, number, digest, pa.Table.from_batches(pending))
                    pending, held = [], 0
        if pending:
            yield _piece(task, number, digest, pa.Table.from_batches(pending))


def _piece(task: int, part: int, digest: bytes, rows: pa.Table) -> pa.RecordBatch:
    some = (0, rows.num_rows // 2, rows.num_rows - 1)
    orders = [dict(zip(("key", "file", "at"), order_of(rows, number), strict=True)) for number in some]
    return one_row([task, part, digest, rows.num_rows, rows.nbytes, *orders, encoded(rows)], PIECES)


def order_in(piece: Mapping[str, Any]) -> Order:
    """One of those of a piece."""
    return piece["key"], piece["file"], piece["at"]


def order_of(rows: pa.Table | pa.RecordBatch, number: int) -> Order:
    """Of a row; 0 for what its part has not."""
    names = rows.schema.names
    at = next((name for name in ("group", "row") if name in names), None)
    return (
        rows.column("key")[number].as_py(),
        rows.column("file")[number].as_py() if "file" in names else 0,
        0 if at is None else rows.column(at)[number].as_py(),
    )


def one_row(values: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of it."""
    columns = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.record_batch(columns, schema)


def encoded(rows: pa.Table) -> bytes:
    """Rows of a part as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_WRITE) as writer:
        writer.write_table(rows.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decoded(data: bytes | pa.Buffer) -> pa.Table:
    """What :func:`encoded` was given."""
    return pa.ipc.open_stream(data).read_all()


#: What a task should cost: about a second.
TASK_BYTES: Final = 32 * MIB
_OPENING_BYTES: Final = 128 * KIB  # to open a file costs as much as to read so many bytes of it
_FOOTER_SHARE: Final = 64  # a footer has one of so many bytes of its file, at most
_EVEN: Final = 4  # tasks come in such numbers, as cores do: or most wait for the last ones
_UNKNOWN_BYTES: Final = 4 * MIB  # of a file whose size no listing names


def cost_of(work: FileWork, *, reads_values: bool) -> int:
    """What it costs to read a file, as bytes."""
    size = work.file.size if work.file.validator is None else work.file.validator.size
    if size is None:
        size = _UNKNOWN_BYTES
    return _OPENING_BYTES + (size if reads_values else size // _FOOTER_SHARE)


def count_of(cost: int, target: int) -> int:
    """How many tasks do what costs so much, so that each costs ``target`` or somewhat less."""
    count = max(1, -(-cost // max(1, target)))
    return count if count <= _EVEN else -(-count // _EVEN) * _EVEN


def packed(costs: Sequence[int], target: int) -> list[list[int]]:
    """Positions in ``costs``, in as many bins as it takes for each to cost ``target`` or somewhat less.

    No bin costs more than a third above the best that can be done with so many of them. The heaviest bin comes first:
    it should not be begun last. Positions in a bin ascend.
    """
    if not costs:
        return []
    count = min(len(costs), count_of(sum(costs), target))
    bins: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(count)]
    for at in sorted(range(len(costs)), key=lambda at: (-costs[at], at)):
        load, number, held = bins[0]
        held.append(at)
        heapq.heapreplace(bins, (load + costs[at], number, held))
    return [sorted(held) for _, _, held in sorted(bins, key=lambda one: (-one[0], one[1])) if held]
