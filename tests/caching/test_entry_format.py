"""The entry format: golden and damaged entries of cache/entries, and the layout as cache/ENTRY.md writes it down."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.caching.entry_format import (
    HEADER_BYTES,
    ContentKey,
    EntryCodec,
    PointerKey,
    decode_pointer,
    encode_pointer,
    storage_namespace,
)
from asyncpq.errors import InvalidOptionError
from asyncpq.objects.runtime import Runtime
from asyncpq.options import SessionOptions
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


KEYS = st.binary(min_size=32, max_size=32)
SECRETS = st.none() | st.binary(min_size=1, max_size=80)
VALUES = st.binary(max_size=200)
# hypothesis leaves surrogates out by itself; headers with odd bytes have them
TEXTS = st.none() | st.text(st.characters(exclude_categories=()))
VALIDATORS = st.builds(Validator, st.integers(0, 2**64 - 1), TEXTS, TEXTS, TEXTS)
AGES = st.floats(min_value=0, allow_nan=False)


@given(KEYS, SECRETS, VALUES)
def test_round_trip(key: bytes, secret: bytes | None, value: bytes) -> None:
    entry = EntryCodec(secret).encode(key, value)
    assert EntryCodec(secret).decode(key, entry) == value
    assert len(entry) == HEADER_BYTES + len(value) == EntryCodec(secret).entry_bytes(entry[:HEADER_BYTES])


@given(KEYS, SECRETS, st.binary(max_size=40), st.integers(1, 255))
def test_every_byte_counts(key: bytes, secret: bytes | None, value: bytes, bits: int) -> None:
    codec = EntryCodec(secret)
    entry = codec.encode(key, value)
    for place, byte in enumerate(entry):
        assert codec.decode(key, entry[:place] + bytes([byte ^ bits]) + entry[place + 1 :]) is None


@given(KEYS, SECRETS, st.binary(max_size=40), st.binary(min_size=1, max_size=40))
def test_every_length_counts(key: bytes, secret: bytes | None, value: bytes, more: bytes) -> None:
    codec = EntryCodec(secret)
    entry = codec.encode(key, value)
    assert all(codec.decode(key, entry[:length]) is None for length in range(len(entry)))
    assert codec.decode(key, entry + more) is None


@given(KEYS, KEYS, SECRETS, SECRETS, VALUES)
def test_only_under_its_key_and_secret(
    key: bytes, other_key: bytes, secret: bytes | None, other_secret: bytes | None, value: bytes
) -> None:
    entry = EntryCodec(secret).encode(key, value)
    if other_key != key:
        assert EntryCodec(secret).decode(other_key, entry) is None
    # an HMAC key is filled up with zeros: that is the one way in which two may be the same
    if (secret or b"").rstrip(b"\0") != (other_secret or b"").rstrip(b"\0") or (secret is None) != (
        other_secret is None
    ):
        assert EntryCodec(other_secret).decode(key, entry) is None


@given(KEYS, SECRETS, st.binary(max_size=300) | st.binary(max_size=300).map(lambda rest: b"APQE\1\0" + rest))
def test_any_bytes_are_a_miss(key: bytes, secret: bytes | None, entry: bytes) -> None:
    assert EntryCodec(secret).decode(key, entry) is None


@given(VALIDATORS, AGES)
def test_pointers_round_trip(validator: Validator, age_s: float) -> None:
    value = encode_pointer(validator, age_s)
    assert decode_pointer(value) == (validator, age_s)
    assert all(decode_pointer(value[:length]) is None for length in range(len(value)))
    assert decode_pointer(value + b"\0") is None


@given(VALIDATORS, AGES, st.integers(0, 7), st.integers(0, 255))
def test_any_bytes_as_a_pointer(validator: Validator, age_s: float, place: int, byte: int) -> None:
    value = bytearray(encode_pointer(validator, age_s))
    value[place] = byte  # of the age
    found = decode_pointer(bytes(value))
    if found is None:
        (changed,) = struct.unpack_from("<d", value)
        assert math.isnan(changed) or changed < 0
    else:
        validator, age_s = found
        assert age_s >= 0
        assert not math.isnan(age_s)
        assert decode_pointer(encode_pointer(validator, age_s)) == found


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
