"""Which responses are taken for the bytes that were asked for: a table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from asyncpq.errors import InvalidResponseError, NotParquetError, ObjectChangedError
from asyncpq.storage.base import Guarantee, Validator
from asyncpq.storage.response_checks import (
    UNKNOWN_SIZE,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    changed,
    check_head_response,
    check_range_response,
    error_for,
    gone,
    guarantee_of,
    strong_etag,
)

URL = "s3://bucket/key"
PIN = Validator(size=1000, etag='"a"', last_modified="then")
RANGE = RangeRequest(100, 200, URL)
PINNED = RangeRequest(100, 200, URL, PIN)
TAIL = RangeRequest(-100, 0, URL)
GOOD = {"content-range": "bytes 100-199/1000", "content-length": "100", "etag": '"a"', "last-modified": "then"}
GOOD_TAIL = GOOD | {"content-range": "bytes 900-999/1000"}


def check(request: RangeRequest, status: int, headers: dict[str, str], **options: int) -> ExpectedBody:
    return check_range_response(request, status, CIMultiDict(headers), **options)


@pytest.mark.parametrize(
    ("request_", "status", "headers", "start", "length", "size"),
    [
        (RANGE, 206, GOOD, 100, 100, 1000),
        (PINNED, 206, GOOD, 100, 100, 1000),
        (TAIL, 206, GOOD_TAIL, 900, 100, 1000),
        # the object is shorter than the suffix
        (TAIL, 206, GOOD | {"content-range": "bytes 0-49/50", "content-length": "50"}, 0, 50, 50),
        (TAIL, 200, {"content-length": "50", "etag": '"a"'}, 0, 50, 50),
        (RangeRequest(0, 50, URL), 200, {"content-length": "50", "etag": '"a"'}, 0, 50, 50),
        # no Content-Length: the body's end tells
        (RANGE, 206, {k: v for k, v in GOOD.items() if k != "content-length"}, 100, 100, 1000),
        (RANGE, 206, GOOD | {"content-range": "bytes 100-199/*"}, 100, 100, UNKNOWN_SIZE),
        (PINNED, 206, GOOD | {"content-range": "bytes 100-199/*"}, 100, 100, UNKNOWN_SIZE),
        (RANGE, 206, GOOD | {"content-encoding": "identity"}, 100, 100, 1000),
        (RANGE, 206, {k.lower(): v for k, v in GOOD.items()}, 100, 100, 1000),
    ],
)
def test_good(request_: RangeRequest, status: int, headers: dict[str, str], start: int, length: int, size: int) -> None:
    expected = check(request_, status, headers)
    assert (expected.start, expected.length, expected.validator.size) == (start, length, size)


@pytest.mark.parametrize(
    ("request_", "status", "change"),
    [
        (RANGE, 206, {"content-range": "bytes 101-200/1000"}),  # shifted
        (RANGE, 206, {"content-range": "bytes 0-99/1000"}),
        (RANGE, 206, {"content-range": "bytes 100-149/150", "content-length": "50"}),  # clipped by the object's end
        (RANGE, 206, {"content-range": "bytes 100-149/1000", "content-length": "50"}),  # clipped for no reason
        (RANGE, 206, {"content-range": "bytes 100-199/150"}),  # contradicts itself
        (RANGE, 206, {"content-range": "bytes 199-100/1000"}),
        (RANGE, 206, {"content-range": "items 100-199/1000"}),
        (RANGE, 206, {"content-range": "bytes 100-199"}),
        (RANGE, 206, {"content-range": "bytes */1000"}),
        (RANGE, 206, {"content-range": ""}),
        (RANGE, 206, {"content-range": f"bytes 100-199/{1 << 63}"}),  # more than an object can have
        (RANGE, 206, {"content-range": f"bytes 100-199/1{'0' * 5000}"}),
        (RANGE, 206, {"content-length": "1" + "0" * 30}),
        (RANGE, 206, {"content-length": "9" * 5000}),
        (RANGE, 206, {"content-range": "x" * 60_000}),
        (RANGE, 206, {"content-length": "99"}),
        (RANGE, 206, {"content-length": "101"}),
        (RANGE, 206, {"content-length": "-100"}),
        (RANGE, 206, {"content-length": "1e2"}),
        (RANGE, 206, {"content-encoding": "gzip", "content-length": "40"}),  # a proxy compressed the part
        (PINNED, 206, {"content-encoding": "br", "content-length": "40"}),
        (RANGE, 200, {"content-range": "bytes 0-99/1000"}),
        (RANGE, 200, {"content-range": "bytes 100-199/1000", "content-length": "99"}),
        (RANGE, 200, {"content-range": "x"}),
        (PINNED, 206, {"content-range": "bytes 101-200/1000"}),
        (PINNED, 206, {"etag": ""}),  # was there before
        (RANGE, 204, {}),
        (TAIL, 206, {"content-length": "40", "content-range": "bytes 900-999/1000"}),
        (RANGE, 200, {"content-encoding": "gzip", "content-range": None, "content-length": "1000"}),
        (PINNED, 200, {"content-encoding": "gzip", "content-range": None, "content-length": "999"}),
    ],
)
def test_invalid(request_: RangeRequest, status: int, change: dict[str, str | None]) -> None:
    headers = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(InvalidResponseError) as caught:
        check(request_, status, headers)
    assert caught.value.url == URL


def test_an_encoding_without_a_length() -> None:
    headers = {name: value for name, value in GOOD.items() if name != "content-length"}
    assert check(RANGE, 206, headers).length == 100
    with pytest.raises(InvalidResponseError, match="gzip"):
        check(RANGE, 206, headers | {"content-encoding": "gzip"})


@pytest.mark.parametrize("request_", [RANGE, PINNED, TAIL])
@pytest.mark.parametrize("encoding", ["aws-chunked", "utf-8", "binary", "gzip", "gzip, aws-chunked"])
@pytest.mark.parametrize("status", [206, 200])
def test_a_stored_encoding_is_ignored(request_: RangeRequest, encoding: str, status: int) -> None:
    """S3-like servers replay the Content-Encoding of the upload beside parts of the bytes as they are stored."""
    headers = GOOD | {"content-encoding": encoding}
    if request_ is TAIL:
        headers |= {"content-range": "bytes 900-999/1000"}
    expected = check(request_, status, headers)
    assert (expected.start, expected.length) == (900 if request_ is TAIL else 100, 100)
    with pytest.raises(ObjectChangedError):
        check(PINNED, status, GOOD | {"content-encoding": encoding, "etag": '"b"'})


@pytest.mark.parametrize("status", [200, 206])
@pytest.mark.parametrize("encoding", ["aws-chunked", "utf-8", "gzip"])
def test_a_stored_encoding_of_an_object_shorter_than_the_tail(encoding: str, status: int) -> None:
    headers = {"content-length": "100", "etag": '"a"', "content-encoding": encoding}
    expected = check(RangeRequest(-65536, 0, URL), status, headers | {"content-range": "bytes 0-99/100"})
    assert (expected.start, expected.length, expected.validator.size) == (0, 100, 100)
    with pytest.raises(InvalidResponseError, match=encoding):  # the body that follows is the compressed one
        check(RangeRequest(-65536, 0, URL), status, headers | {"content-range": "bytes 0-499/500"})


def test_a_stored_encoding_of_an_empty_object() -> None:
    with pytest.raises(NotParquetError, match="empty"):
        check(TAIL, 200, {"content-length": "0", "etag": '"a"', "content-encoding": "aws-chunked"})


def test_a_stored_encoding_of_a_whole_object() -> None:
    """Without Content-Range, only the pinned version proves that the body is not what a proxy has compressed."""
    pinned = RangeRequest(0, 1000, URL, PIN)
    headers = {"content-encoding": "utf-8", "content-length": "1000", "etag": '"a"'}
    assert check(pinned, 200, headers).length == 1000
    with pytest.raises(InvalidResponseError, match="utf-8"):
        check(RangeRequest(0, 1000, URL), 200, headers)


@pytest.mark.parametrize(
    "content_range",
    [
        "bytes 0-99/1000",  # the first bytes for the last
        "bytes 899-998/1000",
        "bytes 901-999/1000",
        "bytes 901-999/*",
        "bytes 0--1/0",
        "x",
    ],
)
@pytest.mark.parametrize("status", [200, 206])
def test_other_bytes_than_the_last(content_range: str, status: int) -> None:
    length = "100" if "90" not in content_range else "99"
    with pytest.raises(RangeIgnoredError):
        check(TAIL, status, GOOD | {"content-range": content_range, "content-length": length})


@pytest.mark.parametrize(
    ("pin", "change"),
    [
        (PIN, {"etag": '"b"'}),
        (PIN, {"etag": 'W/"a"'}),
        (PIN, {"content-range": "bytes 100-199/1001"}),
        (replace(PIN, etag='W/"a"'), {"etag": 'W/"b"'}),
        (replace(PIN, etag='W/"a"'), {"etag": 'W/"a"', "last-modified": "now"}),
        (replace(PIN, etag=None), {"etag": "", "last-modified": "now"}),
        (replace(PIN, etag=None), {"etag": '"a"'}),  # where there was none
        (replace(PIN, version="1"), {"x-amz-version-id": "2"}),
    ],
)
def test_changed(pin: Validator, change: dict[str, str]) -> None:
    request = replace(PINNED, pin=pin)
    before = GOOD | {"etag": pin.etag or ""}
    assert check(request, 206, before).length == 100
    with pytest.raises(ObjectChangedError) as caught:
        check(request, 206, before | change)
    assert not caught.value.is_gone


def test_a_weak_etag_that_becomes_strong() -> None:
    """Apache's ETags are weak while a file is younger than a second."""
    weak = replace(PIN, etag='W/"a"')
    expected = check(replace(PINNED, pin=weak), 206, GOOD | {"etag": '"a"'})
    assert expected.validator.same_version(weak)
    assert guarantee_of(expected.validator) is Guarantee.BRACKETED
    with pytest.raises(ObjectChangedError):
        check(replace(PINNED, pin=weak), 206, GOOD | {"etag": '"a"', "last-modified": "now"})
    with pytest.raises(ObjectChangedError):
        check(replace(PINNED, pin=weak), 206, GOOD | {"etag": '"b"'})


