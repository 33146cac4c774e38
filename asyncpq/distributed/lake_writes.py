"""Write files into a lake in tasks; one commit to the lake's index makes them visible.

A task that runs twice writes two files; the commit lists those of one attempt. Others are deleted if the write fails,
and by a vacuum of the index.

Listings of such a folder ask the index which files are committed, also when another index is built. A refresh of the
index adds no uncommitted file. The first 1,000 parts carry the footers, which are not read back.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias, TypedDict, Unpack
from urllib.parse import unquote

import pyarrow as pa

from asyncpq import errors
from asyncpq.dataset import Dataset, state_of
from asyncpq.datasets.listing import INDEX_FOLDER, SUCCESS, WRITTEN, is_file_of, parse_target
from asyncpq.distributed.worker_sessions import WorkerSettings, run_on_worker, worker_options
from asyncpq.indexing.build import adding
from asyncpq.indexing.build.adding import DATA_FOLDER
from asyncpq.indexing.build.index_source import folder_around, is_committed
from asyncpq.indexing.build.maintenance import Vacuumed
from asyncpq.indexing.commits import load
from asyncpq.indexing.kinds import IndexKind, check_kinds
from asyncpq.indexing.manifest import Manifest
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime, runtime_of
from asyncpq.opening.keywords import check_keywords
from asyncpq.options import BuildOptions
from asyncpq.session import Session
from asyncpq.storage.base import ListedObject, RequestContext, Validator, writable
from asyncpq.storage.urls import canonical_url, safe_url, split_url
from asyncpq.typing import IndexTarget
from asyncpq.writing import TAIL_BYTES, WKB_KEY, WriteOptions, check_options, folder_url, write_files

logger: logging.Logger = logging.getLogger(__name__)

_LAYOUT = WriteOptions()
_BUILDING = BuildOptions()

#: Path of an empty object that a folder's first write on Spark makes when it is planned. Data files without an index
#: and without this object have lost their index; with it, the first write may have failed.
BEGUN: Final = f"{INDEX_FOLDER}begun"

#: How readers learn which files are live. "index": from the index alone. "plain": the folder was empty, and its last
#: file ``_SUCCESS`` follows the commit, so that readers may also list it.
Publish: TypeAlias = Literal["index", "plain"]

#: The commit checks that older files still exist, since a vacuum may have removed them as orphans.
TRUSTED_S: Final = 8 * 3600.0

#: The columns of :meth:`WrittenPart.to_arrow`: a row for each file.
PART: Final = pa.schema(
    [
        ("number", pa.int32()),
        ("path", pa.string()),
        (
            "validator",
            pa.struct({"size": pa.int64(), "etag": pa.string(), "last_modified": pa.string(), "version": pa.string()}),
        ),
        ("num_rows", pa.int64()),
        ("footer_start", pa.int64()),
        ("tail", pa.binary()),
    ]
)

#: So many tasks send the ends of their files to the commit, for the index.
TAIL_TASKS: Final = 1000


async def vacuum_lake(
    session: Session, at: IndexTarget, *, keep: int | None = None, older_than: timedelta | None = None
) -> Vacuumed:
    """Remove old snapshots of an index as :meth:`asyncpq.indexing.Index.vacuum` does. In a lake of :func:`plan_write`,
    also remove data files that failed tasks left behind: those older than a day that no kept snapshot lists.

    Args:
        at: url or place of the index.
        keep, older_than: as in :meth:`asyncpq.indexing.Index.vacuum`; None for its defaults.

    Raises:
        ObjectNotFoundError: there is no index at the place.
        StoreError: a store failed.
    """
    index = await session.open_index(at)
    limits: dict[str, Any] = {"keep": keep, "older_than": older_than}
    vacuumed = await index.vacuum(**{name: limit for name, limit in limits.items() if limit is not None})
    folder = folder_around(at)
    if folder is None or not is_committed(index.manifest):
        return vacuumed
    removed = await adding.vacuum_files(runtime_of(session), folder, older_than_s=adding.ORPHANS_S)
    return replace(vacuumed, files=tuple(removed))


class SourceFiles(NamedTuple):
    """The files of a dataset that is to be rewritten.

    Attributes:
        urls: of the files.
        prefix: url of the folder that was listed for them; None if there is none.
        num_bytes: their total size; None if the listing lacks sizes.
    """

    urls: Sequence[str]
    prefix: str | None
    num_bytes: int | None

    @classmethod
    async def of(cls, dataset: Dataset) -> Self:
        """Return the files of a dataset."""
        urls, state = await dataset.files(), state_of(dataset)
        known = state.source.known
        sizes = [] if known is None else [file.size for file in known.files if file.size is not None]
        num_bytes = sum(sizes) if known is not None and len(sizes) == len(known.files) else None
        return cls(urls, state.prefix, num_bytes)

    @property
    def places(self) -> list[str]:
        """The urls of the files and of the folder, which a rewrite must not write into."""
        return [*self.urls] if self.prefix is None else [self.prefix, *self.urls]


@dataclass(frozen=True)
class WrittenPart:
    """Descriptions of the files that an attempt of a task wrote: the result of :meth:`LakeWrite.write`, and an item of
    ``parts`` of :meth:`LakeWrite.commit`. Picklable.

    Attributes:
        number: number of the task in the write.
        files: for each file its path, size, rows and, for some, its last bytes, from which the commit reads the footer.
    """

    number: int
    files: tuple[adding.AddedFile, ...]

    def to_arrow(self) -> pa.RecordBatch:
        """Return the part as a batch of one row for each file, for an engine whose tasks return record batches;
        :meth:`from_rows` is the inverse. A part without files has no rows, and need not be committed.

        All parts have one schema: ``WrittenPart(0, ()).to_arrow().schema``, for engines that declare it beforehand.
        """
        rows = [{"number": self.number, **asdict(file)} for file in self.files]
        return pa.RecordBatch.from_pylist(rows, schema=PART)

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> list[Self]:
        """Return the parts that ``rows`` describe, by number: dicts, or other mappings, of the columns of
        :meth:`to_arrow`, from any number of parts."""
        files = dict[int, list[adding.AddedFile]]()
        for row in rows:
            file = {name: value for name, value in row.items() if name != "number"}
            file |= {"validator": Validator(**file["validator"]), "tail": bytes(file["tail"])}
            files.setdefault(row["number"], []).append(adding.AddedFile(**file))
        return [cls(number, tuple(some)) for number, some in sorted(files.items())]


def sent_part(part: WrittenPart) -> WrittenPart:
    """Return ``part`` for sending to the planner. Parts of the first tasks keep the files' last bytes, with the
    footers, up to ``TAIL_BYTES`` in all; the others drop them."""
    budget, files = TAIL_BYTES if part.number < TAIL_TASKS else 0, list[adding.AddedFile]()
    for file in part.files:
        files.append(file if len(file.tail) <= budget else replace(file, tail=b""))
        budget -= len(files[-1].tail)
    return replace(part, files=tuple(files))


@dataclass(frozen=True, kw_only=True)
class RewriteResult:
    """Result of :meth:`asyncpq.Session.optimize`.

    Attributes:
        target: url of the folder with the written files.
        files: paths of the written files, relative to ``target``.
        rows: number of rows in all files.
        bytes_before: size of the source's files; None if the store does not tell it.
        bytes_after: size of the written files.
        snapshot: number of the snapshot of the index that lists the files.
        seconds: duration of each step in seconds, by its name.
    """

    target: str
    files: tuple[str, ...] = field(repr=False)
    rows: int
    bytes_before: int | None
    bytes_after: int
    snapshot: int
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        before = "" if self.bytes_before is None else f" ({self.bytes_before:,} before)"
        steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        files = errors.plural(len(self.files), "file")
        return (
            f"{self.rows:,} rows in {files}, {self.bytes_after:,} bytes{before}, at {self.target}\n"
            f"verified: the files hold the rows of the source\n{steps}"
        )


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Measure the steps of an engine's own rewrite: store the duration of the ``with`` block, unless it raises.

    Args:
        seconds: the dict to store the duration in, in seconds: ``seconds`` of :meth:`LakeWrite.commit_rewrite`.
        step: name of the step, the key in ``seconds``.
    """
    begin = time.monotonic()
    yield
    seconds[step] = time.monotonic() - begin


