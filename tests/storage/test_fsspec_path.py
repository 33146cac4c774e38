"""What a filesystem's info says of a version."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from asyncpq.storage.base import Validator
from asyncpq.storage.fsspec_path import is_young, modified_of, validator_of

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("info", "validator"),
    [
        ({"size": 3, "generation": 7, "etag": "e", "updated": "t"}, Validator(3, version="7")),
        ({"size": 3, "ETag": '"a"'}, Validator(3, etag='"a"')),
        ({"size": 3, "e_tag": "a", "LastModified": NOON}, Validator(3, etag="a", last_modified=repr(NOON.timestamp()))),
        ({"size": 3, "ino": 5, "mtime": 1.5}, Validator(3, last_modified="1.5", version="5-1.5")),
        ({"size": 3, "VersionId": "v"}, Validator(3, version="v")),
        ({"size": 3}, Validator(3)),
    ],
    ids=["generation", "etag", "datetime", "inode", "version", "size alone"],
)
def test_versions(info: dict[str, Any], validator: Validator) -> None:
    assert validator_of(info) == validator


def test_a_number_and_a_datetime_are_the_same_time() -> None:
    seconds = NOON.timestamp()
    assert validator_of({"size": 1, "mtime": NOON}) == validator_of({"size": 1, "mtime": seconds})
    assert modified_of({"mtime": NOON}) == modified_of({"created": seconds}) == seconds
    assert modified_of({"mtime": "no time"}) is modified_of({}) is None


def test_only_a_time_of_whole_seconds_is_young() -> None:
    now = float(int(time.time()))
    assert is_young({"mtime": now})
    assert not is_young({"mtime": now - 3600})
    assert not is_young({"mtime": now, "etag": "a"})
    assert not is_young({"mtime": now, "generation": 1})
    assert not is_young({})