def test_a_pinned_object_that_is_gone() -> None:
    assert gone(PINNED).is_gone
    assert not changed(PINNED, "it differs").is_gone


@pytest.mark.parametrize(
    ("request_", "headers", "small", "taken"),
    [
        (RANGE, {"content-length": "1000"}, 0, False),
        (RANGE, {"content-length": "1000"}, 999, False),
        (RANGE, {"content-length": "1000"}, 1000, True),
        (RANGE, {"content-length": "150"}, 1000, False),  # the range is not all in it
        (RANGE, {}, 1000, False),  # unknown length
        (TAIL, {"content-length": "101"}, 0, False),
        (TAIL, {"content-length": "100"}, 0, True),
        (TAIL, {"content-length": "1000"}, 1000, True),
        (RangeRequest(0, 100, URL), {"content-length": "101"}, 0, False),
    ],
)
def test_a_200_must_prove_that_it_is_the_range(
    request_: RangeRequest, headers: dict[str, str], small: int, taken: bool
) -> None:
    if taken:
        expected = check(request_, 200, headers, small_body_bytes=small)
        assert (expected.start, str(expected.length)) == (0, headers["content-length"])
    else:
        with pytest.raises(RangeIgnoredError) as caught:
            check(request_, 200, headers, small_body_bytes=small)
        assert str(caught.value.size or "") == headers.get("content-length", "")


