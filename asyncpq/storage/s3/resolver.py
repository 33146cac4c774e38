"""Resolve credentials, region, endpoint and CA bundle of S3. The result is always that of botocore.

Loading botocore and s3fs and making a client takes three times as long (0.35 s) as the rest of a first open. So the
common configurations (:mod:`asyncpq.storage.s3.config`) are resolved without them; temporary keys of a container or an
instance are fetched here. For all others, and whenever a fetch fails, :mod:`asyncpq.storage.s3.client` is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from asyncpq.errors import CredentialsError, InvalidOptionError
from asyncpq.storage.base import Unpicklable
from asyncpq.storage.http1 import ConnectionPool, Endpoint, ProtocolError
from asyncpq.storage.s3.config import NeedsBotocoreError, Remote, S3Config, is_proxied, read_config
from asyncpq.storage.s3.sigv4 import Credentials, Route
from asyncpq.storage.threads import import_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from asyncpq.storage.s3.client import S3Client

#: Takes options whose credentials have expired, and returns those that replace them.
Renew: TypeAlias = "Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]"

logger: logging.Logger = logging.getLogger(__name__)

_ROLES = "latest/meta-data/iam/security-credentials/"
_EXPIRY = "%Y-%m-%dT%H:%M:%SZ"
_ANSWER_BYTES = 64 * 1024
_REFRESH_S = 15 * 60  # before they expire, keys are fetched again
_MUST_REFRESH_S = 10 * 60  # from here on, a failure to do so is an error


class _Answer:
    """Receives the response of a metadata service."""

    received = 0
    status = 0

    def head(self, status: int, headers: Mapping[str, str]) -> int:
        self.status = status
        return _ANSWER_BYTES

    def cut_off(self, data: bytes | memoryview) -> None:
        pass


async def _call(method: str, url: str, headers: Mapping[str, str], timeout_s: float) -> str:
    """Send one request and return the body of its 200 response. Raises OSError (also for any other status) or
    ProtocolError."""
    parts = urlsplit(url)
    endpoint = Endpoint(parts.hostname or "", parts.port or 80, False)
    lines = {"Host": parts.netloc, "User-Agent": "asyncpq", "Connection": "close", **headers}
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    text = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
    if not text.count("\n") == text.count("\r") == len(lines) or any(char in path for char in " \r\n"):
        raise ProtocolError("the request for temporary AWS credentials contains a line break")
    length = "Content-Length: 0\r\n" if method == "PUT" else ""
    pool = ConnectionPool(ssl_context=False, connect_timeout_s=timeout_s, keepalive_s=1.0)
    answer = _Answer()
    try:
        async with asyncio.timeout(timeout_s):
            connection = await pool.connect(endpoint)
            body = await connection.start(f"{method} {path} HTTP/1.1\r\n{text}{length}\r\n".encode(), answer)
    finally:
        await pool.close()
    if answer.status != 200 or not body.complete or not body.data:
        raise ConnectionError(f"the request for temporary AWS credentials got a response with status {answer.status}")
    return bytes(body.data).decode()


async def _fetch_remote(remote: Remote, environ: Mapping[str, str]) -> tuple[Credentials, float]:
    """Fetch temporary keys; return them and the time at which they expire. Raises NeedsBotocoreError if this fails."""
    try:
        if remote.instance:
            token = await _call(
                "PUT",
                f"{remote.url}latest/api/token",
                {"x-aws-ec2-metadata-token-ttl-seconds": "21600"},
                remote.timeout_s,
            )
            headers = {"x-aws-ec2-metadata-token": token}
            role = await _call("GET", f"{remote.url}{_ROLES}", headers, remote.timeout_s)
            text = await _call("GET", f"{remote.url}{_ROLES}{role}", headers, remote.timeout_s)
        else:
            headers = {"Accept": "application/json"}
            file = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
            authorization = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
            if file is not None:
                from pathlib import Path  # most processes need none

                authorization = await asyncio.to_thread(Path(file).read_text)
            if authorization is not None:
                headers["Authorization"] = authorization
            text = await _call("GET", remote.url, headers, remote.timeout_s)
        import json

        answer = json.loads(text)
        fields = [answer[name] for name in ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")]
        if not all(type(value) is str and value for value in fields):
            raise ValueError("a field of the credentials is not text")
        expiry = datetime.strptime(fields[3], _EXPIRY).replace(tzinfo=UTC).timestamp()
    except (OSError, ProtocolError, ValueError, KeyError, TypeError) as error:
        raise NeedsBotocoreError(
            f"the EC2 or ECS metadata service gave no valid credentials ({type(error).__name__})"
        ) from None
    if remote.instance:  # as in botocore, expired keys stay in use while the service has no others
        import random

        early = _REFRESH_S + random.randint(120, 600)
        if time.time() >= expiry - early:
            expiry = time.time() + early
    return Credentials(*fields[:3]), expiry


class S3Resolver(Unpicklable):
    """Resolves credentials and bucket addresses for one store, and loads botocore and s3fs when they are needed.

    ``renew``: replaces the credentials in ``options`` when they have expired (see
    :data:`asyncpq.storage.urls.RENEWAL`); None if nothing does.
    """

    def __init__(self, options: Mapping[str, Any], renew: Renew | None = None) -> None:
        self._options = options
        self._renew = renew
        self._replaced: list[S3Client] = []  # with options of expired credentials
        self._config: S3Config | None = None
        self._reason: str | None = None  # to use botocore
        self._remote_keys: tuple[Credentials, float] | None = None
        self._client: S3Client | None = None
        self._loading = asyncio.Lock()
        self._fetching = asyncio.Lock()

    async def client(self) -> S3Client:
        """Return the client of s3fs, loaded in a thread. Raises InvalidOptionError if s3fs refuses the options."""
        async with self._loading:
            if self._client is None:
                module = await asyncio.to_thread(import_whole, "asyncpq.storage.s3.client")
                self._client = module.S3Client(self._options)
            return self._client

    async def split(self, path: str) -> tuple[str, str]:
        """Split ``bucket/key`` into bucket (or access point) and key."""
        if path.startswith("arn:"):
            return (await self.client()).split(path)
        bucket, _, key = path.partition("/")
        return bucket, key

    async def find_route(self, bucket: str, url: str) -> Route | str:
        """Return the bucket's address and region; or, as text, the reason to read it through s3fs. Sends nothing to the
        bucket.

        Raises CredentialsError if no credentials are found, InvalidOptionError if botocore refuses options or name.
        """
        config = self._configuration()
        route = None if config is None else config.route(bucket)
        if route is not None and is_proxied(f"{route.scheme}://{route.host}{route.prefix}"):
            route = None
        if route is not None:
            await self.fetch_credentials(False)
        if route is None or self._reason is not None:
            return await (await self.client()).find_route(bucket, url)
        return route

    async def fetch_credentials(self, again: bool) -> Credentials | None:
        """Return current credentials; None for anonymous requests.

        ``again``: search anew, since the last ones expired. Raises CredentialsError if none are found.
        """
        if again:
            if self._renew is not None:
                self._options = {**self._options, **await self._renew(self._options)}
                if self._client is not None:
                    self._replaced.append(self._client)
                    self._client = None
            self._config = self._reason = self._remote_keys = None
        config = self._configuration()
        if config is not None and config.remote is not None:
            try:
                return await self._fetch_remote(config.remote)
            except NeedsBotocoreError as problem:
                self._use_botocore(str(problem))
        elif config is not None:
            if again and config.source == "storage_options" and self._renew is None:
                raise CredentialsError("the credentials in storage_options have expired", hint="Pass new credentials.")
            return config.keys
        return await (await self.client()).fetch_credentials(again)

    async def _fetch_remote(self, remote: Remote) -> Credentials:
        """Return temporary keys. They are fetched again before they expire; concurrent calls share one fetch."""
        kept = self._remote_keys
        left_s = kept[1] - time.time() if kept is not None else 0.0
        usable = kept is not None and left_s >= _MUST_REFRESH_S
        if kept is not None and (left_s >= _REFRESH_S or (usable and self._fetching.locked())):
            return kept[0]
        async with self._fetching:
            if self._remote_keys is not None and self._remote_keys is not kept:
                return self._remote_keys[0]
            try:
                fetched = await _fetch_remote(remote, os.environ)
                if kept is not None and fetched[1] <= time.time():
                    raise NeedsBotocoreError("the credentials were refreshed and have still expired")
            except NeedsBotocoreError:
                if kept is None or not usable:
                    raise
                logger.warning("Refreshing temporary credentials failed; those in use are valid for %.0f s", left_s)
                return kept[0]
            self._remote_keys = fetched
        return fetched[0]

    async def settings(self, bucket: str, url: str) -> dict[str, str]:
        """Return what was found for a bucket, without secrets: where credentials came from, endpoint and region; if
        s3fs is used, why. Raises the errors of :meth:`find_route`."""
        route = await self.find_route(bucket, url)
        config = self._configuration()
        source = config.source if config is not None else f"botocore ({self._reason})"
        if isinstance(route, str):
            return {"credentials": source, "through": f"s3fs: {route}"}
        return {"credentials": source, "endpoint": f"{route.scheme}://{route.host}", "region": route.region}

    async def ssl_context(self, scheme: str) -> ssl.SSLContext | bool:
        """Return the TLS context that botocore would use; True trusts the system's CAs, False accepts any
        certificate."""
        if scheme != "https":
            return True
        verify = (await self.client()).verify() if self._config is None else self._config.verify
        if verify is False:
            return False
        try:
            return await asyncio.to_thread(_trusting, verify)
        except OSError as error:
            raise InvalidOptionError(
                f"the CA bundle of botocore's options cannot be loaded: {error.strerror}"
            ) from error

    async def close(self) -> None:
        """Close the connections of s3fs. Idempotent."""
        for client in (*self._replaced, *([] if self._client is None else [self._client])):
            await client.close()

    def _configuration(self) -> S3Config | None:
        """Return the configuration; None if botocore must resolve it."""
        if self._config is None and self._reason is None:
            try:
                self._config = read_config(self._options)
            except NeedsBotocoreError as problem:
                self._use_botocore(str(problem))
            else:
                logger.debug(
                    "S3 configuration read without botocore: credentials of %s, region %s, %s",
                    self._config.source,
                    self._config.region,
                    "AWS's endpoint" if self._config.endpoint_url is None else "an endpoint_url",
                )
        return self._config if self._reason is None else None

    def _use_botocore(self, reason: str) -> None:
        self._reason = reason
        logger.debug("S3 configuration resolved by botocore: %s", reason)


def _trusting(verify: bool | str) -> ssl.SSLContext:
    """Return a TLS context that trusts a CA bundle: ``verify``, or botocore's default for True."""
    if verify is True:
        from certifi import where

        verify = where()
    return ssl.create_default_context(cafile=str(verify))
