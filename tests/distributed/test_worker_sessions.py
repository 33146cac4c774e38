"""Sessions of worker processes: they outlive tasks, read batch by batch, and come with the credentials of the day."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.errors import CredentialsError, InvalidOptionError, ObjectNotFoundError, TransportError, UsageError
from asyncpq.options import MIB
from asyncpq.spark.settings import DEFAULT_MEMORY_BYTES, SparkSettings

_SETTINGS = SparkSettings(disk_cache="off")


@pytest.fixture(autouse=True)
def no_others() -> Iterator[None]:
    sessions.close_workers()
    yield
    sessions.close_workers()
    assert not [thread for thread in threading.enumerate() if thread.name == "asyncpq-blocking"]


async def _itself(session: asyncpq.Session) -> asyncpq.Session:
    return session


def _cached(number: int) -> SparkSettings:
    return SparkSettings(disk_cache="off", memory_cache_bytes=number * MIB)


def test_a_process_has_one_session_for_all_that_need_the_same() -> None:
    first = sessions.run_on_worker(_SETTINGS, _itself)
    others: list[dict[str, Any]] = [
        {},
        {"split_bytes": MIB},
        {"most_splits": 7},
        {"work_folder": "s3://bucket/plans/"},
        {"storage_options": " {} "},
    ]
    for other in others:
        assert sessions.run_on_worker(SparkSettings(disk_cache="off", **other), _itself) is first
    for number in range(1, 9):
        assert sessions.run_on_worker(_cached(number), _itself) is not first
    again = sessions.run_on_worker(_SETTINGS, _itself)
    assert again is not first  # too many others came between
    with pytest.raises(UsageError, match="closed"):
        first._runtime.check()
    same = [{"s3": {"anon": True, "use_ssl": True}}, {"s3": {"use_ssl": True, "anon": True}}]
    made = [sessions.run_on_worker(SparkSettings(storage_options=json.dumps(options)), _itself) for options in same]
    assert made[0] is made[1]


def test_a_session_that_fails_to_close_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends, too, as no_others sees."""
    first, close = sessions.run_on_worker(_SETTINGS, _itself), asyncpq.Session.close

    async def failing(session: asyncpq.Session) -> None:
        await close(session)
        if session is first:
            raise TransportError("the last answer was lost")

    monkeypatch.setattr(asyncpq.Session, "close", failing)
    for number in range(1, 9):
        sessions.run_on_worker(_cached(number), _itself)
    assert sessions.run_on_worker(_SETTINGS, _itself) is not first


def test_a_session_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(settings: SparkSettings, storage: object) -> None:
        raise InvalidOptionError("no folder")

    monkeypatch.setattr(SparkSettings, "session", failing)
    with pytest.raises(InvalidOptionError, match="no folder"):
        sessions.run_on_worker(_SETTINGS, _itself)


def test_whoever_waits_for_a_provider_waits_alone() -> None:
    slow = SparkSettings(disk_cache="off", credentials_provider=f"{__name__}:waiting")
    _waits.clear()
    _calls.clear()
    with ThreadPoolExecutor(3) as pool:
        both = [pool.submit(sessions.run_on_worker, slow, _itself) for _ in range(2)]
        try:
            while not _calls:
                time.sleep(0.001)
            pool.submit(sessions.run_on_worker, _SETTINGS, _itself).result(20)
        finally:
            _waits.set()
        assert both[0].result(20) is both[1].result(20)
    assert len(_calls) == 1


