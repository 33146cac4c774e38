"""A Delta table's log: which commits and which checkpoint make up a version.

PROTOCOL.md, "Delta Log Entries" and "Checkpoints". The folder is listed, so ``_last_checkpoint`` is not needed;
log compaction files and checksum files are optional, and not read.

Actions of a Delta table's log, and the state that they add up to.

PROTOCOL.md, "Actions" and "Action Reconciliation".

Reads a Delta table's log through a session: commits are JSON lines, checkpoints mostly Parquet.

PROTOCOL.md, "Delta Log Entries", "Checkpoints", "Checkpoint Schema" and "V2 Checkpoint Table Feature".
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from asyncpq.datasets.model import Reader
from asyncpq.errors import ColumnNotFoundError, CorruptFileError, InvalidOptionError, NotParquetError
from asyncpq.storage.concurrency import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.tables.delta.deletes import DeletionVector
from asyncpq.tables.delta.paths import TableRoot
from asyncpq.tables.delta.schema import check_protocol

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:(\d{10})\.(\d{10})\.parquet|parquet|([0-9a-fA-F-]+)\.(?:json|parquet))"
)


@dataclass(frozen=True, slots=True)
class Segment:
    """What is read of the log for one version: names in its folder.

    Attributes:
        checkpoint: the parts of the newest complete checkpoint that is not newer than the version; () for none.
        commits: all that follow it, oldest first.
    """

    version: int
    checkpoint: tuple[str, ...]
    commits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """The log's folder.

    Attributes:
        commits: versions that have a commit.
        checkpoints: names of the parts of a complete checkpoint, by version.
        url: of the log, for messages.
    """

    commits: frozenset[int]
    checkpoints: Mapping[int, tuple[str, ...]]
    url: str

    @classmethod
    def of(cls, names: Iterable[str], url: str) -> Listing:
        """Of a folder's names."""
        commits: set[int] = set()
        whole: dict[int, str] = {}
        parts: dict[tuple[int, int], dict[int, str]] = {}
        for name in names:
            if match := _COMMIT.fullmatch(name):
                commits.add(int(match[1]))
            elif match := _CHECKPOINT.fullmatch(name):
                if match[3] is None:
                    whole[int(match[1])] = name  # any of those of one version will do
                else:
                    parts.setdefault((int(match[1]), int(match[3])), {})[int(match[2])] = name
        checkpoints: dict[int, tuple[str, ...]] = {version: (name,) for version, name in whole.items()}
        for (version, count), found in parts.items():
            if set(found) == set(range(1, count + 1)):
                checkpoints.setdefault(version, tuple(found[part] for part in range(1, count + 1)))
        return cls(frozenset(commits), checkpoints, url)

    @property
    def latest(self) -> int:
        """The newest version.

        Raises:
            CorruptFileError: there is none.
        """
        if not self.commits and not self.checkpoints:
            raise CorruptFileError("the Delta log has neither commits nor a complete checkpoint", url=self.url)
        return max((*self.commits, *self.checkpoints))

    def segment(self, version: int) -> Segment:
        """What ``version`` is made of.

        Raises:
            InvalidOptionError: there is no such version.
            CorruptFileError: parts of the log that it needs are missing.
        """
        if version > self.latest:
            raise InvalidOptionError(f"version={version}: the newest version is {self.latest}", url=self.url)
        base = max((known for known in self.checkpoints if known <= version), default=-1)
        needed = range(base + 1, version + 1)
        missing = [number for number in needed if number not in self.commits]
        if missing:
            kept = min((*self.commits, *self.checkpoints))
            if version < kept:
                raise InvalidOptionError(f"version={version}: the oldest version that is kept is {kept}", url=self.url)
            shown = ", ".join(map(str, missing[:3]))
            raise CorruptFileError(
                f"the Delta log is incomplete: version {version} needs commits that are not there: {shown}",
                url=self.url,
                hint="Choose a version at or after the oldest checkpoint that is kept.",
            )
        names = tuple(f"{number:020}.json" for number in needed)
        return Segment(version, self.checkpoints.get(base, ()), names)


@dataclass(frozen=True, slots=True)
class Add:
    """An ``add`` action: a file of the table.

    Attributes:
        stats: JSON text, or the struct that a checkpoint may have instead.
    """

    path: str
    partition_values: Mapping[str, str | None]
    size: int | None
    stats: str | pa.StructScalar | None
    vector: DeletionVector | None


