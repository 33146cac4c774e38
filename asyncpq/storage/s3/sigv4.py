"""AWS Signature Version 4 for requests to S3, signed in a header; the route and the credentials of a bucket.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html. Writes sign the digest of their payload;
reads have no payload.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import partial
from types import MappingProxyType
from urllib.parse import quote

from asyncpq.errors import CredentialsError
from asyncpq.records import NamedTuple, dataclass
from asyncpq.storage.base import Unpicklable, http_date_s

REFRESH_S = 30.0  # time for which credentials count as recent

_PAYLOAD = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class Credentials(Unpicklable):
    """An access key, its secret key and an optional session token. ``repr`` shows none of them."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def canonical_path(path: str) -> str:
    """Return ``path`` percent-encoded once, as S3 signs and expects it, with each ``/`` kept and nothing normalised."""
    return quote(path, safe="/~")


def canonical_query(**parameters: str) -> str:
    """Return the canonical query string (sorted, percent-encoded) of ``parameters``; the same string is sent."""
    return "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in sorted(parameters.items()))


def _hex_hmac(key: bytes) -> Callable[[bytes], str]:
    """Return a function that computes the HMAC-SHA256 under ``key`` (RFC 2104) in hexadecimal digits."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(message: bytes) -> str:
        within, around = inner.copy(), outer.copy()
        within.update(message)
        around.update(within.digest())
        return around.hexdigest()

    return digest


class LateHeaders(NamedTuple):
    """Headers that are signed, and whose names sort after "x-amz-security-token". ``repr`` does not show them."""

    lines: str
    canonical: str
    names: str

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> LateHeaders:
        """Make them from ``headers``, whose names are lower-case and in order. Values must not have line breaks."""
        return cls(
            "".join([f"{name}: {value}\r\n" for name, value in headers.items()]),
            "".join([f"{name}:{value}\n" for name, value in headers.items()]),
            "".join([f";{name}" for name in headers]),
        )

    def __repr__(self) -> str:
        return "LateHeaders(...)"


class Signer(Unpicklable):
    """Signs requests for one region with one set of credentials. Raises CredentialsError if these have a line break.

    ``service`` is the service's name in signatures, and ``token_header`` the header of the credentials' token. The
    parts of a signature that requests of one day or one second share are cached.
    """

    def __init__(
        self,
        credentials: Credentials,
        region: str,
        *,
        requester_pays: bool = False,
        service: str = "s3",
        token_header: str = "x-amz-security-token",
    ) -> None:
        for text in (credentials.access_key, credentials.token or "", region):
            if "\n" in text or "\r" in text or "\0" in text:
                raise CredentialsError(
                    "the credentials or the region contain a line break", hint="Remove it where they are configured."
                )
        self.credentials = credentials
        self.region = region
        self._service = service
        self._token_header = token_header
        self._access_key = credentials.access_key
        self._secret = credentials.secret_key
        self._token = credentials.token
        self._requester_pays = requester_pays
        self._second = -1
        self._day = ""
        self._scope = ""
        self._hmac = _hex_hmac(b"")

    def __repr__(self) -> str:
        return f"Signer(region={self.region!r})"

    def sign(
        self,
        method: str,
        host: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        now: float,
        payload_sha256: str | None = None,
        late: LateHeaders | None = None,
    ) -> str:
        """Return the signed headers to send, as text with line ends, without the Host header.

        Args:
            host: the Host header.
            path, query: in canonical form.
            headers: signed too; lower-case names in order, between "host" and "x-amz-content-sha256".
            now: seconds since the epoch.
            payload_sha256: of the body, in hexadecimal digits; None leaves the body unsigned.
            late: signed too; see :class:`LateHeaders`.
        """
        if int(now) != self._second:
            self._turn(int(now))
        lines, canonical, names = self._lines, f"host:{host}\n", "host"
        for name, value in headers.items():
            lines += f"{name}: {value}\r\n"
            canonical += f"{name}:{value if '  ' not in value else ' '.join(value.split())}\n"
            names += f";{name}"
        names += self._names
        own = self._canonical
        if late is not None:
            lines, own, names = lines + late.lines, own + late.canonical, names + late.names
        if payload_sha256 is None:
            canonical = f"{canonical}{own}\n{names}\n{_PAYLOAD}"
        else:
            lines = lines.replace(_PAYLOAD, payload_sha256)
            canonical = f"{canonical}{own.replace(_PAYLOAD, payload_sha256)}\n{names}\n{payload_sha256}"
        request = f"{method}\n{path}\n{query}\n{canonical}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        signature = self._hmac(f"{self._to_sign}{digest}".encode())
        return f"{lines}{self._authorization}SignedHeaders={names}, Signature={signature}\r\n"

    def _turn(self, second: int) -> None:
        """Compute the parts of a signature that all requests in the second ``second`` share."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = stamp[:8]
        if day != self._day:
            self._scope = f"{day}/{self.region}/{self._service}/aws4_request"
            key = f"AWS4{self._secret}".encode()
            for part in (day, self.region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._hmac, self._day = _hex_hmac(key), day
        self._lines = f"x-amz-content-sha256: {_PAYLOAD}\r\nx-amz-date: {stamp}\r\n"
        self._canonical = f"x-amz-content-sha256:{_PAYLOAD}\nx-amz-date:{stamp}\n"
        self._names = ";x-amz-content-sha256;x-amz-date"
        if self._requester_pays:
            self._lines += "x-amz-request-payer: requester\r\n"
            self._canonical += "x-amz-request-payer:requester\n"
            self._names += ";x-amz-request-payer"
        if self._token is not None:
            self._lines += f"{self._token_header}: {self._token}\r\n"
            self._canonical += f"{self._token_header}:{self._token}\n"
            self._names += f";{self._token_header}"
        self._to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{self._scope}\n"
        self._authorization = f"Authorization: AWS4-HMAC-SHA256 Credential={self._access_key}/{self._scope}, "
        self._second = second


@dataclass(slots=True)
class Route:
    """The address and region of one bucket. It is changed in place when the store names another region."""

    scheme: str
    host: str  # with its port unless it is the scheme's own
    prefix: str  # path before the key, with slashes: "/" or "/bucket/"
    region: str  # for which requests are signed
    endpoint_region: bool  # the host's name contains the region (AWS's own endpoints)
    user_agent: str | None = None  # None for the transport's own
    in_sessions: bool = False  # a directory bucket, whose requests the credentials of a session sign
    name: str = field(init=False)  # for cache keys; stays the same when the region changes

    def __post_init__(self) -> None:
        self.name = f"{self.scheme}://{self.host}[{self.region}]"

    def move(self, region: str) -> None:
        """Set the region; also change the host if its name contains the region."""
        if self.endpoint_region:
            self.host = host_in_region(self.host, self.region, region)
        self.region = region


def host_in_region(host: str, old: str, new: str) -> str:
    """Return the AWS host name in region ``new`` that corresponds to ``host`` in region ``old``."""
    before, domain, after = host.rpartition(".amazonaws.")
    if before.endswith(f".{old}"):  # a label further left is part of the bucket's name
        before = before.removesuffix(f".{old}")
    return f"{before}.{new}{domain}{after}"  # the global endpoint, s3.amazonaws.com, has no region


class Signers(Unpicklable):
    """The signers of a store, one for each region, with its credentials and the offset of its clock.

    ``fetch`` returns credentials, or None to sign nothing; its argument is True if the last credentials expired. It is
    called again every ``refresh_s`` seconds. With ``requester_pays``, each request says that its sender pays for it.
    ``service`` and ``token_header`` are those of :class:`Signer`.
    """

    def __init__(
        self,
        fetch: Callable[[bool], Awaitable[Credentials | None]],
        *,
        refresh_s: float = REFRESH_S,
        requester_pays: bool = False,
        service: str = "s3",
        token_header: str = "x-amz-security-token",
    ) -> None:
        self._fetch = fetch
        self._make = partial(Signer, requester_pays=requester_pays, service=service, token_header=token_header)
        self._refresh_s = refresh_s
        self._credentials: Credentials | None = None
        self._fetched_at: float | None = None
        self._signers: dict[str, Signer] = {}
        self._identity = "anonymous"
        self._clock_offset_s = 0.0  # seconds by which the store's clock is ahead

    def now_s(self) -> float:
        """Return the store's time, as far as it is known, in seconds since 1970. Signatures have it."""
        return time.time() + self._clock_offset_s

    def correct_clock(self, date: str | None) -> bool:
        """Take over the store's time after it has refused this host's. ``date``: the Date header of the refusal. Return
        whether it has the time."""
        store_s = http_date_s(date)
        if store_s is None:
            return False
        self._clock_offset_s = store_s - time.time()
        return True

    def are_fresh(self) -> bool:
        """Return whether the credentials were fetched recently; if not, call :meth:`refresh` before :meth:`signer`."""
        return self._fetched_at is not None and time.monotonic() - self._fetched_at < self._refresh_s

    async def refresh(self) -> None:
        """Fetch the credentials again, unless they are recent."""
        if not self.are_fresh():
            self._use(await self._fetch(False))

    def signer(self, region: str) -> Signer | None:
        """Return a signer for ``region`` with the current credentials; None if requests are sent unsigned."""
        signer = self._signers.get(region)
        if signer is None and self._credentials is not None:
            signer = self._signers[region] = self._make(self._credentials, region)
        return signer

    async def identity(self) -> str:
        """Return a digest of the current access key id; "anonymous" if nothing is signed."""
        await self.refresh()
        return self._identity

    async def renew(self, expired: Signer) -> None:
        """Replace the credentials of the signer ``expired``, which have expired. Concurrent calls replace them once."""
        if self._signers.get(expired.region) is expired:
            self._use(await self._fetch(True))

    def _use(self, credentials: Credentials | None) -> None:
        self._fetched_at = time.monotonic()
        if credentials != self._credentials:
            self._credentials = credentials
            self._signers.clear()
            self._identity = "anonymous"
            if credentials is not None:
                self._identity = hashlib.sha256(credentials.access_key.encode()).hexdigest()[:16]
