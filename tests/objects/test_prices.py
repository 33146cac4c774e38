"""Prices choose the cheapest requests for any layout, and follow what a server does, not single slow rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.objects.coalesce import ByteRange, coalesce, starts_and_stops
from asyncpq.objects.prices import MANY_REQUESTS, Measured, PriceBook, Prices
from asyncpq.options import MIB, LimitOptions, RequestOptions

LIMITS = LimitOptions()

# Pages in file order: unwanted bytes before each, and its own bytes.
layouts = st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 100_000)), min_size=1, max_size=60)
prices = st.builds(
    lambda latency, bandwidth, request, connections: Prices(latency, bandwidth, bandwidth, request, connections),
    st.floats(0.0001, 0.2),
    st.floats(1e6, 2e9),
    st.floats(1e-5, 5e-4),
    st.integers(1, 20),
)


def ranges_of(layout: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    ranges, stop = [], 4
    for gap, size in layout:
        ranges.append((stop + gap, stop + gap + size))
        stop += gap + size
    return ranges


def fixed(ranges: list[tuple[int, int]], gap_bytes: int) -> list[ByteRange]:
    """The requests of a reader that always reads through gaps of ``gap_bytes``."""
    return coalesce(
        *starts_and_stops(ranges),
        gap_bytes=gap_bytes,
        wave=1 << 60,
        wave_bytes=0,
        part_bytes=1 << 60,
        max_requests=None,
    )


@pytest.mark.property
@given(layouts, prices, st.integers(0, 1 << 20))
def test_no_other_gap_is_cheaper(layout: list[tuple[int, int]], known: Prices, gap_bytes: int) -> None:
    ranges = ranges_of(layout)
    chosen = known.requests(ranges)
    rounding_s = len(ranges) / known.bandwidth_bytes_s  # gaps are whole bytes
    wave_bytes = int((known.request_s + 1.2 * known.latency_s / known.connections) * known.bandwidth_bytes_s)
    for strategy in (gap_bytes, 0, 16 * 1024, wave_bytes, 1 << 60):
        assert known.round_s(chosen) <= known.round_s(fixed(ranges, strategy)) + rounding_s
    for start, stop in ranges:
        assert any(item.start <= start and stop <= item.stop for item in chosen)
    assert all(left.stop <= right.start for left, right in pairwise(chosen))


def test_the_initial_prices_read_through_16_kib() -> None:
    initial = Prices.initial(RequestOptions(), LIMITS)
    assert initial.gap_bytes == 16 * 1024
    assert initial.round_s([]) == 0.0
    assert initial.round_s([(0, 200)]) == pytest.approx(initial.latency_s + initial.request_s + 1e-6)


def test_requests_beyond_a_wave_pay_for_the_wait() -> None:
    known = Prices(0.1, 1e6, 1e6, 0.001, 2)
    assert (known.gap_bytes, known.round_bytes) == (1000, 100_000)
    assert known.merge(*starts_and_stops([(0, 1), (20_000, 20_001), (80_000, 80_001)])) == [
        (0, 20_001),
        (80_000, 80_001),
    ]
    assert known.merge(*starts_and_stops([(0, 1), (20_000, 20_001)])) == [(0, 1), (20_000, 20_001)]
    assert known._replace(fixed_gap_bytes=0).merge(*starts_and_stops([(0, 1), (9, 10), (20, 21)])) == [
        (0, 1),
        (9, 10),
        (20, 21),
    ]


def test_many_requests_are_taken_to_share_a_larger_bandwidth_until_it_is_measured() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    initial = book.initial
    few, many = ([(place * 400_000, place * 400_000 + 1000) for place in range(count)] for count in (64, 640))
    assert initial.requests(few) == few
    assert initial.for_round(64) is initial
    assert initial.for_round(65).bandwidth_bytes_s == 500e6
    chosen = initial.requests(many)
    assert chosen == initial.for_round(640).requests(many)
    assert len(chosen) < len(initial._replace(crowded_bytes_s=None).requests(many))
    assert initial.round_s(many) == initial.for_round(640).round_s(many)
    book.learn("s3", Measured(80, 1_300_000, 0.06))  # a round that waits shows no bandwidth
    assert book.prices("s3").for_round(65).bandwidth_bytes_s == 500e6
    book.learn("s3", Measured(8, 8_000_000, 0.03 + 0.08))
    assert book.prices("s3").for_round(640).bandwidth_bytes_s == book.prices("s3").bandwidth_bytes_s
    assert Prices.initial(RequestOptions(bandwidth_bytes_s=1e8), LIMITS).for_round(640).bandwidth_bytes_s == 1e8


def test_a_request_of_a_crowded_round_costs_more_until_it_is_measured() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    initial = book.initial
    assert initial.for_round(64).request_s == initial.request_s
    assert initial.for_round(65).request_s == 500e-6
    assert initial.for_round(65).for_round(65) == initial.for_round(65)
    assert initial.shared(2).for_round(65).request_s == initial.request_s * 2
    many = [(place * 250_000, place * 250_000 + 200_000) for place in range(400)]
    cheap = initial._replace(crowded_request_s=None)
    assert len(initial.requests(many)) < len(cheap.requests(many))
    assert initial.round_s(many) == pytest.approx(cheap.round_s(many) + 400 * (500e-6 - initial.request_s))
    book.learn("s3", Measured(100, 5_000_000, 0.5, cpu_s=0.01))
    book.learn("s3", Measured(100, 5_000_000, 0.5, cpu_s=0.01))
    assert book.prices("s3").for_round(65).request_s == pytest.approx(100e-6, abs=20e-6)


def test_a_request_of_a_crowded_round_costs_less_where_the_network_is_slow() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    for _ in range(2):
        book.learn("s3", Measured(10, 50_000_000, 0.5))
    slow = book.prices("s3")
    assert slow.bandwidth_bytes_s < 200e6
    assert slow.request_s < slow.for_round(65).request_s < 200e-6


def test_waves_wait_while_bytes_arrive() -> None:
    known = Prices(0.1, 1e6, 1e6, 0.001, 2)
    small, large = [(0, 10_000)] * 4, [(0, 100_000)] * 4
    assert known.round_s(small) == pytest.approx(0.1 + 0.004 + 1.2 * 0.1 + 0.02)  # the first wave's arrive in the wait
    assert known.round_s(large) == pytest.approx(0.1 + 0.004 + 0.4)


def test_files_side_by_side_share_bandwidth_and_connections_but_not_the_wait() -> None:
    alone = Prices(0.1, 1000.0, 1000.0, 0.001, 8)
    assert alone.shared(1) is alone
    assert alone._replace(crowded_bytes_s=9.0).shared(2) == alone.shared(2)
    requests = [(0, 100), (200, 300)]
    assert alone.round_s(requests) == pytest.approx(0.1 + 0.002 + 0.2)
    assert alone.shared(4).round_s(requests) == pytest.approx(0.1 + 4 * (0.002 + 0.2))
    assert alone.shared(8).round_s(requests) == pytest.approx(0.1 + 8 * (0.002 + 0.2))  # bytes arrive in the wait
    assert alone.shared(4).gap_bytes == alone.gap_bytes


def test_slow_connections_share_a_long_range() -> None:
    known = Prices(0.02, 400e6, 100e6, 1e-4, 64)
    assert [item.stop - item.start for item in known.requests([(0, 16 * MIB)])] == [4 * MIB] * 4
    assert known._replace(connection_bytes_s=400e6).requests([(0, 4 * MIB)]) == [(0, 4 * MIB)]


def test_prices_follow_the_server() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    assert book.prices("far") == book.initial
    for seconds in (0.5, 0.1, 0.1, 0.3, 0.1):  # twice the event loop was busy
        book.learn("far", Measured(4, 20_000, seconds))
    known = book.prices("far")
    assert known.latency_s == pytest.approx(0.1, rel=0.02)
    assert (known.bandwidth_bytes_s, known.request_s) == (200e6, book.initial.request_s)
    for seconds in (0.5, 0.5, 0.9, 0.5):
        book.learn("far", Measured(100, 5_000_000, seconds, cpu_s=0.02))
    known = book.prices("far")
    assert known.request_s == pytest.approx(200e-6)
    assert known.bandwidth_bytes_s == pytest.approx(5e6 / (0.5 - 0.1 - 0.02), rel=0.02)
    assert book.prices("near") == book.initial


def test_small_rounds_that_are_mostly_bytes_do_not_show_the_latency() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    book.learn("near", Measured(1, 3000, 0.0012))
    latency_s = book.prices("near").latency_s
    for _ in range(8):
        book.learn("near", Measured(6, 450_000, 0.0025))  # at 1 GB/s, which no round has shown
    assert book.prices("near").latency_s == latency_s
    book.learn("far", Measured(6, 450_000, 0.0025))  # better than the default of a far store
    assert book.prices("far").latency_s < 0.001


def test_the_fastest_request_of_a_large_round_bounds_the_latency() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    book.learn("near", Measured(1, 640 * 1024, 0.05))  # with a new connection
    book.learn("near", Measured(100, 5_000_000, 0.5, fastest_s=0.002))
    assert book.prices("near").latency_s == pytest.approx(0.002)
    book.learn("near", Measured(100, 5_000_000, 0.5, fastest_s=0.3))  # says nothing
    assert book.prices("near").latency_s == pytest.approx(0.002)


def test_one_connection_may_be_slower_than_all() -> None:
    book = PriceBook(RequestOptions(latency_s=0.1), LIMITS)
    for _ in range(4):
        book.learn("s3", Measured(1, 5_000_000, 0.2))
        book.learn("s3", Measured(10, 50_000_000, 0.2))
        book.learn("s3", Measured(2, 10_000_000, 0.2))  # two are not enough to use all of it
    known = book.prices("s3")
    assert known.connection_bytes_s == pytest.approx(50e6, rel=0.01)
    assert known.bandwidth_bytes_s == pytest.approx(500e6, rel=0.02)


def test_rounds_that_wait_for_connections_do_not_show_the_bandwidth() -> None:
    book = PriceBook(RequestOptions(latency_s=0.1), LIMITS)
    wait_s = 9 * 0.1
    book.learn("s3", Measured(640, 80_000_000, 0.1 + wait_s))  # of ten waves
    assert book.prices("s3").bandwidth_bytes_s == book.initial.bandwidth_bytes_s
    book.learn("s3", Measured(640, 800_000_000, 0.1 + wait_s))
    assert book.prices("s3").bandwidth_bytes_s == pytest.approx(2 * 800e6 / wait_s)  # at least half of that
    book.learn("s3", Measured(64, 80_000_000, 0.1 + 0.1))
    assert book.prices("s3").bandwidth_bytes_s == pytest.approx(800e6)


@pytest.mark.property
@given(
    st.lists(
        st.tuples(st.integers(1, 2000), st.integers(1, 1 << 30), st.floats(0, 100), st.none() | st.floats(0, 10)),
        max_size=40,
    )
)
def test_prices_stay_within_bounds(rounds: list[tuple[int, int, float, float | None]]) -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    for number, num_bytes, seconds, cpu_s in rounds:
        book.learn("s3", Measured(number, num_bytes, seconds, cpu_s))
    known = book.prices("s3")
    assert 1e-4 <= known.latency_s <= 2.0
    assert 1e6 <= known.connection_bytes_s <= known.bandwidth_bytes_s <= 10e9
    assert 20e-6 <= known.request_s <= 500e-6


@pytest.mark.parametrize("bandwidth", [100e6, 1e9])
@pytest.mark.parametrize("latency_s", [0.02, 0.1])
def test_many_ranges_soon_take_no_longer_than_with_the_best_fixed_gap(latency_s: float, bandwidth: float) -> None:
    """A modelled server: a wave waits, then the client works, while the bytes of others arrive."""

    def work_s(requests: Sequence[tuple[int, int]]) -> float:
        return len(requests) * 100e-6 + sum(stop - start for start, stop in requests) * 0.25e-9

    def round_s(requests: Sequence[tuple[int, int]]) -> float:
        wait_s = max(0.0, len(requests) / LIMITS.max_connections - 1) * latency_s
        transfer_s = sum(stop - start for start, stop in requests) / bandwidth
        return latency_s + max(wait_s + work_s(requests), transfer_s)

    pages = sorted(random.Random(9).sample(range(4000), 1600))
    ranges = [(page * 25_000, page * 25_000 + 25_000) for page in pages]
    best_s = min(round_s(fixed(ranges, gap_kib * 1024)) for gap_kib in (0, 16, 32, 64, 128, 1024))
    book = PriceBook(RequestOptions(), LIMITS)
    book.learn("s3", Measured(1, 3000, latency_s))
    for number in range(12):
        requests = book.prices("s3").requests(ranges)
        seconds = round_s(requests)
        assert number < 3 or seconds <= 1.15 * best_s
        num_bytes = sum(stop - start for start, stop in requests)
        cpu_s = work_s(requests) if len(requests) >= MANY_REQUESTS else None
        book.learn("s3", Measured(len(requests), num_bytes, seconds, cpu_s, cpu_s and latency_s))


def test_what_the_options_fix_is_not_learned() -> None:
    options = RequestOptions(gap_bytes=5, latency_s=0.0, bandwidth_bytes_s=1e6)
    book = PriceBook(options, LIMITS)
    book.learn("s3", Measured(1, 1000, 0.5))
    book.learn("s3", Measured(20, 50_000_000, 0.5))
    assert book.prices("s3") == book.initial
    assert (book.initial.latency_s, book.initial.bandwidth_bytes_s, book.initial.gap_bytes) == (0.0, 1e6, 5)


def test_servers_that_are_not_used_any_more_are_forgotten() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    for number in range(300):
        book.learn(f"server {number}", Measured(1, 1000, 0.5))
    assert book.prices("server 0") == book.initial
    assert book.prices("server 299").latency_s == pytest.approx(0.5, rel=0.01)


def test_overlapping_rounds_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("asyncpq.objects.prices.time.monotonic", lambda: now[0])
    book = PriceBook(RequestOptions(), LIMITS)
    burst = book.burst("s3")
    for _ in range(10):
        burst.join(5_000_000)
    found = []
    for number in range(10):  # each takes as long as all of them
        now[0] = 0.4 + number * 0.01
        found.append(burst.ended(40, 5_000_000, 0.02))
    (measured,) = [one for one in found if one is not None]
    assert burst.is_over
    assert (measured.requests, measured.num_bytes, measured.fastest_s) == (320, 40_000_000, 0.02)
    assert measured.seconds == pytest.approx(0.47)  # of the round after which a fifth is still under way
    book.learn("s3", measured)
    assert 80e6 < book.prices("s3").bandwidth_bytes_s < 120e6


def test_a_burst_with_a_broken_round_teaches_nothing() -> None:
    book = PriceBook(RequestOptions(), LIMITS)
    burst = book.burst("s3")
    burst.join(5_000_000)
    burst.join(5_000_000)
    burst.failed()
    assert burst.ended(40, 5_000_000, 0.02) is None
    following = book.burst("s3")
    assert following is not burst
    following.join(5_000_000)
    assert following.ended(40, 5_000_000, 0.02) is not None
