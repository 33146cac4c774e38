"""The service: an ASGI application over one session, to be run by uvicorn or mounted into another application."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from traceback import clear_frames
from typing import Any, Final, Self, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from asyncpq import Dataset, Session
from asyncpq.engine.pinned_datasets import NotModifiedError, own_handle, pinned
from asyncpq.engine.work import in_thread, set_owner
from asyncpq.errors import AsyncpqError, ObjectChangedError, UsageError
from asyncpq.metrics import ReadMetrics
from asyncpq.serve.access import VERBS, Grant, Slots, Token, authenticate, check_verb, grant_of, visible_schema
from asyncpq.serve.configuration import Configuration, load_configuration
from asyncpq.serve.datasets import BoundRequest, ServedDataset, plan_document, requested_rows, schema_document
from asyncpq.serve.openapi import DOCS_PAGE, openapi_document
from asyncpq.serve.problems import MEDIA_TYPE, Problem, problem_of
from asyncpq.serve.prometheus import ServiceMetrics
from asyncpq.serve.requests import (
    FORMATS,
    MAX_BODY,
    SMALL,
    RowsRequest,
    check_posted,
    chosen_format,
    from_body,
    from_query,
    query_parameters,
)
from asyncpq.serve.responses import AbortedError, Receive, Reply, RowsForm, Scope, Send, cost_headers, send_rows

JSON: Final = "application/json"
_NOT_READY: Final = "The service is not ready"
_READY_S: Final = 1.0  # that /readyz waits for datasets to be opened
GRACE_S: Final = 1.0  # that cancelled work may take before its client is answered

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Handler = Callable[["ServerExchange"], Awaitable[None]]


# -- one request ----------------------------------------------------------------------------------


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


# -- the application ------------------------------------------------------------------------------


class _Endpoint:
    """The ASGI application of one route. It sends exceptions as problem documents (RFC 9457)."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = ServerExchange(scope, receive, send)
        try:
            await self._handler(exchange)
        except ClientGoneError:
            return
        except asyncio.CancelledError:  # the server ends, and waits no longer
            if not exchange.reply.status:
                await exchange.fail(_not_running())
            raise
        except AbortedError as error:
            logger.error("an answer was cut off: %s", error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets a response
            problem = problem_of(error)
            # Frames of its traceback have the problem and the request: only the garbage collector would free them.
            problem.__traceback__ = problem.__cause__ = problem.__context__ = None
            if not exchange.reply.status:  # else the server sees that the response ends too early, and disconnects
                await exchange.fail(problem)


def _without_frames(work: Callable[[], T]) -> T:
    """Return the result of ``work``. What it holds when it fails is freed here, not on the event loop: that takes
    milliseconds after the parsing of a large body."""
    try:
        return work()
    except Exception as error:
        failure: BaseException | None = error
        while failure is not None:
            clear_frames(failure.__traceback__)
            failure = failure.__cause__ or failure.__context__
        raise


class Service:
    """Datasets over HTTP. ``app`` is the ASGI application.

    Used as ``async with Service(configuration) as service``, or through the lifespan of ``app``, which enters it.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration: Configuration = configuration
        self.metrics: ServiceMetrics = ServiceMetrics()
        self.app: Any = self._routes()
        self._slots = Slots()
        self._session: Session | None = None
        self._datasets: dict[str, ServedDataset] = {}
        self._opening: set[asyncio.Task[object]] = set()
        self.is_draining: bool = False  # told to end: /readyz says so, and requests are still answered

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Enter the session in the running event loop, and start to accept requests."""
        if self._session is not None:
            raise UsageError("the service is running already")
        session = Session(**self.configuration.session)
        self._session = await session.__aenter__()
        self._serve(self.configuration)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Cancel all reads and close the session."""
        session, self._session = self._session, None
        for task in self._opening:
            task.cancel()
        for served in self._datasets.values():
            await served.close()
        self._datasets = {}
        if session is not None:
            await session.close()

    async def in_thread(self, work: Callable[[], T], *, small: bool = False) -> T:
        """Return the result of ``work``, which is run in the session's threads unless it is ``small``. There, and on
        the event loop, tokens have their turns one after the other."""
        if self._session is None:
            raise _not_running()
        return await in_thread(self._session, work if small else partial(_without_frames, work), small=small)

    def reload(self, configuration: Configuration) -> None:
        """Use another configuration for new requests; running requests keep the old one. Changes of the address and
        of session options take effect only after a restart."""
        configuration = configuration.at(*self.configuration.address)
        if configuration.session != self.configuration.session or configuration.server != self.configuration.server:
            logger.warning("changes of [server], [session] and [storage] need a restart")
        self._serve(configuration)

    def reload_file(self, path: str | os.PathLike[str]) -> None:
        """Read the configuration file again and use it for new requests. An invalid file is logged and ignored."""
        try:
            self.reload(load_configuration(path))
        except Exception as error:  # noqa: BLE001  # the service goes on
            logger.error("the configuration is not reloaded: %s", error)
        else:
            logger.info("the configuration is reloaded")

    def _serve(self, configuration: Configuration) -> None:
        session = self._session
        if session is not None:
            before, self._datasets = self._datasets, {}
            for name, one in configuration.datasets.items():
                known = before.get(name)
                same = known is not None and known.configuration == one
                self._datasets[name] = known if known is not None and same else ServedDataset(session, one)
        self.configuration = configuration

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        async with self:
            yield

    def _routes(self) -> Starlette:
        verbs = [
            Route(f"/v1/{{dataset}}/{verb}", _Endpoint(self._verb(verb)), methods=["GET", "POST"])
            for verb in ("lookup", "scan", "count", "explain")
        ]
        pages = [
            Route("/v1/datasets", _Endpoint(self._list), methods=["GET"]),
            Route("/v1/{dataset}/schema", _Endpoint(self._verb("schema")), methods=["GET"]),
            Route("/healthz", _Endpoint(self._health), methods=["GET"]),
            Route("/readyz", _Endpoint(self._ready), methods=["GET"]),
            Route("/metrics", _Endpoint(self._metrics_page), methods=["GET"]),
        ]
        if self.configuration.server.docs:
            pages.append(Route("/openapi.json", _Endpoint(self._openapi), methods=["GET"]))
            pages.append(Route("/", _Endpoint(self._root), methods=["GET"]))
            pages.append(Route("/docs", _Endpoint(self._docs), methods=["GET"]))
        handlers: Mapping[Any, Any] = {404: _not_found, 405: _not_allowed}
        app = Starlette(routes=[*pages, *verbs], lifespan=self._lifespan, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a missing route is 404, not a redirect
        return app

    # -- pages ------------------------------------------------------------------------------------

    async def _health(self, exchange: ServerExchange) -> None:
        await exchange.reply.whole(200, {"content-type": JSON}, b'{"status": "alive"}')

    async def _ready(self, exchange: ServerExchange) -> None:
        if self._session is None or self.is_draining:
            raise _not_running()
        closed = [served for served in self._datasets.values() if not served.is_open]
        if closed and not self._opening:
            self._opening = {asyncio.create_task(_try_to_open(served)) for served in closed}
            for task in self._opening:
                task.add_done_callback(self._opening.discard)
        if self._opening:
            await asyncio.wait(set(self._opening), timeout=_READY_S)
        missing = sum(not served.is_open for served in self._datasets.values())
        if missing:  # no names: probes have no token
            raise Problem(
                503,
                f"{missing} of {len(self._datasets)} datasets are not open",
                title=_NOT_READY,
                hint="The service's log says why; `asyncpq serve --check` tries them all.",
                headers={"retry-after": "1"},
            )
        await exchange.reply.whole(200, {"content-type": JSON}, b'{"status": "ready"}')

    async def _root(self, exchange: ServerExchange) -> None:
        root = exchange.request.scope.get("root_path", "")
        await exchange.reply.whole(307, {"location": f"{root}/docs", "content-type": "text/plain"}, b"See /docs.\n")

    async def _metrics_page(self, exchange: ServerExchange) -> None:
        token = authenticate(self.configuration.tokens, exchange.header("authorization"))
        if not token.metrics:
            raise Problem(403, "the token does not allow metrics")
        media_type, body = self.metrics.page()
        await exchange.reply.whole(200, {"content-type": media_type, "cache-control": "no-store"}, body)

    async def _openapi(self, exchange: ServerExchange) -> None:
        root = exchange.request.scope.get("root_path", "")
        body = json.dumps(openapi_document(root)).encode()
        await exchange.reply.whole(200, {"content-type": JSON}, body)

    async def _docs(self, exchange: ServerExchange) -> None:
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": policy}
        await exchange.reply.whole(200, headers, DOCS_PAGE.encode())

    async def _list(self, exchange: ServerExchange) -> None:
        token = authenticate(self.configuration.tokens, exchange.header("authorization"))
        described = []
        for name, served in self._datasets.items():
            grant = token.grant(name)
            if grant is not None:
                verbs = sorted(grant.verbs)
                described.append({"name": name, "description": served.configuration.description, "verbs": verbs})
        limits = token.limits
        document = {
            "document": "datasets",
            "datasets": described,
            "limits": {name: getattr(limits, name) for name in ("rows", "bytes", "seconds", "keys", "concurrent")},
        }
        await exchange.reply.whole(200, _headers(JSON), json.dumps(document).encode())

    # -- verbs ------------------------------------------------------------------------------------

    def _verb(self, verb: str) -> Handler:
        async def handle(exchange: ServerExchange) -> None:
            token = authenticate(self.configuration.tokens, exchange.header("authorization"))
            if self._session is None:
                raise _not_running()
            name = exchange.path("dataset")
            served = self._datasets.get(name)
            grant = grant_of(token, name, served is not None)
            assert served is not None, "grant_of has raised"
            check_verb(grant, verb)
            call = _Call(self, exchange, token, grant, served, verb)
            began = time.monotonic()
            status = "error"
            self.metrics.in_flight.inc()
            try:
                exchange.reply.before_last = free = self._slots.take(token, self.configuration.server.concurrent)
                try:
                    await call.run()
                finally:
                    work = exchange.unfinished
                    if work is None:
                        free()
                    else:  # the slot is free when the work has ended, not when it is given up
                        exchange.reply.before_last = None
                        work.add_done_callback(lambda _: free())
                status = str(exchange.reply.status)
            except ClientGoneError:
                status = "gone"
                raise
            except Exception as error:
                problem = problem_of(error) if not isinstance(error, AbortedError) else None
                status = "aborted" if problem is None or exchange.reply.status else str(problem.status)
                if problem is None or problem is error:
                    raise
                raise problem from error
            finally:
                self.metrics.in_flight.dec()
                self.metrics.ended(name, verb, status, time.monotonic() - began, exchange.reply.bytes_sent)

        return handle


class _Call:
    """One request to a dataset: it checks rights and limits, runs the verb (lookup, scan, ...) and sends the answer."""

    def __init__(
        self, service: Service, exchange: ServerExchange, token: Token, grant: Grant, served: ServedDataset, verb: str
    ) -> None:
        self._service = service
        self._exchange = exchange
        self._token = token
        self._grant = grant
        self._served = served
        self._name = served.configuration.name
        self._verb = verb
        self._began = time.perf_counter()
        self._in_thread = service.in_thread
        self._parameters: list[tuple[str, str]] = []

    async def run(self) -> None:
        """Run the verb and send the answer, within the token's limits."""
        exchange, limits = self._exchange, self._token.limits
        seconds = limits.seconds
        time_limit = asyncio.timeout(seconds)
        set_owner(self._token.name)
        try:
            async with time_limit:
                body = await exchange.body()
                await exchange.while_client_waits(self._answer(body))
        except TimeoutError:
            if not time_limit.expired():
                raise
            if exchange.reply.status:
                raise AbortedError(f"the answer took more than {seconds:g} s") from None
            raise Problem(504, f"the answer took more than {seconds:g} s") from None

    async def _rows_request(self, body: bytes) -> RowsRequest:
        limits = self._token.limits
        self._parameters = query_parameters(self._exchange.query, limits)
        if self._exchange.method != "POST":
            return from_query(self._verb, self._parameters)
        check_posted(self._verb, self._parameters)
        parse = partial(from_body, self._verb, body, limits)
        return await self._in_thread(parse, small=len(body) <= SMALL)

    async def _answer(self, body: bytes) -> None:
        request = await self._rows_request(body)
        dataset = await self._served.dataset()
        if self._verb == "schema":
            document = schema_document(self._name, visible_schema(dataset.schema, self._grant))
            await self._send_document(document, {})
            return
        format_ = "json"
        if self._verb in ("lookup", "scan"):
            format_ = chosen_format(self._parameters, self._exchange.header("accept"))
        asked = partial(requested_rows, dataset, request, self._grant, self._token.limits)
        rows = await self._in_thread(asked, small=request.is_small)
        bound = BoundRequest(dataset, request, rows, self._grant, self._token.limits)
        identity = self._identity(request, format_) if bound.is_stable and self._verb != "explain" else None
        try:
            await self._pinned(bound, format_, identity)
        except ObjectChangedError:
            if self._exchange.reply.status:
                raise
            # an object was replaced between its listing and its read: read what is there, and name no versions
            await self._read(bound, own_handle(bound.dataset), format_, lambda: None)

    async def _pinned(self, bound: BoundRequest, format_: str, identity: bytes | None) -> None:
        if identity is None:
            await self._read(bound, own_handle(bound.dataset), format_, lambda: None)
            return
        wanted = self._exchange.header("if-none-match")
        # weak and strong tags are alike to If-None-Match
        known = frozenset() if wanted is None else {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
        matched: list[str] = []

        def is_known(digest: str) -> bool:
            matched[:] = [_etag(identity, digest)]
            return "*" in known or matched[0].removeprefix("W/") in known

        def etag() -> str | None:
            return None if fixed.digest is None else _etag(identity, fixed.digest)

        fixed = pinned(bound.dataset, is_known)
        try:
            await self._read(bound, fixed.dataset, format_, etag)
        except NotModifiedError:
            headers = self._headers(FORMATS[format_], fixed.metrics, matched[0])
            await self._exchange.reply.whole(304, headers)

    async def _read(self, bound: BoundRequest, dataset: Dataset, format_: str, etag: Callable[[], str | None]) -> None:
        if self._verb == "count":
            rows = await bound.count(dataset)
            document = {"document": "count", "dataset": self._name, "where": bound.request.where, "rows": rows}
            self._service.metrics.read(self._name, self._verb, dataset.metrics, 0)
            await self._send_document(document, self._headers(JSON, dataset.metrics, etag()))
        elif self._verb == "explain":
            plan = await bound.plan(dataset)
            document = plan_document(self._name, bound, plan, self._grant)
            await self._send_document(document, self._headers(JSON, dataset.metrics, None))
        else:
            await self._send_rows(bound, dataset, format_, etag)

    async def _send_rows(
        self, bound: BoundRequest, dataset: Dataset, format_: str, etag: Callable[[], str | None]
    ) -> None:
        scan = bound.scan(dataset)

        def headers(num_rows: int | None) -> dict[str, str]:
            lines = self._headers(FORMATS[format_], scan.metrics, etag())
            lines["asyncpq-limit"] = str(bound.limit)
            if num_rows is not None:
                lines["asyncpq-rows"] = str(num_rows)
            return lines

        async with scan:
            if self._exchange.method == "HEAD":
                await self._exchange.reply.whole(200, headers(None))
                return
            form = RowsForm(format_, self._name, self._token.limits, hidden_rows=self._grant.rows is not None)
            rows = await send_rows(self._exchange.reply, scan, form, headers, self._in_thread)
        self._service.metrics.read(self._name, self._verb, scan.metrics, rows)

    def _headers(self, media_type: str, metrics: ReadMetrics, etag: str | None) -> dict[str, str]:
        headers = _headers(media_type)
        if etag is not None:
            headers["etag"] = etag
        if self._grant.costs:
            headers.update(cost_headers(metrics, time.perf_counter() - self._began))
        return headers

    async def _send_document(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        body = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
        await self._exchange.reply.whole(200, {**_headers(JSON), **headers}, body)

    def _identity(self, request: RowsRequest, format_: str) -> bytes:
        """Return a digest of all that the answer depends on except the versions of the files: the request, the
        token's rights and the format."""
        grant = self._grant
        parts = [self._name, format_, request.canonical(), repr(grant.columns), repr(grant.rows_text)]
        if request.limit is None:
            parts.append(str(self._token.limits.rows))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()


def _etag(identity: bytes, digest: str) -> str:
    # weak: another release of the libraries may write the same rows in other bytes
    return f'W/"{hashlib.sha256(identity + digest.encode()).hexdigest()[:32]}"'


def _headers(media_type: str) -> dict[str, str]:
    return {"content-type": media_type, "cache-control": "private, no-cache", "vary": "Accept, Authorization"}


async def _try_to_open(served: ServedDataset) -> None:
    """Open a dataset; why it cannot be opened is logged there."""
    with suppress(AsyncpqError):
        await served.dataset()


def _not_running() -> Problem:
    return Problem(503, "the service is starting or ending", title=_NOT_READY, headers={"retry-after": "1"})


async def _not_found(request: Any, error: Exception) -> Any:
    hint = f"Paths are /v1/datasets and /v1/DATASET/VERB; verbs are {', '.join(VERBS)}."
    return _response(Problem(404, "there is no such path", hint=hint))


async def _not_allowed(request: Any, error: Any) -> Any:
    return _response(Problem(405, f"there is no {request.method} of this path", headers=dict(error.headers or {})))


def _response(problem: Problem) -> Any:
    from starlette.responses import Response

    return Response(problem.body, problem.status, problem.headers, media_type="application/problem+json")
