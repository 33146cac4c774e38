"""What other libraries call the verbs: asking for one says what it is called here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.scan.foreign_names import _OURS


@pytest.mark.parametrize("name", _OURS)
async def test_other_names_lead_to_ours(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    async with asyncpq.Session() as session:
        for opened in (await session.open_file(path), await session.open_dataset(tmp_path)):
            if hasattr(type(opened), name):  # File.num_rows
                assert getattr(opened, name) == 2
                continue
            with pytest.raises(
                AttributeError, match=rf"{type(opened).__name__} has no attribute '{name}'\. Use "
            ) as met:
                getattr(opened, name)
            ours = str(met.value).partition(". Use ")[2]
            verb = ours.partition("(")[0].partition(".")[0].partition(" ")[0]
            assert hasattr(opened, verb) or ours.startswith("asyncpq.polars")


async def test_any_other_name_is_an_attribute_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        with pytest.raises(AttributeError, match=r"'xyzzy'$"):
            dataset.xyzzy  # type: ignore[attr-defined]  # noqa: B018
        assert not hasattr(dataset, "__array__")


def test_the_blocking_forms_say_it_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    with asyncpq.blocking.open_dataset(tmp_path) as dataset, pytest.raises(AttributeError, match=r"Use read\("):
        dataset.to_table()  # type: ignore[attr-defined]


async def test_sessions_scans_and_the_module_say_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    with asyncpq.blocking.Session() as blocking:
        async with asyncpq.Session() as session:
            lacking: list[Any] = [session, blocking, asyncpq]
            for name in ("read_table", "lookup", "open_table", "sql"):
                for one in lacking:
                    with pytest.raises(AttributeError, match=rf"'{name}'\. Use open_file\(url\) or open_dataset"):
                        getattr(one, name)
            opened = await session.open_file(path), await session.open_dataset(tmp_path)
            scans: list[Any] = [one.scan() for one in opened]
            for scan in [*scans, blocking.open_file(path).scan()]:
                with pytest.raises(AttributeError, match=r"'to_pandas'\. Use to_table\(\), and its to_pandas"):
                    scan.to_pandas()
            for one in [*scans, session, asyncpq]:
                with pytest.raises(AttributeError, match=r"'xyzzy'$"):
                    _ = one.xyzzy


async def test_async_for_over_a_file_leads_to_its_scan(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        both: list[Any] = [await session.open_file(tmp_path / "a.parquet"), await session.open_dataset(tmp_path)]
        for opened in both:
            name = type(opened).__name__.lower()
            with pytest.raises(asyncpq.UsageError, match=rf"a {name} is not .* `async with {name}\.scan\("):
                async for _ in opened:
                    pass


async def test_a_plain_with_leads_to_async_with(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    pq.write_table(pa.table({"id": [1]}), lake / "a.parquet")
    async with asyncpq.Session() as session:
        file, dataset = await session.open_file(lake / "a.parquet"), await session.open_dataset(lake)
        index = await session.build_index(lake, [asyncpq.indexing.Bounds("id")], at=str(tmp_path / "index"))
        opened: list[Any] = [session, file, dataset, index, file.scan(), dataset.scan()]
        for entered in opened:
            with pytest.raises(asyncpq.UsageError, match=rf"^a {type(entered).__name__} needs `async with`"), entered:
                pass


async def test_a_scan_is_not_awaited(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        scans: list[Any] = [(await session.open_file(tmp_path / "a.parquet")).scan()]
        scans.append((await session.open_dataset(tmp_path)).scan())
        for scan in scans:
            with pytest.raises(asyncpq.UsageError, match=r"Write `async with (file|dataset)\.scan\(...\)"):
                await scan


async def test_blocking_forms_in_async_with_lead_to_the_others(tmp_path: Path) -> None:
    entered: list[Any] = [asyncpq.blocking.Session(), asyncpq.blocking.open_file(tmp_path / "a.parquet")]
    for one in entered:
        with pytest.raises(asyncpq.UsageError, match="needs a plain `with`, but was used in `async with`"):
            async with one:
                pass
    entered[0].close()
