"""Files of a join: each goes to one task, and only where their listing is enough to read them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from asyncpq.datasets.model import DataFile, IndexEntry, View
from asyncpq.objects.prices import Prices
from asyncpq.options import LimitOptions, RequestOptions
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.spark.join_files import FoundFiles, can_ship, pack_files
from asyncpq.storage.base import Validator


def _file(number: int, etag: str | None = '"a"') -> DataFile:
    return DataFile(url=f"s3://b/{number}.parquet", validator=Validator(size=10, etag=etag), size=10)


@pytest.mark.parametrize(("count", "tasks"), [(1, 4), (4, 4), (9, 4), (100, 7)])
def test_each_file_goes_to_one_task(count: int, tasks: int) -> None:
    files = [_file(number) for number in range(count)]
    packed = [pickle.loads(task) for task in pack_files(files, tasks)]
    assert len(packed) == min(count, tasks)
    assert [file.url for task in packed for file in task] == [file.url for file in files]
    sizes = [len(task) for task in packed]
    assert max(sizes) - min(sizes) <= 1


def test_shipped_files_are_pinned_and_keep_their_rows() -> None:
    async def known(operation: Any) -> None:
        """Tasks cannot call this."""

    entry = IndexEntry(access=AccessPlan.rows([1, 5]), validator=Validator(size=10, etag='"a"'), known=known)
    ((shipped,),) = [pickle.loads(task) for task in pack_files([replace(_file(0), entry=entry)], 3)]
    assert shipped.pinned
    assert shipped.entry == IndexEntry(access=entry.access, validator=entry.validator)


def test_what_cannot_be_shipped() -> None:
    def lake(*, skips: bool = False, view: View = View.LISTED) -> Any:
        return SimpleNamespace(state=SimpleNamespace(skips=skips, source=SimpleNamespace(view=view)))

    assert can_ship(lake(), [_file(0)])
    assert not can_ship(lake(), [_file(0), _file(1, etag=None)])
    assert not can_ship(lake(), [replace(_file(0), validator=None)])
    assert not can_ship(lake(skips=True), [_file(0)])
    assert not can_ship(lake(view=View.TABLE), [_file(0)])


def test_estimates_from_a_sample() -> None:
    prices = Prices.initial(RequestOptions(), LimitOptions())
    found = FoundFiles(
        files=tuple(_file(number) for number in range(40)),
        total=50,
        sampled=8,
        matched=2,
        matched_bytes=16,
        open_s=0.001,
        prices=prices,
    )
    assert (found.share, found.num_bytes, found.most_bytes, found.total_bytes) == (0.25, 80, 80, 400)
    none = replace(found, matched=0, matched_bytes=0)
    assert (none.share, none.num_bytes, none.most_bytes) == (0.0, 0, 20)
