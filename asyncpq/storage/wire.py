"""The wire of most requests: :class:`DirectWire` sends them over ``http1``, straight to the url's host.

The functions beside it, for headers, bodies and errors of connections, also serve ``aiohttp_wire``. This module imports
neither aiohttp nor yarl: importing them takes 0.07 s.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    Hint,
    InvalidOptionError,
    InvalidResponseError,
    StoreError,
    TransportError,
)
from asyncpq.records import NamedTuple
from asyncpq.storage.base import closed_store
from asyncpq.storage.http1 import Body, ConnectionPool, Endpoint, NoTlsError, ProtocolError, Receiver, TlsExpectedError
from asyncpq.storage.response_checks import RangeRequest, error_for, is_s3, other_scheme
from asyncpq.storage.retries import RETRYABLE_STATUSES, RetryableError

DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "asyncpq"}

KEEPALIVE_S = 15.0  # shorter than the idle timeouts of S3 (20 s) and of common load balancers


async def read_body(read_some: Callable[[], Awaitable[bytes]], wanted: int, receiver: Receiver) -> Body:
    """Read a body of at most ``wanted`` bytes; if it is longer, one byte more. ``read_some`` returns the next bytes,
    b"" at the end."""
    parts: list[bytes] = []
    received = 0
    try:
        while received <= wanted and (part := await read_some()):
            received += len(part)
            receiver.received = received
            parts.append(part)
    except BaseException:
        receiver.cut_off(b"".join(parts)[:wanted])
        raise
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return Body(data[: wanted + 1], received <= wanted)


def header_lines(headers: Mapping[str, str]) -> str:
    """Return ``headers`` as text, each with its line end. Raises InvalidOptionError if one has a line break."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not len(headers) == lines.count("\n") == lines.count("\r") or "\0" in lines:
        raise InvalidOptionError("a header of the request contains a line break or NUL")
    return lines


class HttpTarget(NamedTuple):
    """A server and, as ``start``, the text of its requests from the path to the headers that never change."""

    endpoint: Endpoint
    start: str


