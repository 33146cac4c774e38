"""One HTTP request and its response. The work on it is cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Final

from starlette.requests import Request

from asyncpq.serve.problems import MEDIA_TYPE, Problem
from asyncpq.serve.requests import MAX_BODY
from asyncpq.serve.responses import Reply, Send

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


GRACE_S: Final = 1.0  # that cancelled work may take before its client is answered


class ClientGoneError(Exception):
    """The client closed the connection before it had the whole response."""


class ServerExchange:
    """One HTTP request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request: Request = Request(scope, receive)
        self.method: str = scope["method"]
        self.reply: Reply = Reply(send, with_body=self.method != "HEAD")
        self.query: bytes = scope.get("query_string", b"")
        self.unfinished: asyncio.Future[None] | None = None  # cancelled work that has not ended yet; else None
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
        The request's body must have been read before.

        Work that does not end within :data:`GRACE_S` after its cancellation goes on, as :attr:`unfinished`.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._ended)
        watch = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGoneError
            task.result()
        finally:
            watch.cancel()
            if not task.done():
                self.unfinished = task
                task.cancel()
                await asyncio.wait((task,), timeout=GRACE_S)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self.unfinished = None  # its error has the frames of the work, and what they hold
        if not task.cancelled():
            task.exception()  # else asyncio would log it

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def fail(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        """Send a problem document as the response."""
        lines = {"content-type": MEDIA_TYPE, "cache-control": "no-store", **(headers or {}), **problem.headers}
        await self.reply.whole(problem.status, lines, problem.body)
