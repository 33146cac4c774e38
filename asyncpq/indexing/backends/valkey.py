"""The backend for indexes in the memory of a Valkey or Redis server.

A segment is one hash: chunks of rows, and a directory with the key range of each chunk. The manifest has the digest
of the directory, the directory has those of the chunks, so a missing or changed value is always noticed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from cachetools import LRUCache

from asyncpq.errors import (
    CorruptIndexError,
    DeadlineExceededError,
    InvalidOptionError,
    StoreError,
    TransportError,
    UsageError,
    install_hint,
)
from asyncpq.events import Operation
from asyncpq.indexing.backends.folder import decode_latest, encode_latest
from asyncpq.indexing.backends.sorted_rows import (
    KeyGroups,
    OrderCheck,
    RowCutter,
    SortedRows,
    check_num_rows,
    counted_request,
    digest_of,
    segment_corrupt,
    segment_gone,
)
from asyncpq.indexing.index_model import EVERY_ROW, IndexBackend, IndexTable, Segment, SegmentQuery, Stored
from asyncpq.metrics import Purpose

if TYPE_CHECKING:
    from asyncpq.caching.valkey_connections import Reply, ValkeyConnections

Command = tuple[bytes | int, ...]

_CHUNK_BYTES = 32 * 1024  # of rows before compression; about a third of that in the server
_WHOLE_BYTES = 1 << 20  # smaller segments are fetched whole and kept in memory
_WINDOW = 64  # chunks in one exchange
_MAX_REPLY_BYTES = 512 << 20  # the server's limit for one value
_MAX_ELEMENTS = 1 << 22  # of a listing
_CONNECTIONS = 8
_CONNECT_S = 10.0
_ATTEMPTS = 3
_MEMORY_BYTES = 64 << 20  # of directories and small segments in memory
#: Names of the server's hashes that have the time of each segment, manifest and build, by its name.
_TIMES: Final[Mapping[Stored, bytes]] = {"segments": b"segments", "manifests": b"committed", "builds": b"builds"}
_GONE_HINT = "Open the index again. Check that the server does not evict keys or lose its data at a restart."
_corrupt = partial(segment_corrupt, hint=f"{CorruptIndexError.default_hint} Check that the server does not evict keys.")
_DIRECTORY: Final = b"directory"
_DIRECTORY_SCHEMA: Final = pa.schema(
    [
        pa.field("low", pa.binary(), nullable=False),
        pa.field("high", pa.binary(), nullable=False),
        pa.field("num_rows", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("raw_bytes", pa.int64(), nullable=False),
    ]
)


class _Directory(NamedTuple):
    """What a segment's directory says about its chunks: their key ranges, digests and decompressed sizes."""

    groups: KeyGroups
    digests: Sequence[str]
    raw_bytes: Sequence[int]


