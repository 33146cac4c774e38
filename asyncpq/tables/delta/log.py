"""The log of a Delta table: its listing, its actions, and the state that they add up to.

Commits are JSON lines; checkpoints are mostly Parquet. The folder is listed, so ``_last_checkpoint`` is not needed.
Log compaction files and checksum files are optional and not read. PROTOCOL.md, "Delta Log Entries", "Checkpoints",
"Checkpoint Schema", "V2 Checkpoint Table Feature", "Actions" and "Action Reconciliation".
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from asyncpq.datasets.model import CatalogReader, known_count
from asyncpq.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidOptionError,
    NotParquetError,
    ResourceLimitError,
    limit_hint,
    shown,
)
from asyncpq.records import dataclass
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.tables.delta.files import DeltaRoot, VectorDescriptor
from asyncpq.tables.delta.schema import check_protocol

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(
    r"([0-9]{20})\.checkpoint\.(?:([0-9]{10})\.([0-9]{10})\.parquet|parquet|([0-9a-fA-F-]+)\.(?:json|parquet))"
)

_DECODER = json.JSONDecoder()
_NO_SPACE = re.compile(r"\S")
_CONCURRENT_COMMITS = 32
_CONCURRENT_PARTS = 4  # all of them are in memory
_CHARACTERS_SHOWN = 200  # of an error's text, which may quote an action of any length
ACTIONS_PER_TURN = 256  # actions decoded before other tasks have a turn
#: The columns of a checkpoint that matter to readers: no tombstones, nothing that only writers need.
_COLUMNS = (
    "protocol",
    "metaData",
    "sidecar",
    "add.path",
    "add.partitionValues",
    "add.size",
    "add.stats",
    "add.deletionVector",
)


class LogSegment(NamedTuple):
    """The files of the log that make up one version, as names in the log's folder.

    Attributes:
        checkpoint: parts of the newest complete checkpoint at or before the version; () for none.
        commits: all commits after it, oldest first.
    """

    checkpoint: tuple[str, ...]
    commits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeltaListing:
    """The commits and checkpoints in the log's folder."""

    commits: frozenset[int]  # versions that have a commit
    checkpoints: Mapping[int, tuple[str, ...]]  # names of the parts of a complete checkpoint, by version
    url: str  # the log's url, for messages

    @classmethod
    def of(cls, names: Iterable[str], url: str) -> DeltaListing:
        """Make a listing from the names in the log's folder; names of other files are ignored."""
        commits: set[int] = set()
        whole: dict[int, str] = {}
        parts: dict[tuple[int, int], dict[int, str]] = {}
        for name in names:
            if match := _COMMIT.fullmatch(name):
                commits.add(int(match[1]))
            elif match := _CHECKPOINT.fullmatch(name):
                if match[3] is None:
                    whole[int(match[1])] = name  # the checkpoints of one version are equal
                else:
                    parts.setdefault((int(match[1]), int(match[3])), {})[int(match[2])] = name
        checkpoints: dict[int, tuple[str, ...]] = {version: (name,) for version, name in whole.items()}
        for (version, count), names_by_part in parts.items():
            numbers = sorted(names_by_part)
            if len(numbers) == count and numbers[0] == 1 and numbers[-1] == count:  # the count is only a name's claim
                checkpoints.setdefault(version, tuple(names_by_part[part] for part in numbers))
        return cls(frozenset(commits), checkpoints, url)

    def without(self, checkpoint: tuple[str, ...]) -> DeltaListing:
        """Return the listing as if the log lacked ``checkpoint``, the names of its parts."""
        others = {version: names for version, names in self.checkpoints.items() if names != checkpoint}
        return DeltaListing(self.commits, others, self.url)

    @property
    def latest(self) -> int:
        """The newest version. Raises CorruptFileError if the log is empty."""
        if not self.commits and not self.checkpoints:
            raise CorruptFileError("the Delta log has neither commits nor a complete checkpoint", url=self.url)
        return max((*self.commits, *self.checkpoints))

    def segment(self, version: int) -> LogSegment:
        """Return the checkpoint and the commits that make up ``version``.

        Raises InvalidOptionError if the version does not exist; CorruptFileError if commits of the version are missing.
        """
        if version > self.latest:
            raise InvalidOptionError(
                f"version {version} does not exist: the newest version of the table is {self.latest}", url=self.url
            )
        base = max((number for number in self.checkpoints if number <= version), default=-1)
        needed = range(base + 1, version + 1)
        # three at most: a name in the log's folder can make the range endless
        missing = list(itertools.islice((number for number in needed if number not in self.commits), 3))
        if missing:
            oldest = min((*self.commits, *self.checkpoints))
            if version < oldest:
                raise InvalidOptionError(
                    f"version={version} is no longer in the log, whose oldest version is {oldest}",
                    option="version",
                    url=self.url,
                    hint="Choose a version at or after the oldest checkpoint in the log.",
                )
            gap = ", ".join(map(str, missing))
            raise CorruptFileError(
                f"the Delta log is incomplete: version {version} needs commits that are missing: {gap}",
                url=self.url,
                hint="Choose a version at or after the oldest checkpoint in the log.",
            )
        return LogSegment(self.checkpoints.get(base, ()), tuple(map(_commit_name, needed)))


