"""One HTTP request and its response. The work on it is cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from starlette.requests import Request

from asyncpq.serve.problems import MEDIA_TYPE, Problem
from asyncpq.serve.requests import MAX_BODY
from asyncpq.serve.responses import Reply, Send

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGoneError(Exception):
    """The client closed the connection before it had the whole response."""


class ServerExchange:
    """One HTTP request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request: Request = Request(scope, receive)
        self.method: str = scope["method"]
        self.reply: Reply = Reply(send, with_body=self.method != "HEAD")
        self.parameters: list[tuple[str, str]] = self.request.query_params.multi_items()
        self._receive = receive

    def header(self, name: str) -> str | None:
        """Return the value of a request header; None if the request lacks it."""
        value: str | None = self.request.headers.get(name)
        return value

    def path(self, name: str) -> str:
        """Return the value of a parameter in the route's path."""
        return str(self.request.path_params[name])

    async def body(self) -> bytes:
        """Return the request's body. Raises Problem 413 if it is too large, ClientGoneError if the client
        disconnects before it is complete."""
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            data = message.get("body", b"")
            size += len(data)
            if size > MAX_BODY:
                raise Problem(
                    413, f"the request's body has more than {MAX_BODY} bytes", hint="Send fewer keys in one request."
                )
            parts.append(data)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def while_client_waits(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``. If the client closes the connection meanwhile, cancel ``work`` and raise ClientGoneError.
        The request's body must have been read before."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGoneError
            task.result()
        finally:
            for one in (task, watch):
                if not one.done():
                    one.cancel()
            await asyncio.wait((task, watch))
            if task.done() and not task.cancelled():
                task.exception()  # retrieved, since asyncio would log it

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def fail(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        """Send a problem document as the response."""
        lines = {"content-type": MEDIA_TYPE, "cache-control": "no-store", **(headers or {}), **problem.headers}
        await self.reply.whole(problem.status, lines, problem.body)
