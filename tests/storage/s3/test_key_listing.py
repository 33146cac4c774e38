"""Keys are listed once each, in order, however a listing is cut into ranges; against plain lists of keys, through
the test server's own pages.
"""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncpq.errors import InvalidResponseError, ResourceLimitError
from asyncpq.metrics import ReadMetrics
from asyncpq.storage.base import RequestContext
from asyncpq.storage.limits import ListingLimit
from asyncpq.storage.s3.key_listing import (
    Alphabets,
    KeyPages,
    ListedKey,
    ListPage,
    PageError,
    PageRequest,
    _plain_entries,
    list_between,
    list_keys,
    list_wanted_keys,
    middle,
    page_of_response,
    parse_page,
    skip,
)
from asyncpq.testing.faults import Fault
from asyncpq.testing.object_server import ServedObject, answer_list

SERVED = ServedObject(b"", '"etag"', 0.0)


class Bucket:
    """Pages of keys, through their XML."""

    def __init__(self, keys: Iterable[str], page_keys: int, fault: Fault | None = None) -> None:
        self.objects = {f"b/{key}": SERVED for key in keys}
        self.page_keys = page_keys
        self.fault = fault or Fault()
        self.requests: list[PageRequest] = []
        self.rounds = 0

    async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
        self.requests.append(page)
        self.rounds = max(self.rounds, context.round)
        assert len(self.requests) < 5000
        await asyncio.sleep(0)
        answer = answer_list(replace(page, encoded=True).parameters(), "b", self.objects, self.page_keys, self.fault)
        return parse_page(answer.body)


def pages(bucket: Bucket, most: int = 1_000_000) -> KeyPages:
    return KeyPages(bucket.fetch_page, RequestContext(ReadMetrics()), ListingLimit("s3://b/", most))


def listed(bucket: Bucket, prefix: str = "") -> list[str]:
    return [key.key for key in asyncio.run(list_keys(pages(bucket), prefix))]


def wanted(bucket: Bucket, prefix: str, wants: Callable[[str], bool]) -> list[str]:
    return [key.key for key in asyncio.run(list_wanted_keys(pages(bucket), prefix, wants))]


MARKS = st.sampled_from("a0 1b9/+%~é\x01&<>-_.=\U0001f600")
NAMES = st.text(MARKS, min_size=1, max_size=6)
NUMBERED = st.builds(
    lambda form, numbers: [form.format(number, number % 7) for number in numbers],
    st.sampled_from(["part-{:05d}", "part-{}", "k={1}/{0:03d}", "y=20{1}/m={0:02d}/x", "{0:04x}", "a/{0:04x}-{1}"]),
    st.lists(st.integers(0, 400), max_size=400),
)
KEYS = st.one_of(
    st.lists(NAMES, max_size=150), NUMBERED, st.tuples(NUMBERED, NUMBERED).map(lambda two: two[0] + two[1])
)


@given(KEYS, st.integers(3, 10), st.sampled_from(["", "p/", "a"]))
def test_every_key_once_and_in_order(keys: list[str], page_keys: int, prefix: str) -> None:
    bucket = Bucket([*keys, *(prefix + key for key in keys)], page_keys)
    expected = sorted(key[2:] for key in bucket.objects if key[2:].startswith(prefix))
    assert listed(bucket, prefix) == expected
    fewest = max(1, -(-len(expected) // page_keys))
    assert len(bucket.requests) <= fewest + fewest // 2 + 3


@given(KEYS, st.integers(3, 10), NAMES, NAMES)
def test_every_key_between_two(keys: list[str], page_keys: int, one: str, other: str) -> None:
    after, last = sorted((one, other))
    bucket = Bucket(keys, page_keys)
    keys_between = asyncio.run(list_between(pages(bucket), "", after, last, 1))
    assert [key.key for key in keys_between] == sorted({key for key in keys if after < key <= last})


FOLDERS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 60)).map(
        lambda item: f"p/y={item[0]}/m={item[1]}/{item[2]}"
    ),
    max_size=300,
)


