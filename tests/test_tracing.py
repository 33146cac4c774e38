"""OpenTelemetry's spans of what a session does.

Holds: each call is one span, a child of its caller's, with its cost and where the object is; a scan's span is current
for nobody; failures are recorded, and of foreign errors nothing but the type; no secret is in a span; without a
recorder there is none, and without the API reads go on.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import asyncpq
from asyncpq import tracing
from asyncpq.events import Event
from asyncpq.testing import Fault, ObjectServer
from tests.costs import cost_of
from tests.verbs import DATA, PATH, SETTINGS, URL, VERBS


class Recorder:
    """Keeps the spans that end."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def last(self) -> ReadableSpan:
        return self.spans[-1]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(tracing, "tracer", lambda: made.provider.get_tracer("asyncpq"))
    return made


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def shown(span: ReadableSpan) -> str:
    return str(span.to_json())


async def test_each_call_is_a_span(recorder: Recorder) -> None:
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **SETTINGS) as session:
            with recorder.tracer.start_as_current_span("caller") as caller:
                file = await session.open_file(URL)
                assert file.opening is not None
                metrics = file.opening
                for name, verb in {"open": None, **VERBS}.items():
                    if verb is not None:
                        session.memory_cache.clear()
                        metrics = await cost_of(verb(file))
                    span = recorder.last()
                    assert (span.name, span.kind) == (f"asyncpq.{name}", SpanKind.CLIENT)
                    assert span.parent == caller.get_span_context()
                    assert span.status.status_code is StatusCode.UNSET
                    found = attributes(span)
                    assert found["url.full"] == URL
                    assert (found["aws.s3.bucket"], found["aws.s3.key"]) == tuple(PATH.split("/"))
                    assert f"http://{found['server.address']}:{found['server.port']}" == server.endpoint
                    cost = metrics.counts()
                    for purpose, count in cost.pop("requests_by_purpose").items():
                        assert found[f"asyncpq.requests_by_purpose.{purpose}"] == count
                    for purpose, count in cost.pop("bytes_by_purpose").items():
                        assert found[f"asyncpq.bytes_by_purpose.{purpose}"] == count
                    cost["fallbacks"] = tuple(cost["fallbacks"])
                    assert {name: found[f"asyncpq.{name}"] for name in cost} == cost
                    assert cost["requests"] > 0
    assert len(recorder.spans) == 2 + len(VERBS)  # and the caller's


async def test_a_call_is_the_parent_of_what_it_starts_and_a_scan_is_not(recorder: Recorder) -> None:
    def hook(event: Event) -> None:
        if isinstance(event, asyncpq.RequestEnded):
            recorder.tracer.start_span("request").end()

    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, on_event=hook, **SETTINGS) as session:
            file = await session.open_file(URL)
            await file.lookup({"id": 5}, ["value"])
            *requests, opened = recorder.spans[:3]
            assert [span.parent for span in requests] == [opened.context] * 2
            *requests, looked = recorder.spans[3:]
            assert looked.name == "asyncpq.lookup"
            assert requests
            assert [span.parent for span in requests] == [looked.context] * len(requests)
            done = len(recorder.spans)
            async with file.scan(["name"], batch_size=100) as scan:
                assert not trace.get_current_span().is_recording()
                async for _ in scan:
                    assert not trace.get_current_span().is_recording()
            *requests, scanned = recorder.spans[done:]
            assert (scanned.name, bool(requests)) == ("asyncpq.scan", True)
            assert [span.parent for span in requests] == [None] * len(requests)
            assert not trace.get_current_span().is_recording()


async def test_failures_are_recorded(recorder: Recorder) -> None:
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **SETTINGS) as session:
            with pytest.raises(asyncpq.ObjectNotFoundError) as caught:
                await session.open_file("s3://lake/none.parquet")
            span = recorder.last()
            assert span.status.status_code is StatusCode.ERROR
            assert span.status.description == str(caught.value)
            assert attributes(span)["error.type"] == "asyncpq.errors.ObjectNotFoundError"
            (event,) = span.events
            assert event.name == "exception"
            assert dict(event.attributes or {}) == {
                "exception.type": "asyncpq.errors.ObjectNotFoundError",
                "exception.message": str(caught.value),
            }
            file = await session.open_file(URL)
            server.faults = [Fault(stall_headers=True, times=None)]
            session.memory_cache.clear()
            for verb in ("lookup", "scan"):
                task = asyncio.ensure_future(VERBS[verb](file))
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.wait([task])
                span = recorder.last()
                assert span.name == f"asyncpq.{verb}"
                assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "CancelledError")


