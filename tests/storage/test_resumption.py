"""What is asked for after a body broke off: the rest of the same version, or all of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import InvalidResponseError
from asyncpq.storage.base import Validator
from asyncpq.storage.response_checks import UNKNOWN_SIZE, ExpectedBody, RangeRequest
from asyncpq.storage.transport import Resumption

DATA = random.Random(1).randbytes(1000)
STRONG = Validator(size=len(DATA), etag='"a"')
WEAK = Validator(size=len(DATA), etag='W/"a"')
WITHOUT = Validator(size=len(DATA), last_modified="then")


def answered(request: RangeRequest, validator: Validator) -> ExpectedBody:
    """What a good response to the request holds."""
    start = len(DATA) + request.start if request.start < 0 else request.start
    stop = len(DATA) if request.start < 0 else request.stop
    return ExpectedBody(start, stop - start, validator)


@given(
    request=st.one_of(
        st.integers(1, len(DATA)).map(lambda length: RangeRequest(-length, 0, "url")),
        st.tuples(st.integers(0, 999), st.integers(1, 1000)).map(
            lambda span: RangeRequest(span[0], min(1000, sum(span)), "url")
        ),
    ),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    validator=st.sampled_from([STRONG, WEAK, WITHOUT]),
    pinned=st.booleans(),
)
def test_however_often_it_breaks_the_bytes_are_those_asked_for(
    request: RangeRequest, cuts: list[int], validator: Validator, pinned: bool
) -> None:
    whole = RangeRequest(request.start, request.stop, "url", validator if pinned else None)
    resumption, received = Resumption(whole), 0
    for cut in cuts:
        expected = answered(whole, validator)
        came = min(cut, expected.length - 1)
        received += came
        asked = resumption.keep(True, expected, DATA[expected.start : expected.start + came])
        if validator is not STRONG or not (came or resumption.begun):
            assert asked is resumption._whole
            assert not resumption.begun
        else:
            assert asked.pin == validator
        whole = asked
    expected = answered(whole, validator)
    found, data = resumption.complete(True, expected, DATA[expected.start : expected.start + expected.length])
    first = answered(request, validator)
    assert data == DATA[first.start : first.start + first.length]
    assert (found.start, found.length) == (first.start, first.length)
    if validator is STRONG:
        assert received + expected.length == first.length, "no byte is fetched twice"


@pytest.mark.parametrize(
    ("is_part", "expected", "data"),
    [
        (False, ExpectedBody(0, 1000, STRONG), DATA[:10]),  # the whole object, from a server without ranges
        (True, None, b""),  # refused
        (True, ExpectedBody(100, 100, STRONG), b""),
        (True, ExpectedBody(100, 100, STRONG), DATA[100:200]),  # all of it, but the response went on
        (True, ExpectedBody(100, 100, STRONG), DATA[100:201]),
        (True, ExpectedBody(100, 100, Validator(size=UNKNOWN_SIZE, etag='"a"')), DATA[100:110]),
    ],
)
def test_what_is_no_part_is_not_kept(is_part: bool, expected: ExpectedBody | None, data: bytes) -> None:
    whole = RangeRequest(100, 200, "url")
    resumption = Resumption(whole)
    assert resumption.keep(is_part, expected, data) is whole
    assert not resumption.begun


def test_an_unknown_size_is_known_from_the_pin() -> None:
    resumption = Resumption(RangeRequest(100, 200, "url", STRONG))
    asked = resumption.keep(True, ExpectedBody(100, 100, Validator(size=UNKNOWN_SIZE, etag='"a"')), DATA[100:110])
    assert (asked.start, asked.stop, asked.pin) == (110, 200, STRONG)


def test_starting_over_forgets_the_parts() -> None:
    whole = RangeRequest(-100, 0, "url")
    resumption = Resumption(whole)
    resumption.keep(True, ExpectedBody(900, 100, STRONG), DATA[900:950])
    resumption.start_over()
    assert not resumption.begun
    assert resumption.keep(False, None, b"") is whole
    other = ExpectedBody(400, 100, Validator(size=500, etag='"b"'))
    assert resumption.complete(True, other, b"x" * 100) == (other, b"x" * 100)


def test_a_rest_is_a_part() -> None:
    resumption = Resumption(RangeRequest(0, 1000, "url", STRONG))
    resumption.keep(True, ExpectedBody(0, 1000, STRONG), DATA[:10])
    with pytest.raises(InvalidResponseError, match="rest"):
        resumption.complete(False, ExpectedBody(0, 1000, STRONG), DATA)
