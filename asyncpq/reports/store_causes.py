"""The causes on the way to the bytes why a read was not faster: the store, the requests, the caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from asyncpq.reports import cures
from asyncpq.reports.read_model import METADATA, Facts, ReadModel, fetched, pieces_of, rounds_of, size_of
from asyncpq.reports.units import plural, seconds_text, size_text

if TYPE_CHECKING:
    from asyncpq.metrics import RequestRecord
    from asyncpq.reports.documents import Cause

_NEAR_S: Final = 0.030  # to the first byte, of a store in the same region
_FAR_S: Final = 0.050
_FAST_BYTES_S: Final = 100e6  # of a store in the same region, all connections together
_SLOW_BYTES_S: Final = 12.5e6


def throttled(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if requests failed, or the store asked to slow down."""
    # Redirects are answers; so is 404, to the search for a newer snapshot, since the read did not fail.
    failed = [
        record for record in facts.log if record.throttled or not (200 <= record.status < 400 or record.status == 404)
    ]
    again = sorted([record for record in facts.log if record.attempt > 1], key=lambda record: record.began)
    if not failed:
        return
    lost: list[tuple[float, float]] = []
    for record in failed:
        following = next(
            (
                other.began
                for other in again
                if other.url == record.url and other.attempt == record.attempt + 1 and other.began > record.began
            ),
            record.began + record.seconds,
        )
        lost.append((record.began, following))
    throttles = sum([record.throttled for record in failed])
    by_round: dict[int, float] = {}
    for record, (began, ended) in zip(failed, lost, strict=True):
        by_round[record.round] = max(by_round.get(record.round, 0.0), ended - began)
    yield from model.cause(
        "throttled" if throttles else "retries",
        "The store asked to slow down" if throttles else "Requests failed and were sent again",
        f"{plural(len(failed), 'request')} of {len(facts.log):,} failed, {throttles:,} of them throttled; they and the "
        "waits after them took time.",
        "Send fewer requests at once (LimitOptions.max_connections), or spread keys over prefixes."
        if throttles
        else "See the statuses of the requests.",
        more_s=sum(by_round.values()),
    )


def far_store(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the first byte of an answer takes long."""
    latency_s = facts.prices.latency_s
    if latency_s < _FAR_S or not model.now:
        return
    near_s = model.seconds(model.now, facts.prices._replace(latency_s=_NEAR_S))
    rounds = len(model.now)
    yield from model.cause(
        "far-store",
        f"The store is far: {latency_s * 1000:.0f} ms to the first byte",
        f"{plural(rounds, 'round')} of requests wait {latency_s * 1000:.0f} ms each, "
        f"{rounds * latency_s * 1000:.0f} ms of {model.now_s * 1000:.0f} ms; within a region, {_NEAR_S * 1000:.0f} ms "
        "are usual.",
        "Run in the store's region, or share a cache close by.",
        saves=(model.seconds(model.now) - near_s, 0, 0),
    )


def slow_store(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if bytes arrive slowly."""
    bandwidth = facts.prices.bandwidth_bytes_s
    if bandwidth > _SLOW_BYTES_S or not model.now:
        return
    fast = facts.prices._replace(
        bandwidth_bytes_s=_FAST_BYTES_S, connection_bytes_s=_FAST_BYTES_S, crowded_bytes_s=None
    )
    num_bytes = size_of(model.now)
    yield from model.cause(
        "slow-store",
        f"The way to the store is slow: {bandwidth / 1e6:.3g} MB/s",
        f"{size_text(num_bytes)} take {seconds_text(num_bytes / bandwidth)}; within a region, "
        f"{_FAST_BYTES_S / 1e6:.0f} MB/s and more are usual.",
        "Run in the store's region, or share a cache close by.",
        saves=(model.seconds(model.now) - model.seconds(model.now, fast), 0, 0),
    )


def wide_gaps(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if requests read through wide gaps between the pages, because an option says so."""
    gap_bytes = facts.prices.fixed_gap_bytes
    if not gap_bytes:
        return
    pieces = pieces_of(facts.columns, fetched)
    wasted = size_of(model.data) - sum(pieces)
    if wasted <= 0:
        return
    yield from model.cause(
        "wide-gaps",
        f"Requests read through gaps: {size_text(wasted)} between the pages",
        f"RequestOptions(gap_bytes={gap_bytes:,}) joins pages to one request, whatever the bytes between them cost.",
        "Leave gap_bytes out: the session then sets it by what requests and bytes cost at the store.",
        data=[pieces],
        snippets={"asyncpq": "asyncpq.Session()  # without gap_bytes"},
    )


def slow_tier(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the read waited for the disk cache or the shared cache."""
    yield from model.cause(
        "slow-tier",
        "Parts came from the disk or the shared cache, not from memory",
        f"The read waited {seconds_text(model.caches_s)} for them, and sent no request meanwhile.",
        "Give the session more memory for its cache, or the cache on disk a faster disk.",
        saves=(0.0, 0, 0),
        more_s=model.caches_s,
        snippets={"asyncpq": "asyncpq.Session(cache=asyncpq.CacheOptions(memory_bytes=1 << 30))"},
    )


def _is_check(record: RequestRecord) -> bool:
    """Return whether a request only asks for a newer version of the object, or a newer snapshot of the index."""
    return record.purpose in ("list", "validate", "stat") or record.status == 404


def freshness(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the read waited until the store had confirmed the versions that the session knows."""
    checks = [record for record in facts.log if _is_check(record)]
    other_rounds = {record.round for record in facts.log if not _is_check(record)}
    alone = rounds_of(record for record in checks if record.round not in other_rounds)
    if not alone or any(record.purpose in METADATA and not _is_check(record) for record in facts.log):
        return
    yield from model.cause(
        "freshness",
        "The read asked for newer versions before it used what the session has",
        f"{plural(len(checks), 'request')} in {plural(len(alone), 'round')} asked the store whether files or the index "
        "have changed.",
        "Let reads use what is some seconds old: listing_max_age_s of open_dataset, max_age_s of the cache policy.",
        saves=(model.seconds(alone), sum(map(len, alone.values())), size_of(alone)),
        snippets={"asyncpq": "await session.open_dataset(url, listing_max_age_s=60)"},
    )


def cold_cache(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if footers, indexes and listings were fetched, which later reads have already."""
    if all(_is_check(record) for record in facts.log if record.purpose in METADATA):
        return
    # A lake of tiny files, or a footer of megabytes, is not the fault of the cache: what their cures save is not told
    # again.
    left = {number: sizes for number, sizes in model.residual.items() if sizes}
    requests, num_bytes = sum(map(len, left.values())), size_of(left)
    yield from model.cause(
        "cold-cache",
        "Nothing was cached: footers and indexes came first",
        f"{plural(requests, 'request')} ({size_text(num_bytes)}) in {plural(len(left), 'round')} fetched metadata, "
        "which later reads of a session, or of a cache on disk, have already.",
        "Keep the session open, or give it a cache on disk or a shared one.",
        saves=(model.seconds(left), requests, num_bytes),
        more_s=model.unplanned(facts.files_opened, 0) if model.residual is model.metadata else 0.0,
        snippets=cures.disk_cache(),
    )
