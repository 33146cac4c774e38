"""Handles of a dataset for single reads; tests/serve/test_pinning.py reads such datasets while objects are replaced."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.datasets.model import DataFile
from asyncpq.engine import pinned_datasets
from asyncpq.engine.pinned_datasets import own_handle, pin, pinned
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.storage.base import RequestContext, Validator


def test_a_digest_names_every_version() -> None:
    file = DataFile(url="s3://bucket/a", validator=Validator(5, '"1"'))
    other = replace(file, validator=Validator(5, '"2"'))
    immutable = DataFile(url="s3://bucket/a", size=5, immutable=True)
    digests = [
        pin(files, versions).digest
        for files, versions in (
            ([file], {}),
            ([other], {}),
            ([file, file], {}),
            ([replace(file, url="s3://bucket/b")], {}),
            ([replace(file, validator=None)], {0: Validator(5, '"3"')}),
            ([immutable], {}),
            ([replace(immutable, size=6)], {}),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert pin([replace(file, validator=None)], {0: Validator(5, '"1"')}).digest == digests[0]
    assert pin([file], {}).files[0].pinned
    assert not pin([immutable], {}).files[0].pinned


async def test_the_versions_of_many_files_are_fixed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def watched(file: DataFile, **changes: object) -> DataFile:
        threads.append(threading.current_thread())
        return replace(file, **changes)  # type: ignore[arg-type]

    monkeypatch.setattr(pinned_datasets, "replace", watched)
    pq.write_table(pa.table({"id": [7]}), tmp_path / "0.parquet")
    for number in range(1, 120):
        (tmp_path / f"{number}.parquet").hardlink_to(tmp_path / "0.parquet")
    async with asyncpq.Session() as session:
        handle = pinned(await session.open_dataset(str(tmp_path)), lambda digest: False)
        threads.clear()
        assert (await handle.dataset.count()) == 120
    assert len(threads) == 120
    assert threading.main_thread() not in threads


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"id": [number]}), path)
    return list(map(str, paths))


async def test_a_version_that_cannot_be_found_ends_the_search_for_the_others(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    async def load(source: ObjectSource, context: RequestContext) -> FileVersion:
        url = source.handle.url
        if url.endswith("0.parquet"):
            await asyncio.sleep(0)
            raise asyncpq.ObjectNotFoundError("no such object", url=url)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(url)
        raise AssertionError

    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(urls)
        monkeypatch.setattr(pinned_datasets, "load_version", load)
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await pinned(dataset, lambda _: False).dataset.read()
        assert len(ended) == 2


async def test_a_handle_has_the_costs_of_its_own_reads(urls: list[str]) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(urls)
        handle = own_handle(dataset)
        assert (await handle.read()).column("id").to_pylist() == [0, 1, 2]
        assert handle.metrics.files_read == 3
        assert dataset.metrics.files_read == 0
