"""Changes of JSON documents: one node, one number, or the bytes of a deflated member."""

from __future__ import annotations

import base64
import copy
import random
import zlib
from collections.abc import Iterator
from typing import Any

from asyncpq.parquet.thrift import varint
from tests.fuzz.mutations import changed_bytes

_DEEP: Any = []
for _ in range(400):
    _DEEP = [_DEEP]

_VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 7, 1.5, float("inf"), float("nan"), 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30),
    *("", "x", "../x", "a/b", "\0", "\ud800", "x" * 5000, "hive", "bounds", "99999999999999999999"),
    *([], {}, [None], [[0, 1]], {"x": 1}, [1 << 62] * 40, _DEEP),
)


def nodes(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all nodes below the root."""
    if path:
        yield path
    if isinstance(document, dict):
        for key, part in document.items():
            yield from nodes(part, (*path, key))
    elif isinstance(document, list):
        for at, part in enumerate(document):
            yield from nodes(part, (*path, at))


def change(rng: random.Random, document: Any) -> str:
    """Change one node of the document in place; says which and how."""
    path = rng.choice(list(nodes(document)))
    owner = document
    for key in path[:-1]:
        owner = owner[key]
    key, where = path[-1], ".".join(map(str, path))
    how, value = rng.random(), owner[key]
    if how < 0.1:
        del owner[key]
        return f"{where} dropped"
    if how < 0.2:
        if isinstance(owner, list):
            owner.insert(key, copy.deepcopy(value))
        else:
            owner[f"{key}2"] = copy.deepcopy(value)
        return f"{where} doubled"
    packed = _inflated(value)
    if packed is not None and how < 0.7:
        owner[key] = base64.b64encode(_other_packed(rng, packed)).decode()
    elif type(value) is int and how < 0.7:
        owner[key] = rng.choice([value + 1, value - 1, -value, 2 * value, value << 40, value ^ 1 << rng.randrange(64)])
    elif isinstance(value, str) and how < 0.6:
        owner[key] = rng.choice([value[:-1], value + "x", value.upper(), value * 3, value[::-1]])
    else:
        owner[key] = copy.deepcopy(rng.choice(_VALUES))
    return f"{where}: {repr(value)[:60]} -> {repr(owner[key])[:60]}"


def _inflated(value: object) -> bytes | None:
    """What a string that is deflated bytes in base64 holds; None for any other value."""
    if not isinstance(value, str) or len(value) < 8:
        return None
    try:
        return zlib.decompress(base64.b64decode(value, validate=True))
    except (ValueError, zlib.error):
        return None


def _other_packed(rng: random.Random, data: bytes) -> bytes:
    """Another deflated member: damaged, endless, cut off, or much."""
    deflated = zlib.compress(data)
    ids = b"".join(varint(number) for number in rng.choices([1, 2, 127, 1 << 20, 1 << 62], k=40))
    return rng.choice(
        [
            changed_bytes(rng, deflated),
            deflated[:-1],
            zlib.compress(changed_bytes(rng, data)),
            zlib.compress(b"\xff" * 300_000),  # a varint without an end
            zlib.compress(b"\x80" * rng.choice([8, 9, 10, 11]) + b"\x01\x01"),
            zlib.compress(ids),
            zlib.compress(b"\x01" * rng.choice([1 << 10, 1 << 20, (1 << 20) + 1000, 64 << 20]), 1),
            zlib.compress(bytes(64 << 20), 1),
            zlib.compress(b""),
        ]
    )
