"""The cost of a read: requests, bytes, cache hits, pages pruned and read.

Every read owns one :class:`ReadMetrics`; a session has their sums. Counts are exact; times are wall-clock seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from asyncpq.errors import counted
from asyncpq.records import NamedTuple, dataclass

if TYPE_CHECKING:
    from asyncpq.reports.documents import MetricsDocument, Request

MAX_FALLBACKS: Final = 100  # distinct fallbacks kept, for a read and for a session
MAX_LOGGED: Final = 10_000  # records of requests kept for a read

Tier = Literal["memory", "disk", "shared", "store"]
Purpose = Literal["list", "table", "tail", "footer", "index", "bloom", "data", "validate", "stat", "session", "write"]


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request, or one read call of a filesystem, with its byte range, purpose, times and result: an item of
    :attr:`asyncpq.ReadMetrics.log`.

    Attributes:
        method: "GET" or "HEAD"; for writes "PUT", "POST" or "DELETE".
        purpose: what the request fetches, such as "tail" (the end of an object), "footer", "index", "data" or "list".
        start: first byte of the requested range; -length for a suffix GET, 0 for a listing.
        stop: end of the requested range, exclusive; 0 for a suffix GET and a listing.
        status: HTTP status; 0 without a response, 200 for stores without statuses.
        bytes: length of the body received.
        attempt: number of the try: 1 for the first, 2 for the first retry.
        round: 1 plus the longest chain of requests of the read that this one had to wait for.
        seconds: seconds from sending to the end of the body.
        throttled: whether the store asked to slow down.
        hedge: whether it is a second request, sent while the first had no response.
        began: ``time.monotonic()`` when it was sent.
        first_byte_s: seconds from sending to the first byte of the response; None if that is not seen.
        url: url of the object or listing, safe to be shown; "" for a round trip to a database.
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
    began: float = 0.0
    first_byte_s: float | None = None
    url: str = ""

    def to_dict(self, began: float) -> Request:
        """Return the request as a dict of JSON values (:class:`asyncpq.reports.documents.Request`), with times relative
        to ``began``, the ``time.monotonic()`` at which the read began."""
        document: Request = {
            "url": self.url,
            "method": self.method,
            "purpose": self.purpose,
            "bytes": [self.start, self.stop],
            "round": self.round,
            "status": self.status,
            "received": self.bytes,
            "attempt": self.attempt,
            "hedge": self.hedge,
            "throttled": self.throttled,
            "began_s": round(self.began - began, 6),
            "first_byte_s": None if self.first_byte_s is None else round(self.first_byte_s, 6),
            "seconds": round(self.seconds, 6),
        }
        return document

    def __str__(self) -> str:
        span = f" last {-self.start}" if self.start < 0 else f" {self.start}-{self.stop - 1}" if self.stop else ""
        return f"round {self.round}: {self.method} {self.purpose}{span} ({self.bytes} bytes)"


class TracedPart(NamedTuple):
    """One piece of an object that a read got: an item of :attr:`ReadTrace.parts`.

    Attributes:
        url: url of the object.
        kind: the piece, such as "footer", "page" or "dictionary".
        start, stop: its bytes in the object, ``stop`` exclusive.
        tier: where it came from; "disk" for either cache tier if the session has both.
    """

    url: str
    kind: str
    start: int
    stop: int
    tier: Tier


@dataclass(slots=True, eq=False)
class ReadTrace:
    """A record of one read's steps, for ``why()``. A read fills it only if its metrics have one in ``trace``.

    Attributes:
        parts: the pieces of objects that the read got.
        decoded, filtered, waited: when the read decoded, filtered, and waited for a cache tier outside this process:
            pairs of begin and end, as ``time.monotonic()``. Filtering is part of decoding.
        matched: for each filtered part of a row group: url, ordinal of the row group, ranges of matching rows.
        on_plan: called with the planner and the plan of each file; None for no call.
    """

    parts: list[TracedPart] = field(default_factory=list)
    decoded: list[tuple[float, float]] = field(default_factory=list)
    filtered: list[tuple[float, float]] = field(default_factory=list)
    matched: list[tuple[str, int, list[tuple[int, int]]]] = field(default_factory=list)
    waited: list[tuple[float, float]] = field(default_factory=list)
    on_plan: Callable[[Any, Any], None] | None = None

    def of_index(self) -> ReadTrace:
        """Return a trace for reads of the index's own files. It records into this trace's lists of parts and times,
        but not into its plans and matching rows."""
        return ReadTrace(self.parts, self.decoded, self.filtered, [], self.waited)


@dataclass(slots=True)
class ReadMetrics:
    """The cost of one read: numbers of requests, bytes, cache hits, files, row groups, pages and rows. ``metrics`` of
    handles and scans, :func:`asyncpq.measure` and events have one; asyncpq calls the methods that count.

    Attributes:
        requests: number of requests sent, retries included.
        retries: number of requests that repeated a failed one.
        throttles: number of requests that the store answered by asking to slow down.
        paced_s: seconds that requests waited because the store throttled; parallel waits add up.
        hedges: requests sent a second time, since the first had no response yet.
        bytes_fetched: bytes received in response bodies.
        requests_by_purpose: ``requests`` by purpose, such as "data"; without zeros.
        bytes_by_purpose: the same of ``bytes_fetched``.
        rounds: length of the longest chain of requests, each of which had to wait for the one before.
        cache_hits: number of footers, indexes, bloom filters, dictionaries and pages found in caches.
        cache_misses: number of such parts that were looked up in caches and not found.
        disk_hits: number of ``cache_hits`` in the disk cache.
        shared_hits: number of ``cache_hits`` in the shared cache.
        files_total: number of files of the dataset; 0 for a read of one file.
        files_ruled_out: number of files that were not opened, because no row of them can match.
        files_opened: files whose footer was examined, whether cached or fetched.
        files_read: files of which data pages were read.
        files_skipped: bad files that were left out, with ``on_bad_file="skip"``.
        row_groups_total: row groups of the opened files.
        row_groups_read: row groups of which rows were read, after pruning.
        row_groups_by_bloom: row groups that only bloom filters ruled out.
        row_groups_proven: row groups not filtered, since statistics prove that all their rows match.
        pages_total: data pages with an OffsetIndex, of the touched columns in the row groups read.
        pages_read: data pages decoded, those without an OffsetIndex included.
        rows_scanned: rows that were filtered.
        rows_returned: number of rows of the result.
        restarts: how often the read began again because the object had changed.
        wait_s: seconds of waiting for an outside cache tier or the store; parallel waits count once.
        decode_s: seconds of decoding after the bytes have come, waiting for a thread included.
        guarantee: how the store ensures that all bytes are of one version: "pinned", "compared", "bracketed" or "none"
            (docs/stores.md).
        store_path: the client that served the read, such as "direct" or "s3fs".
        server: the server's host and non-default port; empty for s3fs and fsspec.
        fallbacks: slower paths taken, and metadata ignored since they contradict the file, with the reason; the first
            100 of them.
        log: the first 10,000 requests, in the order of their ends.
        totals: the metrics to which this read was added, such as the session's. They also count fetches that end after
            the read that began them.
        began: ``time.monotonic()`` when the call began.
        ended: ``time.monotonic()`` when the call ended.
        trace: the steps of the read, for :meth:`asyncpq.File.why`; None for all other reads.
    """

    requests: int = 0
    retries: int = 0
    throttles: int = 0
    paced_s: float = 0.0
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
    totals: tuple[ReadMetrics, ...] = field(default=(), repr=False, compare=False)
    began: float = field(default=0.0, repr=False, compare=False)
    ended: float = field(default=0.0, repr=False, compare=False)
    trace: ReadTrace | None = field(default=None, repr=False, compare=False)
    _observer: Callable[[RequestRecord], None] | None = field(default=None, init=False, repr=False, compare=False)
    _whole: ReadMetrics | None = field(default=None, init=False, repr=False, compare=False)
    _keeps_log: bool = field(default=False, init=False, repr=False, compare=False)
    _waits: int = field(default=0, init=False, repr=False, compare=False)
    _waits_since: float = field(default=0.0, init=False, repr=False, compare=False)

    @property
    def memory_hits(self) -> int:
        """Cache hits in this process's memory: those neither on disk nor in the shared cache."""
        return self.cache_hits - self.disk_hits - self.shared_hits

    def counts(self) -> dict[str, Any]:
        """Return all counts and times by name, without the requests. Their values can be written as JSON."""
        values = {name: getattr(self, name) for name in (*_EXPORTED, "memory_hits")}
        return {name: value.copy() if isinstance(value, (dict, list)) else value for name, value in values.items()}

    def to_dict(self) -> MetricsDocument:
        """Return :meth:`counts` and the requests of ``log`` as a dict of JSON values with the keys of
        :class:`asyncpq.reports.documents.MetricsDocument`."""
        requests = [request.to_dict(self.began) for request in self.log]
        return {"document": "metrics", "metrics": self.counts(), "requests": requests}

    def _repr_html_(self) -> str | None:
        """Return a frame for notebooks with the page map of the read."""
        from asyncpq.page_map import framed

        return framed(self.to_dict())

    def __str__(self) -> str:
        bloom = f" ({self.row_groups_by_bloom} ruled out by bloom filters)" if self.row_groups_by_bloom else ""
        proven = f" ({self.row_groups_proven} of them not filtered)" if self.row_groups_proven else ""
        lower = {"on disk": self.disk_hits, "shared": self.shared_hits}
        tiers = ", ".join([f"{hits} of them {tier}" for tier, hits in lower.items() if hits])
        tiers = f" ({tiers})" if tiers else ""
        pages = f"{self.pages_read}"
        if self.pages_total >= max(self.pages_read, 1):  # it does not include pages without an OffsetIndex
            pages += f" of {self.pages_total}"
        files = ""
        if self.files_total:
            skipped = f", {self.files_skipped} skipped" if self.files_skipped else ""
            files = (
                f"files {self.files_read} read, {self.files_opened} opened, {self.files_ruled_out} ruled out "
                f"of {self.files_total}{skipped}; "
            )
        text = (
            f"{counted(self.requests, 'request')} in {counted(self.rounds, 'round')}, {self.bytes_fetched} bytes; "
            f"{files}row groups {self.row_groups_read} of {self.row_groups_total}{proven}{bloom}, pages {pages}, "
            f"rows {self.rows_scanned} seen and {self.rows_returned} returned; "
            f"cache hits {self.cache_hits}{tiers}, misses {self.cache_misses}"
        )
        return f"{text}; fallbacks: {'; '.join(self.fallbacks)}" if self.fallbacks else text

    def observe(self, observer: Callable[[RequestRecord], None]) -> None:
        """Register ``observer``, called with each request of the read when it ends, even after the read."""
        self._observer = observer

    def record(self, request: RequestRecord) -> None:
        """Count and log one request that has ended."""
        self.count(request)
        if len(self.log) < MAX_LOGGED:
            self.log.append(request)
        for total in self.totals:  # the read has ended before the request
            total.count_late(request)
        if self._observer is not None:
            self._observer(request)

    def count(self, request: RequestRecord) -> None:
        """Add one request to the counts, without adding it to ``log``."""
        self.requests += 1
        self.retries += request.attempt > 1
        self.throttles += request.throttled
        self.hedges += request.hedge
        self.bytes_fetched += request.bytes
        if request.round > self.rounds:
            self.rounds = request.round
        purpose = request.purpose
        self.requests_by_purpose[purpose] = self.requests_by_purpose.get(purpose, 0) + 1
        self.bytes_by_purpose[purpose] = self.bytes_by_purpose.get(purpose, 0) + request.bytes

    def count_late(self, request: RequestRecord) -> None:
        """Count a request that ended after its read, in these metrics and in their ``totals``. Metrics of
        :func:`measure` also log it."""
        self.count(request)
        if self._keeps_log and len(self.log) < MAX_LOGGED:
            self.log.append(request)
        for total in self.totals:
            total.count_late(request)

    def wait_begins(self) -> None:
        """Begin a wait for bytes, whose time counts in ``wait_s``; :meth:`wait_ends` ends the wait."""
        if self._whole is not None:
            self._whole.wait_begins()
        if self._waits == 0:
            self._waits_since = time.perf_counter()
        self._waits += 1

    def wait_ends(self) -> None:
        """End a wait for bytes that :meth:`wait_begins` began."""
        if self._whole is not None:
            self._whole.wait_ends()
        self._waits -= 1
        if self._waits == 0:
            self.wait_s += time.perf_counter() - self._waits_since

    def count_hits(self, by_tier: Mapping[str, int]) -> None:
        """Count cache hits outside memory; ``by_tier`` maps "disk" and "shared" to their number."""
        self.disk_hits += by_tier.get("disk", 0)
        self.shared_hits += by_tier.get("shared", 0)

    def fall_back(self, reason: str) -> None:
        """Note in ``fallbacks`` the reason why the read takes a slower path, unless it is noted already."""
        if len(self.fallbacks) < MAX_FALLBACKS and reason not in self.fallbacks:
            self.fallbacks.append(reason)

    def fall_back_all(self, reasons: Iterable[str]) -> None:
        """Note each of several reasons, as :meth:`fall_back` does."""
        for reason in reasons:
            self.fall_back(reason)

    def part(self, rounds: int) -> ReadMetrics:
        """Return metrics for a part of the read, such as one file of a dataset, that begins after ``rounds`` rounds
        of requests. :meth:`add_part` adds them to these metrics."""
        part = ReadMetrics(rounds=rounds, began=self.began, trace=self.trace)
        part._whole = self
        return part

    def add_part(self, part: ReadMetrics) -> None:
        """Add the counts and the log of a :meth:`part` that has ended."""
        rounds, wait_s = max(self.rounds, part.rounds), self.wait_s
        part.add_to(self)
        self.rounds, self.wait_s = rounds, wait_s
        self.log.extend(part.log[: MAX_LOGGED - len(self.log)])

    def add_to(self, *totals: ReadMetrics) -> None:
        """Add the counts of this read, which has ended, to each of ``totals``; and its log of requests to each that
        :func:`measure` yielded. asyncpq calls it at the end of a read."""
        self.totals += totals
        for total in totals:
            # field by field: a loop over the names would be the slowest step at the end of a lookup
            total.requests += self.requests
            total.retries += self.retries
            total.throttles += self.throttles
            total.paced_s += self.paced_s
            total.hedges += self.hedges
            total.bytes_fetched += self.bytes_fetched
            total.rounds += self.rounds
            for purpose, requests in self.requests_by_purpose.items():
                total.requests_by_purpose[purpose] = total.requests_by_purpose.get(purpose, 0) + requests
                total.bytes_by_purpose[purpose] = (
                    total.bytes_by_purpose.get(purpose, 0) + self.bytes_by_purpose[purpose]
                )
            total.cache_hits += self.cache_hits
            total.cache_misses += self.cache_misses
            total.disk_hits += self.disk_hits
            total.shared_hits += self.shared_hits
            total.files_total += self.files_total
            total.files_ruled_out += self.files_ruled_out
            total.files_opened += self.files_opened
            total.files_read += self.files_read
            total.files_skipped += self.files_skipped
            total.row_groups_total += self.row_groups_total
            total.row_groups_read += self.row_groups_read
            total.row_groups_by_bloom += self.row_groups_by_bloom
            total.row_groups_proven += self.row_groups_proven
            total.pages_total += self.pages_total
            total.pages_read += self.pages_read
            total.rows_scanned += self.rows_scanned
            total.rows_returned += self.rows_returned
            total.restarts += self.restarts
            total.wait_s += self.wait_s
            total.decode_s += self.decode_s
            total.guarantee = self.guarantee or total.guarantee
            total.store_path = self.store_path or total.store_path
            total.server = self.server or total.server
            for reason in self.fallbacks:
                total.fall_back(reason)
            if total._keeps_log:  # noqa: SLF001
                total.log.extend(self.log[: MAX_LOGGED - len(total.log)])


_EXPORTED = tuple(
    name
    for name in ReadMetrics.__match_args__
    if name not in ("log", "totals", "began", "ended", "trace") and not name.startswith("_")
)

#: Sums of the ``with measure()`` blocks that the running code is in.
measuring: ContextVar[tuple[ReadMetrics, ...]] = ContextVar("measuring", default=())


@contextmanager
def measure() -> Iterator[ReadMetrics]:
    """Measure what the calls in a ``with`` block cost: ``with asyncpq.measure() as cost: await file.lookup(...)``.

    Calls of other tasks do not count, unless the block started them. The block may hold any number of calls, of any
    files, datasets, indexes and sessions, also those of :mod:`asyncpq.blocking`; a call counts when it ends, a scan
    that the block has made when it is closed.

    Returns:
        The summed costs, with the requests of all calls in ``cost.log``, also of fetches that outlive their call.
        :meth:`ReadMetrics.to_dict` counts times from the beginning of the block.
    """
    cost = ReadMetrics(began=time.monotonic())
    cost._keeps_log = True  # noqa: SLF001
    token = measuring.set((*measuring.get(), cost))
    try:
        yield cost
    finally:
        with suppress(ValueError):  # an abandoned generator is closed in another context, which the block is not in
            measuring.reset(token)