@dataclass(frozen=True, kw_only=True)
class LakeWrite:
    """The plan of one write of rows as new files of a lake, a folder of Parquet files with an index. Small, picklable,
    without a session. Made by :func:`plan_write`.

    Each task calls :meth:`write`; then the planner calls :meth:`commit` with the returned parts, or :meth:`discard`.

    Attributes:
        folder: url of the lake, with a slash at its end.
        job: id of the write, random by default; its files are below ``data/<job>/``.
        began: when it was planned, in seconds since the epoch.
        schema: columns of the files; binary fields with :attr:`WKB_KEY` in their metadata become GEOMETRY or GEOGRAPHY.
        overwrite: whether readers see only the files of this write after the commit.
        options: layout of the files.
        settings: how workers open their session.
        kinds: kinds of a new index; None: those of the lake's index, or the default.
        publish: "index": readers use the lake's index. "plain": the folder was empty, and the commit writes
            ``_SUCCESS`` for readers that list it.
        is_batch: whether ``job`` identifies a ``batch`` of :func:`plan_write`, whose rows are committed only once.
        WKB_KEY: the metadata key (bytes) of these fields; its value is GeoArrow's JSON metadata.
    """

    WKB_KEY: ClassVar[bytes] = WKB_KEY

    folder: str
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.time)
    schema: pa.Schema
    overwrite: bool = False
    options: WriteOptions = _LAYOUT
    settings: WorkerSettings
    kinds: tuple[IndexKind, ...] | None = None
    publish: Publish = "index"
    is_batch: bool = False

    def write(self, batches: Iterable[pa.RecordBatch], number: int, attempt: str | None = None) -> WrittenPart:
        """Write the rows of a task, with the columns of ``schema``, to new files, none without rows; return their
        descriptions. Readers see the files after :meth:`commit`.

        Args:
            number: number of the task in the write, from 0: the commit takes one part of each number.
            attempt: a name, unique among the attempts of the task; None for a random one.

        Raises:
            InvalidOptionError: an option does not fit the schema, or rows are not sorted as declared.
            SchemaMismatchError: Parquet cannot hold the rows as the schema declares.
            StoreError: the store failed. Files that were written stay until :meth:`discard`.
        """
        rows, begun = iter(batches), False

        async def pulled() -> AsyncIterator[pa.RecordBatch]:
            nonlocal begun
            begun = True
            while (batch := await asyncio.to_thread(next, rows, None)) is not None:
                yield batch

        async def work(session: Session) -> WrittenPart:
            return await write_in(self, session, pulled(), number, attempt)

        # rows can be read once: only another attempt of the task can repeat the write
        return sent_part(run_on_worker(self.settings, work, repeatable=lambda: not begun))

    def check(self) -> None:
        """Check ``options`` against ``schema``, as :func:`plan_write` does: for engines that make this class on their
        own. Raises InvalidOptionError, and SchemaMismatchError if Parquet cannot store a column's type."""
        check_options(self.schema, self.options)

    @staticmethod
    async def check_folder(session: Session, folder: str, urls: Iterable[str]) -> None:
        """Check, before a rewrite, that a folder (url with a slash at its end) is empty and writable, and does not
        overlap the files and folders of the source, ``urls``.

        Raises:
            InvalidOptionError: the folder has files, or overlaps one of ``urls``.
            UnsupportedStoreError: the store cannot be written.
        """
        runtime = runtime_of(session)
        await runtime.in_thread(partial(check_apart, folder, urls))
        await check_target(runtime, folder)

    def num_tasks(self, num_bytes: float, at_once: int) -> int:
        """Return the number of tasks to divide rows among that fill files of ``num_bytes`` in all, if ``at_once`` tasks
        run at a time: one for each file of ``options.file_bytes``, at least 1, or up to a quarter more, so that no
        worker idles in the last round."""
        tasks = max(1, round(num_bytes / self.options.file_bytes))
        whole = -(-tasks // at_once) * at_once
        return whole if whole * 4 <= tasks * 5 else tasks

    async def commit(self, session: Session, parts: Iterable[WrittenPart], building: BuildOptions = _BUILDING) -> int:
        """Add the files of ``parts`` to the lake's index, which makes them visible; return the number of the index's
        new snapshot. Call it once, in the planner, when all tasks have ended. Of several parts with one number the last
        counts.

        If an earlier write has committed the same batch, the files are deleted, and the number is that of the newest
        snapshot. After an error the files are deleted if it is certain that nothing was committed; after a StoreError
        that leaves this open, readers may see them. Raises the errors of :meth:`asyncpq.Session.build_index`.
        """
        runtime, chosen = runtime_of(session), {part.number: part for part in parts}  # one attempt of each task
        files = [file for _, part in sorted(chosen.items()) for file in part.files]
        if time.time() - self.began >= TRUSTED_S:
            files = [replace(file, tail=b"") for file in files]
        try:
            if self.is_batch:
                live, snapshot = await adding.live_paths(runtime, self.folder)
                if any(is_same_batch(path, self.job) for path in live):
                    await adding.discard_files(runtime, self.folder, job_folder(self.job))
                    logger.info("%s has this batch already: it is not written again", safe_url(self.folder))
                    return snapshot
            added = await adding.add_files(
                runtime, self.folder, files, self.schema, kinds=self.kinds, overwrite=self.overwrite, options=building
            )
        except errors.AsyncpqError as error:
            if is_uncommitted(error):
                await self.discard(session)
            raise
        if self.publish == "plain":
            await publish_plain(runtime, self.folder, self.job)
        return added.manifest.snapshot

    async def commit_rewrite(
        self,
        session: Session,
        parts: Sequence[WrittenPart],
        *,
        rows: int,
        bytes_before: int | None,
        seconds: Mapping[str, float],
        building: BuildOptions = _BUILDING,
    ) -> RewriteResult:
        """Commit the files of a rewrite, which the engine has read back and compared with the source; return the
        :class:`asyncpq.RewriteResult`. For engines that do not run the tasks of :func:`plan_optimize`.

        Args:
            parts, building: as in :meth:`commit`.
            rows, bytes_before, seconds: values of the result; ``seconds`` without the step "commit".

        Raises:
            InvalidOptionError: another writer has written into the folder; the files of the rewrite are deleted.
            AsyncpqError: the errors of :meth:`commit`.
        """
        durations = dict(seconds)
        with timed(durations, "commit"):
            try:
                await check_target(runtime_of(session), self.folder, self.job)
            except BaseException:
                await self.discard(session)
                raise
            snapshot = await self.commit(session, parts, building)
        files = [file for part in parts for file in part.files]
        return RewriteResult(
            target=safe_url(self.folder),
            files=tuple([file.path for file in files]),
            rows=rows,
            bytes_before=bytes_before,
            bytes_after=sum(file.validator.size for file in files),
            snapshot=snapshot,
            seconds=durations,
        )

    async def discard(self, session: Session) -> None:
        """Delete the files of this write that were not committed, if a task failed: once no task runs any more. Errors
        are logged and not raised."""
        await discard_job(runtime_of(session), self.folder, self.job)


async def write_in(
    write: LakeWrite, session: Session, batches: AsyncIterator[pa.RecordBatch], number: int, attempt: str | None = None
) -> WrittenPart:
    """Write as :meth:`LakeWrite.write` does, with ``session``, an entered session of this process."""
    stem = f"{job_folder(write.job)}{number:05d}-{attempt or uuid.uuid4().hex[:12]}"
    files = await write_files(runtime_of(session), write.folder, stem, batches, write.schema, write.options)
    return WrittenPart(number, tuple(files))


def job_folder(job: str) -> str:
    """Return the folder, relative to the lake's, for the files of the write with the id ``job``."""
    return f"{DATA_FOLDER}{job}/"


def is_uncommitted(error: errors.AsyncpqError) -> bool:
    """Return whether a commit that failed with ``error`` certainly committed nothing. After other errors of a store,
    readers may see the files."""
    return not isinstance(error, errors.StoreError) or isinstance(
        error, (errors.StaleSnapshotError, errors.ConcurrentCommitUnsupported)
    )


async def publish_plain(runtime: Runtime, folder: str, job: str) -> None:
    """Delete the uncommitted files of the write ``job``, and then write ``_SUCCESS``, so that readers may list the
    folder. Before, a listing may contain uncommitted files."""
    await adding.discard_files(runtime, folder, job_folder(job))
    store = writable((await runtime.store(folder))[0], safe_url(folder))
    await store.put_object(folder + SUCCESS, b"", context=RequestContext(ReadMetrics(), purpose="write"))


async def discard_job(runtime: Runtime, folder: str, job: str) -> None:
    """Delete the files of the write ``job`` that were not committed. Errors are logged and not raised."""
    try:
        await adding.discard_files(runtime, folder, job_folder(job))
    except errors.AsyncpqError as error:  # the caller raises the error that came first
        logger.warning("unused files could not be deleted below %s: %s", safe_url(folder), error)


async def check_target(runtime: Runtime, folder: str, job: str | None = None) -> None:
    """Check that files can be written to the folder and committed. Raises InvalidOptionError if it has files other
    than those of the write ``job``, and UnsupportedStoreError if the store cannot be written."""
    store, _ = await runtime.store(folder)
    listed = await store.list_objects(folder, context=RequestContext(ReadMetrics(), purpose="list"))
    paths = [path for item in listed if (path := item.url[len(folder) :]) != BEGUN]
    others = [path for path in paths if job is None or not path.startswith(job_folder(job))]
    if others:
        raise errors.InvalidOptionError(
            f"the target is not empty: the folder contains {others[0]!r}",
            url=safe_url(folder),
            hint="Write to another folder. If all files are below data/, an interrupted run may have left them: delete"
            " them.",
        )
    await adding.lake_backend(runtime, folder, create=True)


def check_apart(folder: str, urls: Iterable[str]) -> None:
    """Check, without a request, that a folder does not overlap the source of the rows, whose files and folders are
    ``urls``. Raises InvalidOptionError if it equals or contains one of the urls, or is inside one of them."""
    targets = _places(folder)
    for url in urls:
        sources = _places(url)
        if any(mine.startswith(other) or other.startswith(mine) for mine in targets for other in sources):
            raise errors.InvalidOptionError(
                "the target and the source overlap, so readers of the source would see rows twice",
                url=safe_url(folder),
                hint="Write to a separate folder, and let readers change to it afterwards. (To rewrite a table in"
                " place, use its own engine: asyncpq does not commit to tables.)",
            )


def _places(url: str) -> set[str]:
    """Return the forms in which a url may be spelled, each with a slash at its end, for comparison with other urls.

    There are two forms if ``%`` may be literal, as asyncpq reads it, or an escape, as Spark writes it.
    """
    protocol, rest = split_url(url)
    paths = {url}
    if protocol == "file":
        paths = {rest}
        if rest.startswith("file:"):  # Java's spelling: file:/folder
            paths = {unquote(rest.removeprefix("file:"))}
        elif url.startswith("file://"):
            paths.add(unquote(rest))
    return {f"{canonical_url(path).rstrip('/')}/" for path in paths}


class WriteKeywords(TypedDict, total=False):
    """The keyword arguments of :func:`plan_write`."""

    options: WriteOptions
    index_kinds: Sequence[IndexKind] | None
    overwrite: bool
    publish: Publish
    batch: tuple[str, int] | None
    worker: WorkerSettings | None


async def plan_write(
    session: Session,
    folder: str,
    schema: pa.Schema | Callable[[pa.Schema | None], pa.Schema],
    **keywords: Unpack[WriteKeywords],
) -> LakeWrite:
    """Plan one write of rows into the folder of a lake that asyncpq writes.

    Args:
        schema: columns of the rows; or a function that returns them, called with the columns of the existing lake, or
            None if there is none.
        options: layout of the files.
        index_kinds: kinds of a new lake's index. None: footers and bounds; an existing lake's index keeps its kinds.
        overwrite: readers no longer see the lake's older files after the commit.
        publish: "plain": the folder must be empty, and ``_SUCCESS`` follows the commit, for readers that list it.
        batch: a text and a number that identify the rows: a second write with the same ``batch`` commits nothing. None:
            every write commits.
        worker: how workers open their session. None: with the options of ``session``, storage options included.

    Raises:
        InvalidOptionError: an option is invalid, or the folder has files that asyncpq did not write.
        SchemaMismatchError: the columns do not match those of the lake to which rows are appended.
        StoreError: the store failed.
    """
    check_keywords("plan_write()", keywords, WriteKeywords, others=("schema",))
    options, index_kinds = keywords.get("options", _LAYOUT), keywords.get("index_kinds")
    if index_kinds is not None:
        check_kinds(index_kinds, "index_kinds")
    overwrite, publish = keywords.get("overwrite", False), keywords.get("publish", "index")
    batch, worker = keywords.get("batch"), keywords.get("worker")
    folder = folder_url(folder)
    base = await _look(session, folder, publish)
    known = None if base is None or overwrite else base.schema
    columns = schema(known) if callable(schema) else schema
    if known is not None and (types := _types(columns)) != (there := _types(known)):
        name = next(name for name in (*types, *there) if types.get(name) != there.get(name))
        raise errors.SchemaMismatchError(
            f"the column's type is {types.get(name)} in the rows and {there.get(name)} in the lake",
            url=safe_url(folder),
            column=name,
            hint="Append rows with the lake's columns, or overwrite it.",
        )
    check_options(columns, options)
    tables = adding.lake_tables(columns, index_kinds)
    if base is not None and not overwrite and index_kinds is not None and {*tables} != {*base.tables[1:]}:
        raise errors.InvalidOptionError(
            "index_kinds: an append cannot change the index tables of the lake, which are"
            f" {', '.join(map(str, base.tables))}",
            option="index_kinds",
            url=safe_url(folder),
            hint="Append without index_kinds, or overwrite the lake.",
        )
    if base is None:
        await _begin(session, folder)
    return LakeWrite(
        folder=folder,
        job=uuid.uuid4().hex if batch is None else batch_job(*batch),
        schema=columns,
        overwrite=overwrite,
        options=options,
        settings=worker_options(runtime_of(session)) if worker is None else worker,
        kinds=None if index_kinds is None else tuple(index_kinds),
        publish=publish,
        is_batch=batch is not None,
    )


#: Where the name of a write has random digits, so that each attempt to write a batch has files of its own.
_BATCH_DIGITS: Final = (slice(0, 16), slice(17, 26))


def batch_job(application: str, version: int) -> str:
    """Return a new job name, which names the folder of a write's files. :func:`is_same_batch` recognises it as one
    of the batch ``version`` of ``application``."""
    digest = hashlib.sha256(f"{version} {application}".encode()).hexdigest()
    rest = uuid.uuid4().hex
    return f"{digest[:12]}4{digest[12:15]}{rest[16]}{digest[15:24]}{rest[26:]}"


def is_same_batch(path: str, job: str) -> bool:
    """Return whether the file at ``path`` in the lake was written by a job for the same batch as ``job``."""
    folder = path.removeprefix(DATA_FOLDER)
    return all(folder[digits] == job[digits] for digits in _BATCH_DIGITS)


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema}


