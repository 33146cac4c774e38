"""Times that tell no versions apart: of objects written within a tick of the clock, before they were looked at.

Young ones are written a minute ahead of the clock, so that they are young however long a test takes.
"""

from __future__ import annotations

import datetime
import os
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import ObjectChangedError
from asyncpq.storage.base import GRAIN_S, Guarantee, Validator, http_date_s, info_time_s, may_change_unseen
from asyncpq.storage.response_checks import RangeRequest, check_range_response
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import new_context, open_test_store


@given(written=st.floats(0, 2e9), again=st.floats(0, 1.999), looked=st.floats(0, 10), tick=st.sampled_from([1, 2]))
def test_two_versions_of_one_time_are_not_told_apart(written: float, again: float, looked: float, tick: int) -> None:
    """A version is trusted only if nothing written after it was looked at can have its time."""
    stamp = written // tick * tick
    seen_at = written + looked
    if not may_change_unseen(stamp, seen_at):
        assert (seen_at + again) // tick * tick != stamp
    assert not may_change_unseen(stamp, stamp + GRAIN_S)


def test_clocks_that_tick_faster_are_trusted() -> None:
    assert may_change_unseen(1000.0, 1000.5)
    assert may_change_unseen(1000.0, 900.0)  # the store's clock is ahead
    assert not may_change_unseen(1000.25, 1000.5)
    assert not may_change_unseen(None, 1000.5)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (17, 17.0),
        (17.5, 17.5),
        (datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.UTC), 60.0),
        ("1970-01-01T00:01:00+00:00", 60.0),
        ("yesterday", None),
        (None, None),
        (b"17", None),
        (float("inf"), float("inf")),
    ],
)
def test_times_of_infos(value: object, seconds: float | None) -> None:
    assert info_time_s(value) == seconds


@given(st.text(max_size=40))
def test_any_date_header_is_a_time_or_none(value: str) -> None:
    seconds = http_date_s(value)
    assert seconds is None or isinstance(seconds, float)


@pytest.mark.parametrize(
    ("age_s", "etag", "date", "young"),
    [
        (0, None, True, True),
        (1, None, True, True),
        (2, None, True, False),
        (3600, None, True, False),
        (3600, None, False, True),  # nobody knows
        (0, '"a"', True, False),
        (0, 'W/"a"', True, False),
    ],
)
def test_responses(age_s: int, etag: str | None, date: bool, young: bool) -> None:
    headers = {"content-range": "bytes 0-9/100", "content-length": "10", "last-modified": formatdate(1e9, usegmt=True)}
    headers |= {"date": formatdate(1e9 + age_s, usegmt=True)} if date else {}
    headers |= {"etag": etag} if etag is not None else {}
    assert check_range_response(RangeRequest(0, 10, "url"), 206, headers).young is young


@pytest.mark.parametrize("protocol", ["http", "s3", "s3fs"])
async def test_a_young_object_without_etag_guarantees_nothing(protocol: str) -> None:
    async with ObjectServer() as server:
        options = server.storage_options | (
            {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if protocol == "s3fs" else {}
        )
        store = open_test_store("http", {}) if protocol == "http" else open_test_store("s3", options)
        url = f"{server.endpoint}/bucket/key" if protocol == "http" else "s3://bucket/key"
        server.faults = [Fault(etag="none", times=None)]
        for age_s, guarantee in ((-60.0, Guarantee.NONE), (60.0, Guarantee.BRACKETED)):
            server.put("bucket/key", b"x" * 100, modified=time.time() - age_s)
            stored = await store.open_object(url)
            tail = await stored.fetch_tail(9, context=new_context())
            assert (stored.guarantee, tail.validates) == (guarantee, guarantee is Guarantee.BRACKETED)
        await store.close()


async def test_a_young_file_of_a_filesystem_guarantees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"modified": 0.0}

    class Coarse(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed
        protocol = "coarse"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("coarse://")

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            found = super().info(path, **options)
            return {"name": path, "type": "file", "size": found["size"], "mtime": int(times["modified"])}

    monkeypatch.setitem(_registry, "coarse", Coarse)
    fsspec.filesystem("memory").pipe_file("/coarse-file", b"x" * 100)
    store = open_test_store("coarse", {})
    stored = await store.open_object("coarse:///coarse-file")
    for modified, guarantee in ((time.time() + 60, Guarantee.NONE), (time.time() - 60, Guarantee.BRACKETED)):
        times["modified"] = modified
        tail = await stored.fetch_tail(9, context=new_context())
        assert (stored.guarantee, tail.validates) == (guarantee, guarantee is Guarantee.BRACKETED)
    await store.close()


async def test_a_young_local_file_is_a_version_of_its_own(tmp_path: Path) -> None:
    """On a filesystem that counts seconds."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    store = open_test_store("file", {})
    validators: list[Validator] = []
    stored = await store.open_object(str(path))
    for age_s in (-60, None, 60, None):
        if age_s is not None:  # or else the time of its change would be another one
            second = int(time.time()) - age_s
            os.utime(path, (second, second))
        stored = await store.open_object(str(path))
        tail = await stored.fetch_tail(9, context=new_context())
        again = await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
        assert (again.validator, again.validates) == (tail.validator, True)
        validators.append(tail.validator)
    first, second_, third, fourth = validators
    assert not first.same_version(second_)
    assert third.same_version(fourth)
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=first)
    await store.close()
