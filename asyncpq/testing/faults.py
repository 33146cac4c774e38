"""Faults that the server of ``object_server`` injects into its answers, and a catalogue of them.

A fault of the catalogue :data:`CATALOGUE` affects the first request only. With ``dataclasses.replace(fault, after=2)``
it skips two requests first, with ``replace(fault, times=None)`` it affects all requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from asyncpq.errors import InvalidOptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that an :class:`ObjectServer` injects into its answers, and the requests that the fault affects: an item
    of :attr:`ObjectServer.faults`.

    A fault matches requests by ``method``, ``path`` and ``ranged``. It skips the first ``after`` matches, affects the
    next ``times`` and then ends. Only the first fault of a server's list that affects a request applies. A field that
    is None or False has no effect.

    Attributes:
        method: "GET", "HEAD", "PUT", "POST" or "DELETE"; None for any.
        path: part of the request's path; None for any.
        ranged: True for requests with a Range header only, False for those without; None for any.
        after: number of matches that pass before the fault begins.
        times: number of matches that it affects; None: all further ones.
        latency_s: delay of the answer, in seconds.
        status: answer with this HTTP status and the S3 error document of ``code``.
        code: S3's error code for ``status``; an empty one sends no body.
        headers: extra response headers, added to any answer; None as a value removes a header.
        retry_after_s: seconds of a Retry-After header for ``status``.
        truncate: close the connection after this many body bytes.
        reset: with ``truncate``: reset (RST) instead of closing.
        hang_up: close the connection instead of answering.
        stall_headers: never answer, and keep the connection open.
        stall_body: send ``truncate`` bytes of the body (default 0), then nothing more.
        drip_s: send the body one byte at a time, with this pause in seconds between bytes.
        flood_header_bytes: send this many bytes of made-up header lines before the answer's own.
        shift_range: number of bytes added to both ends of Content-Range.
        length_delta: number added to Content-Length; the body stays as it is.
        surplus: add this many bytes to the body (if negative, remove them), and adjust Content-Length.
        ignore_range: answer 200 with the whole object.
        range_200: answer 200 with the range and its Content-Range.
        ignore_if_match: answer as if there were no If-Match.
        no_suffix: answer 416 to a suffix range.
        unknown_size: write ``*`` for the size in Content-Range.
        etag: "none" sends no ETag, "weak" a weak one, "other" a wrong one.
        chunked: send the body in chunks, without Content-Length.
        gzip: compress the body, with Content-Encoding.
        slow_down_200: answer 200 with an S3 SlowDown error as the body.
        html_200: answer 200 with an HTML page as the body.
        redirect: redirect to this url.
        redirect_status: with ``redirect``: 301, 302, 303, 307 or 308.
        region: the bucket's region; requests signed for another region are refused.
        skew_s: set the server's clock this many seconds ahead; refuse requests signed more than 900 s off.
        replace_with: put these bytes as the object's new version before answering.
        replace_after: the same as ``replace_with``, after answering.
        keep_modified: with ``replace_with`` or ``replace_after``: the new version has the Last-Modified of the old one.
        delete: delete the object before answering.
        delete_after: the same as ``delete``, after answering.
        endless_listing: answer each LIST with its first page, and say that more follow.
        ignore_start_after: answer a LIST as if there were no start-after.
        ignore_if_none_match: let a PUT with If-None-Match replace an existing object.
        lose_answer: execute the request, then close the connection without an answer.

    Raises:
        InvalidOptionError: a field has an invalid value, or has no effect without another field.
    """

    method: str | None = None
    path: str | None = None
    ranged: bool | None = None
    after: int = 0
    times: int | None = 1
    latency_s: float = 0.0
    status: int | None = None
    code: str = "InternalError"
    headers: dict[str, str | None] | None = None
    retry_after_s: float | None = None
    truncate: int | None = None
    reset: bool = False
    hang_up: bool = False
    stall_headers: bool = False
    stall_body: bool = False
    drip_s: float | None = None
    flood_header_bytes: int = 0
    shift_range: int = 0
    length_delta: int = 0
    surplus: int = 0
    ignore_range: bool = False
    range_200: bool = False
    ignore_if_match: bool = False
    no_suffix: bool = False
    unknown_size: bool = False
    etag: str | None = None
    chunked: bool = False
    gzip: bool = False
    slow_down_200: bool = False
    html_200: bool = False
    redirect: str | None = None
    redirect_status: int = 302
    region: str | None = None
    skew_s: float = 0.0
    replace_with: bytes | None = None
    replace_after: bytes | None = None
    keep_modified: bool = False
    delete: bool = False
    delete_after: bool = False
    endless_listing: bool = False
    ignore_start_after: bool = False
    ignore_if_none_match: bool = False
    lose_answer: bool = False

    def __post_init__(self) -> None:
        if self.etag not in (None, "none", "weak", "other"):
            raise InvalidOptionError(f'etag={self.etag!r}: must be "none", "weak" or "other"')
        if self.status is not None and self.status not in range(100, 600):
            raise InvalidOptionError(f"status={self.status!r}: must be an HTTP status from 100 to 599")
        if self.truncate is not None and self.truncate < 0:
            raise InvalidOptionError(f"truncate={self.truncate!r}: must be a number of bytes, 0 or more")
        if self.status is None and (self.retry_after_s is not None or self.code != "InternalError"):
            raise InvalidOptionError("code and retry_after_s require status, the HTTP status of the answer")
        if self.redirect_status not in (301, 302, 303, 307, 308):
            raise InvalidOptionError(f"redirect_status={self.redirect_status!r}: must be 301, 302, 303, 307 or 308")
        if self.redirect is None and self.redirect_status != 302:
            raise InvalidOptionError("redirect_status requires redirect, the url to redirect to")
        if self.reset and self.truncate is None:
            raise InvalidOptionError("reset requires truncate", hint="Fault(truncate=0, reset=True) resets at once.")

    def matches(self, method: str, path: str, ranged: bool) -> bool:
        """Return whether the fault matches a request. ``ranged``: the request has a Range header."""
        return self.method in (None, method) and (self.path or "") in path and self.ranged in (None, ranged)

    def applies(self, seen: int) -> bool:
        """Return whether the fault affects a matching request, before which ``seen`` requests have matched."""
        return seen >= self.after and (self.times is None or seen < self.after + self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The argument of the functions in ``CATALOGUE``: values for their faults, such as another version of the object.
    Tests make it: ``server.faults = [CATALOGUE["truncated body"](scene)]``.

    Attributes:
        other: bytes of another version of the object; a version of equal size is the hardest to notice.
        location: url of the object, for a redirect loop.
        elsewhere: url on another host, for a redirect.
        part_bytes: number of bytes at which truncated bodies end.
        drip_s: seconds between two bytes of a slow body.
        retry_after_s: seconds in a Retry-After header that is too long to wait for.
    """

    other: bytes
    location: str
    elsewhere: str
    part_bytes: int = 100
    drip_s: float = 0.5
    retry_after_s: float = 86_400.0


#: Faults by name. Those that stall never answer: bound them with timeouts.
CATALOGUE: Mapping[str, Callable[[Scene], Fault]] = MappingProxyType(
    {
        # the connection
        "closed before the answer": lambda _: Fault(hang_up=True),
        "truncated body": lambda scene: Fault(truncate=scene.part_bytes),
        "reset (RST) mid-body": lambda scene: Fault(truncate=scene.part_bytes, reset=True),
        "chunked body cut": lambda scene: Fault(chunked=True, truncate=scene.part_bytes),
        "stall before headers": lambda _: Fault(stall_headers=True),
        "stall mid-body": lambda scene: Fault(stall_body=True, truncate=scene.part_bytes),
        "one byte at a time": lambda scene: Fault(drip_s=scene.drip_s),
        # wrong answers
        "header flood": lambda _: Fault(flood_header_bytes=1 << 20),
        "200 for a Range": lambda _: Fault(ignore_range=True),
        "200 with the range": lambda _: Fault(range_200=True),
        "Content-Range shifted": lambda _: Fault(shift_range=1),
        "Content-Length too long": lambda _: Fault(length_delta=1, truncate=1 << 40),
        "Content-Length too short": lambda _: Fault(length_delta=-1),
        "body longer than the range": lambda _: Fault(surplus=1),
        "body shorter than the range": lambda _: Fault(surplus=-1),
        "unrequested gzip": lambda _: Fault(gzip=True),
        "HTML page with 200": lambda _: Fault(html_200=True),
        "416": lambda _: Fault(status=416, code="InvalidRange"),
        # refusals
        "500": lambda _: Fault(status=500),
        "503 SlowDown": lambda _: Fault(status=503, code="SlowDown"),
        "503 with a huge Retry-After": lambda scene: Fault(
            status=503, code="SlowDown", retry_after_s=scene.retry_after_s
        ),
        "429": lambda _: Fault(status=429, code=""),
        "408 RequestTimeout": lambda _: Fault(status=408, code="RequestTimeout"),
        "SlowDown inside a 200": lambda _: Fault(slow_down_200=True),
        "403 ExpiredToken": lambda _: Fault(status=403, code="ExpiredToken"),
        "403 AccessDenied": lambda _: Fault(status=403, code="AccessDenied"),
        "302 to another host": lambda scene: Fault(redirect=scene.elsewhere),
        "redirect loop": lambda scene: Fault(redirect=scene.location),
        "redirect without Location": lambda _: Fault(status=302, code=""),
        # versions
        "replaced": lambda scene: Fault(replace_with=scene.other),
        "replaced, If-Match ignored": lambda scene: Fault(replace_with=scene.other, ignore_if_match=True),
        "replaced, same size and time": lambda scene: Fault(replace_with=scene.other, keep_modified=True),
        "replaced mid-body": lambda scene: Fault(truncate=scene.part_bytes, replace_after=scene.other),
        "another ETag": lambda _: Fault(etag="other"),
        "weak ETag": lambda _: Fault(etag="weak"),
        "no ETag": lambda _: Fault(etag="none"),
        "deleted": lambda _: Fault(delete=True),
        "deleted mid-body": lambda scene: Fault(truncate=scene.part_bytes, delete_after=True),
    }
)
