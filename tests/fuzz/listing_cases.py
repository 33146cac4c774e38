"""Damaged listings of an S3 server: pages that lie, never end, or are no XML of a listing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from html import escape
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from asyncpq.testing.object_server import Answer, LoggedRequest
from tests.fuzz.mutations import changed_bytes

MAX_LISTED = 3000
_SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_NUMBERS = ("", "-1", "0", "1e3", "7", "9" * 19, str((1 << 63) - 1), "9" * 5000, "x", "\uff11", " 12 ")
_DATES = (
    "",
    "x",
    "9" * 5000,
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59Z",
    "2024-01-01",
    "2024-01-01T00:00:00Z",
)
_TEXTS = ("", "&#xD800;", "%FF%00", "&lt;", "a" * 100_000, "../../secret", "//", ".", "..", "%2e%2e/x", "\u202e")
_TAG = re.compile(r"<(Key|Size|ETag|LastModified|Prefix|IsTruncated|NextContinuationToken|MaxKeys|KeyCount)>[^<]*<")


class Case(NamedTuple):
    """A way to answer listings. ``answer`` gets the request, the number of listings before, and the good answer."""

    answer: Callable[[LoggedRequest, int, bytes], Answer]
    what: str


def make(seed: int) -> Case:
    """The damaged listing of a seed."""
    rng = random.Random(seed)
    how = rng.choice(["text", "text", "text", "bytes", "bytes", "endless", "bomb", "status"])
    return {"text": _text, "bytes": _bytes, "endless": _endless, "bomb": _bomb, "status": _status}[how](rng, seed)


def _xml(body: bytes | str) -> Answer:
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return Answer(200, {"Content-Type": "application/xml"}, data)


def _bytes(rng: random.Random, seed: int) -> Case:
    def answer(request: LoggedRequest, number: int, good: bytes) -> Answer:
        again = random.Random(f"{seed} {number}")
        return _xml(changed_bytes(again, good) if again.random() < 0.9 else good[: again.randrange(len(good))])

    return Case(answer, "bytes")


def _text(rng: random.Random, seed: int) -> Case:
    """One element has another text, is doubled, or is gone; on each page or on one."""
    only = rng.choice([None, None, 0, 1])

    def answer(request: LoggedRequest, number: int, good: bytes) -> Answer:
        again, text = random.Random(f"{seed} {number}"), good.decode()
        matches = list(_TAG.finditer(text))
        if only not in (None, number) or not matches:
            return _xml(good)
        match = again.choice(matches)
        whole, name = f"{match[0]}/{match[1]}>", match[1]
        pool = {"Size": _NUMBERS, "MaxKeys": _NUMBERS, "KeyCount": _NUMBERS, "LastModified": _DATES}.get(name, _TEXTS)
        value = again.choice(pool)
        if name == "IsTruncated":
            value = again.choice(["true", "false", "TRUE", "yes", ""])
        new = again.choice(
            [f"<{name}>{value}</{name}>"] * 4 + ["", whole + whole, f"<{name}/>", f"<{name}><x/>{whole}"]
        )
        return _xml(text.replace(whole, new, 1))

    return Case(answer, f"text of page {only}")


def _page(keys: list[str], token: str | None, more: str = "") -> str:
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>7</Size><ETag>&quot;e&quot;</ETag></Contents>" for key in keys
    )
    following = "" if token is None else f"<NextContinuationToken>{token}</NextContinuationToken>"
    return (
        f'<ListBucketResult xmlns="{_SPACE}"><IsTruncated>{str(token is not None).lower()}</IsTruncated>'
        f"{following}{entries}{more}</ListBucketResult>"
    )


def _endless(rng: random.Random, seed: int) -> Case:
    """Pages without an end: of new keys, of none, of few, of other prefixes, of folders in folders."""
    of_page = rng.choice([0, 1, 2, 50, 1000])
    loop = rng.choice([None, None, 1, 2, 7])
    ascending, outside, folders = rng.random() < 0.5, rng.random() < 0.1, rng.random() < 0.3

    def answer(request: LoggedRequest, number: int, good: bytes) -> Answer:
        prefix = parse_qs(urlsplit(request.target).query).get("prefix", [""])[0]
        root = "elsewhere/" if outside else prefix
        first = (number if ascending else 100_000 - number) * 1000
        keys = [f"{root}{first + at:09}.parquet" for at in range(of_page)]
        below = f"<CommonPrefixes><Prefix>{escape(root)}{number}/</Prefix></CommonPrefixes>" if folders else ""
        return _xml(_page(keys, f"t{number if loop is None else number % loop}", below))

    return Case(answer, f"endless: {of_page} keys a page, loop {loop}, {ascending=}, {outside=}, {folders=}")


def _bomb(rng: random.Random, seed: int) -> Case:
    """Small or large pages that cost much to parse."""
    entities = "".join(f'<!ENTITY e{at} "{f"&e{at - 1};" * 10 if at else "aaaaaaaaaa"}">' for at in range(12))
    makers: list[Callable[[], str]] = [
        lambda: f"<!DOCTYPE x [{entities}]>" + _page(["data/&e11;"], None).replace("&amp;", "&"),
        lambda: "<a>" * 1_000_000,
        lambda: _page([], None, "<a/>" * 1_500_000),
        lambda: _page([], None, "<a " + " ".join(f"a{at}=''" for at in range(700_000)) + "/>"),
        lambda: _page([], None, "".join(f"<a{at:x}/>" for at in range(400_000))).replace(_SPACE, "x" * 4_000_000, 1),
        lambda: _page([], None, "<Contents/>" * 1_000_000),
        lambda: _page([], None, "<CommonPrefixes/>" * 1_000_000),
        lambda: _page(["data/" + "k" * 6_000_000], None),
        lambda: _page([], "t" * 6_000_000),
        lambda: _page([], None, "<!--" + "-" * 100 + "-->"),
        lambda: _page([], None, "<![CDATA[" + "x" * 6_000_000 + "]]>"),
        lambda: _page([], None, f"<?{'p' * 6_000_000}?>"),
        lambda: _page([], None, "x" * (17 << 20)),
    ]
    body = rng.choice(makers)().encode()
    return Case(lambda request, number, good: _xml(body), f"bomb of {len(body)} bytes: {body[:60]!r}")


def _status(rng: random.Random, seed: int) -> Case:
    """Other statuses, and headers with odd numbers."""
    headers = rng.choice(
        [
            {},
            {"Retry-After": "9" * 5000},
            {"Retry-After": "-1"},
            {"Retry-After": "Mon, 01 Jan 99999999999 00:00:00 GMT"},
            {"ETag": '"' + "e" * 60_000 + '"'},
            {"Location": "http://169.254.169.254/"},
            {"x-amz-bucket-region": "x" * 5000},
            {"x-amz-bucket-region": "elsewhere"},
        ]
    )
    status = rng.choice([200, 204, 206, 301, 304, 307, 400, 403, 404, 416, 429, 500, 503, 599])
    body = rng.choice([b"", b"<html></html>", b"<Error><Code>SlowDown</Code></Error>", b"<Error>" * 10_000])
    return Case(lambda request, number, good: Answer(status, headers, body), f"status {status}, {headers!r}"[:120])
