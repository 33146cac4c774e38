"""Makes the entries of this folder and their index: ``python -m cache.entries.make``.

index.json says of each file under which key and secret it is read, and what must come out: a value, or a miss
(null). The tests read all of them, and make them again: the bytes must be the same for ever, as other
releases read them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncpq.caching.entry_format import ContentKey, EntryCodec, PointerKey, encode_pointer
from asyncpq.storage.base import Validator

FOLDER = Path(__file__).resolve().parent
SECRET = bytes(range(32))
KEY = ContentKey(bytes(range(16)), "page", 4, 1004).encode()
OTHER_KEY = ContentKey(bytes(range(16)), "page", 4, 1005).encode()
POINTER_KEY = PointerKey("namespace", "s3|https://s3.eu-west-1.amazonaws.com|eu-west-1|bucket|key").encode()
VALUE = b"PAR1 is not what a page begins with"

POINTERS = {
    "pointer": (Validator(1234, '"d41d8cd98f00b204e9800998ecf8427e-3"', "Wed, 21 Oct 2015 07:28:00 GMT"), 2.5),
    "pointer-version": (Validator(0, None, None, "gen-1700000000000000"), 0.0),
    "pointer-unicode": (Validator((1 << 64) - 1, 'W/"é\U0001f5dd\udcff"', "", None), math.inf),
}


def sound() -> Iterator[tuple[str, bytes, bytes | None, bytes, bytes]]:
    """Name, key, secret, entry and value of the entries that must be read."""
    for secret in (None, SECRET):
        mark = "" if secret is None else "-hmac"
        codec = EntryCodec(secret)
        for name, value in (("value", VALUE), ("empty", b""), ("zeros", bytes(300))):
            yield name + mark, KEY, secret, codec.encode(KEY, value), value
        for name, (validator, age_s) in POINTERS.items():
            value = encode_pointer(validator, age_s)
            yield name + mark, POINTER_KEY, secret, codec.encode(POINTER_KEY, value), value


def corrupted() -> Iterator[tuple[str, bytes, bytes | None, bytes, str]]:
    """Name, key, secret and bytes of entries that must be a miss, and why."""
    plain, authenticated = EntryCodec(None), EntryCodec(SECRET)
    entry, sealed = plain.encode(KEY, VALUE), authenticated.encode(KEY, VALUE)
    yield "no-bytes", KEY, None, b"", "empty"
    yield "header-cut", KEY, None, entry[:47], "ends within the header"
    yield "value-cut", KEY, None, entry[:-1], "one byte is missing"
    yield "value-missing", KEY, None, entry[:48], "the value is missing"
    yield "too-long", KEY, None, entry + b"\0", "one byte too many"
    yield "torn", KEY, None, entry[:60] + bytes(len(entry) - 60), "the end was never written"
    yield "zeros-only", KEY, None, bytes(len(entry)), "nothing was ever written"
    yield "magic", KEY, None, b"APQF" + entry[4:], "another magic"
    yield "version-0", KEY, None, entry[:4] + b"\0\0" + entry[6:], "no such version"
    yield "version-2", KEY, None, entry[:4] + b"\2\0" + entry[6:], "a version of the future"
    yield "flag-unknown", KEY, None, entry[:6] + b"\2\0" + entry[8:], "a flag of the future"
    yield "length-huge", KEY, None, entry[:8] + struct.pack("<Q", 1 << 62) + entry[16:], "claims 2**62 bytes"
    yield "length-less", KEY, None, entry[:8] + struct.pack("<Q", 34) + entry[16:], "claims less than there is"
    yield "tag-flipped", KEY, None, entry[:16] + bytes([entry[16] ^ 1]) + entry[17:], "one bit of the tag"
    yield "value-flipped", KEY, None, entry[:-1] + bytes([entry[-1] ^ 128]), "one bit of the value"
    yield "other-key", OTHER_KEY, None, entry, "put under another key"
    yield "not-authenticated", KEY, SECRET, entry, "a secret is set, and this has only a checksum"
    yield "flag-forged", KEY, SECRET, entry[:6] + b"\1\0" + entry[8:], "a checksum that claims to be an HMAC"
    yield "other-secret", KEY, bytes(32), sealed, "authenticated with another secret"
    yield "no-secret", KEY, None, sealed, "authenticated, and no secret is set"
    yield "flag-removed", KEY, None, sealed[:6] + b"\0\0" + sealed[8:], "an HMAC that claims to be a checksum"


def files() -> dict[str, bytes]:
    """All files of this folder that this module makes."""
    made: dict[str, bytes] = {}
    index: list[dict[str, Any]] = []
    for name, key, secret, entry, value in sound():
        made[f"{name}.entry"] = entry
        index.append(_row(name, key, secret) | {"value": value.hex()})
    for name, key, secret, entry, why in corrupted():
        made[f"corrupted-{name}.entry"] = entry
        index.append(_row(f"corrupted-{name}", key, secret) | {"value": None, "why": why})
    made["index.json"] = (json.dumps(index, indent=1) + "\n").encode()
    return made


def _row(name: str, key: bytes, secret: bytes | None) -> dict[str, Any]:
    return {"file": f"{name}.entry", "key": key.hex(), "secret": None if secret is None else secret.hex()}


if __name__ == "__main__":
    for name, data in files().items():
        (FOLDER / name).write_bytes(data)
