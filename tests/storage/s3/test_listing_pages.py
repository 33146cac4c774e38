"""Pages of listings: what S3 and its kin send, and what no listing may be."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest

from asyncpq.storage.s3.listing_pages import ListedKey, ListPage, PageError, PageRequest, page_of_response, parse_page

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def page(inside: str, space: str = SPACE, truncated: str = "<IsTruncated>false</IsTruncated>") -> bytes:
    inside = inside if "IsTruncated" in inside else inside + truncated
    return f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult{space}>{inside}</ListBucketResult>'.encode()


def entry(key: str, size: str = "7", etag: str | None = "&quot;e-2&quot;") -> str:
    tag = "" if etag is None else f"<ETag>{etag}</ETag>"
    return f"<Contents><Key>{key}</Key><Size>{size}</Size>{tag}<Owner><ID>x</ID></Owner></Contents>"


@pytest.mark.parametrize("space", [SPACE, "", ' xmlns="http://doc.s3.amazonaws.com/2006-03-01"'])
def test_keys_and_folders(space: str) -> None:
    inside = (
        "<IsTruncated>true</IsTruncated><NextContinuationToken>t/+=</NextContinuationToken>"
        + entry("a")
        + entry("b", "0", "e")
        + entry("c", "99999999999", None)
        + "<CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>"
    )
    keys = [ListedKey("a", 7, '"e-2"'), ListedKey("b", 0, '"e"'), ListedKey("c", 99_999_999_999, None)]
    assert parse_page(page(inside, space)) == ListPage(keys, ["d/"], "t/+=")


def test_keys_are_decoded_only_if_the_store_says_so() -> None:
    key = "a+b%20%2B%C3%A9&amp;"
    assert parse_page(page(entry(key))).keys[0].key == "a+b%20%2B%C3%A9&"
    assert parse_page(page(entry(key) + "<EncodingType>url</EncodingType>")).keys[0].key == "a b +\u00e9&"


def test_a_prefix_of_the_namespace() -> None:
    body = page(entry("a"), ' xmlns:s="x"').decode()
    assert parse_page(re.sub(r"<(/?)([A-Z])", r"<\1s:\2", body).encode()) == parse_page(body.encode())


def test_what_a_listing_does_not_need_is_not_kept() -> None:
    """Names of elements, namespaces and attributes, of which a hostile page may have many."""
    space = f' xmlns="{"x" * 50_000}"'
    inside = "".join(f"<a{number:x} b='{number}'/>" for number in range(50_000))
    tracemalloc.start()
    try:
        assert parse_page(page(entry("a") + inside, space)).keys == [ListedKey("a", 7, '"e-2"')]
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_nothing() -> None:
    assert parse_page(page("")) == ListPage([], [], None)


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        page(entry("a"))[:-1],
        page(entry("a")) + b"<",
        b"<html></html>",
        b"<Error><Code>SlowDown</Code></Error>",
        page(entry("")),
        page(entry("a", "")),
        page(entry("a", "-1")),
        page(entry("a", "1e3")),
        page(entry("a", "\uff11")),
        page("<Contents></Contents>"),
        page("<CommonPrefixes></CommonPrefixes>"),
        page("<IsTruncated>true</IsTruncated>"),
        page(entry("a"), truncated=""),
        page("<IsTruncated>yes</IsTruncated><NextContinuationToken>t</NextContinuationToken>"),
        page(entry("a")).replace(b"<List", b'<!DOCTYPE x SYSTEM "file:///etc/hostname"><List', 1),
        page(entry("a"), truncated="<IsTruncated>yes</IsTruncated>"),
        page(entry("\x01")),
        page(entry("&b;")).replace(b"<ListBucketResult", BOMB.encode() + b"<ListBucketResult", 1),
        page(entry("&unknown;")),
        page(entry("a")).decode().replace("UTF-8", "UTF-16").encode("utf-16"),
        page(entry("a", str(1 << 63))),
        page(entry("a", "9" * 5000)),
        page(f"<IsTruncated>true</IsTruncated><NextContinuationToken>{'t' * 16385}</NextContinuationToken>"),
        page(entry("k" * 16385)),
        page(entry("a", etag="e" * 16385)),
        page(f"<CommonPrefixes><Prefix>{'p' * 16385}</Prefix></CommonPrefixes>"),
        page("<a>" * 16 + "</a>" * 16),
        page("<a/>" * (1 << 20)),
        page("<a " + " ".join([f"a{number:x}=''" for number in range(30_000)]) + "/>"),
        b"<xListBucketResult><IsTruncated>false</IsTruncated></xListBucketResult>",
    ],
    ids=range(32),
)
def test_what_is_no_page(body: bytes) -> None:
    with pytest.raises(PageError):
        parse_page(body)


def test_parameters() -> None:
    always = {"list-type": "2", "prefix": "p/"}
    assert PageRequest("p/").parameters() == always
    assert PageRequest("p/", after="p/a").parameters() == {**always, "start-after": "p/a"}
    assert PageRequest("p/", encoded=True).parameters() == {**always, "encoding-type": "url"}
    assert PageRequest("p/", "p/a", "t", folders=True).parameters() == {
        **always,
        "continuation-token": "t",
        "delimiter": "/",
    }


def test_page_of_botocore() -> None:
    response = {
        "IsTruncated": True,
        "NextContinuationToken": "t",
        "Contents": [{"Key": "a", "Size": 7, "ETag": '"e"'}],
        "CommonPrefixes": [{"Prefix": "d/"}],
    }
    assert page_of_response(response) == ListPage([ListedKey("a", 7, '"e"')], ["d/"], "t")
    assert page_of_response({"IsTruncated": False}) == ListPage([], [], None)
    whole = {"IsTruncated": False}
    html: dict[str, Any] = {}  # as botocore parses it
    for broken in (
        {**whole, "Contents": [{"Key": "a"}]},
        {**whole, "Contents": [{"Size": 1}]},
        {"IsTruncated": True},
        html,
    ):
        with pytest.raises(PageError):
            page_of_response(broken)
