"""``asyncpq doctor``: a report of versions, settings and a store, to paste into an issue."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

from asyncpq import Dataset, Session
from asyncpq.cli.arguments import with_session
from asyncpq.cli.output import Format, ReportFormat, console, print_facts, write_report
from asyncpq.cli.parameters import Argument, Option
from asyncpq.cli.running import FAILED, NOT_ALLOWED, NOT_FOUND, WRONG_USAGE, fail
from asyncpq.cli.url_targets import ReadSource, names_table, opened
from asyncpq.engine.target_facts import url_facts
from asyncpq.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    CredentialsError,
    InvalidOptionError,
    ObjectNotFoundError,
    UsageError,
    command_words,
    size_text,
)
from asyncpq.reports.diagnosis import MEASURED_BYTES
from asyncpq.reports.documents import Diagnosis, StoreDiagnosis

_CODES: Final = {
    **{kind.__name__: NOT_FOUND for kind in (ObjectNotFoundError, BucketNotFoundError)},
    **{kind.__name__: NOT_ALLOWED for kind in (AccessDeniedError, CredentialsError)},
    **{kind.__name__: WRONG_USAGE for kind in (InvalidOptionError, UsageError)},
}


@with_session
async def doctor(
    session: Session,
    url: Annotated[
        str | None, Argument(metavar="URL", help="An object, or files of which the first is taken.", show_default=False)
    ] = None,
    write_test: Annotated[
        bool,
        Option(
            "--write-test",
            help="Also try whether the store refuses to create an existing object, which commits of indexes need: "
            "create an object of a random name and delete it.",
        ),
    ] = False,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Show versions, credentials and where they came from, and how a store answers. Nothing secret is shown."""
    if url is not None and (names_table(url) or url_facts(url).many):
        async with opened(session, ReadSource(url)) as target:
            files = await target.files() if isinstance(target, Dataset) else [url]
            url = files[0] if files else url
    report = await session.diagnose(url, writes=write_test)
    write_report(report, format_, lambda report: print_facts(console(), _facts(report), cut=False))
    store = report["store"]
    if store is not None and store["error"] is not None:
        fail(command_words(store["error"]), _CODES.get(store["error_type"] or "", FAILED))


def _facts(report: Diagnosis) -> Iterator[tuple[str, str]]:
    versions = report["versions"]
    yield "asyncpq", versions["asyncpq"] or "not installed as a package"
    yield "Python", f"{versions['python']}, {report['platform']['event_loop']}"
    yield "system", f"{report['platform']['system']}, {report['platform']['cpus']} CPUs"
    known = [f"{name} {version}" for name, version in versions.items() if version and name not in ("asyncpq", "python")]
    yield from _lines("packages", known)
    yield from _lines("not installed", [name for name, version in versions.items() if version is None])
    yield from _lines("variables set", report["environment"])
    for name, cache in report["caches"].items():
        if name == "memory":
            yield "memory cache", f"{size_text(cache['max_bytes'])} at most"
        else:
            counters = ", ".join(f"{count} {counter}" for counter, count in cache.items() if counter != "place")
            yield f"{name} cache", f"{cache['place']}: {counters}"
    if report["store"] is not None:
        yield from _store_facts(report["store"])


def _lines(name: str, values: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a label and a text that together list all values in lines of at most 80 characters. The first
    label is ``name``, the others are empty. No value is split."""
    # textwrap does not split at no-break spaces.
    listed = ", ".join(value.replace(" ", "\u00a0") for value in values)
    for line in textwrap.wrap(listed, 60, break_long_words=False, break_on_hyphens=False):
        yield name, line.replace("\u00a0", " ")
        name = ""


def _store_facts(store: StoreDiagnosis) -> Iterator[tuple[str, str]]:
    yield "url", store["url"]
    yield from store["settings"].items()
    yield "object", "" if store["size"] is None else size_text(store["size"])
    yield "client", store["client"] or ""
    yield "server", store["server"] or ""
    yield "one version", store["guarantee"] or ""
    yield "first GET", _seconds(store["first_s"])
    yield "small GET", _seconds(store["latency_s"])
    yield "bandwidth", _rate(store, store["bandwidth_bytes_s"])
    yield "in parallel", _rate(store, store["parallel_bytes_s"])
    words = {True: "yes", False: "no", None: "not tried"}
    if store["size"] is not None:
        yield from _lines("supports", [f"{name}: {words[answer]}" for name, answer in store["supports"].items()])
    yield "requests", str(len(store["requests"]))


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _rate(store: StoreDiagnosis, bytes_s: float | None) -> str:
    """Return a measured rate as text, or why it was not measured; "" if there was no object."""
    if bytes_s is not None or store["size"] is None:
        return "" if bytes_s is None else f"{size_text(bytes_s)}/s"
    if store["size"] < MEASURED_BYTES:
        return f"not measured: the object has less than {size_text(MEASURED_BYTES)}"
    return "not measured: an error ended the diagnosis before"
