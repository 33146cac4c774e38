"""Listings of directory buckets: complete and in order, folder by folder."""

from __future__ import annotations

import random

import pytest

from asyncpq.storage.base import Store
from asyncpq.testing.store_contract import DATA
from tests.directory_buckets import BUCKET, DirectoryBuckets
from tests.store_backends import new_context, open_test_store

URL = f"s3://{BUCKET}/"
KEYS = [f"lake/year={year}/part-{part:03}.parquet" for year in range(2000, 2010) for part in range(25)]


@pytest.fixture
def filled(gate: DirectoryBuckets) -> DirectoryBuckets:
    for key in [*KEYS, "lake/_SUCCESS", "lakes/other", "a"]:
        gate.put(key, key.encode())
    gate.page_keys = 20
    return gate


@pytest.mark.parametrize(
    "prefix", ["", "lake/", "lake", "la", "lake/year=2003/", "lake/year=200", "lake/year=2003/part-00"]
)
async def test_listings_ascend_and_are_complete(filled: DirectoryBuckets, express: Store, prefix: str) -> None:
    listed = await express.list_objects(URL + prefix, context=new_context())
    held = filled.server.objects
    expected = sorted(path.partition("/")[2] for path in held if path.startswith(f"{BUCKET}/{prefix}"))
    assert [each.url.removeprefix(URL) for each in listed] == expected
    for each in listed:
        assert each.validator is not None
        assert each.validator.etag == held[each.url.removeprefix("s3://")].etag
    assert filled.refused == []


async def test_large_folders_are_listed_side_by_side(filled: DirectoryBuckets, express: Store) -> None:
    """A chain of pages would take 13 rounds."""
    context = new_context()
    assert len(await express.list_objects(URL + "lake/", context=context)) == len(KEYS) + 1
    assert context.metrics.rounds <= 5
    assert context.metrics.requests <= 25


async def test_unwanted_folders_are_left_out(filled: DirectoryBuckets, express: Store) -> None:
    context = new_context()
    listed = await express.list_objects(
        URL + "lake/", context=context, wants=lambda folder: folder == URL + "lake/year=2007/"
    )
    assert {each.url.rpartition("/")[0] for each in listed} >= {URL + "lake/year=2007"}
    assert context.metrics.requests <= 6
    assert filled.refused == []


@pytest.mark.parametrize("seed", range(20))
async def test_listings_of_random_trees(gate: DirectoryBuckets, express: Store, seed: int) -> None:
    numbers = random.Random(seed)
    gate.page_keys = numbers.randint(1, 30)
    for _ in range(numbers.randint(0, 150)):
        names = [numbers.choice(["a", "b", "c=1", "c=2", "d e", "é"]) for _ in range(numbers.randint(0, 3))]
        gate.put("/".join([*names, f"{numbers.randint(0, 99)}"]), b"1")
    prefix = numbers.choice(["", "a/", "a", "c=", "c=1/", "b/a/"])
    wanted = numbers.choice([None, lambda folder: "c=" in folder, lambda folder: False])
    listed = await express.list_objects(URL + prefix, context=new_context(), wants=wanted)
    held = sorted(path.partition("/")[2] for path in gate.server.objects if path.startswith(f"{BUCKET}/{prefix}"))
    found = [each.url.removeprefix(URL) for each in listed]
    assert found == sorted(found)
    assert set(found) <= set(held)
    for key in set(held) - set(found):
        assert wanted is not None
        assert any(not wanted(URL + key[: at + 1]) for at in range(len(prefix), len(key)) if key[at] == "/")
    assert gate.refused == []


async def test_the_same_through_s3fs(gate: DirectoryBuckets) -> None:
    """An option that only s3fs honours; botocore opens the sessions."""
    for key in KEYS[:30]:
        gate.put(key, key.encode())
    gate.page_keys = 20
    options = {**gate.storage_options, "config_kwargs": {"retries": {"mode": "adaptive"}}}
    store = open_test_store("s3", options)
    stored = await store.open_object(URL + "key")
    context = new_context()
    assert (await stored.fetch_tail(9, context=context)).data == DATA[-9:]
    assert (stored.client, len(context.metrics.fallbacks)) == ("s3fs", 1)
    assert len(await store.list_objects(URL + "lake/year", context=context)) == 30
    await store.close()
    assert "501 NotImplemented" not in gate.refused
