"""Build and refresh an index: find the new files, read them, sort their rows, commit.

A build first reserves ids for the files that it will read, in one small commit that also takes over the files of
interrupted builds. While a build runs, it commits segments of files that readers do not see yet: their ids count as
retired, like those of removed files. The last commit shows all these files to readers at once. So concurrent commits
never shift ids, and no file is read twice. The logger ``asyncpq.builds`` logs when a build begins, its progress, and
what it committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any, Final, TypeAlias

from asyncpq.checkpoints import paused
from asyncpq.datasets.listing import NOT_BUILT
from asyncpq.errors import (
    AsyncpqError,
    InvalidOptionError,
    ObjectNotFoundError,
    SchemaMismatchError,
    StaleSnapshotError,
    printable,
)
from asyncpq.events import Operation
from asyncpq.indexing.build.build_executor import BuildExecutor, ExecutorFactory, LocalExecutor
from asyncpq.indexing.build.file_rows import FileRows, IndexSpec, version_of
from asyncpq.indexing.build.index_source import BuildPlan, FileTask, IndexSource, another_place, differences
from asyncpq.indexing.commits import Heartbeat, IndexedFile, commit, files_of, gone, new_id
from asyncpq.indexing.index_model import IndexBackend, IndexTable, Segment
from asyncpq.indexing.manifest import FILES, Build, Manifest
from asyncpq.indexing.query.file_selection import worked
from asyncpq.objects.runtime import Runtime
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import safe_url

logger: logging.Logger = logging.getLogger(__name__)
build_logger: logging.Logger = logging.getLogger("asyncpq.builds")

_LINES: Final = 20  # a build logs at most so many progress messages


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of a build, and of :meth:`asyncpq.indexing.Index.refresh`.

    Attributes:
        manifest: the newest snapshot.
        added, removed: numbers of files added to the index and removed from it; a replaced file counts in both.
        problems: path and error of each file that could not be read. Reads of the dataset open these without the index.
        resumed: number of files that an earlier, interrupted build had read.
    """

    manifest: Manifest = field(repr=False)
    added: int = 0
    removed: int = 0
    problems: tuple[tuple[str, AsyncpqError], ...] = ()
    resumed: int = 0

    def after(self, manifest: Manifest) -> Refreshed:
        """Return this result with ``manifest`` as the newest snapshot. Builds call it after a compaction."""
        return replace(self, manifest=manifest)