@pytest.mark.parametrize("said", ["bytes 0-99/1000", "bytes 900-999/1000", "bytes 0-99/*", "bytes */100", "x"])
def test_a_200_that_speaks_of_a_range(said: str) -> None:
    headers = {"content-length": "100", "etag": '"a"', "content-range": said}
    tails = "bytes 900-999/1000", "bytes 0-99/*"  # which is checked once the size is known
    for request, fitting in ((TAIL, tails), (RangeRequest(0, 100, URL), ("bytes 0-99/1000", "bytes 0-99/*"))):
        if said not in fitting:
            with pytest.raises((InvalidResponseError, RangeIgnoredError)):
                check(request, 200, headers)
        else:
            assert check(request, 200, headers).length == 100
        assert check(request, 200, headers | {"content-range": "bytes 0-99/100"}).length == 100


def test_empty_object() -> None:
    with pytest.raises(NotParquetError, match="empty"):
        check(TAIL, 200, {"content-length": "0", "etag": '"a"'})
    with pytest.raises(ObjectChangedError):
        check(PINNED, 200, {"content-length": "0", "etag": '"a"'})


@given(
    size=st.integers(1, 10**12),
    data=st.data(),
    etag=st.sampled_from(['"x"', '"y"']),
    modified=st.sampled_from(["then", "now"]),
)
def test_only_the_range_and_version_asked_for_pass(size: int, data: st.DataObject, etag: str, modified: str) -> None:
    """Whatever a response claims: if it is taken, it is the range, and the pin's version."""
    near = st.integers(0, size)
    start, stop = sorted(data.draw(st.tuples(near, near).filter(lambda pair: pair[0] != pair[1])))
    first, last, total = (data.draw(st.integers(value - 1, value + 1)) for value in (start, stop - 1, size))
    pin = Validator(size=size, etag='"x"', last_modified="then")
    headers = {"content-range": f"bytes {first}-{last}/{total}", "etag": etag, "last-modified": modified}
    try:
        expected = check(RangeRequest(start, stop, URL, pin), 206, headers)
    except (InvalidResponseError, ObjectChangedError):
        assert (first, last, total, etag) != (start, stop - 1, size, '"x"')
    else:
        assert (first, last, total, etag) == (start, stop - 1, size, '"x"')
        assert (expected.start, expected.length) == (start, stop - start)
        assert expected.validator.same_version(pin)