def test_who_waited_for_a_session_in_vain_makes_it() -> None:
    slow = SparkSettings(disk_cache="off", credentials_provider=f"{__name__}:failing_first")
    _waits.clear()
    _calls.clear()
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(sessions.run_on_worker, slow, _itself) for _ in range(2)]
        while not _calls:
            time.sleep(0.001)
        _waits.set()
        assert sorted(str(one.exception(20)) for one in both)[1].split(". ")[0].endswith("failed: OSError")
    assert len(_calls) == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_makes_its_own() -> None:
    first = sessions.run_on_worker(_SETTINGS, _itself)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os._exit(0 if sessions.run_on_worker(_SETTINGS, _itself) is not first else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert sessions.run_on_worker(_SETTINGS, _itself) is first


def test_what_it_may_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sessions.run_on_worker(_SETTINGS, _itself).memory_cache.max_bytes == DEFAULT_MEMORY_BYTES
    monkeypatch.setenv("PYSPARK_EXECUTOR_MEMORY_MB", "1000")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/b")
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "65536")
    assert sessions.run_on_worker(SparkSettings(), _itself).memory_cache.max_bytes == 250 * MIB
    assert (tmp_path / "a" / "asyncpq-cache").is_dir()
    host = SparkSettings(disk_cache="host", disk_cache_folder=f"{tmp_path}/host", memory_cache_bytes=3 * MIB)
    assert sessions.run_on_worker(host, _itself).memory_cache.max_bytes == 3 * MIB
    assert (tmp_path / "host").is_dir()


class _Scan:
    """Batches 0, 1, 2, ... until it is left."""

    def __init__(self, fail_at: int = 1 << 30, error: Exception | None = None) -> None:
        self.given = 0
        self.left = 0
        self._fail_at = fail_at
        self._error = error

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
        try:
            yield self._batches()
        finally:
            self.left += 1

    async def _batches(self) -> AsyncIterator[pa.RecordBatch]:
        while True:
            if self.given == self._fail_at and self._error is not None:
                raise self._error
            self.given += 1
            yield pa.record_batch({"n": [self.given - 1]})


def test_batches_come_as_they_are_asked_for() -> None:
    scan = _Scan()

    async def make(session: asyncpq.Session) -> Any:
        return scan()

    batches = sessions.batches_on_worker(_SETTINGS, make)
    assert [next(batches)["n"].to_pylist() for _ in range(3)] == [[0], [1], [2]]
    assert scan.given == 3
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert scan.left == 1


