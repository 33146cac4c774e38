"""Faults: which requests they affect, which fields go together, and the catalogue, whose entries happen once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from asyncpq.errors import InvalidOptionError
from asyncpq.testing import CATALOGUE, Fault, Scene


def test_every_fault_of_the_catalogue_is_one_that_happens_once() -> None:
    scene = Scene(other=b"other", location="/bucket/key", elsewhere="http://127.0.0.2:9/")
    made = {name: make(scene) for name, make in CATALOGUE.items()}
    assert all((fault.times, fault.after) == (1, 0) for fault in made.values())
    assert len(set(made.values())) == len(made)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"etag": "strong"}, "etag='strong'"),
        ({"status": 42}, "status=42"),
        ({"truncate": -1}, "truncate=-1"),
        ({"code": "SlowDown"}, "require status"),
        ({"retry_after_s": 1.0}, "require status"),
        ({"redirect_status": 307}, "requires redirect"),
        ({"redirect": "http://h/", "redirect_status": 304}, "redirect_status=304"),
        ({"reset": True}, "requires truncate"),
    ],
)
def test_fields_without_effect_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(message)):
        Fault(**fields)


def test_which_requests_a_fault_affects() -> None:
    fault = Fault(method="GET", path="key", ranged=True, after=2, times=1)
    assert fault.matches("GET", "/bucket/key", True)
    assert not fault.matches("PUT", "/bucket/key", True)
    assert not fault.matches("GET", "/bucket/other", True)
    assert not fault.matches("GET", "/bucket/key", False)
    assert [fault.applies(seen) for seen in range(4)] == [False, False, True, False]
    assert Fault(times=None).applies(1_000)
