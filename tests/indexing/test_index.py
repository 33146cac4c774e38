"""Datasets with an index equal pyarrow, by what their view promises, while files and index change under an open reader.

Random lakes, kinds, places, predicates; files added, replaced and deleted; refreshes, compactions and vacuums between
reads. By default, which is view "listed", every verb equals pyarrow on the files as they are. View "snapshot" equals it
on the files of the snapshot: of a file that was replaced since, all rows that match now may come, or none; one that was
deleted may be missed aloud.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.expressions import Expression
from asyncpq.indexing import (
    Bloom,
    Bounds,
    Footers,
    IndexKind,
    Keys,
    MemoryBackend,
    NGrams,
    Pages,
    Text,
    ValkeyBackend,
    ValueSet,
)
from tests.predicates import expressions, oracle
from tests.servers import ADMIN_PASSWORD, ValkeyServer
from tests.test_dataset import by_pyarrow, lakes

PLACES = ("below", "folder", "memory", "sqlite")
STEPS = ("ask", "ask", "add", "replace", "delete", "refresh", "compact", "vacuum")
_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)  # of literals
Made = tuple[list[tuple[str, bytes]], dict[str, str], bool]


def possible_kinds(schema: pa.Schema) -> list[IndexKind]:
    """Every kind, of every column that it can be of."""
    made: list[IndexKind] = [Footers(), Pages()]
    for name in schema.names:
        some = [Bounds(name), ValueSet(name), ValueSet(name, max_values=2), Bloom(name), NGrams(name, n=2)]
        made += [*some, Keys(name), Keys(name, max_postings=2), Text(name)]
    made += [Keys(first, second) for first in schema.names for second in schema.names if first != second][:6]
    return [kind for kind in made if _fits(kind, schema)]


def _fits(kind: IndexKind, schema: pa.Schema) -> bool:
    try:
        return bool(kind.tables(schema))
    except asyncpq.InvalidOptionError:
        return False


class Lake:
    """Files in a folder, and what the newest snapshot of their index lists."""

    def __init__(self, root: Path, files: list[tuple[str, bytes]]) -> None:
        self.root = root
        self.now: dict[str, bytes] = {}
        self.listed: dict[str, bytes] = {}
        self._spare = [data for _, data in files]
        self._number = 0
        self._tables: dict[tuple[str, bytes], pa.Table] = {}
        for path, data in files:
            self.put(path, data)

    def put(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        self._number += 1
        # another inode, so that another version is seen whatever the clock's grain
        new = self.root / f".{self._number}"
        new.write_bytes(data)
        new.replace(self.root / path)
        self.now[path] = data

    def change(self, step: str, data: st.DataObject) -> None:
        """Add, replace or delete a file."""
        paths = sorted(self.now)
        if step == "add":
            folder = data.draw(st.sampled_from(paths)).rpartition("/")[0]
            self.put(f"{folder}/added-{self._number}.parquet".lstrip("/"), data.draw(st.sampled_from(self._spare)))
        elif step == "replace":
            self.put(data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(self._spare)))
        elif len(paths) > 1:
            path = data.draw(st.sampled_from(paths))
            (self.root / path).unlink()
            del self.now[path]

    def matching(self, schema: pa.Schema, path: str, where: Expression) -> list[str]:
        """Rows of one file as it is now, that match."""
        return rows_of(self.table(schema, path).filter(oracle(where)))

    def table(self, schema: pa.Schema, path: str) -> pa.Table:
        """One file as it is now."""
        table = self._tables.get((path, self.now[path]))
        if table is None:
            alone = Path(tempfile.mkdtemp())
            try:
                (alone / path).parent.mkdir(parents=True, exist_ok=True)
                (alone / path).write_bytes(self.now[path])
                table = self._tables[path, self.now[path]] = by_pyarrow(alone, schema)
            finally:
                shutil.rmtree(alone)
        return table


def rows_of(table: pa.Table | pa.RecordBatch) -> list[str]:
    return [repr(row) for row in table.to_pylist()]


async def check_listed(lake: Lake, dataset: asyncpq.Dataset, where: Expression) -> None:
    """Every verb gives the rows that are there now."""
    paths = sorted(lake.now, key=str.encode)
    by_path = {path: lake.matching(dataset.schema, path, where) for path in paths}
    expected = [row for rows in by_path.values() for row in rows]
    assert rows_of(await dataset.read(where=where)) == expected
    assert await dataset.count(where) == len(expected)
    async with dataset.scan(where=where) as scan:
        assert [row for batch in [batch async for batch in scan] for row in rows_of(batch)] == expected
    urls = {f"{lake.root}/{path}": path for path in paths}
    planned = {plan.url for plan in (await dataset.plan(where=where)).files}
    named = {urls[url] for url in await dataset.files(where)}
    for path, rows in by_path.items():
        assert not rows or (path in named and any(url.endswith(f"/{path}") for url in planned))
    every = [(url, row) for url, path in urls.items() for row in range(lake.table(dataset.schema, path).num_rows)]
    picked = every[:: max(1, len(every) // 5)]
    tables = {url: lake.table(dataset.schema, path) for url, path in urls.items()}
    assert rows_of(await dataset.take(picked)) == [
        row for url, at in picked for row in rows_of(tables[url].slice(at, 1))
    ]
    await check_lookup(lake, dataset)


async def check_lookup(lake: Lake, dataset: asyncpq.Dataset) -> None:
    """Of the values of the first row of each file, in a column that can be compared."""
    tables = [lake.table(dataset.schema, path) for path in sorted(lake.now, key=str.encode)]
    field = next((one for one in dataset.schema if pa.types.is_integer(one.type) or pa.types.is_string(one.type)), None)
    if field is not None:
        values = sorted({table[field.name][0].as_py() for table in tables if table.num_rows} - {None})
        among = pc.field(field.name).isin(pa.array(values, field.type))
        expected = [row for table in tables for row in rows_of(table.filter(among))]
        assert not values or rows_of(await dataset.lookup({field.name: values})) == expected


async def check_snapshot(lake: Lake, dataset: asyncpq.Dataset, where: Expression) -> None:
    gone = lake.listed.keys() - lake.now.keys()
    try:
        found = rows_of(await dataset.read(where=where))
    except asyncpq.ObjectNotFoundError as error:
        if not any(str(error.url).endswith(path) for path in gone):
            raise
        return
    ends = {0}  # where the rows of the files so far may end: several files may have the same rows
    for path in sorted(lake.listed.keys() & lake.now.keys(), key=str.encode):
        rows = lake.matching(dataset.schema, path, where)
        after = {end + len(rows) for end in ends if found[end : end + len(rows)] == rows}
        if lake.now[path] is not lake.listed[path]:
            after |= ends  # the index ruled out what it was before
        assert after, path
        ends = after
    assert len(found) in ends


async def can_be_asked(lake: Lake, dataset: asyncpq.Dataset, where: Expression) -> bool:
    """Neither pyarrow nor asyncpq refuses the literals."""
    try:
        for path in lake.now:
            lake.matching(dataset.schema, path, where)
        await dataset.plan(where=where)
    except (*_REFUSALS, asyncpq.PredicateTypeError):
        return False
    return True


def place_at(root: Path, name: str, valkey: ValkeyServer | None) -> Any:
    if name == "below":
        return None
    if name == "memory":
        return MemoryBackend()
    if name == "sqlite":
        return f"sqlite:///{root}-index.sqlite"
    if name == "valkey" and valkey is not None:
        return ValkeyBackend(f"valkey://admin:{quote(ADMIN_PASSWORD)}@127.0.0.1:{valkey.port}", prefix=f"{root.name}:")
    return f"{root}-index/"


def run(made: Made, backend: str, data: st.DataObject, valkey: ValkeyServer | None = None) -> None:
    files, types, evolves = made
    root = Path(tempfile.mkdtemp())

    async def live() -> None:
        lake = Lake(root, files)
        policy: Any = "permissive" if evolves else "strict"
        async with asyncpq.Session() as session, contextlib.AsyncExitStack() as stack:
            try:
                plain = await session.open_dataset(root, schema_policy=policy)
            except asyncpq.SchemaMismatchError:
                assume(False)
                raise
            kinds = data.draw(st.lists(st.sampled_from(possible_kinds(plain.schema)), min_size=1, max_size=6))
            files_of_commit, rows = data.draw(st.sampled_from([1, 100])), data.draw(st.sampled_from([7, 10**6]))
            building = asyncpq.BuildOptions(checkpoint_files=files_of_commit, segment_rows=rows)
            at = place_at(root, backend, valkey)
            if at is not None and not isinstance(at, str):
                stack.push_async_callback(at.close)
            index = await session.build_index(root, kinds, at=at, schema_policy=policy, building=building)
            lake.listed = dict(lake.now)
            named = None if at is None else index
            snapshot = await session.open_dataset(root, index=named, view="snapshot")
            listed = await session.open_dataset(root, index=named, schema=plain.schema)
            assert listed.view == "listed"
            assert "index at" in listed.description
            for step in ["ask", *data.draw(st.lists(st.sampled_from(STEPS), max_size=4)), "ask"]:
                if step == "ask":
                    where = data.draw(expressions(types, foreign=False))
                    assume(await can_be_asked(lake, plain, where))
                    await check_listed(lake, listed, where)
                    await check_snapshot(lake, snapshot, where)
                elif step == "refresh":
                    done = await index.refresh()
                    assert not done.problems
                    lake.listed = dict(lake.now)
                elif step == "compact":
                    await index.compact()
                elif step == "vacuum":
                    await snapshot.files()  # a reader that has not looked since may stay where it is for a minute
                    await index.vacuum(keep=1, older_than=timedelta(0))
                else:
                    lake.change(step, data)
            assert (await index.verify()).problems == []
            await index.drop()

    try:
        asyncio.run(live())
    finally:
        shutil.rmtree(root)
        shutil.rmtree(f"{root}-index", ignore_errors=True)
        Path(f"{root}-index.sqlite").unlink(missing_ok=True)


@pytest.mark.sampled(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", PLACES)
@settings(max_examples=max(5, settings().max_examples // 4))
@given(made=lakes(), data=st.data())
def test_reads_equal_pyarrow_by_their_view(backend: str, made: Made, data: st.DataObject) -> None:
    run(made, backend, data)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey"), "--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.mark.heavy
@pytest.mark.timeout(600)
@settings(max_examples=max(5, settings().max_examples // 4))
@given(made=lakes(), data=st.data())
def test_reads_equal_pyarrow_with_an_index_in_valkey(valkey: ValkeyServer, made: Made, data: st.DataObject) -> None:
    run(made, "valkey", data, valkey)
