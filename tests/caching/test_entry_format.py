"""The entry format: golden and damaged entries of cache/entries, and the layout as cache/ENTRY.md writes it down."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from asyncpq.caching.entry_format import (
    HEADER_BYTES,
    ContentKey,
    EntryCodec,
    PointerKey,
    decode_pointer,
    encode_pointer,
)
from asyncpq.errors import InvalidOptionError
from asyncpq.storage.base import Validator
from cache.entries import make

FOLDER = Path(__file__).resolve().parents[2] / "cache" / "entries"
INDEX: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
KEY = bytes(range(32))


@pytest.mark.parametrize("row", INDEX, ids=[row["file"] for row in INDEX])
def test_what_must_come_out(row: dict[str, Any]) -> None:
    secret = None if row["secret"] is None else bytes.fromhex(row["secret"])
    value = EntryCodec(secret).decode(bytes.fromhex(row["key"]), (FOLDER / row["file"]).read_bytes())
    assert (None if value is None else value.hex()) == row["value"]
    if row["file"].startswith("pointer"):
        name = row["file"].removesuffix(".entry").removesuffix("-hmac")
        assert value is not None
        assert decode_pointer(value) == make.POINTERS[name]


def test_the_folder_is_as_it_is_made() -> None:
    made = make.files()
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == {*made, "make.py"}
    for name, data in made.items():
        assert (FOLDER / name).read_bytes() == data, name


@pytest.mark.parametrize("secret", [None, b"secret"])
def test_layout(secret: bytes | None) -> None:
    value = b"some bytes"
    fixed = b"APQE" + struct.pack("<HHQ", 1, secret is not None, len(value))
    signed = fixed + KEY + value
    tag = hashlib.sha256(signed).digest() if secret is None else hmac.digest(secret, signed, "sha256")
    entry = fixed + tag + value
    codec = EntryCodec(secret)
    assert codec.encode(KEY, value) == entry
    assert codec.entry_bytes(entry[:HEADER_BYTES]) == len(entry)
    # whatever a reader of this version does not know is a miss, with the right tag, too
    for place, change in ((4, b"\2\0"), (4, b"\0\0"), (6, b"\2\0"), (6, b"\3\0"), (6, b"\0\1")):
        other = fixed[:place] + change + fixed[place + 2 :]
        signed = other + KEY + value
        tag = hashlib.sha256(signed).digest() if secret is None else hmac.digest(secret, signed, "sha256")
        assert codec.decode(KEY, other + tag + value) is None
        assert codec.entry_bytes(other + tag) is None


def test_a_secret_is_not_shown_and_not_empty() -> None:
    assert "hunter2" not in repr(EntryCodec(b"hunter2"))
    with pytest.raises(InvalidOptionError, match="empty"):
        EntryCodec(b"")


@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_have_one_length(length: int) -> None:
    codec = EntryCodec(None)
    with pytest.raises(ValueError, match="key"):
        codec.encode(bytes(length), b"")
    assert codec.decode(bytes(length), codec.encode(KEY, b"")) is None


@pytest.mark.parametrize(("size", "age_s"), [(-1, 0.0), (1 << 64, 0.0), (1, -1.0), (1, math.nan)])
def test_pointers_that_nobody_can_have(size: int, age_s: float) -> None:
    with pytest.raises(ValueError, match="pointer"):
        encode_pointer(Validator(size), age_s)
    assert decode_pointer(struct.pack("<dQiii", -1.0, 1, -1, -1, -1)) is None
    assert decode_pointer(struct.pack("<dQiii", math.nan, 1, -1, -1, -1)) is None
    assert decode_pointer(struct.pack("<dQiii", 0.0, 1, -1, -1, -2)) is None
    assert decode_pointer(struct.pack("<dQiii", 0.0, 1, -1, -1, -1)) == (Validator(1), 0.0)


def test_pointer_keys() -> None:
    base = PointerKey("namespace", "s3|bucket|key")
    keys = {
        base.encode(),
        PointerKey("namespac", "es3|bucket|key").encode(),
        PointerKey("other", base.identity).encode(),
        PointerKey(base.namespace, "s3|bucket|\udcff").encode(),
        ContentKey(bytes(16), "page", 0, 1).encode(),
    }
    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}
    assert base.encode() == PointerKey("namespace", "s3|bucket|key").encode()