def test_of_foreign_errors_only_the_type_is_recorded(recorder: Recorder) -> None:
    session = asyncpq.Session()
    operation = session._runtime.operation("lookup", URL)
    with pytest.raises(OSError, match="password"), operation:
        raise OSError("password=hunter2hunter2")
    assert attributes(recorder.last())["error.type"] == "builtins.OSError"
    assert "hunter2" not in shown(recorder.last())


@pytest.mark.parametrize("path", [PATH, "lake/none.parquet"])
@pytest.mark.parametrize("user", ["", "user:hunter2hunter2@"])
async def test_no_secret_is_recorded(recorder: Recorder, path: str, user: str) -> None:
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        endpoint = server.endpoint.replace("http://", f"http://{user}")
        async with asyncpq.Session(**SETTINGS) as session:
            try:
                file = await session.open_file(f"{endpoint}/{path}?X-Amz-Signature=hunter2hunter2")
                await file.lookup({"id": 5}, ["value"])
            except asyncpq.ObjectNotFoundError:
                assert path != PATH
        for span in recorder.spans:
            found = attributes(span)
            assert found["url.full"] == f"{server.endpoint}/{path}"
            assert (found["url.scheme"], found["server.address"], found["server.port"]) == (
                "http",
                "127.0.0.1",
                server.port,
            )
            assert "hunter2" not in shown(span)
    assert len(recorder.spans) == (2 if path == PATH else 1)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("/data/a\nb.parquet", {"file.path": "/data/a\\nb.parquet"}),
        ("https://host/a", {"url.scheme": "https", "server.address": "host", "server.port": 443}),
        ("https://host:99999/a", {"url.scheme": "https"}),
        ("https://...", {"url.scheme": "https", "server.address": "...", "server.port": 443}),
        ("S3A://b/k/é", {"url.scheme": "s3a", "aws.s3.bucket": "b", "aws.s3.key": "k/é"}),
        ("gs://b/k", {"url.scheme": "gs"}),
    ],
)
def test_where_an_object_is(recorder: Recorder, url: str, place: dict[str, Any]) -> None:
    span = tracing.start_span("open", url)
    assert span is not None
    span.end(asyncpq.ReadMetrics(), None)
    expected = place if "file.path" in place else {**place, "url.full": url}
    found = attributes(recorder.last())
    assert {name: value for name, value in found.items() if not name.startswith("asyncpq.")} == expected


async def test_what_nobody_records_is_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("asyncpq"))
    assert tracing.start_span("open", URL) is None
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **SETTINGS) as session:
            assert (await (await session.open_file(URL)).lookup({"id": 5}, ["value"])).num_rows == 1


BLOCKED = """
import sys
sys.modules["opentelemetry"] = None  # importing it fails
"""
GLOBAL = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
"""
READ = """
import sys
import asyncpq.blocking
with asyncpq.blocking.Session() as session:
    assert session.open_file(sys.argv[1]).lookup({"id": 5}, ["value"]).num_rows == 1
"""
IN_SPAN = """
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)  # set after the first session: its spans are those of later reads
with trace.get_tracer("test").start_as_current_span("caller") as caller:
    with asyncpq.blocking.Session() as session:
        session.open_file(sys.argv[1]).count()
opened, counted, _ = exporter.get_finished_spans()
assert [opened.name, counted.name] == ["asyncpq.open", "asyncpq.count"]
assert opened.parent == counted.parent == caller.get_span_context()
assert opened.instrumentation_scope.name == "asyncpq"
"""


@pytest.mark.parametrize("code", [BLOCKED + READ, GLOBAL + READ + IN_SPAN], ids=["without the API", "of the process"])
def test_in_a_process_of_its_own(code: str, tmp_path: Any) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(DATA)
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(path)], check=True, timeout=60)
