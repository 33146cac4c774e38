"""Who shares cached bytes: the same plain storage options, in any process; objects among them share nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from asyncpq.caching.entry_format import storage_namespace
from asyncpq.objects.runtime import Runtime
from asyncpq.options import SessionOptions

PLAIN: dict[str, Any] = {
    "key": "AKIA",
    "secret": "s",
    "use_ssl": True,
    "max": 3,
    "ratio": 0.5,
    "token": None,
    "ca": b"\0",
    "client_kwargs": {"endpoint_url": "http://a", "verify": False},
    "hosts": ["a", ("b",)],
    "flags": {"x", "y", "z"},
    "profile": Path("/etc/aws"),
}


def test_plain_values_are_shared_by_all_processes() -> None:
    program = (
        "from pathlib import *; from asyncpq.caching.entry_format import storage_namespace;"
        f"print(storage_namespace('s3', {PLAIN!r}))"
    )
    names = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=60).stdout
        for _ in range(2)
    }
    assert names == {storage_namespace("s3", PLAIN) + "\n"}
    turned: Mapping[str, Any] = MappingProxyType(dict(reversed(PLAIN.items())))
    assert storage_namespace("s3", turned) == storage_namespace("s3", PLAIN), "in whatever order"


OTHERS: list[dict[str, Any]] = [
    {},
    {"a": None},
    {"a": "None"},
    {"a": 1},
    {"a": True},
    {"a": "1"},
    {"a": b"1"},
    {"a": 1.0},
    {"a": ["1"]},
    {"a": "['1']"},
    {"a": ["1", "2"]},
    {"a": ["1,2"]},
    {"a": ["1','2"]},
    {"a": {"1"}},
    {"a": {"b": 1}},
    {"a": {"b": 1, "c": 2}},
    {"a": {"b": "1,'c':2"}},
    {"a": {"b": 1}, "c": 2},
    {"a": Path("1")},
    {"b": 1},
]


def test_whoever_differs_in_anything_shares_nothing() -> None:
    assert (
        len({storage_namespace("s3", options) for options in OTHERS} | {storage_namespace("gs", {})}) == len(OTHERS) + 1
    )


class Credentials:
    """All look alike."""

    def __repr__(self) -> str:
        return "Credentials()"


class Secret(str):
    def __repr__(self) -> str:
        return "Secret()"


@pytest.mark.parametrize(
    "options",
    [
        {"session": Credentials()},
        {"hosts": [Credentials()]},
        {"hosts": {"a": {"b": (Credentials(),)}}},
        {"hosts": {Credentials(): 1}},
        {"key": Secret("a")},
        {"flags": frozenset({Credentials()})},
    ],
)
def test_objects_share_nothing(options: dict[str, Any]) -> None:
    """Another one may come to the same address, and look the same."""
    assert storage_namespace("s3", options) != storage_namespace("s3", options)


@pytest.mark.parametrize("namespace", [None, "mine"])
async def test_one_session_has_one_namespace(namespace: str | None) -> None:
    def made() -> Runtime:
        return Runtime(SessionOptions(cache_namespace=namespace), {"opener": Credentials()})

    runtime = made()
    names = {(await runtime.store(url))[1] for url in ("memory://a", "memory://b/c")}
    assert len(names) == 1
    assert ({(await made().store("memory://a"))[1]} == names) == (namespace == "mine")