@given(FOLDERS, st.lists(NAMES, max_size=5), st.integers(3, 10), st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_keys_of_wanted_folders(
    keys: list[str], others: list[str], page_keys: int, years: set[int], months: set[int]
) -> None:
    """All keys of wanted folders, and perhaps others, are listed; folder markers may be left out."""

    def wants(folder: str) -> bool:
        assert folder.endswith("/")
        parts = dict(part.split("=", 1) for part in folder.split("/") if "=" in part)
        return all(
            parts.get(name, "").isdecimal() is False or int(parts[name]) in good
            for name, good in (("y", years), ("m", months))
        )

    bucket = Bucket([*keys, *(f"p/{name}" for name in others)], page_keys)
    found = wanted(bucket, "p/", wants)
    assert found == sorted(set(found))
    everything = {key[2:] for key in bucket.objects}
    assert set(found) <= everything
    folders = {key: [key[: at + 1] for at, mark in enumerate(key) if mark == "/" and at > 1] for key in everything}
    objects = {key for key in everything if not key.endswith("/")}
    assert {key for key in objects if all(map(wants, folders[key]))} <= set(found)


@given(st.lists(NAMES, max_size=60, unique=True).filter(bool), NAMES, NAMES)
@example(["a"], "a", "a/")
def test_cuts_are_inside(sample: list[str], one: str, other: str) -> None:
    low, high = sorted((one, other))
    alphabets = Alphabets()
    alphabets.learn(sample)
    cut = middle(low, high, alphabets) if low < high else None
    if cut is not None:
        assert low < cut.key < high
        assert cut.weight > 0
    for shorter in range(8):
        behind = skip(low, high, shorter)
        assert behind is None or behind > high


def test_a_cut_among_the_keys_that_begin_as_the_end() -> None:
    alphabets = Alphabets()
    alphabets.learn(["p00a0", "p00b0"])
    cut = middle("p", "p00b0", alphabets)
    assert cut is not None
    assert cut.key == "p00a"


@given(FOLDERS, st.integers(3, 10), st.lists(st.sets(st.integers(0, 9)), min_size=2, max_size=4))
def test_keys_of_wanted_folders_again(keys: list[str], page_keys: int, years: list[set[int]]) -> None:
    """Whatever listings with other wishes found before."""
    bucket, selective = Bucket(keys, page_keys), dict[str, int]()
    for wishes in years:

        def wants(folder: str, wishes: set[int] = wishes) -> bool:
            return not any(f"y={year}/" in folder for year in set(range(10)) - wishes)

        source = replace(pages(bucket), selective=selective)
        found = [key.key for key in asyncio.run(list_wanted_keys(source, "p/", wants))]
        assert found == sorted(set(found))
        objects = {key[2:] for key in bucket.objects if not key.endswith("/") and key.startswith("b/p/")}
        assert {key for key in objects if wants(key)} <= set(found) <= {key[2:] for key in bucket.objects}


# -- how many requests ----------------------------------------------------------------------------

# Keys, keys of a page, requests, rounds.
SHAPES = {
    "2,000 partitions of a key": ([f"k={number}/x" for number in range(2000)], 1000, 2, 2),
    "numbered": ([f"part-{number:05d}" for number in range(20_000)], 1000, 26, 20),
    "unpadded": ([f"part-{number}" for number in range(20_000)], 1000, 26, 20),
    "days": ([f"y={n % 10}/m={n % 12:02}/d={n % 28:02}/{n}" for n in range(12_500)], 250, 65, 40),
    "hexadecimal": ([f"{number * 2654435761 % 2**32:08x}" for number in range(12_500)], 250, 65, 35),
}


@pytest.mark.heavy
def test_a_prefix_of_many_folders_is_listed_by_folder_at_once_the_next_time() -> None:
    bucket = Bucket([f"p/k={number // 100:03}/{number % 100:02}" for number in range(20_000)], 1000)
    selective = dict[str, int]()
    source = replace(pages(bucket), selective=selective)
    for requests in (3, 2):
        bucket.requests, bucket.rounds = [], 0
        found = asyncio.run(list_wanted_keys(source, "p/", lambda folder: folder == "p/k=007/"))
        assert [key.key for key in found] == [f"p/k=007/{number:02}" for number in range(100)]
        assert (len(bucket.requests), bucket.rounds) == (requests, requests)
    asyncio.run(list_wanted_keys(source, "p/", lambda folder: True))
    assert selective == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_requests(shape: str) -> None:
    keys, page_keys, most, rounds = SHAPES[shape]
    bucket = Bucket(keys, page_keys)
    assert listed(bucket) == sorted(keys)
    assert len(bucket.requests) <= most
    assert bucket.rounds <= rounds


def test_a_page_is_one_request() -> None:
    bucket = Bucket([f"{number}" for number in range(1000)], 1000)
    assert len(listed(bucket)) == 1000
    assert bucket.requests == [PageRequest("")]


def test_unwanted_folders_are_not_listed() -> None:
    keys = [f"k={number:04}/{file:03}" for number in range(2000) for file in range(50)]
    bucket = Bucket(keys, 1000)
    assert wanted(bucket, "", lambda folder: folder == "k=1234/") == [key for key in keys if key[:6] == "k=1234"]
    assert len(bucket.requests) == 4  # a page of keys, two of folders, one of the folder's keys


def test_neighbours_are_listed_together() -> None:
    keys = [f"k={number:04}/{file}" for number in range(4000) for file in range(10)]
    bucket = Bucket(keys, 1000)
    found = wanted(bucket, "", lambda folder: 500 <= int(folder[2:6]) < 700)
    assert found == [key for key in keys if 500 <= int(key[2:6]) < 700]
    assert len(bucket.requests) <= 9  # a page of keys, four of folders, two of their keys, and cuts


def test_folders_are_not_looked_at_where_that_costs_more() -> None:
    keys = [f"k={number:04}/x" for number in range(3000)]
    bucket = Bucket(keys, 1000)
    assert wanted(bucket, "", lambda folder: int(folder[2:6]) % 2 == 0) == keys
    assert len(bucket.requests) <= 5


def test_deeper_folders_are_ruled_out() -> None:
    keys = [f"y={y}/m={m:02}/{n:04}" for y in range(3) for m in range(12) for n in range(500)]
    bucket = Bucket(keys, 1000)
    found = wanted(bucket, "", lambda folder: "/m=" not in folder or "/m=07/" in folder)
    assert set(found) >= {key for key in keys if "m=07" in key}
    assert len(bucket.requests) <= 13  # a page and the folders of each level, and the months


# -- stores that do it wrong ----------------------------------------------------------------------


@pytest.mark.parametrize("page_keys", [1, 3])
def test_endless_listing(page_keys: int) -> None:
    bucket = Bucket([f"{number}" for number in range(9)], page_keys, Fault(endless_listing=True))
    with pytest.raises(InvalidResponseError, match="does not end"):
        listed(bucket)
    assert len(bucket.requests) <= 4


@pytest.mark.parametrize(("changing", "most"), [(True, 300), (False, 3)])
def test_endless_listing_of_nothing(changing: bool, most: int) -> None:
    class Empty(Bucket):
        async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
            self.requests.append(page)
            return ListPage([], [], f"token {len(self.requests) * changing}")

    bucket = Empty([], 3)
    with pytest.raises(InvalidResponseError, match="does not end"):
        listed(bucket)
    assert len(bucket.requests) <= most


def test_start_after_is_not_known() -> None:
    keys = [f"part-{number:03}" for number in range(300)]
    bucket = Bucket(keys, 5, Fault(ignore_start_after=True))
    assert listed(bucket) == keys


def test_another_order() -> None:
    """S3 Express lists in no order."""
    keys = [f"{number * 37 % 101:03}" for number in range(101)]

    class Unordered(Bucket):
        async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
            self.requests.append(page)
            at = int(page.token or 0)
            found = [ListedKey(key, 1, None) for key in keys[at : at + 5]]
            return ListPage(found, [], str(at + 5) if at + 5 < len(keys) else None)

    assert listed(Unordered([], 5)) == sorted(keys)


@given(
    keys=st.sets(st.text("ab/", min_size=1, max_size=6), max_size=60),
    page_keys=st.integers(1, 9),
    prefix=st.sampled_from(["", "a/", "b/a/"]),
    unwanted=st.sampled_from(["", "a/", "b/"]),
)
def test_a_bucket_without_an_order_is_not_asked_for_one(
    keys: set[str], page_keys: int, prefix: str, unwanted: str
) -> None:
    """Nor if it happens to list in order."""
    bucket = Bucket(keys, page_keys)
    source = replace(pages(bucket), ordered=False)
    found = [key.key for key in asyncio.run(list_keys(source, prefix))]
    assert found == sorted(key for key in keys if key.startswith(prefix))
    some = asyncio.run(list_wanted_keys(source, prefix, lambda folder: not unwanted or not folder.endswith(unwanted)))
    assert {key.key for key in some} <= set(found)
    if not unwanted:
        assert [key.key for key in some if not key.key.endswith("/")] == [key for key in found if key[-1] != "/"]
    assert {request.after for request in bucket.requests} <= {""}


@pytest.mark.parametrize("page_keys", [3, 7])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_listing_has_at_most_as_many_keys_as_the_options_allow(page_keys: int, ordered: bool) -> None:
    bucket = Bucket([f"p/{number:03}" for number in range(100)], page_keys)
    for most, whole in ((100, True), (99, False)):
        source = replace(pages(bucket, most), ordered=ordered)
        for list_all in (list_keys(source, "p/"), list_wanted_keys(source, "p/", lambda folder: True)):
            if whole:
                assert len(asyncio.run(list_all)) == 100
                source.limit = ListingLimit("s3://b/", most)
            else:
                with pytest.raises(ResourceLimitError, match="more than 99 objects") as caught:
                    asyncio.run(list_all)
                assert "max_listed_objects" in str(caught.value)


class Endless(Bucket):
    """Pages for ever, each with ``of_page`` new keys and a token that ``token_of`` makes of its number."""

    def __init__(self, of_page: int, token_of: Callable[[int], object], *, ascending: bool = True) -> None:
        super().__init__([], 3)
        self.of_page = of_page
        self.token_of = token_of
        self.ascending = ascending

    async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
        self.requests.append(page)
        number = len(self.requests)
        assert number < 5000
        first = (number if self.ascending else 5000 - number) * 1000
        keys = [ListedKey(f"{page.prefix}{first + at:09}", 1, None) for at in range(self.of_page)]
        folders = [f"{page.prefix}{first + at:09}/" for at in range(self.of_page)] if page.folders else []
        return ListPage(keys, folders, f"token {self.token_of(number)}")


@pytest.mark.parametrize("ascending", [True, False])
def test_new_keys_and_tokens_for_ever(ascending: bool) -> None:
    bucket = Endless(100, int, ascending=ascending)
    with pytest.raises(ResourceLimitError, match="more than 10000 objects"):
        asyncio.run(list_keys(pages(bucket, 10_000), "p/"))
    assert len(bucket.requests) <= 250


def test_pages_of_one_key_for_ever() -> None:
    """Slowly, and with few keys: the number of keys alone would allow millions of requests."""
    bucket = Endless(1, int)
    with pytest.raises(InvalidResponseError, match="1001 pages have 1001 objects"):
        asyncio.run(list_keys(replace(pages(bucket), ordered=False), "p/"))


def test_folders_in_folders_for_ever() -> None:
    bucket = Endless(1, int)
    with pytest.raises((InvalidResponseError, ResourceLimitError)):
        asyncio.run(list_wanted_keys(replace(pages(bucket, 2000), ordered=False), "p/", lambda folder: True))


@pytest.mark.parametrize("loop", [1, 2, 5])
def test_tokens_in_a_loop(loop: int) -> None:
    """New keys come with tokens that came before."""
    bucket = Endless(10, lambda number: number % loop, ascending=False)
    with pytest.raises(InvalidResponseError, match="leads back to an earlier one"):
        asyncio.run(list_keys(pages(bucket), "p/"))
    assert len(bucket.requests) <= loop + 4


@pytest.mark.parametrize("folders", [False, True])
def test_keys_outside_of_the_prefix_are_refused(folders: bool) -> None:
    class Liar(Bucket):
        async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
            if folders and page.folders:
                return ListPage([], ["elsewhere/"], None)
            keys = [ListedKey("p/a/b" if folders else "elsewhere/secret.parquet", 1, None)]
            return ListPage(keys, [], "t" if folders else None)

    listing = (
        list_wanted_keys(pages(Liar([], 3)), "p/", lambda folder: False)
        if folders
        else list_keys(pages(Liar([], 3)), "p/")
    )
    with pytest.raises(InvalidResponseError, match="does not begin with the requested prefix 'p/'") as caught:
        asyncio.run(listing)
    assert caught.value.url == "s3://b/"


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


def plain(key: str, more: str = "", size: str = "7", time: str = "2026-11-30T05:00:00.000Z") -> str:
    """A key as most stores write it."""
    etag = f"<ETag>&quot;{size}&quot;</ETag>"
    return (
        f"<Contents><Key>{key}</Key><LastModified>{time}</LastModified>{etag}{more}<Size>{size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


CHECKSUM = "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"


@pytest.mark.parametrize(
    "inside",
    [
        "".join(map(plain, ["a", "b", "\u00e9 \U0001f600/ '\">]", "\ufffe\ufffd"[1:]])),
        "<Name>n</Name> <Prefix></Prefix>" + plain("a") + plain("b") + "<EncodingType>url</EncodingType>",
        plain("a") + "\n " + plain("b", CHECKSUM) + plain("c", "<Unknown>1</Unknown>") + plain("d"),
        plain("a") + plain("b&amp;") + plain("c"),
        plain("a") + plain("b", "<Owner><ID>x</ID></Owner>") + plain("c"),
        plain("a")
        + plain("b", time="")
        + plain("c", time="x")
        + "<CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>",
        f"<Other>{plain('a')}{plain('b')}</Other>{plain('c')}",
        f"<Other><Name>n</Name>{plain('a')}{plain('b')}</Other>",
        entry("a") + plain("b") + plain("c"),
        "<Name/>" + plain("a") + plain("b"),
        (plain("a") + plain("b")).replace("&quot;", "&#34;"),
    ],
    ids=range(11),
)
def test_keys_in_any_form(inside: str) -> None:
    """A comment makes the parser read each key."""
    expected = parse_page(page(inside + "<!-- -->"))
    assert parse_page(page(inside)) == expected
    assert len(expected.keys) == inside.count("<Contents>") - 2 * inside.count("<Other>")


@pytest.mark.parametrize(
    "key",
    [plain("a", size=""), plain("a", size=str(1 << 63)), plain(""), plain("\x01"), plain("k" * 16385), "<Contents>"],
)
def test_a_later_key_that_is_none(key: str) -> None:
    with pytest.raises(PageError):
        parse_page(page(plain("a") + plain("b") + key))


def test_only_the_first_of_many_plain_keys_is_left_to_the_parser() -> None:
    def rest(number: int, quote: str) -> bytes:
        keys = "".join([plain(f"k{key:06d}") for key in range(number)])
        return _plain_entries(page(keys.replace("&quot;", quote)))[1]

    for quote in ("&quot;", "&#34;", '"'):
        assert rest(1000, quote) == rest(1, quote)


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