def test_a_read_that_fails_is_left(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")

    async def make(session: asyncpq.Session) -> Any:
        file = await session.open_file(str(tmp_path / "a.parquet"))
        return file.scan()

    assert pa.Table.from_batches(sessions.batches_on_worker(_SETTINGS, make)).to_pydict() == {"a": [1, 2]}
    (tmp_path / "a.parquet").unlink()
    sessions.close_workers()
    with pytest.raises(ObjectNotFoundError):
        list(sessions.batches_on_worker(_SETTINGS, make))
    scan = _Scan(2, RuntimeError("broken"))

    async def broken(session: asyncpq.Session) -> Any:
        return scan()

    with pytest.raises(RuntimeError, match="broken"):
        list(sessions.batches_on_worker(_SETTINGS, broken))
    assert scan.left == 1


_keys = iter(range(1000))


def fresh() -> dict[str, Any]:
    return {"s3": {"key": f"key {next(_keys)}", "secret": "s"}}


def same() -> dict[str, Any]:
    return {"s3": {"key": "key", "secret": "s"}}


_waits = threading.Event()
_calls: list[int] = []


def waiting() -> dict[str, Any]:
    _calls.append(1)
    _waits.wait(20)
    return same()


def failing_first() -> dict[str, Any]:
    if len(_calls) == 0:
        waiting()
        raise OSError("no answer, SECRET")
    return waiting()


def failing_later() -> dict[str, Any]:
    _calls.append(1)
    if len(_calls) % 2 == 0:
        raise OSError("no answer, SECRET")
    return same()


def test_expired_credentials_are_asked_for_again() -> None:
    settings = SparkSettings(disk_cache="off", credentials_provider=f"{__name__}:fresh")
    seen: list[asyncpq.Session] = []

    async def refused_once(session: asyncpq.Session) -> int:
        seen.append(session)
        if len(seen) == 1:
            raise CredentialsError("the token has expired", url="s3://bucket/a")
        return len(seen)

    assert sessions.run_on_worker(settings, refused_once) == 2
    assert seen[0] is not seen[1]
    with pytest.raises(UsageError, match="closed"):
        seen[0]._runtime.check()


@pytest.mark.parametrize("provider", [None, f"{__name__}:same"])
def test_credentials_that_stay_refused_end_it(provider: str | None) -> None:
    settings = SparkSettings(disk_cache="off", credentials_provider=provider)
    calls = []

    async def refused(session: asyncpq.Session) -> None:
        calls.append(session)
        raise CredentialsError("the token has expired", url="s3://bucket/a")

    for number in (1, 2):
        with pytest.raises(CredentialsError, match=r"s3://bucket/a.*(The provider|Set credentials_provider)"):
            sessions.run_on_worker(settings, refused)
        assert len(calls) == number
    assert calls[0] is not calls[1]  # whoever comes next resolves them anew


def _refusing(seen: list[asyncpq.Session]) -> Callable[[asyncpq.Session], Coroutine[Any, Any, None]]:
    async def refused(session: asyncpq.Session) -> None:
        seen.append(session)
        raise CredentialsError("the token has expired", url="s3://bucket/a")

    return refused


def test_a_second_refusal_is_told_like_the_first() -> None:
    settings = SparkSettings(disk_cache="off", credentials_provider=f"{__name__}:fresh")
    seen: list[asyncpq.Session] = []
    refused = _refusing(seen)

    for number in (2, 4):
        with pytest.raises(CredentialsError, match=r"The provider .* gave"):
            sessions.run_on_worker(settings, refused)
        assert len(seen) == number
    assert len(set(map(id, seen))) == 4
    for session in seen:
        with pytest.raises(UsageError, match="closed"):
            session._runtime.check()


def test_what_cannot_be_repeated_ends_but_others_get_new_credentials() -> None:
    settings = SparkSettings(disk_cache="off", credentials_provider=f"{__name__}:fresh")
    seen: list[asyncpq.Session] = []
    refused = _refusing(seen)

    with pytest.raises(CredentialsError, match=r"The provider .* gave"):
        sessions.run_on_worker(settings, refused, repeatable=lambda: False)
    assert sessions.run_on_worker(settings, _itself) is not seen[0]
    assert len(seen) == 1


def test_a_provider_that_fails_hides_nothing() -> None:
    settings = SparkSettings(disk_cache="off", credentials_provider=f"{__name__}:failing_later")
    _calls.clear()

    async def refused(session: asyncpq.Session) -> asyncpq.Session:
        if len(_calls) == 1:
            raise CredentialsError("the token has expired", url="s3://bucket/a")
        return session

    with pytest.raises(CredentialsError, match=r"token has expired.*The provider.*failed: OSError") as caught:
        sessions.run_on_worker(settings, refused)
    assert "SECRET" not in str(caught.value)
    sessions.run_on_worker(settings, refused)  # with a session of its own
    assert len(_calls) == 3


@pytest.mark.parametrize(("fail_at", "given"), [(0, 2), (1, None)])
def test_a_read_begins_again_only_before_its_first_batch(fail_at: int, given: int | None) -> None:
    settings = SparkSettings(disk_cache="off", credentials_provider=f"{__name__}:fresh")
    expired = CredentialsError("the token has expired", url="s3://bucket/a")
    scans = [_Scan(fail_at, expired), _Scan()]
    made = iter(scans)

    async def make(session: asyncpq.Session) -> Any:
        return next(made)()

    batches = sessions.batches_on_worker(settings, make)
    if given is None:
        next(batches)
        with pytest.raises(CredentialsError):
            next(batches)
        assert [scan.left for scan in scans] == [1, 0]
    else:
        assert [next(batches)["n"].to_pylist() for _ in range(given)] == [[0], [1]]
        batches.close()  # type: ignore[attr-defined]  # it is a generator
        assert [scan.left for scan in scans] == [1, 1]