class DirectWire:
    """Sends requests with :mod:`asyncpq.storage.http1`, directly to the url's host."""

    def __init__(self, *, ssl_context: ssl.SSLContext | bool, connect_timeout_s: float) -> None:
        self._pool = ConnectionPool(
            ssl_context=ssl_context, connect_timeout_s=connect_timeout_s, keepalive_s=KEEPALIVE_S
        )
        self._closed = False

    def target(self, url: str, headers: Mapping[str, str]) -> HttpTarget:
        """Prepare requests with ``headers`` to a url, which is encoded and has no user info. Raises InvalidOptionError
        if a header has a line break."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        default_port = 443 if tls else 80
        host, port = parts.hostname or "", default_port if parts.port is None else parts.port
        name = parts.netloc.lower().removesuffix(f":{default_port}")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return HttpTarget(Endpoint(host, port, tls), f"{path} HTTP/1.1\r\nHost: {name}\r\n{header_lines(headers)}")

    async def exchange(
        self,
        method: str,
        target: HttpTarget,
        lines: str,
        request: RangeRequest,
        receiver: Receiver,
        content: bytes = b"",
    ) -> Body:
        """Send a request once; return the body. Returns and raises what ``AiohttpWire.exchange`` does.

        ``lines`` are further headers, each with its line end; they include the length of ``content``.
        """
        if self._closed:
            raise closed_store()
        endpoint, start = target
        message = f"{method} {start}{lines}\r\n".encode("utf-8", "surrogateescape")
        if content:
            message += content
        pool = self._pool
        connection = pool.take_idle(endpoint)
        while True:
            used = connection is not None
            if connection is None:
                try:
                    connection = await pool.connect(endpoint)
                except OSError as error:  # TimeoutError is one
                    raise connection_failure(error, request, endpoint.host, tls=endpoint.tls) from error
                except UnicodeError as error:  # of the IDNA codec
                    raise TransportError(
                        f"the host name {endpoint.host[:100]!r} is not valid",
                        url=request.url,
                        hint="Check the spelling of the url.",
                    ) from error
            try:
                return await connection.start(message, receiver, without_body=method == "HEAD")
            except OSError as error:
                if isinstance(error, StoreError):
                    raise
                # The server may close an idle connection just when it is taken again.
                if not (used and connection.untouched):
                    silent = connection.untouched and not endpoint.tls and not pool.has_served(endpoint)
                    raise connection_failure(error, request, tls=False if silent else None) from error
            except ProtocolError as error:
                raise no_http(request, str(error), tls_expected=isinstance(error, TlsExpectedError)) from error
            finally:
                pool.give_back(endpoint, connection)
            connection = None

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        await self._pool.close()


def no_http(request: RangeRequest, detail: str, *, tls_expected: bool = False) -> InvalidResponseError:
    """Return the error for a response that is not HTTP; ``detail`` says what is wrong with it."""
    hint = (
        other_scheme(request, tls=False) if tls_expected else "Check the url's scheme and port, and proxies on the way."
    )
    return InvalidResponseError(f"the server's response is not valid HTTP: {detail}", url=request.url, hint=hint)


_CHECK_PROXY = "Check the proxy that HTTP_PROXY or HTTPS_PROXY names, or name the host in NO_PROXY."
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_UNUSED_PROXY = Hint(
    ' The proxy of the environment is used with client_kwargs={"trust_env": True} in the url\'s storage_options.',
    " The command line does not use the environment's proxy for urls of http.",
)


def has_malformed_proxy() -> bool:
    """Return whether a proxy of the environment has no valid url."""
    from urllib.request import getproxies  # it takes 7 ms to load

    for proxy in map(getproxies().get, ("http", "https")):
        try:
            parts = urlsplit(proxy or "http://none")
            if not parts.hostname or parts.port == 0:
                return True
        except ValueError:  # of the port, or of an IPv6 address
            return True
    return False


def malformed_proxy(request: RangeRequest) -> InvalidOptionError:
    """Return the error for a proxy of the environment that has no valid url."""
    return InvalidOptionError(
        "HTTP_PROXY or HTTPS_PROXY has no valid url",
        url=request.url,
        hint="Write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT with %40 for @ in the password.",
    )


def proxy_refused(request: RangeRequest, status: int) -> AsyncpqError | RetryableError:
    """Return the error for a response of a proxy to CONNECT, which opens a tunnel to a server."""
    message = f"the proxy of the environment does not connect to the server (status {status})"
    if status == 407:
        return error_for(request, status, "")
    if status == 429 or status in RETRYABLE_STATUSES:
        return RetryableError(
            TransportError(message, url=request.url, byte_range=request.byte_range, hint=_CHECK_PROXY)
        )
    hint = "Let the proxy connect to the url's host and port, or name the host in NO_PROXY."
    return AccessDeniedError(message, url=request.url, hint=hint)


#: Errors of name resolution for a host that does not exist; others are retried.
_UNKNOWN_HOST = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


def connection_failure(
    error: Exception, request: RangeRequest, host: str = "", *, tls: bool | None = None
) -> AsyncpqError | RetryableError:
    """Return the error for a broken connection to ``host``, without the text of ``error``, which may quote secrets.

    ``tls`` says that the server has not answered, so that its port may be the other kind: a connection with or without
    TLS; None for a server that has.
    """
    if isinstance(error, ssl.SSLError):
        return no_tls(type(error).__name__, error, request)
    if isinstance(error, NoTlsError):
        return TransportError(str(error), url=request.url, hint=other_scheme(request, tls=True))
    return no_connection(type(error).__name__, error, request, host, tls=tls)


def _is_proxy(host: str) -> bool:
    """Return whether a proxy of the environment has this host, which could not be resolved."""
    proxies = [os.environ.get(name, "").rpartition("@")[2].rpartition("//")[2] for name in _PROXY_VARIABLES]
    return host in [proxy.partition(":")[0].rstrip("/").lower() for proxy in proxies]


def no_connection(
    error_name: str,
    cause: Exception,
    request: RangeRequest,
    host: str,
    *,
    tls: bool | None = None,
    to_proxy: bool = False,
) -> AsyncpqError | RetryableError:
    """Return the error for a connection that could not be made: ``error_name`` is the exception's class, ``cause`` what
    caused it, and ``tls`` is that of :func:`connection_failure`."""
    detail = f": {cause.strerror}" if isinstance(cause, OSError) and cause.strerror else ""
    failure = TransportError(
        f"the connection failed ({error_name}{detail})", url=request.url, byte_range=request.byte_range
    )
    check = "Check the host and port of the url."
    if to_proxy or (isinstance(cause, socket.gaierror) and host != urlsplit(request.url).hostname and _is_proxy(host)):
        check = _CHECK_PROXY
    elif is_s3(request):
        check = Hint(
            "Check endpoint_url, and region_name in client_kwargs, of the storage_options for s3.",
            "Check --endpoint-url and --region, and what the environment sets: `asyncpq doctor URL` shows it.",
        )
    elif host and any(os.environ.get(name) for name in _PROXY_VARIABLES):
        check += _UNUSED_PROXY
        failure.hint = check  # of a connection that times out, too: the way to the host may lead through the proxy
    if isinstance(cause, socket.gaierror) and cause.errno in _UNKNOWN_HOST:
        failure.message = f"the host {host} is unknown: {failure.message}"
        failure.hint = check
        return failure
    if isinstance(cause, ConnectionRefusedError):
        failure.hint = "No server listens on this port. " + check
    elif tls is not None and isinstance(cause, ConnectionError):
        failure.hint = other_scheme(request, tls=tls)
    return RetryableError(failure)


def no_tls(error_name: str, cause: object, request: RangeRequest) -> TransportError:
    """Return the error for a failed TLS handshake. OpenSSL's reasons are constants without secrets."""
    at_s3 = is_s3(request)
    hint = "Check the TLS configuration of the host."
    if isinstance(cause, ssl.SSLCertVerificationError):
        trust = 'client_kwargs={"verify": "ca.pem"}' if at_s3 else '{"https": {"ssl": an ssl.SSLContext}}'
        hint = "Check the host's name and certificate; name a private CA in " + Hint(
            f"storage_options: {trust}.", "AWS_CA_BUNDLE." if at_s3 else "SSL_CERT_FILE."
        )
    elif isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        hint = other_scheme(request, tls=True)
    reason = getattr(cause, "verify_message", None) or getattr(cause, "reason", None)
    detail = f": {reason}" if reason else ""
    return TransportError(f"the TLS connection failed ({error_name}{detail})", url=request.url, hint=hint)


#: OpenSSL's reasons for a response in clear text, or none.
_NO_TLS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "UNEXPECTED_EOF_WHILE_READING",
    }
)
