"""Two ways to carry a request: aiohttp for whatever a web server may be, and the hot path's own HTTP/1.1."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Protocol

import aiohttp
from yarl import URL

from asyncpq.errors import InvalidResponseError, StoreError, TransportError, UsageError
from asyncpq.storage.http1 import Body, OnHead, OnProgress
from asyncpq.storage.http1_message import ProtocolError
from asyncpq.storage.http1_pool import ConnectionPool, Endpoint
from asyncpq.storage.responses import RangeRequest
from asyncpq.storage.retry import RetryableError

_READ_BUFFER_BYTES = 256 * 1024
_KEEPALIVE_S = 15.0  # shorter than the idle timeouts of S3 (20 s) and of common load balancers


class Wire(Protocol):
    """Sends one request and takes its response. Belongs to one event loop."""

    async def exchange(
        self,
        method: str,
        url: URL,
        headers: dict[str, str],
        request: RangeRequest,
        on_head: OnHead,
        on_progress: OnProgress,
    ) -> Body:
        """The body, as far as ``on_head`` wants it. A connection with unread bytes is never used again.

        Raises:
            RetryableError: the connection failed.
            StoreError: the server does not speak HTTP, or the certificate is bad.
        """

    async def close(self) -> None:
        """Close all connections. Idempotent."""


class AiohttpWire:
    """By aiohttp: proxies, and servers of all kinds.

    Args:
        ssl_context: for https; True for the system's trust, False to trust anyone.
        headers: sent with each request.
        connect_timeout_s: to connect and to agree on TLS.
        trust_env: take proxies from the environment.
    """

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | bool,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        trust_env: bool = False,
    ) -> None:
        self._ssl = ssl_context
        self._headers = dict(headers)
        self._connect_timeout_s = connect_timeout_s
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def exchange(
        self,
        method: str,
        url: URL,
        headers: dict[str, str],
        request: RangeRequest,
        on_head: OnHead,
        on_progress: OnProgress,
    ) -> Body:
        session = self._session or self._connect()
        complete = False
        response: aiohttp.ClientResponse | None = None
        try:
            response = await session.request(method, url, headers=headers, allow_redirects=False)
            wanted = on_head(response.status, response.headers)
            body = await _read(response.content, wanted, on_progress)
            complete = body.complete
            return body
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, StoreError):
                raise
            quotes_url = isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL)
            raise connection_failure(error, request) from (None if quotes_url else error)
        finally:
            if response is not None and not complete:
                response.close()  # never leave unread bytes to the connection's next request

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _connect(self) -> aiohttp.ClientSession:
        if self._closed:
            raise _closed()
        # No limit in the connector: the transport's slots know who may have which connection.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl, keepalive_timeout=_KEEPALIVE_S)
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


async def _read(content: aiohttp.StreamReader, wanted: int, on_progress: OnProgress) -> Body:
    parts: list[bytes] = []
    received = 0
    while received <= wanted and not content.at_eof():
        part = await content.readany()
        received += len(part)
        on_progress(received)
        parts.append(part)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return Body(data[: wanted + 1], received <= wanted)


class DirectWire:
    """By :mod:`asyncpq.storage.http1`, straight to the url's host.

    Args: as :class:`AiohttpWire`.
    """

    def __init__(
        self, *, ssl_context: ssl.SSLContext | bool, headers: Mapping[str, str], connect_timeout_s: float
    ) -> None:
        self._fixed = dict(headers)
        self._fixed_lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        self._pool = ConnectionPool(
            ssl_context=ssl_context, connect_timeout_s=connect_timeout_s, keepalive_s=_KEEPALIVE_S
        )
        self._targets: dict[URL, tuple[Endpoint, str]] = {}
        self._closed = False

    async def exchange(
        self,
        method: str,
        url: URL,
        headers: dict[str, str],
        request: RangeRequest,
        on_head: OnHead,
        on_progress: OnProgress,
    ) -> Body:
        if self._closed:
            raise _closed()
        endpoint, start = self._target(url)
        message = self._message(method, start, headers, request)
        fresh = False
        while True:
            try:
                connection, used = await self._pool.take(endpoint, fresh=fresh)
            except (TimeoutError, OSError) as error:
                raise connection_failure(error, request) from error
            except UnicodeError as error:  # of the IDNA codec
                raise TransportError("the host's name is not valid", url=request.url) from error
            try:
                return await connection.exchange(message, method=method, on_head=on_head, on_progress=on_progress)
            except OSError as error:
                if isinstance(error, StoreError):
                    raise
                # The server may close an idle connection just when it is taken again.
                fresh = used and connection.untouched
                if not fresh:
                    raise connection_failure(error, request) from error
            except ProtocolError as error:
                raise _no_http(request, str(error)) from error
            finally:
                self._pool.give_back(endpoint, connection)

    def _target(self, url: URL) -> tuple[Endpoint, str]:
        target = self._targets.get(url)
        if target is None:
            if len(self._targets) >= 1024:
                self._targets.clear()
            tls = url.scheme == "https"
            host, port = url.host or "", url.port or (443 if tls else 80)
            name = url.host_port_subcomponent or host
            text = f"{url.raw_path_qs} HTTP/1.1\r\nHost: {name}\r\n"
            target = self._targets[url] = Endpoint(host, port, tls), text
        return target

    def _message(self, method: str, start: str, headers: dict[str, str], request: RangeRequest) -> bytes:
        fixed = self._fixed_lines
        if not self._fixed.keys().isdisjoint(headers):
            own = {name: value for name, value in self._fixed.items() if name not in headers}
            fixed = "".join([f"{name}: {value}\r\n" for name, value in own.items()])
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if not len(headers) == lines.count("\n") == lines.count("\r") or "\0" in lines:
            raise InvalidResponseError("a request header would break its line", url=request.url)
        return f"{method} {start}{fixed}{lines}\r\n".encode("utf-8", "surrogateescape")

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()


def _closed() -> UsageError:
    return UsageError("the store is closed", hint="Read while the session is open.")


def _no_http(request: RangeRequest, what: str) -> InvalidResponseError:
    return InvalidResponseError(f"the server does not speak HTTP here ({what})", url=request.url)


def connection_failure(error: Exception, request: RangeRequest) -> Exception:
    """What a broken connection stands for. The error's text is not used: it may quote the url with its query."""
    kind = type(error).__name__
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return TransportError(f"the TLS connection failed ({kind})", url=request.url, hint="Check the certificate.")
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
        return _no_http(request, kind)
    detail = ""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.strerror:
        detail = f": {cause.strerror}"
    what = f"the connection failed ({kind}{detail})"
    return RetryableError(TransportError(what, url=request.url, byte_range=request.byte_range))
