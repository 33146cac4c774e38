"""The shared tier on a real Valkey server with the configuration of cache/valkey: what it keeps, what it believes,
what its user may do, and what its options say.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import valkey

from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.caching.shared import SharedCache
from asyncpq.caching.tiers import Attempt, Backoff
from asyncpq.errors import InvalidOptionError
from asyncpq.options import SharedCacheOptions
from asyncpq.storage.base import Validator
from asyncpq.testing import CACHE_TIER_CHECKS, ServerStorage
from tests.servers import PASSWORD, PASSWORD_QUOTED, TcpProxy, ValkeyServer, self_signed

KEY = ContentKey(b"v" * 16, "page", 0, 100)
STORED_KEY = b"asyncpq:" + KEY.encode()
OTHER = KEY._replace(start=1)
POINTER_KEY = PointerKey("namespace", "s3|endpoint|bucket|key")
PATIENT_S = 20.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(running: ValkeyServer) -> ValkeyServer:
    running.admin.flushall()
    return running


@pytest.fixture
def options(server: ValkeyServer) -> SharedCacheOptions:
    """With time enough for a busy machine."""
    return SharedCacheOptions(url=server.url, secret="the secret", timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S)


class Storage(ServerStorage):
    """One that can be made read only."""

    def __init__(self, server: ValkeyServer, options: SharedCacheOptions) -> None:
        super().__init__(options, server.admin)
        self._server = server

    async def set_writable(self, writable: bool) -> bool:
        """A server that asks for replicas, and has none, refuses every command that writes."""
        self._server.admin.config_set("min-replicas-to-write", 0 if writable else 1)
        return True


@pytest.mark.parametrize("secret", [None, b"secret"], ids=["checksum", "hmac"])
@pytest.mark.parametrize("check", CACHE_TIER_CHECKS, ids=lambda check: check.__name__)
async def test_contract(
    check: Callable[[Storage], object], secret: bytes | None, server: ValkeyServer, options: SharedCacheOptions
) -> None:
    await check(Storage(server, replace(options, secret=secret)))  # type: ignore[misc]


@pytest.mark.parametrize("form", ["valkey", "redis", "unix", "database"])
async def test_urls(form: str, server: ValkeyServer, options: SharedCacheOptions) -> None:
    url = {
        "valkey": server.url,
        "redis": server.url.replace("valkey://", "redis://"),
        "unix": f"unix://asyncpq:{PASSWORD_QUOTED}@{server.socket_path}",
        "database": f"{server.url}/0",
    }[form]
    cache = SharedCache(replace(options, url=url))
    await cache.put_many({KEY: b"value"})
    assert await cache.get_many([KEY, OTHER]) == [b"value", None]
    assert await cache.get_pointer(POINTER_KEY) is None
    assert cache.counters() == {"hits": 1, "misses": 2, "errors": 0, "skipped": 0, "evictions": 0}
    await cache.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path)


@pytest.mark.parametrize("scheme", ["valkeys", "rediss"])
async def test_tls(
    scheme: str, server: ValkeyServer, options: SharedCacheOptions, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with TcpProxy(server.port, context) as proxy:

        def url(host: str, query: str) -> str:
            return f"{scheme}://asyncpq:{PASSWORD_QUOTED}@{host}:{proxy.port}?{query}"

        authority = f"ssl_ca_certs={certificate[0]}"
        cases = {
            url("127.0.0.1", authority): True,
            url("127.0.0.1", ""): False,  # an authority that nobody knows
            url("localhost", authority): False,  # another host's certificate
            url("localhost", f"{authority}&ssl_check_hostname=false"): True,
            url("localhost", "ssl_cert_reqs=none"): True,
        }
        for place, trusted in cases.items():
            cache = SharedCache(replace(options, url=place, max_connections=2))
            await asyncio.gather(*(cache.put_many({KEY: b"value"}) for _ in range(3)))
            assert await cache.get_many([KEY]) == [b"value" if trusted else None], place
            assert (cache.errors == 0) == trusted
            await cache.close()


async def test_one_round_trip_for_each_call(server: ValkeyServer, options: SharedCacheOptions) -> None:
    keys = [KEY._replace(start=start) for start in range(100)]
    async with TcpProxy(server.port) as proxy:
        cache = SharedCache(replace(options, url=server.url.replace(str(server.port), str(proxy.port))))
        await cache.put_many(dict.fromkeys(keys, b"value"))
        del proxy.requests[:]
        proxy.let_through.clear()
        reading = asyncio.ensure_future(cache.get_many(keys))
        await proxy.until_asked(b"GETRANGE", 100)  # all are sent before a reply comes
        proxy.let_through.set()
        assert await reading == [b"value"] * 100
        assert proxy.connections == 1
        await cache.close()


async def test_entries_expire(server: ValkeyServer, options: SharedCacheOptions) -> None:
    cache = SharedCache(replace(options, ttl_s=600))
    await cache.put_many({KEY: b"value"})
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1), time.monotonic()))
    keys = list(server.stored())
    assert len(keys) == 2
    for key in keys:
        assert key.startswith(b"asyncpq:")
        assert 590_000 < server.admin.pttl(key) <= 600_000
    await cache.close()


async def test_large_entries_are_not_kept(server: ValkeyServer, options: SharedCacheOptions) -> None:
    cache = SharedCache(replace(options, max_entry_bytes=1000))
    await cache.put_many({KEY: bytes(1001), OTHER: bytes(1000)})
    assert await cache.get_many([KEY, OTHER]) == [None, bytes(1000)]
    assert len(server.stored()) == 1
    await cache.close()


async def test_many_bytes_go_in_several_windows(server: ValkeyServer, options: SharedCacheOptions) -> None:
    entries = {ContentKey(b"v", "page", n, n + 3_000_000): bytes([n]) * 3_000_000 for n in range(8)}
    entries |= {ContentKey(b"v", "page", n, n + 5): b"%05d" % n for n in range(100, 1000)}
    cache = SharedCache(options)
    await cache.put_many(entries)
    assert await cache.get_many(list(entries)) == list(entries.values())
    assert cache.errors == 0
    await cache.close()


async def test_64_at_once_use_few_connections(server: ValkeyServer, options: SharedCacheOptions) -> None:
    async with TcpProxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        cache = SharedCache(replace(options, url=url, max_connections=4))
        entries = {KEY._replace(start=start): b"%d" % start for start in range(640)}
        await cache.put_many(entries)
        keys = list(entries)
        answers = await asyncio.gather(*(cache.get_many(keys[start : start + 10]) for start in range(0, 640, 10)))
        assert [value for answer in answers for value in answer] == list(entries.values())
        assert proxy.connections <= 4
        await cache.close()


# -- what is believed -----------------------------------------------------------------------------


async def test_only_entries_of_the_same_secret_are_believed(server: ValkeyServer, options: SharedCacheOptions) -> None:
    writer = SharedCache(options)
    await writer.put_many({KEY: b"value"})
    await writer.put_pointer(POINTER_KEY, Pointer(Validator(1), time.monotonic()))
    for secret in (None, "another secret"):
        other = SharedCache(replace(options, secret=secret))
        assert await other.get_many([KEY]) == [None]
        assert await other.get_pointer(POINTER_KEY) is None
        assert other.errors == 0
        await other.put_many({OTHER: b"of another"})
        assert await writer.get_many([KEY, OTHER]) == [b"value", None]  # and left where it is
        await other.close()
    same = SharedCache(replace(options, secret=b"the secret"))
    assert await same.get_many([KEY]) == [b"value"]
    await same.close()
    await writer.close()


async def test_an_entry_under_another_key_is_a_miss(server: ValkeyServer, options: SharedCacheOptions) -> None:
    cache = SharedCache(options)
    await cache.put_many({KEY: b"value", OTHER: b"other"})
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1), time.monotonic()))
    stored = server.stored()
    turned = dict(zip(stored, [*list(stored.values())[1:], next(iter(stored.values()))], strict=True))
    server.admin.mset(turned)
    assert await cache.get_many([KEY, OTHER]) == [None, None]
    assert await cache.get_pointer(POINTER_KEY) is None
    assert server.stored() == turned  # it may be a newer format's: nothing is deleted
    await cache.close()


async def test_a_key_of_another_type_is_a_miss(server: ValkeyServer, options: SharedCacheOptions) -> None:
    cache = SharedCache(options)
    await cache.put_many({KEY: b"value", OTHER: b"other"})
    server.admin.delete(STORED_KEY)
    server.admin.rpush(STORED_KEY, b"a list")
    assert await cache.get_many([KEY, OTHER]) == [None, b"other"]
    assert cache.errors == 0
    await cache.close()


@pytest.mark.heavy  # the server writes 600 MB
async def test_a_huge_entry_is_not_pulled_in(server: ValkeyServer, options: SharedCacheOptions) -> None:
    async with TcpProxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        cache = SharedCache(replace(options, url=url, max_entry_bytes=100_000))
        await cache.put_many({KEY: b"value", OTHER: b"other"})
        limit = server.admin.config_get("proto-max-bulk-len")
        server.admin.config_set("proto-max-bulk-len", 1 << 30)
        try:
            server.admin.setrange(STORED_KEY, (600 << 20) - 1, b"x")
            assert server.admin.strlen(STORED_KEY) == 600 << 20
            before = proxy.reply_bytes
            assert await cache.get_many([KEY, OTHER]) == [None, b"other"]
            assert proxy.reply_bytes - before < 101_000
        finally:
            server.admin.flushall()
            server.admin.config_set("proto-max-bulk-len", limit["proto-max-bulk-len"])
        await cache.close()


async def test_a_pointer_ages_by_the_servers_clock(
    server: ValkeyServer, options: SharedCacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SharedCache(options)
    now = time.monotonic()
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(3, '"e"'), now - 10))
    # another host, with other clocks
    monkeypatch.setattr("asyncpq.caching.shared.time", SimpleNamespace(monotonic=lambda: 1e6))
    found = await cache.get_pointer(POINTER_KEY)
    assert found is not None
    assert 1e6 - 10 - PATIENT_S < found.validated_at <= 1e6 - 10
    # put back later, it is as old as it is; without an expiry, too
    (key,) = server.stored()
    entry = server.admin.get(key)
    await asyncio.sleep(0.2)
    server.admin.set(key, entry)
    again = await cache.get_pointer(POINTER_KEY)
    assert again is not None
    assert again.validated_at <= found.validated_at - 0.2
    await cache.close()


async def test_a_server_clock_that_was_set_back_tells_no_age(
    options: SharedCacheOptions, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SharedCache(options)
    real = SharedCache._microseconds
    monkeypatch.setattr(SharedCache, "_microseconds", lambda self, reply: (real(self, reply) or 0) + 10**9)
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(3, '"e"'), time.monotonic()))
    monkeypatch.undo()
    found = await cache.get_pointer(POINTER_KEY)
    assert found is not None
    assert found.validated_at == -float("inf")
    await cache.close()


async def test_an_older_validation_does_not_replace_a_newer(server: ValkeyServer, options: SharedCacheOptions) -> None:
    cache = SharedCache(options)
    now = time.monotonic()
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(2, '"new"'), now - 5))
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"old"'), now - 50))
    found = await cache.get_pointer(POINTER_KEY)
    assert found is not None
    assert found.validator.etag == '"new"'
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(9, "x" * 100_000), now))  # longer than is read
    found = await cache.get_pointer(POINTER_KEY)
    assert found is not None
    assert found.validator.etag == '"new"'
    assert cache.errors == 0
    await cache.close()


# -- what the server is set to --------------------------------------------------------------------


FORBIDDEN = [
    ("EVAL", "return 1", "0"),
    ("EVALSHA", "0" * 40, "0"),
    ("FUNCTION", "LIST"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("CONFIG", "GET", "*"),
    ("ACL", "LIST"),
    ("SHUTDOWN",),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("MODULE", "LIST"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("INFO",),
    ("SUBSCRIBE", "x"),
    ("APPEND", "asyncpq:x", "y"),
    ("SETRANGE", "asyncpq:x", "1000000", "y"),
    ("RENAME", "asyncpq:x", "asyncpq:y"),
    ("GETRANGE", "other:x", "0", "1"),
    ("SET", "other:x", "y"),
    ("DEL", "other:x"),
]


def test_the_users_rights(server: ValkeyServer) -> None:
    with valkey.Valkey(
        host="127.0.0.1", port=server.port, username="asyncpq", password=PASSWORD, socket_timeout=PATIENT_S
    ) as client:
        for command in FORBIDDEN:
            with pytest.raises(valkey.exceptions.NoPermissionError):
                client.execute_command(*command)
        assert client.execute_command("SET", "asyncpq:x", "y", "PX", "1000")
    with (
        valkey.Valkey(host="127.0.0.1", port=server.port, socket_timeout=PATIENT_S) as anyone,
        pytest.raises(valkey.exceptions.ValkeyError, match=r"[Aa]uthentication"),
    ):
        anyone.get("asyncpq:x")


def test_the_configuration(server: ValkeyServer) -> None:
    told = server.admin.config_get("*")
    assert told["maxmemory-policy"] == "allkeys-lfu"
    assert told["maxmemory"] == str(1 << 30)
    assert told["save"] == ""
    assert told["appendonly"] == "no"


def test_users_acl_does_not_start_a_server_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.hashlib.sha256", lambda data: _NotFilledIn())
    server = ValkeyServer(tmp_path)
    with pytest.raises(AssertionError, match=r"users\.acl|ACL"), server:
        pass
    server.admin.close()


class _NotFilledIn:
    def hexdigest(self) -> str:
        return "PASSWORD_SHA256"


async def test_a_full_server_drops_what_is_used_least(tmp_path: Path, options: SharedCacheOptions) -> None:
    with ValkeyServer(tmp_path, "--maxmemory", "6mb", "--maxmemory-clients", "0") as small:
        cache = SharedCache(replace(options, url=small.url))
        entries = {KEY._replace(start=start): bytes([start % 256]) * 50_000 for start in range(400)}
        for key, value in entries.items():
            await cache.put_many({key: value})
        found = await cache.get_many(list(entries))
        assert 0 < sum(value is not None for value in found) < 200
        assert all(got in (None, value) for got, value in zip(found, entries.values(), strict=True))
        assert cache.errors == 0
        await cache.close()


async def test_a_refused_write_is_counted_and_reading_goes_on(
    server: ValkeyServer, options: SharedCacheOptions
) -> None:
    cache = SharedCache(options)
    await cache.put_many({KEY: b"value"})
    server.admin.execute_command("ACL", "SETUSER", "asyncpq", "-set", "-del")
    try:
        await cache.put_many({OTHER: b"other"})
        await cache.drop_pointer(POINTER_KEY)
        assert cache.errors == 2
        assert await cache.get_many([KEY, OTHER]) == [b"value", None]
        assert cache.skipped == 0
    finally:
        server.admin.execute_command("ACL", "SETUSER", "asyncpq", "+set", "+del")
    await cache.close()


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "valkey://user:hunter2#x@host:1/",
        "valkey://user:hun/ter2@host:1/",
        "valkey://:hunter2@host:port",
        "valkey://:hunter2@host?db=hunter2",
        "valkey://:hunter2@host?protocol=3",
        "valkey://:hunter2@host?socket_timeout=3",
        "valkeys://:hunter2@host?ssl_cert_reqs=hunter2",
    ],
)
def test_a_url_that_cannot_be_used_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        SharedCache(SharedCacheOptions(url=url))
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # no traceback shows what it was


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://hunter2@host"},
        {"url": 3},
        {"secret": ""},
        {"secret": b""},
        {"secret": 7},
        {"prefix": b"x"},
        {"ttl_s": 0},
        {"timeout_s": 0},
        {"retry_after_s": -1},
        {"min_throughput_bytes_s": 0},
        {"connect_timeout_s": 0},
        {"max_connections": 0},
        {"max_entry_bytes": 0},
        {"max_read_bytes": -1},
    ],
)
def test_options_that_cannot_work(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(wrong))) as caught:
        SharedCacheOptions(**{"url": "valkey://host", **wrong})  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


async def test_no_secret_is_shown(
    server: ValkeyServer, options: SharedCacheOptions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = replace(options, url=server.url.replace("asyncpq:", "asyncpq:hunter2"), secret="open sesame")
    cache = SharedCache(wrong)
    assert await cache.get_many([KEY]) == [None]
    assert (cache.errors, cache.skipped) == (1, 0)
    assert await cache.get_pointer(POINTER_KEY) is None
    assert (cache.errors, cache.skipped) == (1, 1)  # left alone for a while
    await cache.put_many({KEY: b"value"})
    await cache.close()
    assert f"the shared cache at 127.0.0.1:{server.port} failed" in caplog.text
    for text in (repr(wrong), str(wrong), repr(cache), repr(vars(cache)), caplog.text):
        for shown in ("hunter2", PASSWORD, PASSWORD_QUOTED, "sesame"):
            assert shown not in text
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(wrong)
    with pytest.raises(TypeError, match="pickled"):
        copy.deepcopy(wrong)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(backoff: Backoff) -> Attempt:
    attempt = backoff.begin()
    assert attempt is not None
    return attempt


def test_pauses_grow_and_end() -> None:
    clock = Clock()
    backoff = Backoff(failures=2, first_s=1.0, longest_s=5.0, clock=clock)
    assert not begun(backoff).failed()
    for number, pause in enumerate((1.0, 2.0, 4.0, 5.0, 5.0)):
        assert begun(backoff).failed() == (number == 0), "told once"
        clock.now += pause - 0.01
        assert backoff.begin() is None
        clock.now += 0.02
    assert begun(backoff).succeeded(), "told once"
    assert not begun(backoff).succeeded()
    assert not begun(backoff).failed()
    assert begun(backoff).failed(), "two in a row, again"


def test_one_call_goes_first() -> None:
    clock = Clock()
    backoff = Backoff(failures=1, first_s=1.0, clock=clock)
    begun(backoff).failed()
    clock.now += 1.0
    first = begun(backoff)
    assert backoff.begin() is None, "while it is under way"
    first.withdrawn()
    second = begun(backoff)
    assert backoff.begin() is None
    first.succeeded()
    assert backoff.begin() is None, "what was withdrawn says nothing any more"
    second.succeeded()
    third, fourth = begun(backoff), begun(backoff)
    assert third.failed()
    assert not fourth.failed()


@pytest.mark.heavy
def test_what_began_before_the_pause_does_not_lengthen_it() -> None:
    clock = Clock()
    backoff = Backoff(failures=2, first_s=1.0, clock=clock)
    attempts = [begun(backoff) for _ in range(20)]
    assert [attempt.failed() for attempt in attempts] == [False, True] + [False] * 18
    clock.now += 1.0
    assert backoff.begin() is not None
