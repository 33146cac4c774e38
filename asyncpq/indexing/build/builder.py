"""Indexes are built and refreshed: what is new is looked for, read file by file, sorted, and committed.

A build first reserves ids for the files that it will read: in one small commit, which also takes over what builds that
were broken off have left. While it runs, it commits segments, whose files nobody sees yet: their ids stay among those
that are out of use. Its last commit brings all of them at once. So ids never shift, whoever else commits meanwhile, and
whatever was committed once is not read again.

What a build says to the logger ``asyncpq.builds``: that it begins, how far it is, and what it committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from asyncpq.errors import (
    AsyncpqError,
    InvalidOptionError,
    ObjectNotFoundError,
    SchemaMismatchError,
    StaleSnapshotError,
    printable,
)
from asyncpq.events import Operation, OperationName
from asyncpq.indexing.build.differences import BuildPlan, IndexSource, differences
from asyncpq.indexing.build.executor import ExecutorFactory, LocalExecutor
from asyncpq.indexing.build.file_rows import FileRows, FileTask, IndexSpec, version_of
from asyncpq.indexing.build.lakes import another_place
from asyncpq.indexing.manifest.commits import Heartbeat, IndexedFile, commit, files_of, gone, new_id
from asyncpq.indexing.manifest.manifest import FILES, Build, Manifest
from asyncpq.indexing.model import IndexBackend, IndexTable, Segment
from asyncpq.objects.runtime import Runtime
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator
from asyncpq.storage.concurrency import call_each
from asyncpq.storage.urls import safe_url

build_logger = logging.getLogger("asyncpq.builds")

_LINES: Final = 20  # of one build's progress, at most


class BuildLog:
    """The log of one build.

    Args:
        name: "build", "refresh", ...
        place: description of where the index is kept, safe to be shown.
    """

    def __init__(self, name: OperationName, backend: str) -> None:
        self._what = f"{name} of {printable(backend)}"
        self._began = time.perf_counter()
        self._files = self._done = self._step = 0

    def begins(self, files: int, known: int) -> None:
        """``files`` are to be read; ``known`` ones need not be."""
        self._files, self._step = files, -(-files // _LINES)
        build_logger.info("%s begins: %d files to read, %d known", self._what, files, known)

    def file_done(self) -> None:
        """One of the files was read."""
        self._done += 1
        if self._done % self._step == 0 and self._done < self._files:
            build_logger.info("%s: %d of %d files read, %.1f s", self._what, self._done, self._files, self._seconds)

    def committed(self, snapshot: int, added: int, removed: int, problems: int) -> None:
        """The build has ended well."""
        build_logger.info(
            "%s committed snapshot %d: %d files added, %d removed, %d could not be read; %.1f s",
            self._what,
            snapshot,
            added,
            removed,
            problems,
            self._seconds,
        )

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a build has done.

    Attributes:
        manifest: the newest.
        added, removed: files that are listed, and not listed any more; one that was replaced counts in both.
        problems: files that could not be read, by path, and why: a read of the dataset looks at them itself.
        resumed: files that an earlier build had read.
    """

    manifest: Manifest = field(repr=False)
    added: int = 0
    removed: int = 0
    problems: tuple[tuple[str, AsyncpqError], ...] = ()
    resumed: int = 0

    def after(self, manifest: Manifest) -> Refreshed:
        """The same, once another snapshot has followed."""
        return replace(self, manifest=manifest)


async def build(
    runtime: Runtime,
    backend: IndexBackend,
    source: IndexSource,
    index_tables: Sequence[IndexTable] | None,
    operation: Operation,
    options: BuildOptions,
    base: Manifest | None,
    index: str | None = None,
    executor: ExecutorFactory = LocalExecutor,
) -> Refreshed:
    """Bring the index at ``place`` up to ``lake``; only files are read that it does not know as they are.

    Args:
        parts: of the index, which must have these if it is there; None: it must be there.
        operation: what it costs is counted there, and each file that is done with is told.
        base: the newest snapshot from before the lake was looked at: what is in use since then is newer than the lake.
        index: ``Manifest.index`` of the one that is meant; None for whichever is there.
        gathering: reads the files.

    Raises:
        InvalidOptionError: another index is there, or a part makes no sense in this place.
        ObjectNotFoundError: there is no index.
        SchemaMismatchError: a column that is indexed is another one now.
        StaleSnapshotError: others took this build for dead, or dropped the index.
        StoreError: the lake or the place failed; what was committed is used by the next build.
    """
    if index_tables is not None:
        index_tables = list(dict.fromkeys((FILES, *index_tables)))
        backend.check([index_table.kind for index_table in index_tables])
    return await _Build(runtime, backend, source, index_tables, operation, options, base, index, executor).run()


