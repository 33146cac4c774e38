"""What a read cost: requests, bytes, cache hits, pages pruned and read.

Every read owns one :class:`ReadMetrics`; a session adds them up. Figures are exact counts; times are
wall-clock seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

MAX_FALLBACKS: Final = 100  # distinct ones that are kept, of a read and of a session
MAX_LOGGED: Final = 10_000  # requests whose records are kept, of a read

Purpose = Literal["list", "table", "tail", "footer", "index", "bloom", "data", "validate", "stat", "write"]


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request (or one read call of a filesystem) as it was sent.

    Attributes:
        method: "GET" or "HEAD"; of writes "PUT", "POST" or "DELETE".
        purpose: what it was for.
        start, stop: byte range asked for, or sent; a suffix GET has start = -length and stop = 0, a listing none.
        status: HTTP status; 0 when there was no response, 200 for stores without statuses.
        bytes: length of the body received.
        attempt: 1 for the first try.
        round: dependency step of the read that it belongs to, from 1.
        seconds: time from sending to the end of the body.
        throttled: the store asked to slow down.
        hedge: a second request, sent while the first was still without a response.
    """

    method: str
    purpose: Purpose
    start: int
    stop: int
    status: int
    bytes: int
    attempt: int
    round: int
    seconds: float
    throttled: bool = False
    hedge: bool = False

    def __str__(self) -> str:
        span = f" last {-self.start}" if self.start < 0 else f" {self.start}-{self.stop - 1}" if self.stop else ""
        return f"round {self.round}: {self.method} {self.purpose}{span} ({self.bytes} bytes)"


