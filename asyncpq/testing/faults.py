"""What :class:`~asyncpq.testing.server.ObjectServer` can do wrong on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from asyncpq.errors import InvalidOptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which a request is answered badly, and which requests it concerns.

    A fault applies to the requests that match ``method``, ``path`` and ``ranged``; the first
    ``after`` of them are answered well, the next ``times`` badly, the rest well again. The first
    fault of a server's list that applies to a request is the only one.

    Raises InvalidOptionError where a field goes without the one that it needs.

    Attributes:
        method: "GET", "HEAD", "PUT", "POST" or "DELETE"; None for any.
        path: part of the request's path; None for any.
        ranged: True for requests with a Range header only, False for those without; None for any.
        after, times: see above; ``times=None`` is for ever.
        latency_s: wait this long before answering.
        status, code: answer with this HTTP status and S3 error code (or an empty body, for code "").
        headers: extra response headers, added to any answer; None as a value removes a header.
        retry_after_s: a Retry-After header for ``status``.
        truncate: close the connection after this many body bytes.
        reset: with ``truncate``: reset (RST) instead of closing.
        hang_up: close the connection instead of answering.
        stall_headers: never answer.
        stall_body: send ``truncate`` bytes of the body (default 0), then nothing more.
        drip_s: send the body one byte at a time, with this pause between bytes.
        flood_header_bytes: send this many bytes of made-up header lines before the answer's own.
        shift_range: added to both ends of Content-Range.
        length_delta: added to Content-Length (the body stays as it is).
        surplus: this many bytes more in the body than the range has (fewer, if negative);
            Content-Length goes along.
        ignore_range: answer 200 with the whole object.
        range_200: answer 200 with the range and its Content-Range.
        ignore_if_match: answer as if there were no If-Match.
        no_suffix: answer 416 to a suffix range.
        unknown_size: write ``*`` for the size in Content-Range.
        etag: "none" sends no ETag, "weak" a weak one, "other" another one than the object's.
        chunked: send the body in chunks, without Content-Length.
        gzip: compress the body and say so.
        slow_down_200: an S3 SlowDown error in a 200 response.
        html_200: an HTML page in a 200 response.
        redirect: redirect to this url.
        redirect_status: with ``redirect``: 301, 302, 303, 307 or 308.
        region: the bucket's region: requests signed for another are refused with it.
        skew_s: the server's clock runs this far ahead; requests more than 900 s off are refused.
        replace_with: put these bytes as the object's new version before answering.
        replace_after: the same after answering.
        keep_modified: the new version has the old one's Last-Modified.
        delete: delete the object before answering.
        delete_after: the same after answering.
        endless_listing: answer a LIST with its first page, and say that there is more.
        ignore_start_after: answer a LIST as if there were no start-after.
        ignore_if_none_match: replace the object that a PUT was only to create.
        lose_answer: do what was asked, and close the connection instead of answering.
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
        """
        Raises:
            InvalidOptionError: it would do nothing of what it says.
        """
        if self.etag not in (None, "none", "weak", "other"):
            raise InvalidOptionError(f'etag={self.etag!r}: must be "none", "weak" or "other"')
        if self.status is not None and self.status not in range(100, 600):
            raise InvalidOptionError(f"status={self.status!r}: must be an HTTP status")
        if self.truncate is not None and self.truncate < 0:
            raise InvalidOptionError(f"truncate={self.truncate!r}: must be a number of bytes")
        if self.status is None and (self.retry_after_s is not None or self.code != "InternalError"):
            raise InvalidOptionError("code and retry_after_s go with a status")
        if self.redirect_status not in (301, 302, 303, 307, 308):
            raise InvalidOptionError(f"redirect_status={self.redirect_status!r}: must be 301, 302, 303, 307 or 308")
        if self.redirect is None and self.redirect_status != 302:
            raise InvalidOptionError("redirect_status goes with redirect")
        if self.reset and self.truncate is None:
            raise InvalidOptionError("reset goes with truncate", hint="Fault(truncate=0, reset=True) resets at once.")

    def matches(self, method: str, path: str, ranged: bool) -> bool:
        """Whether it concerns requests that look like this."""
        return (
            self.method in (None, method) and (self.path is None or self.path in path) and self.ranged in (None, ranged)
        )

    def applies(self, seen: int) -> bool:
        """Whether the request after ``seen`` others that matched is answered badly."""
        return seen >= self.after and (self.times is None or seen < self.after + self.times)