def _commit_name(version: int) -> str:
    return f"{version:020}.json"


#: The texts of partition values by physical column name, as pairs.
PartitionTexts: TypeAlias = tuple[tuple[str, str | None], ...]
#: An ``add`` action, a file of the table: its path, url-encoded, relative or absolute; its partition values; its bytes,
#: None where the action gives no valid size; its statistics, as JSON text or the struct that a checkpoint may have
#: instead; and its deletion vector. A plain tuple, see :class:`asyncpq.records.LazyRecords`.
AddAction: TypeAlias = tuple[str, PartitionTexts, int | None, str | pa.StructScalar | None, VectorDescriptor | None]


@dataclass(slots=True)
class DeltaState:
    """The state of a table after the actions of its log: protocol, metadata and current files."""

    protocol: dict[str, Any] | None = None  # the newest; so is ``metadata``
    metadata: dict[str, Any] | None = None
    # the live ``add`` actions by path, in the order in which the log first names the paths
    files: dict[str, AddAction] = field(default_factory=dict)
    _partitions: dict[PartitionTexts, PartitionTexts] = field(default_factory=dict)  # one object of equal ones

    def apply(self, action: Mapping[str, Any]) -> None:
        """Apply one JSON object of the log: an action, or several. Actions that only writers need change nothing.

        Raises TypeError, ValueError or KeyError if an action is malformed.
        """
        if (add := action.get("add")) is not None:
            added = _decode_add(add, self._partitions)
            self.files[added[0]] = added  # the newest action of a path counts
        elif (remove := action.get("remove")) is not None:
            live = self.files.get(_path(remove["path"]))
            vector = VectorDescriptor.from_action(remove.get("deletionVector"))
            if live is not None and _unique_id(live[-1]) == _unique_id(vector):
                del self.files[live[0]]
        if (metadata := action.get("metaData")) is not None:
            self.metadata = dict(metadata)
        if (protocol := action.get("protocol")) is not None:
            self.protocol = dict(protocol)


def _unique_id(vector: VectorDescriptor | None) -> str | None:
    return None if vector is None else vector.unique_id


def _decode_add(add: Mapping[str, Any], partitions: dict[PartitionTexts, PartitionTexts]) -> AddAction:
    values, size, stats = add["partitionValues"], add.get("size"), add.get("stats")
    if isinstance(values, list):  # pyarrow's form of a map
        values = dict(values)
    if values is not None and not isinstance(values, dict):
        raise TypeError(f"partitionValues must be an object, not {values!r}")
    texts = tuple([(name, _partition_text(value)) for name, value in (values or {}).items()])
    size = known_count(size)  # only an estimate, so a malformed one is ignored; so are statistics below
    if not isinstance(stats, (str, pa.StructScalar)):
        stats = None
    texts = partitions.setdefault(texts, texts)
    return _path(add["path"]), texts, size, stats, VectorDescriptor.from_action(add.get("deletionVector"))


