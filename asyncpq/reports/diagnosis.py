"""The report of ``asyncpq doctor``: versions, the source of credentials, and how a store answers.

The measurements are a few GETs of one object. Nothing is written unless the caller asks for it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

from asyncpq import __version__
from asyncpq.errors import AsyncpqError, Hint, ObjectChangedError
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.options import MIB
from asyncpq.reports.documents import Diagnosis, StoreDiagnosis
from asyncpq.storage.base import RequestContext, SettledStore, StoredObject, Validator, WritableStore
from asyncpq.storage.urls import safe_url

_PACKAGES: Final = (
    "pyarrow",
    "aiohttp",
    "fsspec",
    "s3fs",
    "aiobotocore",
    "botocore",
    "gcsfs",
    "adlfs",
    "obstore",
    "valkey",
    "sqlglot",
    "typer",
    "pyiceberg",
    "deltalake",
    "polars",
    "duckdb",
    "pyspark",
)
_SMALL: Final = 8  # GETs that measure latency
_SMALL_BYTES: Final = 64
_LARGE_BYTES: Final = 8 * MIB
MEASURED_BYTES: Final = MIB  # the least size of an object whose GET measures bandwidth
_PARALLEL: Final = 8
_CONCERNED: Final = ("AWS_", "GOOGLE_", "AZURE_", "ASYNCPQ_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "REQUESTS_CA_")


async def diagnose(
    runtime: Runtime, caches: Mapping[str, Mapping[str, Any]], url: str | None, *, writes: bool
) -> Diagnosis:
    """Measure how the store of ``url`` answers, and return this with versions and settings, as
    :meth:`asyncpq.Session.diagnose` describes. ``caches``: the settings of the session's disk and shared cache."""
    memory = {"max_bytes": runtime.memory.max_bytes, "current_bytes": runtime.memory.current_bytes}
    return {
        "document": "diagnosis",
        "versions": versions(),
        "platform": {
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": str(os.cpu_count()),
            "event_loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        },
        "environment": sorted(name for name in os.environ if name.upper().startswith(_CONCERNED)),
        "caches": {"memory": memory, **{name: dict(cache) for name, cache in caches.items()}},
        "store": None if url is None else await _store(runtime, url, writes),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of packages; None for a package that is not installed."""
    by_package: dict[str, str | None] = {
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "asyncpq": __version__,
    }
    for package in _PACKAGES:
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_package[package] = None
    return by_package


async def _store(runtime: Runtime, url: str, writes: bool) -> StoreDiagnosis:
    metrics = ReadMetrics()
    began = time.monotonic()
    found: StoreDiagnosis = {
        "url": safe_url(url),
        "settings": {},
        "client": None,
        "server": None,
        "guarantee": None,
        "size": None,
        "first_s": None,
        "latency_s": None,
        "bandwidth_bytes_s": None,
        "parallel_bytes_s": None,
        "supports": {"ranges": None, "suffix ranges": None, "If-Match": None, "create if absent": None},
        "requests": [],
        "error": None,
        "error_type": None,
    }
    try:
        store, _ = await runtime.store(url)
        if isinstance(store, SettledStore):
            found["settings"] = await store.settings(url)
        handle = await store.open_object(url)
        try:
            await _measure(handle, found, RequestContext(metrics))
            if writes and isinstance(store, WritableStore):
                folder = url[: url.rindex("/") + 1] if "/" in url else f"{os.getcwd()}/"
                created = await store.probe_create(folder, context=RequestContext(metrics, purpose="write"))
                found["supports"]["create if absent"] = created
        finally:
            await handle.close()
    except AsyncpqError as error:
        # The text is a Hint, too: `asyncpq doctor` shows it in the words of the command line.
        found["error"], found["error_type"] = Hint(str(error), error.command_text()), type(error).__name__
    found["requests"] = [request.to_dict(began) for request in metrics.log]
    return found


async def _measure(handle: StoredObject, report: StoreDiagnosis, context: RequestContext) -> None:
    log, supports = context.metrics.log, report["supports"]
    start = time.perf_counter()
    tail = await handle.fetch_tail(_SMALL_BYTES, context=context)
    report["first_s"] = time.perf_counter() - start
    version = tail.validator
    report["client"], report["server"] = handle.client, handle.server or None
    report["guarantee"], report["size"] = str(handle.guarantee), version.size
    has_statuses = handle.client not in ("file", "memory", "fsspec")
    if has_statuses:
        supports["suffix ranges"] = [(one.method, one.start) for one in log] == [("GET", -_SMALL_BYTES)]
    seconds: list[float] = []
    for number in range(_SMALL):
        at = min(number * _SMALL_BYTES, version.size - 1)
        start = time.perf_counter()
        await handle.fetch_range(at, min(at + _SMALL_BYTES, version.size), context=context, pin=version)
        seconds.append(time.perf_counter() - start)
    report["latency_s"] = statistics.median(seconds)
    if has_statuses:
        supports["ranges"] = log[-1].status == 206
        supports["If-Match"] = await _refuses_another_version(handle, version, context)
    if version.size < MEASURED_BYTES:
        return
    size = min(version.size, _LARGE_BYTES)
    start = time.perf_counter()
    await handle.fetch_range(0, size, context=context, pin=version)
    report["bandwidth_bytes_s"] = size / (time.perf_counter() - start)
    part = min(version.size // _PARALLEL, _LARGE_BYTES)
    start = time.perf_counter()
    await asyncio.gather(
        *[handle.fetch_range(at * part, (at + 1) * part, context=context, pin=version) for at in range(_PARALLEL)]
    )
    report["parallel_bytes_s"] = part * _PARALLEL / (time.perf_counter() - start)


async def _refuses_another_version(handle: StoredObject, version: Validator, context: RequestContext) -> bool | None:
    """Return whether the server answers status 412 to a GET whose If-Match header names a version other than
    ``version``; None if this cannot be tested."""
    if version.etag is None or not version.is_strong:
        return None
    other = Validator(version.size, '"0123456789abcdef0123456789abcdef"', version.last_modified)
    try:
        await handle.fetch_range(0, 1, context=context, pin=other)
    except ObjectChangedError:
        return context.metrics.log[-1].status == 412
    return False