@dataclass(slots=True)
class IndexBuilder:
    """Builds an index, or updates it to the files of ``source``. Only files of versions that are not indexed are read.

    Attributes:
        tables: of the index; an existing index must have exactly these. None: the index must exist.
        operation: counts the cost; its ``on_event`` is called for each finished file.
        base: the newest snapshot from before the files were listed; None if there was none. Files that were added
            to the index since are newer than the listing.
        index: the required ``Manifest.index`` of an existing index; None if any is accepted.
        known: files that were live when the build began.
        brought: the new files, by path.
        outdated: files removed because the new ones replace all others.

    Raises:
        InvalidOptionError: the backend does not support a table's kind.
    """

    runtime: Runtime
    backend: IndexBackend
    source: IndexSource
    tables: Sequence[IndexTable] | None
    operation: Operation
    options: BuildOptions
    base: Manifest | None
    index: str | None = None
    id: str = field(default_factory=new_id)
    heartbeat: Heartbeat = field(init=False)
    began: float = field(default_factory=time.perf_counter)
    known: RowRanges = field(default_factory=RowRanges)
    brought: dict[str, _Brought] = field(default_factory=dict)
    removed: dict[int, IndexedFile] = field(default_factory=dict)
    outdated: int = 0
    problems: list[tuple[str, AsyncpqError]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runtime = self.source.runtime or self.runtime
        if self.tables is not None:
            self.tables = list(dict.fromkeys((FILES, *self.tables)))
            self.backend.check([table.kind for table in self.tables])
        self.heartbeat = Heartbeat(self.backend, self.id, self.options.grace_s, self.operation)

    async def run(self, make_executor: ExecutorFactory = LocalExecutor) -> Refreshed:
        """Run the build. ``make_executor``: creates the executor that reads the files.

        Raises:
            InvalidOptionError: the existing index has other tables.
            ObjectNotFoundError: the index does not exist.
            SchemaMismatchError: an indexed column was replaced by another column of the same name.
            StaleSnapshotError: the build expired, or the index was dropped.
            StoreError: a store failed. The next build continues from what was committed.
        """
        executor = make_executor(self.runtime, self.backend, self.operation, self.options)
        base = self.base
        todo = await self._without_unchanged(await self._todo(base))
        idle = not (todo.works or todo.taken or todo.removed or self.source.alone)
        if base is not None and base.is_built and idle and not await self._dead(base):
            self._log(" begins: 0 files to read, %d known", len(self.source.files))
            return Refreshed(base)
        async with self.heartbeat:
            manifest, todo = await self._begin(base, todo)
            manifest, segments = await self._read_all(manifest, todo, executor)
            manifest = await self._finish(manifest, segments)
        refreshed = Refreshed(
            manifest,
            added=len(self.brought),
            removed=len(self.removed) + self.outdated,
            problems=tuple(self.problems),
            resumed=len(todo.taken),
        )
        self._log(
            " committed snapshot %d: %d files added, %d removed, %d could not be read; %.1f s",
            manifest.snapshot,
            refreshed.added,
            refreshed.removed,
            len(refreshed.problems),
            time.perf_counter() - self.began,
        )
        return refreshed

    def _log(self, message: str, *args: object) -> None:
        build_logger.info(f"%s of %s{message}", self.operation.name, printable(self.backend.description), *args)

    async def _todo(self, base: Manifest | None) -> BuildPlan:
        """Return how the files of the source differ from the snapshot ``base``. Raises an AsyncpqError if ``base``
        is not the required index, or is None although the index must exist."""
        if base is not None:
            self._check(base)
        elif self.tables is None:
            raise ObjectNotFoundError("there is no index", url=self.backend.description, hint=NOT_BUILT)
        before = RowRanges() if self.base is None else self.base.live
        return await differences(self.runtime, self.backend, base, self.source, before, self.operation)

    async def _without_unchanged(self, todo: BuildPlan) -> BuildPlan:
        """Return ``todo`` without the files that turn out to be unchanged: where the listing has no version, the
        store is asked."""
        same: set[str] = set()

        async def compare(work: FileTask) -> None:
            indexed = todo.replaced.get(work.path)
            unlisted = work.file.validator is None and indexed is not None and indexed.num_rows is not None
            if not unlisted or indexed is None or indexed.validator is None:
                return
            part = self.operation.part(safe_url(work.file.url), 0)
            try:
                now = await version_of(self.runtime, work.file, self.source.url, part)
            finally:
                self.operation.metrics.add_part(part.metrics)
            if now is not None and now.is_strong and now.same_version(indexed.validator):
                same.add(work.path)

        replaced = [work for work in todo.works if work.path in todo.replaced] if todo.replaced else []
        if not replaced:
            return todo
        await call_each(compare, replaced, at_once=self.runtime.options.limits.files_ahead)
        return todo._replace(
            works=todo.works.without(same),
            replaced={path: file for path, file in todo.replaced.items() if path not in same},
        )

    def _check(self, base: Manifest) -> None:
        if self.index not in (None, base.index):
            raise gone(self.backend)
        if self.source.alone:
            return
        if self.source.required:
            self._check_columns(base)
        if self.tables is not None and set(self.tables) != set(base.tables):
            raise InvalidOptionError(
                f"another index is there, with the tables {', '.join(map(str, base.tables[1:])) or 'files'}",
                url=self.backend.description,
                hint=another_place(base),
            )
        known = dict(base.field_ids)
        for name, number in self.source.field_ids(base.tables):
            if known.get(name, number) != number:
                raise SchemaMismatchError(
                    "the table now has another column of this name than the indexed one: its id or mapping has changed",
                    url=self.source.url,
                    column=name,
                    hint="Drop the index and build it again.",
                )

    def _check_columns(self, base: Manifest) -> None:
        indexed, new = ({field.name: field.type for field in schema} for schema in (base.schema, self.source.schema))
        for name in dict.fromkeys((*indexed, *new)):
            if indexed.get(name) != new.get(name):
                raise SchemaMismatchError(
                    f"the column's type is {new.get(name)} in the new files and {indexed.get(name)} in the index",
                    url=self.backend.description,
                    column=name,
                    hint="Add files with the same columns as the existing ones.",
                )

    def _shaped(self, newest: Manifest) -> Manifest:
        """Return the manifest with the columns and tables of this build. If the build replaces all files and these
        differ from the old ones, the result is another index with a new id, and readers of the old index get an
        error."""
        source, index_tables = self.source, newest.tables if self.tables is None else tuple(self.tables)
        if not source.alone:
            return newest
        if newest.schema.equals(source.schema) and newest.tables == index_tables:
            return replace(newest, schema=source.schema)  # its metadata may differ
        return replace(
            newest,
            **self._described(index_tables),
            segments=tuple(segment for segment in newest.segments if segment.name.startswith(f"{self.id}-")),
            builds=tuple(begun for begun in newest.builds if begun.id == self.id),
        )

    def _described(self, index_tables: tuple[IndexTable, ...]) -> dict[str, Any]:
        """Return the fields of a new index's manifest that describe its dataset and tables, with a new index id."""
        source = self.source
        return {
            "index": new_id(),
            "root": source.root,
            "dataset": source.dataset,
            "schema": source.schema,
            "partitions": source.partitions,
            "field_ids": source.field_ids(index_tables),
            "tables": index_tables,
        }

    async def _begin(self, base: Manifest | None, todo: BuildPlan) -> tuple[Manifest, BuildPlan]:
        """Reserve ids for the files that this build adds: files to read, and files that interrupted builds have read.

        Commit a manifest that reserves the ids. Return this manifest, and ``todo`` with the ids filled in.
        """

        async def reserve(newest: Manifest | None) -> Manifest:
            nonlocal todo
            if newest is not todo.base:
                todo = await self._todo(newest)
            if newest is None:
                described = self._described(tuple(self.tables or ()))
                newest = Manifest(snapshot=0, commit="", created=self.source.as_of, **described)
            first = newest.next_file
            mine = RowRanges([(first, first + len(todo.works))])
            return replace(
                newest,
                next_file=first + len(todo.works),
                retired=newest.retired | mine,
                builds=(*newest.builds, Build(self.id, mine | _ids(todo.taken))),
            )

        manifest = await self._commit(base, reserve)
        first = manifest.next_file - len(todo.works)
        works = todo.works.numbered(first)
        self.known = manifest.live
        self.brought = {file.path: _brought(file) for file in todo.taken}
        replaced = [todo.replaced[file.path] for file in todo.taken if file.path in todo.replaced]
        self.removed = {file.id: file for file in (*todo.removed, *replaced)}
        return manifest, todo._replace(works=works)

    async def _read_all(
        self, manifest: Manifest, todo: BuildPlan, executor: BuildExecutor
    ) -> tuple[Manifest, list[Segment]]:
        """Read the files, and commit their segments at intervals; return the last committed manifest, and the segments
        that are not committed yet."""
        source, metrics = self.source, self.operation.metrics
        metrics.files_total = len(source.files)
        done = metrics.files_ruled_out = len(source.files) - len(todo.works)
        shaped = self._shaped(manifest)
        wanted = IndexSpec(
            schema=shaped.schema,
            fields=source.fields,
            tables=source.readable(shaped.tables),
            tail_hint=source.url,
            options=self.options,
        )
        num_works = len(todo.works)
        self._log(" begins: %d files to read, %d known", num_works, metrics.files_ruled_out)

        def on_file_done(rows: FileRows, part: Operation) -> None:
            nonlocal done
            done += 1
            metrics.files_opened += not rows.gone
            self._note(rows, todo)
            self.operation.part_ended(part, rows.problem, done)
            num_read = done - metrics.files_ruled_out
            if num_read % -(-num_works // _LINES) == 0 and num_read < num_works:
                self._log(": %d of %d files read, %.1f s", num_read, num_works, time.perf_counter() - self.began)

        segments: list[Segment] = []
        step = executor.files_between_commits(len(todo.works))
        while (start := done - metrics.files_ruled_out) < num_works:
            if segments and not source.alone:  # a compaction would merge committed segments for the old tables
                manifest, segments = await self._checkpoint(manifest, segments), []
            works = todo.works[start : start + step]
            segments += await executor.segments(works, wanted, shaped.tables, self.id, on_file_done)
        return manifest, segments

    def _note(self, rows: FileRows, todo: BuildPlan) -> None:
        work, url = rows.work, safe_url(rows.work.file.url)
        if work.path in todo.replaced:
            last = todo.replaced[work.path]
            self.removed[last.id] = last
        if self.source.required and (rows.gone or rows.problem is not None):
            raise rows.problem or ObjectNotFoundError(
                "the file was deleted before it could be indexed",
                url=url,
                hint="Leave the file out, or write it again.",
            )
        if rows.gone:
            return
        if rows.problem is not None:
            self.problems.append((work.path, rows.problem))
            logger.warning("%s is not indexed: %s", url, rows.problem)
        self.brought[work.path] = _brought(IndexedFile(work.id, work.path, rows.validator, rows.num_rows))

    async def _checkpoint(self, manifest: Manifest, segments: Sequence[Segment]) -> Manifest:
        """Commit segments of files that readers do not see yet; return the new manifest."""

        async def add(newest: Manifest | None) -> Manifest:
            newest = self._still_mine(newest)
            return replace(newest, segments=(*newest.segments, *segments))

        return await self._commit(manifest, add)

    async def _commit(
        self, base: Manifest | None, change: Callable[[Manifest | None], Awaitable[Manifest]]
    ) -> Manifest:
        committed = await commit(self.backend, base, change, self.id, self.operation)
        assert committed is not None
        return committed

    async def _finish(self, manifest: Manifest, segments: Sequence[Segment]) -> Manifest:
        """Commit the snapshot with the new files and without the removed ones; return its manifest."""
        dead = await self._dead(manifest)

        async def bring(newest: Manifest | None) -> Manifest:
            newest = self._still_mine(newest)
            brought, removed = await self._against(newest)
            live = newest.live

            def counted() -> tuple[RowRanges, int]:
                more = sum(num_rows or 0 for file, num_rows, _ in paused(brought.values()) if file not in live)
                return RowRanges.from_rows(sorted(file for file, _, _ in brought.values())), more

            mine, more = await worked(self.runtime, len(brought), counted)
            if self.source.alone:
                newest, out, less = self._shaped(newest), live - mine, newest.num_rows
                self.outdated = out.num_rows
            else:
                out = _ids(removed)
                less = sum(file.num_rows or 0 for file in removed if file.id in live)
            return replace(
                newest,
                segments=(*newest.segments, *segments),
                retired=(newest.retired - mine) | out,
                num_files=newest.num_files + (mine - live).num_rows - (out & live).num_rows,
                num_rows=newest.num_rows + more - less,
                as_of=max(filter(None, (newest.as_of, self.source.as_of))),
                builds=tuple(begun for begun in newest.builds if begun.id != self.id and begun.id not in dead),
            )

        return await self._commit(manifest, bring)

    async def _dead(self, manifest: Manifest) -> set[str]:
        """Return the ids of builds that have expired. Their files are dropped, except files that this build took
        over."""
        if all(begun.id == self.id for begun in manifest.builds):
            return set()
        builds, grace = await self.backend.ages("builds", operation=self.operation), self.options.grace_s
        return {begun.id for begun in manifest.builds if builds.get(begun.id, grace + 1) > grace} - {self.id}

    def _still_mine(self, newest: Manifest | None) -> Manifest:
        """Return ``newest``, the newest manifest. Raises StaleSnapshotError if it no longer lists this build, which
        has expired."""
        self.heartbeat.check()
        if newest is None or all(begun.id != self.id for begun in newest.builds):
            raise StaleSnapshotError(
                "the build expired: it wrote no heartbeat for too long",
                url=self.backend.description,
                hint="Run the build again: it continues from what was committed.",
            )
        return newest

    async def _against(self, newest: Manifest) -> tuple[dict[str, _Brought], list[IndexedFile]]:
        """Return the files to add and the files to remove, compared with the snapshot ``newest``. Other builds may
        have added files meanwhile: of two versions with one path only the newer stays."""
        brought, removed = dict(self.brought), dict(self.removed)
        if self.source.alone:
            return brought, []
        others = newest.live - self.known
        newer = await files_of(self.runtime, self.backend, newest, others, self.operation) if others else ()
        for file in newer:
            mine = brought.get(file.path)
            if mine is None or mine[0] == file.id:
                continue
            if file.is_older_than(mine[2]):
                removed[file.id] = file
            else:
                del brought[file.path]
        return brought, list(removed.values())


#: The id, number of rows and Last-Modified of a new file: a plain tuple, which the garbage collector ignores.
_Brought: TypeAlias = tuple[int, int | None, str | None]


def _brought(file: IndexedFile) -> _Brought:
    return file.id, file.num_rows, None if file.validator is None else file.validator.last_modified


def _ids(files: Iterable[IndexedFile]) -> RowRanges:
    return RowRanges((file.id, file.id + 1) for file in files)