class ValkeyBackend(IndexBackend):
    """An index in a Valkey or Redis server. Belongs to one event loop. ``at`` of :meth:`asyncpq.Session.build_index`
    takes one.

    Its methods are those of :class:`asyncpq.indexing.IndexBackend`.

    The server must not evict keys (``maxmemory-policy noeviction``); the first request checks this, if the server
    lets its users read the policy. Keys have no expiry.

    Args:
        url: valkey://, valkeys:// (TLS), redis://, rediss:// (TLS) or unix://, with user and password. Never shown.
        prefix: prefix of all keys of the index in the server; must differ from the prefix of a shared cache.
        timeout_s: timeout of one exchange with the server, in seconds.

    Raises:
        InvalidOptionError: the url or the prefix cannot be used, or valkey-py is not installed.
    """

    def __init__(self, url: str, prefix: str = "asyncpq-index:", *, timeout_s: float = 30.0) -> None:
        if not prefix or prefix == "asyncpq:":
            raise InvalidOptionError(
                f"prefix={prefix!r}: must not be empty or the prefix of a shared cache",
                option="prefix",
                hint="Choose another prefix.",
            )
        if not timeout_s > 0:
            raise InvalidOptionError(f"timeout_s={timeout_s!r}: must be a positive number", option="timeout_s")
        try:
            from asyncpq.caching.valkey_connections import ValkeyConnections
        except ImportError as error:
            raise InvalidOptionError(
                "an index in Valkey needs the package valkey, which is not installed",
                hint=install_hint("valkey", "valkey"),
            ) from error
        self._connections: ValkeyConnections = ValkeyConnections(
            url,
            max_connections=_CONNECTIONS,
            connect_timeout_s=_CONNECT_S,
            max_reply_bytes=_MAX_REPLY_BYTES,
            max_elements=_MAX_ELEMENTS,
        )
        self._prefix = prefix.encode()
        self._timeout_s = timeout_s
        self._description = f"valkey://{self._connections.place} {prefix}"
        self._kept: LRUCache[str, Any] = LRUCache(_MEMORY_BYTES, getsizeof=lambda item: item[0])
        self._owner: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._is_checked = False

    @property
    def description(self) -> str:
        return self._description

    def __repr__(self) -> str:
        return f"ValkeyBackend({self.description!r})"

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        order, cutter = OrderCheck(index_table, self.description), RowCutter(_CHUNK_BYTES)
        writer = _Chunks(partial(self._ask, operation), self._key(b"segment", name.encode()))
        now = await self._clock(operation)
        # recorded before its first chunk, so that a vacuum finds it if the write breaks off
        await self._ask(operation, [(b"HSET", self._key(b"segments"), name.encode(), now)], "HSET", "write")
        try:
            async for batch in rows:
                for table in cutter.add(order.take(batch)):
                    await writer.add(table)
            for table in cutter.rest():
                await writer.add(table)
            digest = await writer.finish()
        except BaseException:
            await self.delete("segments", [name], operation=operation)
            raise
        return writer.size, {"directory": digest}

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        if segment.size <= _WHOLE_BYTES:
            rows = await self._whole(operation, segment)
        else:
            directory = await self._directory(operation, segment)
            ordinals = directory.groups.touched(query)
            if ordinals is None:
                return None
            rows = SortedRows(await self._chunks(operation, segment, directory, ordinals))
        return rows.select(query)

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        directory = await self._directory(operation, segment)
        for start in range(0, len(directory.groups), _WINDOW):
            stop = min(start + _WINDOW, len(directory.groups))
            for batch in (await self._chunks(operation, segment, directory, range(start, stop))).to_batches():
                yield batch

    async def _whole(self, operation: Operation | None, segment: Segment) -> SortedRows:
        kept: tuple[int, SortedRows] | None = self._kept.get(f"rows {segment.name}")
        if kept is not None:
            return kept[1]
        directory = await self._directory(operation, segment)
        rows = SortedRows(
            (await self._chunks(operation, segment, directory, range(len(directory.groups)))).combine_chunks()
        )
        self._keep(f"rows {segment.name}", rows, rows.weight)
        return rows

    async def _directory(self, operation: Operation | None, segment: Segment) -> _Directory:
        kept: tuple[int, _Directory] | None = self._kept.get(f"directory {segment.name}")
        if kept is not None:
            return kept[1]
        key = self._key(b"segment", segment.name.encode())
        (data,) = await self._ask(operation, [(b"HGET", key, _DIRECTORY)], "HGET")
        if data is None:
            raise segment_gone(segment, self.description, _GONE_HINT)
        if not isinstance(data, bytes) or digest_of(data) != segment.extra.get("directory"):
            raise _corrupt(segment, self.description, "the content of its directory differs from what was written")
        try:
            table = pa.ipc.open_stream(data).read_all().cast(_DIRECTORY_SCHEMA)
            table.validate(full=True)
            num_rows, digests, raw_bytes = (table.column(name).to_pylist() for name in _DIRECTORY_SCHEMA.names[2:])
            bounds = table.column("low").to_pylist(), table.column("high").to_pylist()
        except (pa.ArrowException, ValueError, KeyError, EOFError) as error:
            raise _corrupt(segment, self.description, f"its directory cannot be decoded: {error}") from error
        if not all(0 <= number <= _MAX_REPLY_BYTES for number in (*num_rows, *raw_bytes)):
            raise _corrupt(segment, self.description, "a chunk in its directory has an impossible size")
        check_num_rows(segment, sum(num_rows), self.description)
        directory = _Directory(KeyGroups(num_rows, {"key": bounds}), digests, raw_bytes)
        self._keep(f"directory {segment.name}", directory, directory.groups.weight + 100 * len(num_rows))
        return directory

    async def _chunks(
        self, operation: Operation | None, segment: Segment, directory: _Directory, ordinals: Sequence[int]
    ) -> pa.Table:
        key, schema = self._key(b"segment", segment.name.encode()), segment.table.schema
        batches: list[pa.RecordBatch] = []
        for start in range(0, len(ordinals), _WINDOW):
            window = ordinals[start : start + _WINDOW]
            replies = await self._ask(operation, [(b"HGET", key, b"%d" % ordinal) for ordinal in window], "HGET")
            for ordinal, data in zip(window, replies, strict=True):
                if data is None:
                    (there,) = await self._ask(operation, [(b"HEXISTS", key, _DIRECTORY)], "HEXISTS")
                    raise (
                        segment_gone(segment, self.description, _GONE_HINT)
                        if there == 0
                        else _corrupt(segment, self.description, f"chunk {ordinal} is missing")
                    )
                if not isinstance(data, bytes) or digest_of(data) != directory.digests[ordinal]:
                    raise _corrupt(
                        segment, self.description, f"the content of chunk {ordinal} differs from what was written"
                    )
                batches.append(_decoded(segment, self.description, data, directory, ordinal))
        return pa.Table.from_batches(batches, schema=schema)

    def _keep(self, name: str, value: object, weight: int) -> None:
        if weight <= _MEMORY_BYTES:
            self._kept[name] = (weight, value)

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        (data,) = await self._ask(operation, [(b"GET", self._key(b"latest"))], "GET")
        return decode_latest(data, self.description) if isinstance(data, bytes) else None

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        (data,) = await self._ask(operation, [(b"HGET", self._key(b"manifests"), b"%d" % number)], "HGET")
        return data if isinstance(data, bytes) else None

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        now, field = await self._clock(operation), b"%d" % number
        commands: list[Command] = [
            (b"HSETNX", self._key(b"manifests"), field, content),
            (b"HSETNX", self._key(b"committed"), field, now),
        ]
        made, _ = await self._ask(operation, commands, "HSETNX", "write")
        if made != 1:
            return False
        newest = await self.latest(operation=operation)
        if newest is None or newest[0] < number:
            await self._ask(operation, [(b"SET", self._key(b"latest"), encode_latest(number, content))], "SET", "write")
        return True

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        now = await self._clock(operation)
        await self._ask(operation, [(b"HSET", self._key(b"builds"), build.encode(), now)], "HSET", "write")

    async def ages(self, stored: Stored, *, operation: Operation | None = None) -> Mapping[str, float]:
        times = self._key(_TIMES[stored])
        pairs, time = await self._ask(operation, [(b"HGETALL", times), (b"TIME",)], "HGETALL", "list")
        now = self._microseconds(time)
        if not isinstance(pairs, list):
            raise self._unexpected()
        try:
            return {
                bytes(field).decode(): max(0.0, (now - int(since)) / 1e6)
                for field, since in zip(pairs[::2], pairs[1::2], strict=True)
            }
        except (TypeError, ValueError, OverflowError):
            raise self._unexpected() from None

    async def delete(self, stored: Stored, names: Sequence[str], *, operation: Operation | None = None) -> None:
        for start in range(0, len(names), _WINDOW):
            window = [name.encode() for name in names[start : start + _WINDOW]]
            commands: list[Command] = [(b"HDEL", self._key(_TIMES[stored]), *window)]
            if stored == "segments":
                commands.insert(0, (b"UNLINK", *[self._key(b"segment", name) for name in window]))
            elif stored == "manifests":
                commands.insert(0, (b"HDEL", self._key(b"manifests"), *window))
            await self._ask(operation, commands, "UNLINK" if stored == "segments" else "HDEL", "write")
            for name in names[start : start + _WINDOW]:
                self._kept.pop(f"rows {name}", None)
                self._kept.pop(f"directory {name}", None)

    async def drop(self, *, operation: Operation | None = None) -> None:
        await self._ask(operation, [(b"DEL", self._key(b"latest"), self._key(b"manifests"))], "DEL", "write")
        await self.delete("segments", list(await self.ages("segments", operation=operation)), operation=operation)
        rest = [self._key(name) for name in _TIMES.values()]
        await self._ask(operation, [(b"DEL", *rest)], "DEL", "write")

    async def close(self) -> None:
        """Close the connections."""
        if self._owner is None or self._owner == (asyncio.get_running_loop(), os.getpid()):
            await self._connections.close()

    def _key(self, *names: bytes) -> bytes:
        return self._prefix + b":".join(names)

    async def _clock(self, operation: Operation | None) -> int:
        """Return the server's time in microseconds."""
        (reply,) = await self._ask(operation, [(b"TIME",)], "TIME", "write")
        return self._microseconds(reply)

    def _microseconds(self, reply: Reply) -> int:
        try:
            seconds, microseconds = map(int, reply)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise self._unexpected() from None
        return seconds * 1_000_000 + microseconds

    def _unexpected(self) -> StoreError:
        return StoreError(
            "the server's reply has the wrong type for the command",
            url=self.description,
            hint="Check that the url is that of a Valkey or Redis server.",
        )

    async def _ask(
        self, operation: Operation | None, commands: Sequence[Command], method: str, purpose: Purpose = "table"
    ) -> list[Reply]:
        """Send commands in one round trip, and return their replies in order. Raises StoreError if the server cannot
        be reached, or refuses a command."""
        if not self._is_checked:
            await self._check_server(operation)
        replies = await self._exchange(operation, commands, method, purpose)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                shown = command[0].decode() if isinstance(command[0], bytes) else ""
                raise StoreError(
                    f"the server refused {shown}: {reply}",
                    url=self.description,
                    hint="Check the server's free memory, and the user's permissions for keys of this prefix.",
                )
        return replies

    async def _check_server(self, operation: Operation | None) -> None:
        """Raise InvalidOptionError if the server may lose the index: it evicts keys, or the index's keys expire."""
        commands: list[Command] = [
            (b"CONFIG", b"GET", b"maxmemory-policy"),
            (b"INFO", b"memory"),
            (b"PTTL", self._key(b"manifests")),
        ]
        policy, info, expires = await self._exchange(operation, commands, "CONFIG", "table")
        rule = b""
        if isinstance(policy, list) and len(policy) == 2:
            rule = policy[1]
        elif isinstance(info, bytes):
            rule = next((line[17:] for line in info.split(b"\r\n") if line.startswith(b"maxmemory_policy:")), b"")
        # If the server tells neither, missing keys are noticed when they are read
        if rule not in (b"", b"noeviction"):
            raise InvalidOptionError(
                f"the server's maxmemory-policy is {rule.decode('utf-8', 'replace')!r}: it may drop parts of an index",
                hint="Set maxmemory-policy to noeviction, or use another server than the cache's.",
            )
        if isinstance(expires, int) and expires >= 0:
            raise InvalidOptionError(
                "the index's keys expire in this server",
                hint="Remove their expiry with the command PERSIST, or use another server.",
            )
        self._is_checked = True

    async def _exchange(
        self, operation: Operation | None, commands: Sequence[Command], method: str, purpose: Purpose
    ) -> list[Reply]:
        owner = (asyncio.get_running_loop(), os.getpid())
        if self._owner is None:
            self._owner = owner
        if self._owner != owner:
            raise UsageError(
                "a ValkeyBackend belongs to the event loop and process that used it first",
                hint="Create one ValkeyBackend for each event loop.",
            )
        attempt = 1
        while True:
            try:
                with counted_request(operation, method, purpose) as sent:
                    async with asyncio.timeout(self._timeout_s), self._connections.lend() as wire:
                        await wire.send(commands)
                        replies = [await wire.reply() for _ in commands]
                    sent.bytes = sum([len(reply) for reply in replies if isinstance(reply, bytes)])
                return replies
            except TimeoutError as error:
                raise DeadlineExceededError(
                    f"the server did not answer within {self._timeout_s} s",
                    url=self.description,
                    hint="Raise timeout_s of the ValkeyBackend if the server is slow.",
                ) from error
            except OSError as error:
                if attempt == _ATTEMPTS:
                    raise TransportError(
                        f"the server cannot be reached ({str(error) or type(error).__name__})",
                        url=self.description,
                        hint="Check that the server runs at this address, and that user and password are right.",
                    ) from error
                attempt += 1