async def _listed(session: Session, url: str) -> Sequence[ListedObject]:
    """List the objects whose url begins with ``url``."""
    store, _ = await runtime_of(session).store(url)
    return await store.list_objects(url, context=RequestContext(ReadMetrics(), purpose="list"))


async def _look(session: Session, folder: str, publish: str) -> Manifest | None:
    """Return the manifest of the lake's index; None if the folder has no index yet. ``publish``: "index" or "plain".

    Raises InvalidOptionError if files in the folder prevent the write.
    """
    runtime = runtime_of(session)
    place = await adding.lake_backend(runtime, folder, create=True)
    base = await load(place)
    if base is not None:
        adding.check_lake(base, place)
    if base is not None and publish == "index":
        return base
    objects = [item for item in await _listed(session, folder) if item.url != folder + BEGUN]
    if publish == "plain" and objects:
        raise errors.InvalidOptionError(
            "publish='plain': the folder is not empty, so readers that list it would see old and new files",
            option="publish",
            url=safe_url(folder),
            hint="Write to a new folder, or omit this option, so that readers use the index.",
        )
    files = parse_target(folder)
    paths = [item.url[len(folder) :] for item in objects if is_file_of(files, item.url, item.size)]
    foreign = [path for path in paths if not WRITTEN.fullmatch(path)]
    if foreign:
        raise errors.InvalidOptionError(
            f"the folder has files that asyncpq did not write, such as {foreign[0]!r}: readers of the index would"
            " no longer see them",
            url=safe_url(folder),
            hint="Write to another folder.",
        )
    return base


async def _begin(session: Session, folder: str) -> None:
    """Write the object that says that a folder without an index has begun its first write.

    Raises InvalidOptionError if there are data files but no such object: then their index was lost.
    """
    store, _ = await runtime_of(session).store(folder)
    context = RequestContext(ReadMetrics(), purpose="write")
    data = await _listed(session, folder + DATA_FOLDER)
    if not data:
        await writable(store, safe_url(folder)).put_object(folder + BEGUN, b"", context=context)
    elif not await store.list_objects(folder + BEGUN, context=context):
        raise errors.InvalidOptionError(
            "the folder has files that asyncpq wrote, but its index _asyncpq/ is missing: readers of a new index would"
            " not see them",
            url=safe_url(data[0].url),
            hint="Write to another folder, or restore its _asyncpq/. If these files were never committed, delete them.",
        )
