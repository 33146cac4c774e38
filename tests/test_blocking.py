"""A dataset without an event loop: the same verbs, waiting."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
import asyncpq.blocking
from asyncpq import col


def test_every_verb(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / f"part={number}"
        folder.mkdir()
        pq.write_table(pa.table({"id": list(range(number * 10, number * 10 + 10))}), folder / "0.parquet")
    with asyncpq.blocking.Session() as session, session.open_dataset(tmp_path) as dataset:
        assert dataset.schema.names == ["id", "part"]
        assert dataset.view is asyncpq.View.LISTED
        assert dataset.url == str(tmp_path)
        assert "listed" in dataset.description
        assert dataset.lookup({"id": 12}).to_pylist() == [{"id": 12, "part": 1}]
        assert dataset.metrics.files_ruled_out == 0
        assert dataset.count(col("part") > 0) == 20
        assert dataset.read(["id"], limit=3)["id"].to_pylist() == [0, 1, 2]
        urls = dataset.files(col("part") == 2)
        assert dataset.take([(urls[0], 4)], ["id"])["id"].to_pylist() == [24]
        assert len(dataset.plan(where=col("part") == 2).files) == 1
        assert [batch.num_rows for batch in dataset.scan(where=col("id") < 15)] == [10, 5]
        with dataset.scan() as scan:
            assert next(iter(scan)).num_rows == 10
            assert scan.skipped == dataset.skipped == []
    with pytest.raises(asyncpq.UsageError):
        dataset.count()


def test_it_has_what_the_other_has() -> None:
    for blocking, other in [
        (asyncpq.blocking.Dataset, asyncpq.Dataset),
        (asyncpq.blocking.DatasetScan, asyncpq.DatasetScan),
        (asyncpq.blocking.Session, asyncpq.Session),
        (asyncpq.blocking.File, asyncpq.File),
    ]:
        public = {name for name, _ in inspect.getmembers(other) if not name.startswith("_")}
        # for asynchronous code that builds on them
        public -= {"bind", "entered", "lent", "lookup_scan"}
        assert public <= set(dir(blocking)), (blocking, public - set(dir(blocking)))


@pytest.mark.parametrize("name", ["File", "Dataset", "Scan", "DatasetScan", "Index", "Session"])
def test_help_explains_every_attribute(name: str) -> None:
    blocking = getattr(asyncpq.blocking, name)
    attributes = {
        name: value for name, value in inspect.getmembers(blocking, inspect.isdatadescriptor) if name[0] != "_"
    }
    assert "metrics" in attributes
    for attribute, value in attributes.items():
        assert inspect.getdoc(value), attribute
        assert inspect.getdoc(value) != type(value).__doc__, attribute


@pytest.mark.parametrize("name", asyncpq.blocking.__all__)
def test_no_text_of_a_blocking_method_tells_its_caller_to_await(name: str) -> None:
    opened = getattr(asyncpq.blocking, name)
    for attribute in (name for name in dir(opened) if not name.startswith("_")):
        text = inspect.getdoc(getattr(opened, attribute)) or ""
        assert not re.search(r"await|async (with|for)|asyncio", text), attribute


def test_help_of_a_blocking_scan_shows_the_plain_loop() -> None:
    assert "for batch in file.scan(...)``" in (inspect.getdoc(asyncpq.blocking.File.scan) or "")
    assert "for batch in dataset.scan(...)``" in (inspect.getdoc(asyncpq.blocking.Dataset.scan) or "")
    assert "async with file.scan(...) as scan" in (inspect.getdoc(asyncpq.File.scan) or "")


def test_attributes_are_read_only(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    with asyncpq.blocking.Session() as session:
        file = session.open_file(path)
        with pytest.raises(AttributeError, match="read-only"):
            file.num_rows = 2  # type: ignore[misc]
        assert file.num_rows == 1


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with asyncpq.blocking.Session() as session:
        for opening in (session.open_file, session.open_dataset):
            with pytest.raises(asyncpq.ObjectNotFoundError):
                opening(tmp_path)
        with pytest.raises(asyncpq.InvalidOptionError, match="schema"):
            session.open_dataset(tmp_path, schema=["id"])
