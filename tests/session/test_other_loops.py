"""Every awaited method of what a user holds, called in another event loop than the session's, is a UsageError."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.indexing import Bounds, Index, Keys

ROWS = 1000
LAKE = ""  # the folder of the fixture, in arguments

#: Arguments of the methods, by class and name.
ARGUMENTS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "session": {
        "open_file": [{"url": LAKE + "a.parquet"}],
        "open_dataset": [{"target": LAKE}],
        "build_index": [{"target": LAKE, "kinds": [Keys("id")]}],
        "open_index": [{"at": LAKE + "_asyncpq/"}],
        "optimize": [{"source": LAKE, "target": LAKE + "new/"}],
        "diagnose": [{}, {"url": LAKE + "a.parquet"}],
        "close": [{}],
        "__aenter__": [{}],
    },
    "file": {
        "read": [{}, {"where": "id = 3"}],
        "lookup": [{"keys": {"id": 3}}, {"keys": {"id": list(range(500))}}],
        "take": [{"rows": [1]}, {"rows": []}],
        "count": [{}, {"where": "id = 3"}],
        "plan": [{}, {"where": asyncpq.col("id") == 3}, {"lookup": {"id": 3}}],
        "why": [{}, {"lookup": {"id": 3}}, {"count": True}],
        "refresh": [{}],
        "embedded_index": [{"name": "x"}],
        "inspect": [{}, {"pages": False}],
        "lint": [{}],
        "close": [{}],
        "__aenter__": [{}],
    },
    "dataset": {
        "read": [{}, {"where": "id = 3"}],
        "lookup": [{"keys": {"id": 3}}],
        "take": [{"rows": [("a.parquet", 1)]}],
        "count": [{}, {"where": "id = 3"}],
        "plan": [{}, {"where": "id = 3"}, {"lookup": {"id": 3}}],
        "why": [{}, {"lookup": {"id": 3}}, {"count": True}],
        "files": [{}, {"where": "id = 3"}],
        "inspect": [{}, {"pages": False}],
        "lint": [{}],
        "__aenter__": [{}],
    },
    "index": {
        "refresh": [{}],
        "compact": [{}],
        "vacuum": [{}],
        "verify": [{}],
        "show": [{}, {"staleness": True}],
        "drop": [{}],
    },
    "scan": {"__anext__": [{}], "to_table": [{}], "to_reader": [{}], "close": [{}]},
    "new_scan": {"__aenter__": [{}], "to_table": [{}]},
}
CLASSES: dict[str, tuple[type, ...]] = {
    "session": (asyncpq.Session,),
    "file": (asyncpq.File,),
    "dataset": (asyncpq.Dataset,),
    "index": (Index,),
    "scan": (asyncpq.Scan, asyncpq.DatasetScan),
}


@pytest.mark.parametrize("name", CLASSES)
def test_all_methods_are_tried(name: str) -> None:
    for class_ in CLASSES[name]:
        methods = {
            method
            for method, function in inspect.getmembers(class_, inspect.iscoroutinefunction)
            if not method.startswith("_") or method in ("__aenter__", "__anext__")
        }
        tried = ARGUMENTS[name].keys() | ({"__aenter__"} if name == "scan" else set())
        assert methods == tried


@pytest.fixture(scope="module", params=["stopped", "running"])
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """What a session opened, whose event loop does not run now, or runs in another thread."""
    lake = tmp_path_factory.mktemp("lake")
    for name in "ab":
        pq.write_table(pa.table({"id": range(ROWS)}), lake / f"{name}.parquet", row_group_size=100)
    own = asyncio.new_event_loop()
    run: Callable[[Coroutine[Any, Any, Any]], Any] = own.run_until_complete
    thread = threading.Thread(target=own.run_forever)
    if request.param == "running":
        thread.start()

        def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, own).result(60)

    held = SimpleNamespace(folder=f"{lake}/", run=run)
    run(_open(held, lake))
    yield held
    run(held.session.close())
    if request.param == "running":
        own.call_soon_threadsafe(own.stop)
        thread.join()
    own.close()


async def _open(held: SimpleNamespace, lake: Path) -> None:
    session = held.session = await asyncpq.Session()
    held.index = await session.build_index(f"{lake}/", [Bounds("id"), Keys("id")])
    held.file = await session.open_file(lake / "a.parquet")
    held.dataset = await session.open_dataset(f"{lake}/")
    held.scans = [await opened.scan(batch_size=10).__aenter__() for opened in (held.file, held.dataset)]
    for scan in held.scans:
        await anext(scan)


@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name, methods in ARGUMENTS.items() for method in methods]
)
def test_a_method_in_another_loop(held: SimpleNamespace, name: str, method: str) -> None:
    targets = {"scan": held.scans, "new_scan": [held.file.scan(), held.dataset.scan()]}.get(name) or [
        getattr(held, name)
    ]
    places = ("url", "target", "source", "at")
    for target in targets:
        for given in ARGUMENTS[name][method]:
            arguments = {key: held.folder + value if key in places else value for key, value in given.items()}

            async def call(target: Any = target, arguments: dict[str, Any] = arguments) -> None:
                with pytest.raises(asyncpq.UsageError, match="belongs to the event loop"):
                    async with asyncio.timeout(10):
                        await getattr(target, method)(**arguments)

            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of coroutines that were never awaited
                asyncio.run(call())
                gc.collect()


async def _still_open(held: SimpleNamespace) -> None:
    assert await held.file.count("id < 10") == 10
    assert await held.dataset.count("id < 10") == 20
    assert (await held.index.show()).files == 2
    for scan, rows in zip(held.scans, (ROWS, 2 * ROWS), strict=True):
        assert sum([batch.num_rows async for batch in scan]) == rows - 10


def test_all_is_still_open_in_its_own_loop(held: SimpleNamespace) -> None:
    held.run(_still_open(held))


def test_a_file_of_a_closed_session_is_closed_anywhere(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")

    async def opened() -> asyncpq.File:
        async with asyncpq.Session() as session:
            return await session.open_file(tmp_path / "a.parquet")

    file = asyncio.run(opened())
    asyncio.run(file.close())
