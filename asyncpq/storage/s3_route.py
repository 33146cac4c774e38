"""Where a bucket is, and who signs the requests to it. Both may be corrected by what the store answers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from asyncpq.storage.base import Unpicklable
from asyncpq.storage.sigv4 import Credentials, Signer


@dataclass(slots=True)
class Route:
    """Where one bucket is reached. Changed in place when the store names another region.

    Attributes:
        scheme, host: of the url; ``host`` with its port unless it is the scheme's own.
        prefix: path before the key, with slashes: "/" or "/bucket/".
        region: that requests are signed for.
        endpoint_region: True where the host's name follows the region (AWS's own endpoints).
        user_agent: the User-Agent header to send, or None for the transport's own.
    """

    scheme: str
    host: str
    prefix: str
    region: str
    endpoint_region: bool
    user_agent: str | None = None
    name: str = field(init=False)  # for cache keys: where the bucket was first looked for

    def __post_init__(self) -> None:
        self.name = f"{self.scheme}://{self.host}[{self.region}]"

    def move(self, region: str) -> None:
        """To another region."""
        if self.endpoint_region:
            self.host = host_in_region(self.host, self.region, region)
        self.region = region


def host_in_region(host: str, old: str, new: str) -> str:
    """AWS's host name of the same bucket in region ``new``."""
    labels = host.split(".")
    if old in labels:
        at = len(labels) - 1 - labels[::-1].index(old)
        labels[at] = new
    else:  # the global endpoint: s3.amazonaws.com
        at = len(labels) - 1 - labels[::-1].index("amazonaws") if "amazonaws" in labels else len(labels)
        labels.insert(at, new)
    return ".".join(labels)


class Signers(Unpicklable):
    """Who signs: credentials that are fetched again now and then, and the clock as the store sees it."""

    def __init__(self, fetch: Callable[[bool], Awaitable[Credentials | None]], *, refresh_s: float = 30.0) -> None:
        """``fetch(again)`` gives the credentials (None: sign nothing); ``again`` when the last ones expired."""
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._credentials: Credentials | None = None
        self._fetched_at: float | None = None
        self._signers: dict[str, Signer] = {}
        self._identity = "anonymous"
        self.clock_offset_s = 0.0

    def are_fresh(self) -> bool:
        """False when :meth:`refresh` has to come before :meth:`signer`."""
        return self._fetched_at is not None and time.monotonic() - self._fetched_at < self._refresh_s

    async def refresh(self) -> None:
        """Ask for the credentials again, unless that was done a short time ago."""
        if not self.are_fresh():
            self._use(await self._fetch(False))

    def signer(self, region: str) -> Signer | None:
        """A signer for the region with the credentials in use; None to send unsigned."""
        signer = self._signers.get(region)
        if signer is None and self._credentials is not None:
            signer = self._signers[region] = Signer(self._credentials, region)
        return signer

    async def identity(self) -> str:
        """Digest of the access key id in use, "anonymous" if nothing is signed."""
        await self.refresh()
        return self._identity

    async def renew(self, expired: Signer) -> None:
        """Replace credentials that the store called expired, once for all requests that used them."""
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
