"""What a damaged file may do: give what pyarrow reads, or end in a typed error."""

from __future__ import annotations

import io
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import asyncpq
from tests.fuzz import bases
from tests.fuzz.mutations import Case
from tests.fuzz.parquet_parts import without_key_values

LIMITS = asyncpq.LimitOptions(
    max_footer_bytes=1 << 20, max_page_bytes=4 << 20, max_decoded_bytes=64 << 20, decode_threads=0
)


class WrongAnswerError(AssertionError):
    """A damaged file gave rows that it must not give, or an error that is not asyncpq's."""


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Equal names, types and values; NaN is NaN, and dictionaries may be ordered in another way."""
    if not found.schema.equals(wanted.schema):
        return False
    return found.equals(wanted) or repr(_values(found)) == repr(_values(wanted))


def _values(table: pa.Table) -> list[Any]:
    return [_plain(column) for column in table.columns]


def _plain(column: pa.ChunkedArray) -> list[Any] | bytes:
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):  # not UTF-8, or a date that Python does not have
        sink = pa.BufferOutputStream()
        batch = pa.table({"x": column.combine_chunks()})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_table(batch)
        return bytes(sink.getvalue())


Question = tuple[str, Callable[[], Awaitable[Any]], Callable[[pa.Table], Any]]


def _about(file: asyncpq.File, rng: random.Random, key: str, values: list[Any]) -> list[Question]:
    """Questions about a column."""
    low, high = sorted(rng.choices(values, k=2))
    one = rng.choice(values)
    between = (pc.field(key) >= low) & (pc.field(key) < high)
    where = (asyncpq.col(key) >= low) & (asyncpq.col(key) < high)
    return [
        ("filter", lambda: file.read(where=where), lambda table: table.filter(between)),
        ("filter column", lambda: file.read([key], where), lambda table: table.filter(between).select([key])),
        ("lookup", lambda: file.lookup({key: one}), lambda table: table.filter(pc.field(key) == one)),
        ("count", lambda: file.count(where), lambda table: table.filter(between).num_rows),
    ]


async def judge(case: Case, path: Path, seed: int) -> None:
    """Ask a file of everything, and compare.

    Args:
        case: the damaged file. path: where it was put. seed: of the questions.

    Raises:
        WrongAnswerError: it does what it must not.
    """
    rng = random.Random(seed)
    requests = asyncpq.RequestOptions(
        tail_bytes=rng.choice([8, 600, 640 << 10]),
        gap_bytes=rng.choice([0, 16 << 10]),
        late_materialization=rng.choice(["always", "never", "auto"]),
    )
    trust = asyncpq.ReadOptions(trust_statistics=not case.says_other)
    async with asyncpq.Session(requests=requests, limits=LIMITS, read=trust) as session:
        try:
            file = await session.open_file(path)
        except asyncpq.AsyncpqError as error:
            _check(case, "open", error)
            return
        good = bases.table(case.base)
        rows = [rng.randrange(good.num_rows) for _ in range(rng.choice([1, 3, 10]))]
        column = rng.choice(good.column_names)
        questions: list[Question] = [
            ("read", lambda: file.read(), lambda table: table),
            ("take", lambda: file.take(rows), lambda table: table.take(rows)),
            ("limit", lambda: file.read(limit=7), lambda table: table.slice(0, 7)),
        ]
        if good.column_names.count(column) == 1:
            questions.append(("read column", lambda: file.read([column]), lambda table: table.select([column])))
        keys = bases.keys(case.base)
        if keys is not None:
            questions += _about(file, rng, *keys)
        rng.shuffle(questions)
        for name, ask, of in questions:
            try:
                found = await ask()
            except asyncpq.AsyncpqError as error:
                _check(case, name, error)
            else:
                _compare(case, name, found, of)
        try:
            (await file.plan(limit=rng.choice([None, 3]))).explain()
        except asyncpq.AsyncpqError as error:
            _check(case, "plan", error)


def _check(case: Case, name: str, error: asyncpq.AsyncpqError) -> None:
    """Whether an error is one that a damaged file may end in."""
    allowed: tuple[type[Exception], ...] = (asyncpq.FormatError,)
    if case.says_other:  # columns may have other names and types, and rows may be fewer
        allowed = (asyncpq.FormatError, asyncpq.QueryError)
    if not isinstance(error, allowed):
        raise WrongAnswerError(f"{name}: {error!r}") from error
    if error.url is None:
        raise WrongAnswerError(f"{name}: an error without a url: {error!r}") from error
    str(error)


def _compare(case: Case, name: str, found: Any, of: Callable[[pa.Table], Any]) -> None:
    if _equal(found, of(bases.table(case.base))):
        return
    rows = bases.table(case.base).num_rows
    if name == "read" and found.num_rows != rows:
        raise WrongAnswerError(f"{name}: {found.num_rows} rows instead of {rows}")
    # perhaps another file that is right in itself: pyarrow must read the same out of it
    keys = bases.keys(case.base)
    columns = [*found.column_names, *(keys or ())[:1]] if isinstance(found, pa.Table) else None
    problem: Exception | None = None
    for wanted_columns in (None, columns):
        try:
            wanted = of(_by_pyarrow(case, wanted_columns))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            problem = error
            continue
        if _equal(found, wanted):
            return
        raise WrongAnswerError(f"{name}: neither the good file's rows nor those that pyarrow reads")
    # what pyarrow meets elsewhere in the file need not be met by a read of a part of it
    if not case.says_other:
        raise WrongAnswerError(f"{name}: rows, where pyarrow raises {problem!r}") from problem


def _by_pyarrow(case: Case, columns: list[str] | None) -> pa.Table:
    try:
        return _read(case.data, columns)
    except (pa.ArrowException, OSError) as error:
        # asyncpq drops a stored Arrow schema that is broken
        if not any(word in str(error).lower() for word in ("base64", "flatbuffer", "schema")):
            raise
        return _read(without_key_values(case.data), columns)


def _read(data: bytes, columns: list[str] | None) -> pa.Table:
    file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    return file.read(None if columns is None else list(dict.fromkeys(columns)))


def _equal(found: Any, wanted: Any) -> bool:
    return same(found, wanted) if isinstance(wanted, pa.Table) else bool(found == wanted)