def test_head() -> None:
    request = RangeRequest(0, 0, URL, Validator(size=UNKNOWN_SIZE, etag='"a"'))
    found = check_head_response(request, CIMultiDict({"content-length": "7", "etag": '"a"'}))
    assert found.validator.size == 7
    with pytest.raises(ObjectChangedError):
        check_head_response(request, CIMultiDict({"content-length": "7", "etag": '"b"'}))
    with pytest.raises(InvalidResponseError):
        check_head_response(request, CIMultiDict({"etag": '"a"'}))


@pytest.mark.parametrize(
    ("validator", "guarantee", "if_match"),
    [
        (Validator(size=1, etag='"a-12"'), Guarantee.PINNED, '"a-12"'),
        (Validator(size=1, etag='W/"a"', last_modified="then"), Guarantee.BRACKETED, None),
        (Validator(size=1, last_modified="then"), Guarantee.BRACKETED, None),
        (Validator(size=1), Guarantee.NONE, None),
    ],
)
def test_guarantee(validator: Validator, guarantee: Guarantee, if_match: str | None) -> None:
    assert guarantee_of(validator) is guarantee
    compared = Guarantee.COMPARED if guarantee is Guarantee.PINNED else guarantee
    assert guarantee_of(validator, if_match=False) is compared
    assert strong_etag(validator) == if_match


@pytest.mark.parametrize(
    ("code", "says"),
    [("InvalidObjectState", "archived .*restore it first"), ("RequestTimeTooSkewed", "Set this host's clock")],
)
def test_hints_name_the_cause(code: str, says: str) -> None:
    error = error_for(RANGE, 403, code)
    assert re.search(says, str(error))
    assert "Allow s3:" not in str(error)
    assert "secret" not in str(error)
