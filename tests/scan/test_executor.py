"""The executor over files that are made up: which it reads at once, ahead, again or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from asyncpq.errors import AsyncpqError, CorruptFileError, ObjectChangedError, UsageError
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.options import SessionOptions
from asyncpq.scan.executor import FilePlan, ScanExecutor, one_table

SMALL, LARGE = 10, 1 << 30  # bytes


@dataclass(eq=False)
class MadeScan:
    """Units of one row each; a unit that is an error is raised."""

    rows: Sequence[int | AsyncpqError]
    num_bytes: int
    runs: list[str]
    rows_matched: int = 0
    read: Any = field(default_factory=lambda: SimpleNamespace(current=True, metrics=ReadMetrics()))

    def ahead_bytes(self, pace_bytes: float | None) -> float:
        return 1 << 30

    def may_decode(self, unit: object, others: int, num_bytes: float) -> bool:
        return True

    async def units(self, unit_bytes: int | None) -> list[Any]:
        numbers = range(len(self.rows))
        units = [list(numbers)] if unit_bytes is None else [[number] for number in numbers]
        size = self.num_bytes // max(1, len(units))
        return [
            SimpleNamespace(num_bytes=size, first_bytes=size, pieces=[SimpleNamespace(items=unit, last=True)])
            for unit in units
            if unit
        ]

    async def run(self, unit: Any) -> list[pa.Table]:
        self.runs.append("at once")
        return await self.decode(unit, unit.pieces[0].items)

    async def fetch_unit(self, unit: Any) -> list[int]:
        await asyncio.sleep(0)
        return list(unit.pieces[0].items)

    async def decode(self, unit: Any, fetched: list[int]) -> list[pa.Table]:
        tables = []
        for number in unit.pieces[0].items:
            row = self.rows[number]
            if isinstance(row, AsyncpqError):
                raise row
            self.rows_matched += 1
            tables.append(pa.table({"x": [row]}))
        return tables


@dataclass(eq=False)
class MadeFile:
    number: int
    reading: FilePlan | None
    delivered: bool = False
    finished: int = 0

    async def finish(self) -> None:
        self.finished += 1


@dataclass
class MadeFiles:
    """Files whose rows are given for each time that they are opened."""

    opened: dict[int, list[Sequence[int | AsyncpqError]]]
    num_bytes: int = SMALL
    renewals: list[dict[int, list[Sequence[int | AsyncpqError]]]] = field(default_factory=list)
    leaves_out: bool = False
    runs: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    done_: set[int] = field(default_factory=set)

    def _open(self, number: int) -> MadeFile:
        attempts = self.opened[number]
        rows = attempts.pop(0) if len(attempts) > 1 else attempts[0]
        scan = MadeScan(rows, self.num_bytes, self.runs)
        plan = SimpleNamespace(num_bytes=self.num_bytes, file_scan=scan, has_rows=bool(rows))
        return MadeFile(number, cast("FilePlan", plan))

    async def start(self) -> None:
        self.told.append("start")

    async def alone(self) -> MadeFile | None:
        left = [number for number in self.opened if number not in self.done_]
        return self._open(left[0]) if len(left) == 1 else None

    async def planned(self) -> AsyncGenerator[MadeFile]:
        for number in [number for number in self.opened if number not in self.done_]:
            yield self._open(number)

    def advanced(self, file: MadeFile) -> None:
        """Progress is of no matter here."""

    async def renewed(self) -> bool:
        if not self.renewals:
            return False
        self.opened = self.renewals.pop(0)
        self.done_.clear()
        return True

    async def done(self, file: MadeFile) -> None:
        self.told.append(f"done {file.number}")
        self.done_.add(file.number)

    async def failed(self, file: MadeFile, error: AsyncpqError, *, given_out: bool) -> bool:
        self.told.append(f"failed {file.number}{', given out' if given_out else ''}")
        if self.leaves_out:
            self.done_.add(file.number)
            return True
        if given_out or not isinstance(error, ObjectChangedError):
            raise error
        return False

    async def give_up(self, file: MadeFile) -> None:
        self.told.append(f"give up {file.number}")

    async def close(self) -> None:
        self.told.append("close")


def executor(files: MadeFiles, *, ordered: bool = True) -> ScanExecutor[MadeFile]:
    return ScanExecutor(Runtime(SessionOptions(), {}), "made", files, ordered=ordered)


def values(rows: Mapping[int, Sequence[pa.Table]]) -> dict[int, list[int]]:
    return {number: [row for table in tables for row in table["x"].to_pylist()] for number, tables in rows.items()}


async def streamed(scan: ScanExecutor[MadeFile]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    await scan.start()
    while (rows := await scan.next()) is not None:
        found += [(rows.file.number, row) for table in rows.tables for row in table["x"].to_pylist()]
        scan.done_with_head()
    return found


async def test_a_small_file_alone_is_read_at_once() -> None:
    files = MadeFiles({3: [[1, 2]]})
    scan = executor(files)
    assert values(await scan.collect()) == {3: [1, 2]}
    assert files.runs == ["at once"]
    assert files.told == ["done 3"]
    assert scan.rows_matched == 2
    await scan.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(("opened", "num_bytes"), [({0: [[1, 2]]}, LARGE), ({0: [[1, 2]], 1: [[3]]}, SMALL)])
async def test_others_are_fetched_ahead(opened: dict[int, Any], num_bytes: int) -> None:
    files = MadeFiles(opened, num_bytes)
    scan = executor(files)
    assert values(await scan.collect()) == {number: rows[0] for number, rows in opened.items()}
    assert files.runs == []
    await scan.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_file_that_has_changed_is_read_again() -> None:
    for opened in ({0: [[1, ObjectChangedError("new")], [5, 6]]}, {0: [[9]], 1: [[ObjectChangedError("new")], [5, 6]]}):
        files = MadeFiles(cast("Any", opened))
        scan = executor(files)
        found = values(await scan.collect())
        assert found[max(found)] == [5, 6]
        assert sum("failed" in line for line in files.told) == 1
        await scan.close()


async def test_rows_of_files_that_were_found_before_are_forgotten() -> None:
    """Another listing came: the only file there was, and the first of two."""
    for first in ({0: [[1]]}, {0: [[1]], 1: [[2]]}):
        files = MadeFiles(cast("Any", first), renewals=[{0: [[7]], 4: [[8]]}])
        scan = executor(files)
        assert values(await scan.collect()) == {0: [7], 4: [8]}
        assert scan.rows_matched == 2
        await scan.close()


async def test_a_bad_file_is_left_out() -> None:
    for opened in ({0: [[1, CorruptFileError("bad")]]}, {0: [[1, CorruptFileError("bad")]], 1: [[2]]}):
        files = MadeFiles(cast("Any", opened), leaves_out=True)
        scan = executor(files)
        found = values(await scan.collect())
        assert found == {number: [2] for number in opened if number}
        await scan.close()


async def test_rows_that_were_given_out_are_not_given_again() -> None:
    files = MadeFiles({0: [[1, ObjectChangedError("new")], [5]]}, LARGE)
    scan = executor(files)
    with pytest.raises(ObjectChangedError):
        await streamed(scan)
    assert "failed 0, given out" in files.told
    await scan.close()
    assert "close" in files.told
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_without_an_order_a_changed_file_is_read_after_the_others() -> None:
    files = MadeFiles({0: [[ObjectChangedError("new")], [5]], 1: [[6]], 2: [[7]]}, LARGE)
    scan = executor(files, ordered=False)
    found = await streamed(scan)
    assert sorted(found) == [(0, 5), (1, 6), (2, 7)]
    assert found[-1] == (0, 5)
    assert files.told.count("give up 0") == 1
    await scan.close()


async def test_files_without_rows_are_done_with() -> None:
    files = MadeFiles({0: [[]], 1: [[2]], 2: [[]]}, LARGE)
    scan = executor(files)
    assert await streamed(scan) == [(1, 2)]
    assert sorted(line for line in files.told if line.startswith("done")) == ["done 0", "done 1", "done 2"]
    await scan.close()


async def test_leaving_early_gives_up_what_is_open() -> None:
    files = MadeFiles({0: [[1, 2]], 1: [[3]]}, LARGE)
    scan = executor(files)
    await scan.start()
    assert await scan.next() is not None
    await scan.close()
    assert "give up 0" in files.told
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(UsageError, match="closed"):
        await scan.next()


def test_one_table_keeps_the_rows_of_no_columns() -> None:
    batch = pa.record_batch({"x": [1, 2]})
    assert one_table([batch, batch], batch.schema).num_rows == 4
    nothing = pa.table({"x": [1, 2]}).select([]).to_batches()
    assert one_table(nothing or [batch.select([])], pa.schema([])).num_rows == 2


async def test_a_cancelled_collection_ends_what_it_runs() -> None:
    """Its budget of bytes too, which later reads wait for."""
    files = MadeFiles({0: [[1, 2, 3]]}, LARGE)
    runtime = Runtime(SessionOptions(), {})
    decoding = asyncio.Event()

    async def never_ends(scan: MadeScan, unit: Any, fetched: list[int]) -> list[pa.Table]:
        decoding.set()
        await asyncio.Event().wait()
        return []

    tasks = asyncio.all_tasks()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MadeScan, "decode", never_ends)
        collecting = asyncio.ensure_future(ScanExecutor(runtime, "made", files).collect())
        await decoding.wait()
        assert runtime.budget.used > 0
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
    assert runtime.budget.used == 0
    assert asyncio.all_tasks() == tasks
    assert files.told[-1] == "close"