def _partition_text(value: Any) -> str | None:
    """Return a partition value as text; some writers store a JSON number or boolean. None is null."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    raise TypeError(f"a partition value must be a string, number, boolean or null, not {value!r}")


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"path must be a non-empty string, not {value!r}")
    return value


class DeltaLog:
    """Reads the log of one Delta table: lists it, and replays its commits and checkpoints."""

    def __init__(self, root: DeltaRoot, reader: CatalogReader) -> None:
        self._root = root
        self._reader = reader

    async def listing(self) -> DeltaListing:
        """List the log's folder."""
        names = await self._reader.list_names(self._url(""))
        return await asyncio.to_thread(DeltaListing.of, names, f"{self._root.shown}/_delta_log")

    async def replay(self, segment: LogSegment) -> DeltaState:
        """Read the files of ``segment`` and return the state of the table at its version.

        The protocol is checked first: a log of an unknown protocol may not follow the rules that asyncpq implements.
        """
        state = DeltaState()
        commits = await self._contents(segment.commits)
        newest = await asyncio.to_thread(self._newest_protocol, commits)
        if newest is not None:
            check_protocol(newest, self._root.shown)
        sidecars = await self._replay_parts(segment.checkpoint, state, newest is None)
        if await self._replay_parts(sidecars, state, newest is None):
            raise CorruptFileError(
                "a sidecar file of the Delta log names other sidecars, which the protocol does not allow",
                url=self._root.shown,
            )
        for name, content in commits:
            for number, action in enumerate(self._actions(name, content)):
                self._apply(state, action, name)
                if number % ACTIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
        if state.protocol is not None:
            check_protocol(state.protocol, self._root.shown)
        return state

    def _newest_protocol(self, commits: Sequence[tuple[str, bytes]]) -> Any:
        for name, content in reversed(commits):
            if b'"protocol"' in content:
                actions = self._actions(name, content, b'"protocol"')
                protocols = [action["protocol"] for action in actions if action.get("protocol")]
                if protocols:
                    return protocols[-1]
        return None

    async def commit_times(self, versions: Sequence[int]) -> list[Any]:
        """Read when each version was committed: its ``inCommitTimestamp``, else its ``timestamp``, as its commit says;
        None where it does not."""
        names = await asyncio.to_thread(lambda: [_commit_name(version) for version in versions])
        contents = await self._contents(names)
        return await asyncio.to_thread(lambda: [self._time(name, content) for name, content in contents])

    def _time(self, name: str, content: bytes) -> Any:
        infos = (action["commitInfo"] for action in self._actions(name, content) if "commitInfo" in action)
        info = next((info for info in infos if isinstance(info, dict)), {})
        return info.get("inCommitTimestamp", info.get("timestamp"))

    def _url(self, name: str) -> str:
        return self._root.join(f"_delta_log/{name}")

    async def _contents(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Fetch the named commits; return pairs of name and bytes. A failed writer may leave a commit without bytes.

        Raises ResourceLimitError if they have more than ``max_decoded_bytes`` together. Those that are read at once are
        bounded by equal shares of it; a longer one is read again when no other is.
        """
        limit = self._reader.limits.max_decoded_bytes
        share = max(1, limit // _CONCURRENT_COMMITS)
        alone = asyncio.Lock()
        read = 0

        async def content(name: str) -> tuple[str, bytes]:
            nonlocal read
            try:
                try:
                    data = await self._reader.read_bytes(self._url(name), at_most=share)
                except ResourceLimitError:
                    async with alone:
                        data = await self._reader.read_bytes(self._url(name), at_most=max(share, limit - read))
                        read += len(data)
                else:
                    read += len(data)
            except NotParquetError:
                return name, b""
            except ResourceLimitError as error:
                raise self._too_long(limit) from error
            if read > limit:
                raise self._too_long(limit)
            return name, data

        return list(await call_each(content, names, at_once=_CONCURRENT_COMMITS))

    def _too_long(self, limit: int) -> ResourceLimitError:
        return ResourceLimitError(
            f"the commits of the Delta log that must be read have more than max_decoded_bytes={limit} bytes together",
            url=f"{self._root.shown}/_delta_log",
            hint="Let a writer make a checkpoint of the table. " + limit_hint("max_decoded_bytes"),
        )

    def _actions(self, name: str, content: bytes, part: bytes = b"") -> Iterator[dict[str, Any]]:
        """Decode the actions of one file of the log: one on each line, as the protocol says, or JSON objects over
        several lines.

        ``part``: bytes that an action must contain; one-line actions without them are skipped. Empty: decode all.
        """
        begin = 0
        for number, line in enumerate(io.BytesIO(content), 1):  # not all lines at once
            if line.strip() and part in line:
                try:
                    action = json.loads(line)
                except (ValueError, RecursionError):
                    action = None
                if not isinstance(action, dict):
                    # the skipped lines may hold parts of an action
                    yield from self._actions_over_lines(name, content if part else content[begin:], number)
                    return
                yield action
            begin += len(line)

    def _actions_over_lines(self, name: str, content: bytes, number: int) -> Iterator[dict[str, Any]]:
        """Decode JSON objects that are separated by white space or nothing; each object is an action.

        ``number``: the line that is not an action by itself, for messages.
        """
        try:
            text, position = content.decode("utf-8-sig"), 0
            while (begin := _NO_SPACE.search(text, position)) is not None:
                action, position = _DECODER.raw_decode(text, begin.start())
                if not isinstance(action, dict):
                    raise self._corrupt(f"line {number} of the Delta log is not a JSON object", name)
                yield action
        except (ValueError, RecursionError) as error:
            raise self._corrupt(f"line {number} of the Delta log is not JSON", name) from error

    def _apply(self, state: DeltaState, action: Mapping[str, Any], name: str) -> None:
        try:
            state.apply(action)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise self._corrupt(
                f"the Delta log has a malformed action: {type(error).__name__}: {str(error)[:_CHARACTERS_SHOWN]}", name
            ) from error

    def _corrupt(self, message: str, name: str) -> CorruptFileError:
        return CorruptFileError(message, url=safe_url(self._url(name)))

    # -- checkpoints ------------------------------------------------------------------------------

    async def _replay_parts(self, names: Sequence[str], state: DeltaState, has_protocol: bool) -> list[str]:
        """Apply the files of a checkpoint, ``names``, to ``state``; return the names of their sidecar files.

        ``has_protocol``: the checkpoint's protocol is the table's, because no later commit has a newer one.

        Raises CorruptFileError if the checkpoint names a sidecar file twice: a few bytes would stand for any number of
        reads.
        """
        sidecars: dict[str, None] = {}
        for begin in range(0, len(names), _CONCURRENT_PARTS):
            batch = names[begin : begin + _CONCURRENT_PARTS]
            parts = await call_each(self._part, batch, at_once=_CONCURRENT_PARTS)
            for name, actions in zip(batch, parts, strict=True):
                for number, action in enumerate(actions):
                    if has_protocol and action.get("protocol"):
                        check_protocol(action["protocol"], self._root.shown)
                    self._apply(state, action, name)
                    if action.get("sidecar") is not None:
                        sidecar = self._sidecar(action["sidecar"], name)
                        if sidecar in sidecars:
                            raise self._corrupt(
                                f"a checkpoint of the Delta log names the file {shown(sidecar)} twice", name
                            )
                        sidecars[sidecar] = None
                    if number % ACTIONS_PER_TURN == 0:
                        await asyncio.sleep(0)
        return list(sidecars)

    def _sidecar(self, action: Any, name: str) -> str:
        """Return the name, in the log's folder, of the file that a checkpoint's ``sidecar`` action refers to. ``name``:
        the checkpoint's file, for messages.

        Folders in the action's path are ignored: the file is always in ``_sidecars``.
        """
        path = action.get("path") if isinstance(action, dict) else None
        if not isinstance(path, str):
            raise self._corrupt("a checkpoint of the Delta log has a sidecar action without a path", name)
        return f"_sidecars/{unquote(path).rpartition('/')[2]}"

    async def _part(self, name: str) -> Iterator[dict[str, Any]]:
        url = self._url(name)
        if name.endswith(".json"):
            return self._actions(name, await self._reader.read_bytes(url))
        table = await self._columns(url, _COLUMNS)
        parsed = None
        if "add" in table.column_names and await asyncio.to_thread(_lacks_text, table["add"]):
            columns = await self._columns(url, ("add.stats_parsed",))
            parsed = columns["add"] if columns.num_columns else None
        adds, parsed_stats = await asyncio.to_thread(_adds, table, parsed)
        return self._decoded(name, _checkpoint_actions(table, adds, parsed_stats))

    def _decoded(self, name: str, actions: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        try:
            yield from actions
        except (ValueError, OverflowError) as error:  # text that is not UTF-8
            raise self._corrupt(f"the checkpoint has a value that cannot be decoded: {error}", name) from error

    async def _columns(self, url: str, columns: Sequence[str]) -> pa.Table:
        """Read those of ``columns`` that the checkpoint at ``url`` has; an empty table if it has none."""
        wanted = list(columns)
        while wanted:
            try:
                return await self._reader.read_table(url, wanted)
            except ColumnNotFoundError as error:
                if error.column not in wanted:
                    raise
                wanted.remove(error.column)
        return pa.table({})


def _lacks_text(adds: pa.ChunkedArray) -> bool:
    """Return whether any ``add`` lacks statistics as JSON text."""
    if adds.type.get_field_index("stats") < 0:
        return True
    return any(chunk.field("stats").filter(chunk.is_valid()).null_count for chunk in adds.chunks)


def _adds(table: pa.Table, parsed: pa.ChunkedArray | None) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    """Return the ``add`` actions of a checkpoint's rows, and of ``parsed``, the column ``add`` with ``stats_parsed``,
    those of the same rows. The rows of other actions are null, and a few bytes stand for any number of them. The chunks
    stay as they are: one array may be too small for the statistics of all files."""
    if "add" not in table.column_names:
        return pa.chunked_array([], pa.struct([])), None
    adds = table["add"]
    return adds.drop_null(), None if parsed is None else parsed.filter(adds.is_valid())


def _checkpoint_actions(
    table: pa.Table, adds: pa.ChunkedArray, stats: pa.ChunkedArray | None
) -> Iterator[dict[str, Any]]:
    """Convert a checkpoint's rows to actions. Each row has one column that is not null: the action. ``adds`` and
    ``stats``, used for rows without JSON statistics, are the result of :func:`_adds`."""
    for name in ("protocol", "metaData", "sidecar"):
        if name in table.column_names:
            for value in table[name].drop_null().to_pylist():
                yield {name: value}
    for begin in range(0, len(adds), ACTIONS_PER_TURN):
        for row, add in enumerate(adds[begin : begin + ACTIONS_PER_TURN].to_pylist(), begin):
            if add.get("stats") is None and stats is not None:
                add["stats"] = stats[row]["stats_parsed"]
            yield {"add": add}
