"""The answers of ObjectServer, without a connection: ranges, conditions, listings and multipart uploads."""

from __future__ import annotations

import re

import pytest

from asyncpq.testing import Fault, LoggedRequest, ServedObject
from asyncpq.testing.answers import Uploads, answer_get, answer_list, listing_query, refusal

OBJECT = ServedObject(b"0123456789", '"tag"', 0.0)


def get(headers: dict[str, str], fault: Fault | None = None) -> tuple[int, bytes, str | None]:
    answer = answer_get(LoggedRequest("GET", "/bucket/key", "/bucket/key", headers), OBJECT, fault or Fault())
    return answer.status, answer.body, answer.headers.get("Content-Range")


@pytest.mark.parametrize(
    ("range_", "expected"),
    [
        ("bytes=0-3", (206, b"0123", "bytes 0-3/10")),
        ("bytes=8-", (206, b"89", "bytes 8-9/10")),
        ("bytes=8-100", (206, b"89", "bytes 8-9/10")),
        ("bytes=-3", (206, b"789", "bytes 7-9/10")),
        ("bytes=-100", (206, b"0123456789", "bytes 0-9/10")),
        ("bytes=-", (200, b"0123456789", None)),
        ("lines=1-2", (200, b"0123456789", None)),
    ],
)
def test_ranges(range_: str, expected: tuple[int, bytes, str | None]) -> None:
    assert get({"range": range_}) == expected


def test_ranges_past_the_end() -> None:
    status, _, content_range = get({"range": "bytes=10-12"})
    assert (status, content_range) == (416, "bytes */10")


def test_conditions() -> None:
    assert get({"if-match": '"tag"'})[0] == get({"if-match": "*"})[0] == 200
    assert get({"if-match": '"other"'})[0] == 412
    assert get({"if-match": '"other"'}, Fault(ignore_if_match=True))[0] == 200
    assert get({"if-none-match": '"tag"'})[:2] == (304, b"")


def test_faults_of_an_answer() -> None:
    ranged = {"range": "bytes=2-3"}
    assert get(ranged, Fault(ignore_range=True)) == (200, OBJECT.data, None)
    assert get(ranged, Fault(range_200=True)) == (200, b"23", "bytes 2-3/10")
    assert get(ranged, Fault(shift_range=1)) == (206, b"23", "bytes 3-4/10")
    assert get(ranged, Fault(unknown_size=True)) == (206, b"23", "bytes 2-3/*")
    assert get({"range": "bytes=-3"}, Fault(no_suffix=True))[0] == 416


def test_refusals() -> None:
    request = LoggedRequest("GET", "/bucket/key", "/bucket/key", {"authorization": "Credential=k/20260101/eu-1/s3/x"})
    slow = refusal(request, Fault(status=503, code="SlowDown", retry_after_s=1.5))
    assert slow is not None
    assert (slow.status, slow.headers["Retry-After"]) == (503, "1.5")
    assert b"<Code>SlowDown</Code>" in slow.body
    assert refusal(request, Fault(region="eu-1")) is None
    elsewhere = refusal(request, Fault(region="us-1"))
    assert elsewhere is not None
    assert elsewhere.headers["x-amz-bucket-region"] == "us-1"
    assert refusal(request, Fault(truncate=1)) is None


def listed(objects: dict[str, ServedObject], query: str, page_keys: int = 2) -> list[list[str]]:
    """Keys and folders of all pages."""
    pages: list[list[str]] = []
    token = ""
    while True:
        request = LoggedRequest("GET", "/bucket", f"/bucket?list-type=2{query}{token}", {})
        parameters = listing_query(request)
        assert parameters is not None
        text = answer_list(parameters, "bucket", objects, page_keys, Fault()).body.decode()
        pages.append(re.findall(r"<(?:Key|CommonPrefixes><Prefix)>([^<]*)<", text))
        more = re.search("<NextContinuationToken>([^<]*)<", text)
        if more is None:
            return pages
        token = f"&continuation-token={more[1]}"


def test_listings() -> None:
    objects = {f"bucket/{key}": OBJECT for key in ("a", "b/1", "b/2", "c", "d/1")} | {"other/a": OBJECT}
    assert listed(objects, "") == [["a", "b/1"], ["b/2", "c"], ["d/1"]]
    assert listed(objects, "&delimiter=/") == [["a", "b/"], ["c", "d/"]]
    assert listed(objects, "&prefix=b/") == [["b/1", "b/2"]]
    assert listed(objects, "&start-after=b/1", 10) == [["b/2", "c", "d/1"]]
    assert listing_query(LoggedRequest("GET", "/bucket/key", "/bucket/key?list-type=2", {})) is None


def test_uploads_in_parts() -> None:
    stored: dict[str, bytes] = {}

    def put(path: str, data: bytes, etag: str) -> ServedObject:
        stored[path] = data
        return ServedObject(data, etag, 0.0)

    uploads = Uploads(put)

    def send(method: str, query: str, body: bytes = b"", exists: bool = False) -> int | bytes:
        request = LoggedRequest(method, "/bucket/key", f"/bucket/key?{query}", {}, body)
        answer = uploads.answer(request, "bucket/key", exists)
        assert answer is not None
        return answer.body if answer.status == 200 and method == "POST" else answer.status

    def begin() -> str:
        found = re.search(b"<UploadId>(.*)</UploadId>", bytes(send("POST", "uploads=")))
        assert found is not None
        return found[1].decode()

    large = bytes(5 * 1024 * 1024)
    both = b"<PartNumber>1</PartNumber><PartNumber>2</PartNumber>"
    upload = begin()
    assert send("PUT", f"partNumber=1&uploadId={upload}", large) == 200
    assert send("POST", f"uploadId={upload}", both) == 400  # part 2 is missing
    assert send("PUT", f"partNumber=2&uploadId={upload}", b"end") == 200
    assert send("POST", f"uploadId={upload}", both, exists=True) == 412
    assert b"-2" in bytes(send("POST", f"uploadId={upload}", both))
    assert stored == {"bucket/key": large + b"end"}
    assert send("PUT", f"partNumber=1&uploadId={upload}") == 404
    small = begin()
    for number in (1, 2):
        assert send("PUT", f"partNumber={number}&uploadId={small}", b"small") == 200
    assert send("POST", f"uploadId={small}", both) == 400  # parts but the last have 5 MiB
    assert send("DELETE", f"uploadId={small}") == 204
    assert uploads.running == {}
    assert uploads.answer(LoggedRequest("PUT", "/bucket/key", "/bucket/key", {}), "bucket/key", False) is None