@dataclass(slots=True)
class TableState:
    """What the actions of a log add up to.

    Attributes:
        files: the ``add`` actions that hold, by path, in the order in which the log first names them.
    """

    protocol: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    files: dict[str, Add] = field(default_factory=dict)

    def apply(self, action: Mapping[str, Any]) -> None:
        """Take over an action, or several that stand in one object; those that do not matter to readers change nothing.

        Raises:
            TypeError, ValueError, KeyError: it is malformed.
        """
        if (add := action.get("add")) is not None:
            found = _decode_add(add)
            self.files[found.path] = found  # the newest of a path counts
        elif (remove := action.get("remove")) is not None:
            held = self.files.get(_text(remove["path"]))
            vector = DeletionVector.from_action(remove.get("deletionVector"))
            if held is not None and _unique_id(held.vector) == _unique_id(vector):
                del self.files[held.path]
        if (metadata := action.get("metaData")) is not None:
            self.metadata = dict(metadata)
        if (protocol := action.get("protocol")) is not None:
            self.protocol = dict(protocol)


def _unique_id(vector: DeletionVector | None) -> str | None:
    return None if vector is None else vector.unique_id


def _decode_add(add: Mapping[str, Any]) -> Add:
    values, size, stats = add["partitionValues"], add.get("size"), add.get("stats")
    if isinstance(values, list):  # pyarrow's form of a map
        values = dict(values)
    if values is not None and not isinstance(values, dict):
        raise TypeError(f"partitionValues {values!r}")
    values = {name: _partition_text(value) for name, value in (values or {}).items()}
    if type(size) is not int or size < 0:
        size = None  # it says nothing of the rows, nor does a statistic that is not understood
    if not isinstance(stats, (str, pa.StructScalar)):
        stats = None
    return Add(_text(add["path"]), values, size, stats, DeletionVector.from_action(add.get("deletionVector")))