def _decoded(segment: Segment, place: str, data: bytes, directory: _Directory, ordinal: int) -> pa.RecordBatch:
    """Return the rows of a segment's chunk number ``ordinal``, which the server stores as ``data``."""
    try:
        raw = pa.decompress(data, directory.raw_bytes[ordinal], codec="zstd")
        batch = pa.ipc.read_record_batch(raw, segment.table.schema)
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _corrupt(segment, place, f"chunk {ordinal} cannot be decoded: {error}") from error
    if batch.num_rows != directory.groups.group_rows[ordinal]:
        raise _corrupt(segment, place, f"chunk {ordinal} has {batch.num_rows} rows")
    return batch


class _Chunks:
    """Writes a segment's rows as chunks (compressed runs of rows) to the server, several in one exchange."""

    def __init__(self, ask: Callable[[Sequence[Command], str, Purpose], Awaitable[list[Reply]]], key: bytes) -> None:
        self._ask = ask
        self._key = key
        self._waiting: list[Command] = []
        self._directory: list[dict[str, Any]] = []
        self.size = 0

    async def add(self, table: pa.Table) -> None:
        (batch,) = table.combine_chunks().to_batches()
        raw = batch.serialize()
        data: bytes = pa.compress(raw, codec="zstd", asbytes=True)
        keys = batch.column(0)
        self._waiting.append((b"HSET", self._key, b"%d" % len(self._directory), data))
        self._directory.append(
            {
                "low": keys[0].as_py(),
                "high": keys[-1].as_py(),
                "num_rows": batch.num_rows,
                "digest": digest_of(data),
                "raw_bytes": raw.size,
            }
        )
        self.size += len(data)
        if len(self._waiting) >= _WINDOW:
            await self._flush()

    async def finish(self) -> str:
        """Write the chunks that are left, then the directory, and return the directory's digest."""
        await self._flush()
        table = pa.Table.from_pylist(self._directory, schema=_DIRECTORY_SCHEMA)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, _DIRECTORY_SCHEMA, options=options) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        self.size += len(data)
        await self._ask([(b"HSET", self._key, _DIRECTORY, data)], "HSET", "write")
        return digest_of(data)

    async def _flush(self) -> None:
        if self._waiting:
            await self._ask(self._waiting, "HSET", "write")
            self._waiting = []
