"""The cost model of fetching from one server, which decides on gaps, rounds and whole chunks.

A round of requests takes the time to the first byte, the CPU time of each request, and the time to receive the bytes.
So two ranges become one GET if the bytes between them take less time than a request. If a round has more ranges than
connections, those after the first wave wait for a connection and again for the first byte, while the bytes of others
arrive. If the bytes of a wave take less time than the wait, the network idles: then all waits count, and the bytes of
the last wave. Larger gaps are closed as long as that makes the round shorter. At a given bandwidth, no other choice of
GETs is faster in this model. Waits count more than the latency, which is that of fast responses.

:class:`PriceBook` learns the prices from the rounds that a session has seen; large ones that overlap count as one
(:class:`Burst`). A plan keeps the prices that it was made with.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from cachetools import LRUCache

from asyncpq.objects.coalesce import ByteRange, coalesce, cut, starts_and_stops
from asyncpq.options import MIB, LimitOptions, RequestOptions
from asyncpq.records import NamedTuple

_LATENCY_S: Final = 0.030  # before the first measurement, as are the next three
_BANDWIDTH_BYTES_S: Final = 200e6
_CROWDED_BYTES_S: Final = 500e6  # of a round with more requests than connections
_REQUEST_S: Final = 16_384 / _BANDWIDTH_BYTES_S  # 82 us: signing, sending, parsing and handing out, on one core
# The same in a round with more requests than connections, with its share of what such a round takes besides: making the
# connections (170 us each), the tasks that wait for one, and the threads that decode meanwhile and wait for Python's
# lock. Measured with a thousand keys in 394 MB, on two processors: 154 requests fewer for 24 MB more took 60 ms off the
# event loop's CPU and 290 ms off that of the process.
_CROWDED_REQUEST_S: Final = 500e-6

_WAIT_LATENCIES: Final = 1.2  # latencies that a wave after the first one waits
_LEAST_IDLE_WAVES: Final = 1.1  # rounds of more waves may leave the network idle
_TRANSFER: Final = 0.8  # of a round's time is at least taken by its bytes, if its requests do not wait

_FEW_REQUESTS: Final = 8  # rounds of at most so many requests show the latency,
MANY_REQUESTS: Final = 16  # those of at least so many the CPU of a request, if they are
_SMALL_BYTES: Final = 64 * 1024  # not larger than this on average,
LARGE_BYTES: Final = MIB  # and those of so many bytes the bandwidth
_ENDS: Final = 4  # a burst ends with a round after which its bytes are so many times those still under way
_KEPT: Final = 16  # measurements of each price
_MAX_SERVERS: Final = 256


class Measured(NamedTuple):
    """The cost of a round of requests, or of several that overlapped, without errors.

    Attributes:
        requests, num_bytes, seconds: of the round.
        cpu_s: CPU time of the event loop's thread during the round.
        fastest_s: time of the fastest request. Both are None if they were not measured.
    """

    requests: int
    num_bytes: int
    seconds: float
    cpu_s: float | None = None
    fastest_s: float | None = None


class Prices(NamedTuple):
    """The cost of requests and bytes at one server, in seconds, and the limits that follow from that. Immutable.

    Attributes:
        latency_s: until the first byte of a response.
        bandwidth_bytes_s: of all connections together.
        connection_bytes_s: of one connection.
        request_s: CPU time of one request.
        connections: requests under way at once.
        fixed_gap_bytes: the gap to read through, whatever it costs; None: computed from the prices.
        most_part_bytes: longer requests are cut.
        max_requests: of one round.
        crowded_bytes_s: assumed bandwidth of a round with more requests than connections, until a round of several
            requests has been measured. None: ``bandwidth_bytes_s``. A guess that is too low costs many waits, one too
            high some bytes.
        crowded_request_s: of such a round on a fast network, until a round of many requests has been measured.
    """

    latency_s: float
    bandwidth_bytes_s: float
    connection_bytes_s: float
    request_s: float
    connections: int
    fixed_gap_bytes: int | None = None
    most_part_bytes: int = 8 * MIB
    max_requests: int | None = None
    crowded_bytes_s: float | None = None
    crowded_request_s: float | None = None

    @classmethod
    def initial(cls, requests: RequestOptions, limits: LimitOptions) -> Prices:
        """Return the prices before any measurement: those that the options fix, and defaults for the others."""
        bandwidth = requests.bandwidth_bytes_s or _BANDWIDTH_BYTES_S
        return cls(
            _LATENCY_S if requests.latency_s is None else requests.latency_s,
            bandwidth,
            bandwidth,
            _REQUEST_S,
            limits.max_connections,
            requests.gap_bytes,
            requests.part_bytes,
            requests.max_requests,
            _CROWDED_BYTES_S if requests.bandwidth_bytes_s is None else None,
            _CROWDED_REQUEST_S,
        )

    @property
    def gap_bytes(self) -> int:
        """How many bytes take as long to receive as one more request costs. Ranges with smaller gaps are merged."""
        fixed = self.fixed_gap_bytes
        return round(self.request_s * self.bandwidth_bytes_s) if fixed is None else fixed

    @property
    def round_bytes(self) -> float:
        """How many bytes could be received in the time of one round trip (the time to the first byte)."""
        return self.latency_s * self.bandwidth_bytes_s

    def shared(self, files: int) -> Prices:
        """Return the prices for one of ``files`` similar files that are read concurrently: each request and byte of one
        file delays the other files, but all files wait for their first bytes at the same time."""
        if files == 1:
            return self
        return self._replace(
            bandwidth_bytes_s=self.bandwidth_bytes_s / files,
            request_s=self.request_s * files,
            connections=max(1, self.connections // files),
            crowded_bytes_s=None,  # with few connections to each file, several requests are not many
            crowded_request_s=None,
        )

    def part_bytes(self, num_bytes: int) -> int:
        """Return the size to which long ranges are cut in a round that fetches ``num_bytes`` bytes.

        If one connection has less bandwidth than all together, the parts are so small that all connections end at about
        the same time.
        """
        share = self.connection_bytes_s / self.bandwidth_bytes_s
        return self.most_part_bytes if share >= 1 else min(self.most_part_bytes, max(MIB, int(num_bytes * share)))

    def merge(self, starts: Sequence[int], stops: Sequence[int]) -> list[ByteRange]:
        """Return the merged ranges that cover the given ones in one round; long ones are not yet cut."""
        merged = coalesce(
            starts,
            stops,
            gap_bytes=self.gap_bytes,
            wave=self.connections,
            wave_bytes=round(_WAIT_LATENCIES * self.round_bytes) if self.fixed_gap_bytes is None else 0,
            part_bytes=1 << 62,
            max_requests=self.max_requests,
        )
        prices = self.for_round(len(merged))
        return merged if prices is self else prices.merge(*starts_and_stops(merged))

    def for_round(self, num_requests: int) -> Prices:
        """Return the prices of a round of so many requests."""
        if num_requests <= self.connections or (self.crowded_bytes_s is None and self.crowded_request_s is None):
            return self
        bandwidth_bytes_s = self.crowded_bytes_s or self.bandwidth_bytes_s
        # a slower network leaves the processor time for requests
        request_s = (self.crowded_request_s or 0.0) * min(1.0, bandwidth_bytes_s / _CROWDED_BYTES_S)
        return self._replace(
            bandwidth_bytes_s=bandwidth_bytes_s,
            request_s=max(request_s, self.request_s),
            crowded_bytes_s=None,
            crowded_request_s=None,
        )

    def requests(self, ranges: Iterable[tuple[int, int]]) -> list[ByteRange]:
        """Return the GETs that cover the given ranges in one round: merged, and long ones cut."""
        return self.in_parts(self.merge(*starts_and_stops(ranges)))

    def in_parts(self, merged: Sequence[ByteRange]) -> list[ByteRange]:
        """Return the GETs of one round that fetches the result of :meth:`merge`: long ranges are cut."""
        part_bytes = self.part_bytes(sum([stop - start for start, stop in merged]))
        return [part for item in merged for part in cut(item, part_bytes)]

    def round_s(self, requests: Sequence[tuple[int, int]]) -> float:
        """Return the seconds that these GETs, sent in one round, are expected to take."""
        if not requests:
            return 0.0
        sizes = [stop - start for start, stop in requests]
        prices = self.for_round(len(sizes))
        transfer_s = max(sum(sizes) / prices.bandwidth_bytes_s, max(sizes) / self.connection_bytes_s)
        waves = len(sizes) / self.connections
        if waves > 1:
            transfer_s = max(transfer_s, _WAIT_LATENCIES * (waves - 1) * self.latency_s + transfer_s / waves)
        return self.latency_s + prices.request_s * len(sizes) + transfer_s


class Burst:
    """Large rounds of requests to one server that overlap, measured as one: each has only a share of the bandwidth.

    It is over when all of its rounds have ended, or with a round of which few bytes are left to others; these teach
    nothing, and the next round begins another burst.
    """

    __slots__ = ("_began", "_cpu_began", "_fastest_s", "_fewest", "_num_bytes", "_requests", "_under_way", "is_over")

    def __init__(self) -> None:
        self.is_over: bool = False
        self._began = time.monotonic()
        self._cpu_began = time.thread_time()
        self._fastest_s: float | None = None
        self._requests = 0
        self._fewest = MANY_REQUESTS  # requests of a round, or this number
        self._num_bytes = 0
        self._under_way = 0  # bytes of the rounds that have not ended

    def join(self, num_bytes: int) -> None:
        """A round of ``num_bytes`` bytes begins."""
        self._under_way += num_bytes

    def failed(self) -> None:
        """A round was broken off: nothing is learned from this burst."""
        self.is_over = True

    def ended(self, requests: int, num_bytes: int, fastest_s: float | None) -> Measured | None:
        """A round has ended. Return what the burst took, if it ends with this round."""
        self._under_way -= num_bytes
        self._requests += requests
        self._fewest = min(self._fewest, requests)
        self._num_bytes += num_bytes
        if fastest_s is not None:
            self._fastest_s = min(self._fastest_s or fastest_s, fastest_s)
        if self.is_over or self._under_way * _ENDS > self._num_bytes:
            return None
        self.is_over = True
        cpu_s = time.thread_time() - self._cpu_began if self._fewest >= MANY_REQUESTS else None
        return Measured(self._requests, self._num_bytes, time.monotonic() - self._began, cpu_s, self._fastest_s)


class _Server:
    """The current prices of one server, and the last measurements from which they are computed."""

    __slots__ = ("bandwidths", "connections", "latencies", "prices", "requests")

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.latencies: deque[float] = deque(maxlen=_KEPT)
        self.bandwidths: deque[float] = deque(maxlen=_KEPT)  # of rounds of several requests
        self.connections: deque[float] = deque(maxlen=_KEPT)  # of rounds of one request
        self.requests: deque[float] = deque(maxlen=_KEPT)


class PriceBook:
    """The cost of requests and bytes at each server (:class:`Prices`), learned from rounds of requests.

    Costs that the options fix are not learned. Other programs and tasks share the network, the processor and the event
    loop, so most measurements are slower than the server is. An estimate is therefore the faster quartile of the last
    16 measurements, within bounds.
    """

    def __init__(self, requests: RequestOptions, limits: LimitOptions) -> None:
        self.initial: Prices = Prices.initial(requests, limits)
        self._fixes_latency = requests.latency_s is not None
        self._fixes_bandwidth = requests.bandwidth_bytes_s is not None
        self._servers: LRUCache[str, _Server] = LRUCache(_MAX_SERVERS)
        self._bursts: LRUCache[str, Burst] = LRUCache(_MAX_SERVERS)

    def prices(self, server: str) -> Prices:
        """Return what requests and bytes currently cost at ``server`` (:class:`Prices`, mostly in seconds)."""
        known: _Server | None = self._servers.get(server)
        return self.initial if known is None else known.prices

    def burst(self, server: str) -> Burst:
        """Return the burst that a large round to ``server`` belongs to: one of ``LARGE_BYTES`` or more."""
        burst: Burst | None = self._bursts.get(server)
        if burst is None or burst.is_over:
            burst = self._bursts[server] = Burst()
        return burst

    def learn(self, server: str, measured: Measured) -> None:
        """Learn from what a round, or several that overlapped, took at ``server``."""
        requests, num_bytes, seconds, cpu_s, fastest_s = measured
        known: _Server | None = self._servers.get(server)
        if known is None:
            known = self._servers[server] = _Server(self.initial)
        prices = known.prices
        if num_bytes < LARGE_BYTES:
            if requests > _FEW_REQUESTS or self._fixes_latency:
                return
            transfer_s = num_bytes / prices.bandwidth_bytes_s
            if known.latencies and transfer_s > seconds / 2:
                # small rounds do not show the bandwidth: if it is higher, the rest is not the latency
                return
            rest_s = seconds - requests * prices.request_s - transfer_s
            known.latencies.append(min(max(rest_s, seconds / 16, 1e-4), 2.0))
            known.prices = prices._replace(latency_s=_quartile(known.latencies))
            return
        if fastest_s is not None and fastest_s < prices.latency_s and not self._fixes_latency:
            known.latencies.append(max(fastest_s, 1e-4))
            prices = prices._replace(latency_s=_quartile(known.latencies))
        if cpu_s is not None and requests >= MANY_REQUESTS and num_bytes <= requests * _SMALL_BYTES:
            known.requests.append(min(max(cpu_s / requests, 20e-6), 500e-6))
            # the first round, which opens connections, takes several times as long
            prices = prices._replace(
                request_s=_quartile([self.initial.request_s, *known.requests]), crowded_request_s=None
            )
        if not self._fixes_bandwidth:
            # Other work overlaps with the transfer. A rate that is measured too low makes gaps small, and so shows
            # itself in later rounds.
            rest_s, busy_s = seconds - prices.latency_s, cpu_s or 0.0
            waves = requests / prices.connections
            is_idle = waves > _LEAST_IDLE_WAVES and rest_s - busy_s < waves * prices.latency_s
            rest_s = max(rest_s - busy_s, _TRANSFER * rest_s, seconds / 2, 1e-6)
            rate = min(max(num_bytes / rest_s, 1e6), 10e9)
            if is_idle:
                # Nothing arrived during part of the wait: the bytes may take less. The next round tries to wait less.
                rate = max(prices.bandwidth_bytes_s, min(2 * rate, 10e9))
                crowded = _above(prices.crowded_bytes_s, rate)
                known.prices = prices._replace(bandwidth_bytes_s=rate, crowded_bytes_s=crowded)
                return
            if requests == 1:
                known.connections.append(rate)
            elif requests >= _FEW_REQUESTS or rate > prices.bandwidth_bytes_s:  # few may not use all of it
                known.bandwidths.append(rate)
            one = -_quartile([-rate for rate in known.connections]) if known.connections else 0.0
            # The bandwidth of one connection is a lower bound of the bandwidth of all.
            several = known.bandwidths or [self.initial.bandwidth_bytes_s]
            together = max(one, -_quartile([-rate for rate in several]))
            crowded = None if known.bandwidths else _above(prices.crowded_bytes_s, together)
            prices = prices._replace(
                bandwidth_bytes_s=together, connection_bytes_s=one or together, crowded_bytes_s=crowded
            )
        known.prices = prices


def _above(guess: float | None, known: float) -> float | None:
    """Return ``guess`` if it is above ``known``, else None."""
    return guess if guess is not None and guess > known else None


def _quartile(values: Iterable[float]) -> float:
    """Return the lower quartile of ``values``."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]