def _partition_text(value: Any) -> str | None:
    """The text of a partition value, which some writers give as a JSON number or boolean."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    raise TypeError(f"partition value {value!r}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"path {value!r}")
    return value


_DECODER = json.JSONDecoder()
_NO_SPACE = re.compile(r"\S")
_AT_ONCE = 32  # commits asked for together
_PARTS_HELD = 4
ACTIONS_AT_ONCE = 1024  # looked at before other tasks have a turn
#: What of a checkpoint matters: tombstones and what only writers need are left out.
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


class Log:
    """The log of one table."""

    def __init__(self, root: TableRoot, reader: Reader) -> None:
        self._root = root
        self._reader = reader

    async def listing(self) -> Listing:
        """What the log's folder holds."""
        return Listing.of(await self._reader.list_names(self._url("")), f"{self._root.shown}/_delta_log")

    async def replay(self, segment: Segment) -> TableState:
        """The state of the table at the version of ``segment``. Its protocol is looked at first.

        Raises:
            UnsupportedFeatureError: the protocol asks for a reader that knows more.
            CorruptFileError: an action, or a file of actions, is malformed.
            StoreError: a part of the log cannot be read.
        """
        state = TableState()
        commits = await self._contents(segment.commits)
        if (newest := self._newest_protocol(commits)) is not None:
            check_protocol(newest, self._root.shown)
        sidecars = await self._replay_parts(segment.checkpoint, state, newest is None)
        if await self._replay_parts(sidecars, state, newest is None):
            raise CorruptFileError("a sidecar of the Delta log names sidecars", url=self._root.shown)
        for name, content in commits:
            for number, action in enumerate(self._actions(name, content)):
                self._apply(state, action, name)
                if number % ACTIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        if state.protocol is not None:
            check_protocol(state.protocol, self._root.shown)
        return state

    def _newest_protocol(self, commits: Sequence[tuple[str, bytes]]) -> Any:
        for name, content in reversed(commits):
            if b'"protocol"' in content:
                actions = self._actions(name, content, b'"protocol"')
                found = [action["protocol"] for action in actions if action.get("protocol")]
                if found:
                    return found[-1]
        return None

    async def commit_infos(self, names: Sequence[str]) -> list[Mapping[str, Any]]:
        """The ``commitInfo`` of each of these commits; an empty one where there is none."""
        found: list[Mapping[str, Any]] = []
        for name, content in await self._contents(names):
            infos = (action["commitInfo"] for action in self._actions(name, content) if "commitInfo" in action)
            found.append(next((info for info in infos if isinstance(info, dict)), {}))
        return found

    def _url(self, name: str) -> str:
        return self._root.join(f"_delta_log/{name}")

    async def _contents(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        contents = await call_each(self._content, names, at_once=_AT_ONCE)
        return list(zip(names, contents, strict=True))

    async def _content(self, name: str) -> bytes:
        """A commit. A writer that failed leaves an empty one, which later commits follow: it has no actions."""
        try:
            return await self._reader.read_bytes(self._url(name))
        except NotParquetError:
            return b""

    def _actions(self, name: str, content: bytes, part: bytes = b"") -> Iterator[dict[str, Any]]:
        """The actions of a file: one a line, as the protocol has it, or JSON objects over several lines.

        Args:
            part: of lines that hold one action, only those with this in them.
        """
        begin = 0
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            if line.strip() and part in line:
                try:
                    action = json.loads(line)
                except (ValueError, RecursionError):
                    action = None
                if not isinstance(action, dict):
                    # perhaps the lines that were passed over hold parts of an action, too
                    yield from self._actions_over_lines(name, content if part else content[begin:], number)
                    return
                yield action
            begin += len(line)

    def _actions_over_lines(self, name: str, content: bytes, number: int) -> Iterator[dict[str, Any]]:
        """The actions of JSON objects with white space between them, or nothing.

        Args:
            number: of the line that is no action by itself, for messages.
        """
        try:
            text, at = content.decode("utf-8-sig"), 0
            while (begin := _NO_SPACE.search(text, at)) is not None:
                action, at = _DECODER.raw_decode(text, begin.start())
                if not isinstance(action, dict):
                    raise CorruptFileError(
                        f"line {number} of the Delta log is no action", url=safe_url(self._url(name))
                    )
                yield action
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(
                f"line {number} of the Delta log is not JSON", url=safe_url(self._url(name))
            ) from error

    def _apply(self, state: TableState, action: Mapping[str, Any], name: str) -> None:
        try:
            state.apply(action)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            message = f"a malformed action of the Delta log: {type(error).__name__}: {error}"
            raise CorruptFileError(message, url=safe_url(self._url(name))) from error

    # -- checkpoints ------------------------------------------------------------------------------

    async def _replay_parts(self, names: Sequence[str], state: TableState, has_protocol: bool) -> list[str]:
        """Take over what the parts of a checkpoint say; returns the names of the sidecars that they name.

        Args:
            has_protocol: the protocol that they have is that of the table: no commit has a newer one.
        """
        sidecars: list[str] = []
        for begin in range(0, len(names), _PARTS_HELD):
            some = names[begin : begin + _PARTS_HELD]
            for name, actions in zip(some, await call_each(self._part, some, at_once=_PARTS_HELD), strict=True):
                for number, action in enumerate(actions):
                    if has_protocol and action.get("protocol"):
                        check_protocol(action["protocol"], self._root.shown)
                    self._apply(state, action, name)
                    if action.get("sidecar") is not None:
                        sidecars.append(self._sidecar(action["sidecar"], name))
                    if number % ACTIONS_AT_ONCE == 0:
                        await asyncio.sleep(0)
        return sidecars

    def _sidecar(self, action: Any, name: str) -> str:
        """The name of a sidecar in the log: its path may have folders, but it is always in its own one."""
        path = action.get("path") if isinstance(action, dict) else None
        if not isinstance(path, str):
            raise CorruptFileError(
                "a checkpoint of the Delta log names a sidecar without a path", url=safe_url(self._url(name))
            )
        return f"_sidecars/{unquote(path).rpartition('/')[2]}"

    async def _part(self, name: str) -> Iterator[dict[str, Any]]:
        url = self._url(name)
        if name.endswith(".json"):
            return self._actions(name, await self._reader.read_bytes(url))
        table = await self._columns(url, _COLUMNS)
        parsed = None
        if "add" in table.column_names and _lacks_text(table["add"]):
            columns = await self._columns(url, ("add.stats_parsed",))
            parsed = columns["add"] if columns.num_columns else None
        return _checkpoint_actions(table, parsed)

    async def _columns(self, url: str, columns: Sequence[str]) -> pa.Table:
        """Those of the columns that there are."""
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
    """Whether an ``add`` has no JSON statistics."""
    if adds.type.get_field_index("stats") < 0:
        return True
    return any(chunk.field("stats").filter(chunk.is_valid()).null_count for chunk in adds.chunks)


def _checkpoint_actions(table: pa.Table, parsed: pa.ChunkedArray | None) -> Iterator[dict[str, Any]]:
    """The actions of a checkpoint's rows, each of which has one column that is not null."""
    for name in ("protocol", "metaData", "sidecar"):
        if name in table.column_names:
            for value in table[name].drop_null().to_pylist():
                yield {name: value}
    if "add" not in table.column_names:
        return
    adds = table["add"].combine_chunks()
    stats = None if parsed is None else parsed.combine_chunks()
    for begin in range(0, len(adds), ACTIONS_AT_ONCE):
        for row, add in enumerate(adds[begin : begin + ACTIONS_AT_ONCE].to_pylist(), begin):
            if add is None:
                continue
            if add.get("stats") is None and stats is not None:
                add["stats"] = stats[row]["stats_parsed"]
            yield {"add": add}
