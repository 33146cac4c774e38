"""Entries: what was put comes out, and nothing else does, whatever was done to the bytes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from asyncpq.caching.entry_format import HEADER_BYTES, EntryCodec, decode_pointer, encode_pointer
from asyncpq.storage.base import Validator

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


@given(st.binary(max_size=100))
def test_any_bytes_as_a_pointer(value: bytes) -> None:
    found = decode_pointer(value)
    if found is not None:
        validator, age_s = found
        assert age_s >= 0
        assert not math.isnan(age_s)
        assert decode_pointer(encode_pointer(validator, age_s)) == found