@dataclass(slots=True)
class ReadMetrics:
    """Counts of one read.

    Attributes:
        requests: requests sent, retries included.
        retries: how many of them repeated a failed one.
        throttles: how many the store answered by asking to slow down.
        hedges: how many were sent a second time since the first had no response yet.
        bytes_fetched: body bytes received.
        requests_by_purpose, bytes_by_purpose: the same, by what they were for; only what occurred.
        rounds: longest chain of requests that had to wait for one another.
        cache_hits, cache_misses: footers, indexes, bloom filters, dictionaries and pages looked up in caches.
        disk_hits, shared_hits: hits of the tiers on disk and shared between hosts; they are among ``cache_hits``.
        files_total: files of a dataset. files_ruled_out: without being opened. files_opened: whose footers were
            looked at, in a cache or fetched. files_read: of which data was read. files_skipped: bad ones, where
            that is allowed.
        row_groups_total, row_groups_read: of the file, of those opened of a dataset; after pruning.
        row_groups_by_bloom: ruled out by bloom filters, where statistics had left them over.
        row_groups_proven: statistics prove that all their rows match: they are not filtered.
        pages_total: data pages, known by OffsetIndex, of the touched columns in the row groups read.
        pages_read: data pages decoded, those of columns without an OffsetIndex included.
        rows_scanned: rows that the filter saw. rows_returned: rows that came out.
        restarts: how often the read began again because the object had changed.
        wait_s: seconds in which bytes were on their way, from a cache tier outside this process or the store;
            several at once count once.
        decode_s: seconds spent decoding, waiting for a thread included.
        fallbacks: what could not be done the best way, and why, and metadata that are not used since they contradict
            the rest of the file; the first 100 distinct ones.
        guarantee: how the store pins the version ("pinned", "compared", "bracketed", "none").
        store_path: which client served it, e.g. "direct" or "s3fs".
        server: host, with its port unless that is the scheme's own, that it asked; empty where s3fs or fsspec do.
        log: every request, in the order they ended; the first 10,000.
        total: the session's counts, once this read was added to them: a fetch that outlives the read
            which began it, since others wait for it, is counted there.
    """

    requests: int = 0
    retries: int = 0
    throttles: int = 0
    hedges: int = 0
    bytes_fetched: int = 0
    requests_by_purpose: dict[Purpose, int] = field(default_factory=dict)
    bytes_by_purpose: dict[Purpose, int] = field(default_factory=dict)
    rounds: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    disk_hits: int = 0
    shared_hits: int = 0
    files_total: int = 0
    files_ruled_out: int = 0
    files_opened: int = 0
    files_read: int = 0
    files_skipped: int = 0
    row_groups_total: int = 0
    row_groups_read: int = 0
    row_groups_by_bloom: int = 0
    row_groups_proven: int = 0
    pages_total: int = 0
    pages_read: int = 0
    rows_scanned: int = 0
    rows_returned: int = 0
    restarts: int = 0
    wait_s: float = 0.0
    decode_s: float = 0.0
    guarantee: str = ""
    store_path: str = ""
    server: str = ""
    fallbacks: list[str] = field(default_factory=list)
    log: list[RequestRecord] = field(default_factory=list)
    total: ReadMetrics | None = field(default=None, repr=False)
    _observer: Callable[[RequestRecord], None] | None = field(default=None, init=False, repr=False, compare=False)
    _whole: ReadMetrics | None = field(default=None, init=False, repr=False, compare=False)
    _waits: int = field(default=0, init=False, repr=False, compare=False)
    _waits_since: float = field(default=0.0, init=False, repr=False, compare=False)

    @property
    def memory_hits(self) -> int:
        """Those of ``cache_hits`` that this process's memory had."""
        return self.cache_hits - self.disk_hits - self.shared_hits

    def as_dict(self) -> dict[str, Any]:
        """All but the log, by name, as numbers, strings, lists and dicts: fit for JSON."""
        values = {name: getattr(self, name) for name in (*_EXPORTED, "memory_hits")}
        return {name: value.copy() if isinstance(value, (dict, list)) else value for name, value in values.items()}

    def __str__(self) -> str:
        bloom = f" ({self.row_groups_by_bloom} ruled out by bloom filters)" if self.row_groups_by_bloom else ""
        proven = f" ({self.row_groups_proven} of them not filtered)" if self.row_groups_proven else ""
        lower = {"on disk": self.disk_hits, "shared": self.shared_hits}
        tiers = ", ".join([f"{hits} of them {tier}" for tier, hits in lower.items() if hits])
        tiers = f" ({tiers})" if tiers else ""
        # Without an OffsetIndex the total leaves pages out
        pages = (
            f"{self.pages_read} of {self.pages_total}"
            if self.pages_total >= max(self.pages_read, 1)
            else f"{self.pages_read}"
        )
        files = (
            f"files {self.files_read} read, {self.files_opened} opened, {self.files_ruled_out} ruled out "
            f"of {self.files_total}{f', {self.files_skipped} skipped' if self.files_skipped else ''}; "
            if self.files_total
            else ""
        )
        text = (
            f"{self.requests} requests in {self.rounds} rounds, {self.bytes_fetched} bytes; "
            f"{files}row groups {self.row_groups_read} of {self.row_groups_total}{proven}{bloom}, pages {pages}, "
            f"rows {self.rows_scanned} seen and {self.rows_returned} returned; "
            f"cache hits {self.cache_hits}{tiers}, misses {self.cache_misses}"
        )
        return f"{text}; fallbacks: {'; '.join(self.fallbacks)}" if self.fallbacks else text

    def observe(self, observer: Callable[[RequestRecord], None]) -> None:
        """Have ``observer`` told each request as it ends, those that outlive the read included."""
        self._observer = observer

    def record(self, request: RequestRecord) -> None:
        """Count one request that has ended."""
        self._count(request)
        if len(self.log) < MAX_LOGGED:
            self.log.append(request)
        total = self.total
        while total is not None:  # this read has ended, and was added there
            total._count(request)
            total = total.total
        if self._observer is not None:
            self._observer(request)

    def _count(self, request: RequestRecord) -> None:
        self.requests += 1
        self.retries += request.attempt > 1
        self.throttles += request.throttled
        self.hedges += request.hedge
        self.bytes_fetched += request.bytes
        if request.round > self.rounds:
            self.rounds = request.round
        purpose = request.purpose
        if purpose in self.requests_by_purpose:
            self.requests_by_purpose[purpose] += 1
            self.bytes_by_purpose[purpose] += request.bytes
        else:
            self.requests_by_purpose[purpose] = 1
            self.bytes_by_purpose[purpose] = request.bytes

    def wait_begins(self) -> None:
        """Bytes are on their way from now on; pair with :meth:`wait_ends`."""
        if self._whole is not None:
            self._whole.wait_begins()
        if self._waits == 0:
            self._waits_since = time.perf_counter()
        self._waits += 1

    def wait_ends(self) -> None:
        if self._whole is not None:
            self._whole.wait_ends()
        self._waits -= 1
        if self._waits == 0:
            self.wait_s += time.perf_counter() - self._waits_since

    def count_hits(self, by_tier: Mapping[str, int]) -> None:
        """Count entries that tiers outside this process had, by the name of the tier."""
        self.disk_hits += by_tier.get("disk", 0)
        self.shared_hits += by_tier.get("shared", 0)

    def fall_back(self, reason: str) -> None:
        """Note that something was done in a slower way, once for each reason."""
        if len(self.fallbacks) < MAX_FALLBACKS and reason not in self.fallbacks:
            self.fallbacks.append(reason)

    def fall_back_all(self, reasons: Iterable[str]) -> None:
        """:meth:`fall_back` for each of ``reasons``."""
        for reason in reasons:
            self.fall_back(reason)

    def part(self, rounds: int) -> ReadMetrics:
        """Metrics of one file of a dataset's read, which begins after ``rounds`` of it. Parts run side by side. Give it
        back with :meth:`add_part`."""
        part = ReadMetrics(rounds=rounds)
        part._whole = self
        return part

    def add_part(self, part: ReadMetrics) -> None:
        """Add what a :meth:`part` has cost, once it has ended."""
        rounds = max(self.rounds, part.rounds)
        self._add(part)
        self.rounds = rounds
        self.log.extend(part.log[: MAX_LOGGED - len(self.log)])

    def add(self, other: ReadMetrics) -> None:
        """Add the counts of a read that has ended, without its log."""
        self._add(other)
        self.rounds += other.rounds
        self.wait_s += other.wait_s

    def _add(self, other: ReadMetrics) -> None:
        other.total = self
        # field by field: a loop over their names takes longer than all else that ends a lookup
        self.requests += other.requests
        self.retries += other.retries
        self.throttles += other.throttles
        self.hedges += other.hedges
        self.bytes_fetched += other.bytes_fetched
        for purpose in other.requests_by_purpose:
            if purpose in self.requests_by_purpose:
                self.requests_by_purpose[purpose] += other.requests_by_purpose[purpose]
                self.bytes_by_purpose[purpose] += other.bytes_by_purpose[purpose]
            else:
                self.requests_by_purpose[purpose] = other.requests_by_purpose[purpose]
                self.bytes_by_purpose[purpose] = other.bytes_by_purpose[purpose]
        self.cache_hits += other.cache_hits
        self.cache_misses += other.cache_misses
        self.disk_hits += other.disk_hits
        self.shared_hits += other.shared_hits
        self.files_total += other.files_total
        self.files_ruled_out += other.files_ruled_out
        self.files_opened += other.files_opened
        self.files_read += other.files_read
        self.files_skipped += other.files_skipped
        self.row_groups_total += other.row_groups_total
        self.row_groups_read += other.row_groups_read
        self.row_groups_by_bloom += other.row_groups_by_bloom
        self.row_groups_proven += other.row_groups_proven
        self.pages_total += other.pages_total
        self.pages_read += other.pages_read
        self.rows_scanned += other.rows_scanned
        self.rows_returned += other.rows_returned
        self.restarts += other.restarts
        self.decode_s += other.decode_s
        self.guarantee = other.guarantee or self.guarantee
        self.store_path = other.store_path or self.store_path
        self.server = other.server or self.server
        for reason in other.fallbacks:
            self.fall_back(reason)


_EXPORTED = tuple(
    item.name for item in fields(ReadMetrics) if item.name not in ("log", "total") and not item.name.startswith("_")
)
