"""Send requests to arbitrary web servers: with ``http1``, or with aiohttp for proxies and unusual responses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from cachetools import FIFOCache
from yarl import URL

from asyncpq.errors import AsyncpqError, InvalidResponseError, StoreError
from asyncpq.storage.base import closed_store
from asyncpq.storage.hosts import look_up
from asyncpq.storage.http1 import Body, HeadTooLongError, ProtocolError, Receiver, TlsExpectedError
from asyncpq.storage.response_checks import RangeRequest
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.wire import (
    KEEPALIVE_S,
    DirectWire,
    HttpTarget,
    connection_failure,
    has_malformed_proxy,
    header_lines,
    malformed_proxy,
    no_connection,
    no_http,
    no_tls,
    proxy_refused,
    read_body,
)

_READ_BUFFER_BYTES = 256 * 1024
_MAX_TARGETS = 256
_NUMERIC_NAME: Final = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
_NUMERIC_ADDRESS: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class WebWire:
    """Sends the requests of the HTTP store with ``http1``, which takes a third of aiohttp's CPU for a GET of a few
    pages.

    ``fallback`` (aiohttp) sends the requests to hosts whose responses ``http1`` does not understand: aiohttp accepts
    bare line feeds and folded headers. If ``direct`` is None, it sends all requests.
    """

    def __init__(self, fallback: AiohttpWire, direct: DirectWire | None, headers: Mapping[str, str]) -> None:
        self._aiohttp = fallback
        self._direct = direct
        self._headers = headers
        self.client = "aiohttp" if direct is None else "direct"
        self._targets: FIFOCache[URL, HttpTarget] = FIFOCache(_MAX_TARGETS)
        self._unusual: set[str] = set()  # hosts for aiohttp

    async def exchange(
        self, method: str, url: URL, headers: dict[str, str], request: RangeRequest, receiver: Receiver
    ) -> Body:
        """Send a request once, as :meth:`AiohttpWire.exchange` does."""
        if self._direct is None or url.authority in self._unusual:
            return await self._aiohttp.exchange(method, url, headers, request, receiver)
        target = self._targets.get(url)
        if target is None:
            target = self._targets[url] = self._direct.target(str(url), self._headers)
        try:
            return await self._direct.exchange(method, target, header_lines(headers), request, receiver)
        except InvalidResponseError as error:
            cause = error.__cause__
            if not isinstance(cause, ProtocolError) or isinstance(cause, HeadTooLongError | TlsExpectedError):
                raise
            self._unusual.add(url.authority)
            raise RetryableError(error, at_once=True) from cause

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._aiohttp.close()
        if self._direct is not None:
            await self._direct.close()


class AiohttpWire:
    """Sends requests with aiohttp to any server; with ``trust_env`` through the proxies that the environment names.

    ``ssl_context`` is for https: True trusts the system's CAs; False accepts any certificate.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | bool,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        trust_env: bool,
    ) -> None:
        self._ssl = ssl_context
        self._headers = dict(headers)
        self._connect_timeout_s = connect_timeout_s
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def exchange(
        self, method: str, url: URL, headers: dict[str, str], request: RangeRequest, receiver: Receiver
    ) -> Body:
        """Send a request once and return its body. ``receiver.head`` checks the head and returns how many bytes the
        body should have; at most one byte more is read.

        Raises RetryableError if the connection failed, StoreError for no HTTP or a bad certificate.
        """
        session = self._session or self._connect()
        complete = False
        response: aiohttp.ClientResponse | None = None
        try:
            response = await session.request(method, url, headers=headers, allow_redirects=False)
            wanted = receiver.head(response.status, response.headers)
            body = await read_body(response.content.readany, wanted, receiver)
            complete = body.complete
            return body
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if response is None and self._trust_env and isinstance(error, ValueError) and has_malformed_proxy():
                raise malformed_proxy(request) from None  # yarl's error may quote it
            if isinstance(error, StoreError) or not isinstance(error, aiohttp.ClientError | OSError):
                raise
            quotes_url = isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL)
            tls = None if response is not None else url.scheme == "https"
            raise aiohttp_failure(error, request, tls=tls) from (None if quotes_url else error)
        finally:
            if response is not None and not complete:
                response.close()  # unread bytes must not reach the connection's next request

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _connect(self) -> aiohttp.ClientSession:
        if self._closed:
            raise closed_store()
        # No limit in the connector: the transport's limiter grants connections.
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._ssl, keepalive_timeout=KEEPALIVE_S, resolver=HostResolver(self._connect_timeout_s)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            read_bufsize=_READ_BUFFER_BYTES,
            trust_env=self._trust_env,
        )
        return self._session


class HostResolver(AbstractResolver):
    """Looks hosts up for aiohttp, whose own resolver holds the end of the process while the name server is silent.

    A lookup that takes longer than ``timeout_s`` raises TimeoutError.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raise OSError if it has none."""
        async with asyncio.timeout(self._timeout_s):
            found = await look_up(host, port, family=family, flags=socket.AI_ADDRCONFIG)
        results = []
        for kind, _, protocol, _, address in found:
            # as text; of a local IPv6 address with its interface
            numeric, _ = socket.getnameinfo(address, _NUMERIC_NAME)
            results.append(
                ResolveResult(
                    hostname=host, host=numeric, port=port, family=kind, proto=protocol, flags=_NUMERIC_ADDRESS
                )
            )
        return results

    async def close(self) -> None:
        """Do nothing: it has nothing open."""


def aiohttp_failure(
    error: Exception, request: RangeRequest, *, tls: bool | None = None
) -> AsyncpqError | RetryableError:
    """Convert an exception of aiohttp to an error of asyncpq, without its text, which may quote secrets. ``tls`` is as
    in :func:`~asyncpq.storage.wire.connection_failure`."""
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return no_tls(name, error.certificate_error, request)
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return no_tls(name, error.os_error, request)
    if isinstance(error, aiohttp.ClientSSLError):
        return no_tls(name, error, request)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return proxy_refused(request, error.status)
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
        return no_http(request, name)
    if isinstance(error, aiohttp.ClientConnectorError):
        to_proxy = isinstance(error, aiohttp.ClientProxyConnectionError)
        return no_connection(name, error.os_error, request, error.host, tls=tls, to_proxy=to_proxy)
    return connection_failure(error, request, tls=tls)
