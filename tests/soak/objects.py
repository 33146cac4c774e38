"""The objects of the soak run: versions of one table, and pyarrow's answers about each of them."""

from __future__ import annotations

import io
import random
import time
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

ROWS = 6000
VERSIONS = 4


def _table(number: int) -> pa.Table:
    rows = range(ROWS)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "value": pa.array([number * 1_000_000 + row for row in rows], pa.int64()),
            "name": [f"version {number} row {row:05d}" for row in rows],
            "tag": [f"{number}-{row % 50}" for row in rows],
            "list": [[number, row] if row % 3 else None for row in rows],
        }
    )


def _written(table: pa.Table, codec: str) -> bytes:
    return parquet_bytes(
        table,
        row_group_size=ROWS // 4,
        max_rows_per_page=250,
        write_batch_size=250,
        data_page_size=250,
        write_page_index=True,
        use_dictionary=["tag"],
        write_page_checksum=True,
        compression=codec,
    )


#: What pyarrow reads out of each version's file, and the file.
TABLES = [_table(number) for number in range(VERSIONS)]
FILES = [_written(table, ("none", "zstd")[number % 2]) for number, table in enumerate(TABLES)]
for _table_, _file in zip(TABLES, FILES, strict=True):
    assert pq.read_table(io.BytesIO(_file)).equals(_table_)


@dataclass
class SoakObject:
    """One object of the server, replaced now and then; ``history`` says since when it had which version."""

    path: str
    history: list[tuple[float, int]] = field(default_factory=list)

    def replace(self, server: ObjectServer, version: int) -> None:
        """Give it a version."""
        server.put(self.path, FILES[version])
        self.history.append((time.monotonic(), version))
        del self.history[:-100]

    def observe(self, server: ObjectServer) -> None:
        """Note the version that the server has: a fault that replaces the object may take effect after a replacement
        that was noted later."""
        version = FILES.index(server.objects[self.path].data)
        if version != self.current:
            self.history.append((time.monotonic(), version))

    @property
    def current(self) -> int:
        return self.history[-1][1]

    def versions_between(self, start: float, stop: float) -> set[int]:
        """The versions that it had at some time of that span."""
        ends = [since for since, _ in self.history[1:]] + [stop]
        return {
            version for (since, version), end in zip(self.history, ends, strict=True) if since <= stop and end >= start
        }


@dataclass(frozen=True)
class SoakQuestion:
    """One read. ``what`` is "lookup", "scan", "take", "count", "cancelled lookup" or "left scan"."""

    what: str
    first: int
    stop: int
    columns: tuple[str, ...]

    def answer(self, version: int) -> pa.Table:
        """Its rows by pyarrow's table."""
        table = TABLES[version]
        if self.what == "count":
            return pa.table({"rows": [self.stop - self.first]})
        if self.what == "take":
            return table.take(pa.array([self.stop - 1, self.first, self.first])).select(list(self.columns))
        length = 1 if "lookup" in self.what else self.stop - self.first
        return table.slice(self.first, length).select(list(self.columns))


def random_question(rng: random.Random) -> SoakQuestion:
    """Mostly lookups."""
    what = rng.choices(
        ["lookup", "scan", "take", "count", "cancelled lookup", "left scan"], weights=[60, 10, 12, 10, 4, 4]
    )[0]
    first = int(ROWS * rng.random() ** 2)
    stop = min(ROWS, first + 1 + int(rng.expovariate(1 / 800)))
    columns = rng.sample(["value", "name", "tag", "list"], rng.randint(1, 3))
    return SoakQuestion(what, first, stop, tuple(columns))