class _Build:
    def __init__(
        self,
        runtime: Runtime,
        backend: IndexBackend,
        source: IndexSource,
        index_tables: Sequence[IndexTable] | None,
        operation: Operation,
        options: BuildOptions,
        base: Manifest | None,
        index: str | None,
        executor: ExecutorFactory,
    ) -> None:
        self._index = index
        self._executor = executor(runtime, backend, operation, options)
        self._base = base
        self._runtime = runtime
        self._backend = backend
        self._source = source
        self._tables = index_tables
        self._operation = operation
        self._log = BuildLog(operation.name, backend.description)
        self._options = options
        self._id = new_id()
        self._brought: dict[str, IndexedFile] = {}
        self._removed: dict[int, IndexedFile] = {}
        self._problems: list[tuple[str, AsyncpqError]] = []
        self._heartbeat = Heartbeat(backend, self._id, options.grace_s, operation)
        self._known: RowRanges = RowRanges()
        self._outdated = 0  # files that had to go since the lake's are to be alone

    async def run(self) -> Refreshed:
        base = self._base
        todo = await self._without_unchanged(await self._todo(base))
        idle = todo.is_nothing and not self._source.alone
        if base is not None and base.is_built and idle and not await self._dead(base):
            self._log.begins(0, len(self._source.files))
            return Refreshed(base)
        async with self._heartbeat:
            manifest, todo = await self._begin(base, todo)
            left = await self._read_all(manifest, todo)
            manifest = await self._finish(manifest, left)
        refreshed = Refreshed(
            manifest,
            added=len(self._brought),
            removed=len(self._removed) + self._outdated,
            problems=tuple(self._problems),
            resumed=len(todo.taken),
        )
        self._log.committed(manifest.snapshot, refreshed.added, refreshed.removed, len(refreshed.problems))
        return refreshed

    # -- what is to be done -----------------------------------------------------------------------

    async def _todo(self, base: Manifest | None) -> BuildPlan:
        """How the lake differs from ``base``.

        Raises:
            AsyncpqError: the index is not the one that is meant.
        """
        if base is not None:
            self._check(base)
        elif self._tables is None:
            raise ObjectNotFoundError("there is no index", url=self._backend.description, hint="Build it first.")
        before = RowRanges() if self._base is None else self._base.live
        return await differences(self._runtime, self._backend, base, self._source, before, self._operation)

    async def _without_unchanged(self, todo: BuildPlan) -> BuildPlan:
        """The same without files of which no listing names the version, and whose footers say that it is known."""
        asked: list[tuple[FileTask, Validator]] = []
        for work in todo.works:
            known = todo.replaced.get(work.path)
            if known is None or known.num_rows is None or work.file.validator is not None:
                continue
            if known.validator is not None:
                asked.append((work, known.validator))
        same: set[str] = set()

        async def look(item: tuple[FileTask, Validator]) -> None:
            work, known = item
            part = self._operation.part(safe_url(work.file.url), 0)
            try:
                found = await version_of(self._runtime, work.file, self._source.url, part)
            finally:
                self._operation.metrics.add_part(part.metrics)
            if found is not None and found.is_strong and found.same_version(known):
                same.add(work.path)

        await call_each(look, asked, at_once=self._runtime.options.limits.files_ahead)
        return todo._replace(
            works=tuple(work for work in todo.works if work.path not in same),
            replaced={path: file for path, file in todo.replaced.items() if path not in same},
        )

    def _check(self, base: Manifest) -> None:
        if self._index not in (None, base.index):
            raise gone(self._backend)
        if self._source.alone:
            return
        if self._source.required:
            self._check_columns(base)
        if self._tables is not None and set(self._tables) != set(base.tables):
            raise InvalidOptionError(
                f"the index there knows {', '.join(map(str, base.tables[1:])) or 'files alone'}",
                url=self._backend.description,
                hint=another_place(base),
            )
        known = dict(base.field_ids)
        for name, number in self._source.field_ids(base.tables):
            if known.get(name, number) != number:
                raise SchemaMismatchError(
                    "the table's column of this name is another one than the one that was indexed",
                    url=self._source.url,
                    column=name,
                    hint="Drop the index and build it again.",
                )

    def _check_columns(self, base: Manifest) -> None:
        here, new = ({field.name: field.type for field in schema} for schema in (base.schema, self._source.schema))
        for name in dict.fromkeys((*here, *new)):
            if here.get(name) != new.get(name):
                raise SchemaMismatchError(
                    f"the files have it as {new.get(name)}, and the index as {here.get(name)}",
                    url=self._backend.description,
                    column=name,
                    hint="Files that are added have the columns of those that are there.",
                )

    def _shaped(self, newest: Manifest) -> Manifest:
        """With the columns and parts that are to be. Where these are others it is another index, which is what readers
        of the one before are told."""
        source, index_tables = self._source, newest.tables if self._tables is None else tuple(self._tables)
        if not source.alone:
            return newest
        if newest.schema.equals(source.schema) and newest.tables == index_tables:
            return replace(newest, schema=source.schema)  # its metadata may be others
        return replace(
            newest,
            index=new_id(),
            root=source.root,
            dataset=source.dataset,
            schema=source.schema,
            partitions=source.partitions,
            field_ids=source.field_ids(index_tables),
            tables=index_tables,
            segments=tuple(segment for segment in newest.segments if segment.name.startswith(f"{self._id}-")),
            builds=tuple(begun for begun in newest.builds if begun.id == self._id),
        )

    async def _begin(self, base: Manifest | None, todo: BuildPlan) -> tuple[Manifest, BuildPlan]:
        """Reserve ids for the files that will be read, and hold those that others have read."""

        async def reserve(newest: Manifest | None) -> Manifest:
            nonlocal todo
            if newest is not todo.base:
                todo = await self._todo(newest)
            if newest is None:
                source, index_tables = self._source, tuple(self._tables or ())
                newest = Manifest(
                    index=new_id(),
                    snapshot=0,
                    commit="",
                    created=source.as_of,
                    root=source.root,
                    dataset=source.dataset,
                    schema=source.schema,
                    partitions=source.partitions,
                    field_ids=source.field_ids(index_tables),
                    tables=index_tables,
                )
            first = newest.next_file
            mine = RowRanges([(first, first + len(todo.works))])
            held = RowRanges((file.id, file.id + 1) for file in todo.taken)
            return replace(
                newest,
                next_file=first + len(todo.works),
                retired=newest.retired | mine,
                builds=(*newest.builds, Build(self._id, mine | held)),
            )

        manifest = await commit(self._backend, base, reserve, self._id, self._operation)
        assert manifest is not None
        first = manifest.next_file - len(todo.works)
        works = tuple(replace(work, id=first + at) for at, work in enumerate(todo.works))
        self._known = manifest.live
        self._brought = {file.path: file for file in todo.taken}
        self._removed = {file.id: file for file in todo.removed}
        for file in todo.taken:
            if file.path in todo.replaced:
                self._removed[todo.replaced[file.path].id] = todo.replaced[file.path]
        return manifest, todo._replace(works=works)

    # -- reading ----------------------------------------------------------------------------------

    async def _read_all(self, manifest: Manifest, todo: BuildPlan) -> list[Segment]:
        """Read the files; what was found is committed now and then. Returns the segments that were not."""
        source, metrics = self._source, self._operation.metrics
        metrics.files_total = len(source.files)
        metrics.files_ruled_out = len(source.files) - len(todo.works)
        shaped = self._shaped(manifest)
        wanted = IndexSpec(
            schema=shaped.schema,
            fields=source.fields,
            tables=source.readable(shaped.tables),
            neighbours=source.url,
            options=self._options,
        )
        self._log.begins(len(todo.works), metrics.files_ruled_out)
        done, left = metrics.files_ruled_out, list[Segment]()
        # who merges what a checkpoint has committed cannot know that a lake is to have other parts
        commits = not source.alone

        def told(rows: FileRows, part: Operation) -> None:
            nonlocal done
            done += 1
            metrics.files_opened += not rows.gone
            self._note(rows, todo)
            self._operation.part_ended(part, rows.problem, done)
            self._log.file_done()

        step = self._executor.files_between_commits(len(todo.works))
        for at in range(0, len(todo.works), step):
            if left and commits:
                manifest, left = await self._checkpoint(manifest, left), []
            works = todo.works[at : at + step]
            left = [*left, *await self._executor.segments(works, wanted, shaped.tables, self._id, told)]
        return left

    def _note(self, rows: FileRows, todo: BuildPlan) -> None:
        work, last = rows.work, todo.replaced.get(rows.work.path)
        if last is not None:
            self._removed[last.id] = last
        if self._source.required and (rows.gone or rows.problem is not None):
            raise rows.problem or ObjectNotFoundError("the file is not there any more", url=safe_url(work.file.url))
        if rows.gone:
            return
        if rows.problem is not None:
            self._problems.append((work.path, rows.problem))
            logger.warning("%s is not indexed: %s", safe_url(work.file.url), rows.problem)
        self._brought[work.path] = IndexedFile(work.id, work.path, rows.validator, rows.num_rows)

    # -- committing -------------------------------------------------------------------------------

    async def _checkpoint(self, manifest: Manifest, segments: Sequence[Segment]) -> Manifest:
        """Commit segments whose files nobody sees yet."""

        async def add(newest: Manifest | None) -> Manifest:
            newest = self._still_mine(newest)
            return replace(newest, segments=(*newest.segments, *segments))

        committed = await commit(self._backend, manifest, add, self._id, self._operation)
        assert committed is not None
        return committed

    async def _finish(self, manifest: Manifest, segments: Sequence[Segment]) -> Manifest:
        """Commit that the files are there, and that others are not any more."""
        dead = await self._dead(manifest)

        async def bring(newest: Manifest | None) -> Manifest:
            newest = self._still_mine(newest)
            brought, removed = await self._against(newest)
            live = newest.live
            mine = RowRanges((file.id, file.id + 1) for file in brought)
            more = sum(file.num_rows or 0 for file in brought if file.id not in live)
            if self._source.alone:
                newest, out, less = self._shaped(newest), live - mine, newest.num_rows
                self._outdated = out.num_rows
            else:
                out = RowRanges((file.id, file.id + 1) for file in removed)
                less = sum(file.num_rows or 0 for file in removed if file.id in live)
            return replace(
                newest,
                segments=(*newest.segments, *segments),
                retired=(newest.retired - mine) | out,
                num_files=newest.num_files + (mine - live).num_rows - (out & live).num_rows,
                num_rows=newest.num_rows + more - less,
                as_of=max(filter(None, (newest.as_of, self._source.as_of))),
                builds=tuple(begun for begun in newest.builds if begun.id != self._id and begun.id not in dead),
            )

        committed = await commit(self._backend, manifest, bring, self._id, self._operation)
        assert committed is not None
        return committed

    async def _dead(self, manifest: Manifest) -> set[str]:
        """Builds that were broken off: their files are forgotten, but for those that this build brings."""
        if all(begun.id == self._id for begun in manifest.builds):
            return set()
        builds, grace = await self._backend.builds(operation=self._operation), self._options.grace_s
        return {begun.id for begun in manifest.builds if builds.get(begun.id, grace + 1) > grace} - {self._id}

    def _still_mine(self, newest: Manifest | None) -> Manifest:
        """
        Raises:
            StaleSnapshotError: this build counts as dead.
        """
        self._heartbeat.check()
        if newest is None or all(begun.id != self._id for begun in newest.builds):
            raise StaleSnapshotError(
                "others took this build for dead",
                url=self._backend.description,
                hint="Run it again: what it has committed is used.",
            )
        return newest

    async def _against(self, newest: Manifest) -> tuple[list[IndexedFile], list[IndexedFile]]:
        """Files to bring and to remove, now that others may have brought some of them: each path is listed once."""
        brought, removed = dict(self._brought), dict(self._removed)
        if self._source.alone:
            return list(brought.values()), []
        others = newest.live - self._known
        newer = await files_of(self._runtime, self._backend, newest, others, self._operation) if others else ()
        for file in newer:
            mine = brought.get(file.path)
            if mine is None or mine.id == file.id:
                continue
            if mine.is_newer_than(file):
                removed[file.id] = file
            else:
                del brought[file.path]
        return list(brought.values()), list(removed.values())
