"""Sessions, which open files and datasets, and own caches, connections and threads."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack

from asyncpq.caching.memory import MemoryCache
from asyncpq.errors import InvalidOptionError, NotParquetError, ObjectNotFoundError, many_files
from asyncpq.events import Event
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import load_version, open_source
from asyncpq.opening.keywords import (
    DatasetKeywords,
    DatasetSessionKeywords,
    OptimizeKeywords,
    SessionKeywords,
    SessionOptionKeywords,
    SessionSignature,
    TargetKeywords,
    check_keywords,
    split_keywords,
)
from asyncpq.opening.one_off import OneOff, SessionLoan
from asyncpq.options import BuildOptions, DiskCacheOptions, SessionOptions, SharedCacheOptions
from asyncpq.scan.foreign_names import EnteredAsync, foreign_name
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import safe_url, split_url

# Each method imports the code that it alone needs: `import asyncpq` loads no reader of files, datasets or indexes.
if TYPE_CHECKING:
    from asyncpq.caching.disk import DiskCache
    from asyncpq.caching.shared import SharedCache
    from asyncpq.dataset import Dataset
    from asyncpq.distributed.lake_writes import RewriteResult
    from asyncpq.file import File
    from asyncpq.indexing.index import Index
    from asyncpq.indexing.kinds import IndexKind
    from asyncpq.reports.documents import Diagnosis
    from asyncpq.tables import Format
    from asyncpq.typing import DatasetTarget, DecryptionProperties, IndexChoice, IndexTarget, TableVersion

P = ParamSpec("P")
T = TypeVar("T")

_BUILDING = BuildOptions()


def _mistyped(url: str) -> str | None:
    """Return the hint for a missing local file; None if ``url`` is no local path, or may be a folder or a pattern."""
    protocol, path = split_url(url)
    if protocol != "file" or path.endswith("/") or any(mark in path for mark in "*[{"):
        return None
    if path != url and "%" in path:
        return "The characters of a file:// url stand for themselves: write a space, not %20."
    return "Look for a mistyped folder or file." + " What follows `?` is part of its name." * ("?" in path)


@contextmanager
def _hinting_at_many(url: str) -> Iterator[None]:
    """Add the hint of how to read many files to errors in the ``with`` block, if ``url`` may be a prefix or pattern."""
    try:
        yield
    except ObjectNotFoundError as error:
        names_many = url.endswith("/") or "*" in url
        if error.hint is None and (names_many or not url.lower().startswith(("http://", "https://"))):
            error.hint = _mistyped(url) or many_files(url)
        raise
    except NotParquetError as error:
        from asyncpq.datasets.table_markers import not_parquet_hint

        # A url that ends in a slash is that of a folder's marker.
        error.hint = many_files(url) if url.endswith("/") else not_parquet_hint(safe_url(url)) or error.hint
        raise


class Session(EnteredAsync):
    """Opens Parquet objects and shares caches, connections and threads between them.

    Use it as ``async with asyncpq.Session(...) as session``. It belongs to the event loop that it was
    entered in; make one for each loop.

    Args:
        storage_options: as in fsspec: flat, for urls of any protocol, or one mapping for each
            protocol, such as ``{"s3": {...}, "https": {...}}``.
        memory_cache: a cache to share with other sessions, also of other loops and threads; by default the session
            makes its own cache of ``memory_cache_bytes``.
        disk_cache: folder of a cache that all processes of this user on this host share, or its
            :class:`asyncpq.DiskCacheOptions`.
        shared_cache: url of a Valkey or Redis server whose cache many hosts share, or its
            :class:`asyncpq.SharedCacheOptions`. Needs the extra ``asyncpq-parquet[valkey]``.
        on_event: called in the session's event loop with each :class:`asyncpq.RequestEnded`,
            :class:`asyncpq.FileEnded`, :class:`asyncpq.Progress`, :class:`asyncpq.ArrowSchemaIgnored` and
            :class:`asyncpq.ReadEnded`. It must not block; its exceptions are logged and ignored.
        keywords: ``memory_cache_bytes``, ``cache_policy``, ``negative_ttl_s``, ``cache_namespace``, ``requests``,
            ``retry``, ``limits`` and ``read``, as :class:`asyncpq.options.SessionOptions` explains them.

    Raises:
        InvalidOptionError: an option has a value that is not allowed.
    """

    __signature__ = SessionSignature()

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        memory_cache: MemoryCache | None = None,
        disk_cache: str | os.PathLike[str] | DiskCacheOptions | None = None,
        shared_cache: str | SharedCacheOptions | None = None,
        on_event: Callable[[Event], None] | None = None,
        **keywords: Unpack[SessionOptionKeywords],
    ) -> None:
        if isinstance(disk_cache, (str, os.PathLike)):
            disk_cache = DiskCacheOptions(path=os.fspath(disk_cache))
        if isinstance(shared_cache, str):
            shared_cache = SharedCacheOptions(url=shared_cache)
        others = ("storage_options", "memory_cache", "disk_cache", "shared_cache", "on_event")
        check_keywords("Session()", keywords, SessionOptionKeywords, others=others)
        options = SessionOptions(disk_cache=disk_cache, shared_cache=shared_cache, **keywords)
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InvalidOptionError(f"storage_options must be a mapping, not {type(storage_options).__name__}")
        if memory_cache is not None and not isinstance(memory_cache, MemoryCache):
            raise InvalidOptionError(f"memory_cache must be a MemoryCache, not {type(memory_cache).__name__}")
        if memory_cache is not None and "memory_cache_bytes" in keywords:
            raise InvalidOptionError("memory_cache has its own budget, so memory_cache_bytes cannot be passed with it")
        hook: object = on_event
        if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
            raise InvalidOptionError(
                f"on_event={on_event!r}: must be a function, and not an async function",
                option="on_event",
                hint="Pass a function with one argument, the event; it may start tasks, but must not block.",
            )
        self._disk: DiskCache | None = None
        tiers: list[DiskCache | SharedCache] = []
        if options.disk_cache is not None:
            from asyncpq.caching.disk import DiskCache

            self._disk = DiskCache(options.disk_cache)
            tiers.append(self._disk)
        if options.shared_cache is not None:
            from asyncpq.caching.shared import SharedCache

            tiers.append(SharedCache(options.shared_cache))
        self._tiers = tuple(tiers)
        self._runtime = Runtime(options, storage_options or {}, memory=memory_cache, tiers=tiers, on_event=on_event)

    def __repr__(self) -> str:
        tiers = "".join([f", {tier.name}_cache={tier!r}" for tier in self._tiers])
        memory = self.memory_cache
        return f"Session(memory_cache={memory.current_bytes:,} of {memory.max_bytes:,} bytes{tiers})"

    if not TYPE_CHECKING:
        __getattr__ = foreign_name

    def __await__(self) -> Generator[Any, None, Self]:
        """Enter the session by ``session = await Session()``, where ``async with`` is impractical, as in notebooks.

        Close it with ``await session.close()``.
        """
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        """Enter the running event loop, and begin to load the code that reads files.

        Raises:
            InvalidOptionError: the disk cache's folder is not owned by this user alone.
        """
        self._runtime.enter()
        try:
            # Now, so that a first read some time later finds it, and not awaited, so that a read right now sends its
            # requests meanwhile.
            self._runtime.spawn(self._preload())
            if self._disk is not None:
                await self._disk.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _preload(self) -> None:
        with suppress(Exception):  # who needs the code loads it again, and raises
            await self._runtime.load("asyncpq.file")

    async def _ready(self, module: str = "asyncpq.file") -> None:
        """Import a module in a thread, because importing may take longer than the event loop may be blocked."""
        self._runtime.check()
        await self._runtime.load(module)

    async def close(self) -> None:
        """End every scan, fetch, connection and thread of the session. Idempotent."""
        await self._runtime.close()

    def lent(self) -> Session:
        """Return a session that shares connections, caches and threads with this one, for one of several users of a
        session. Closing the new session ends its own reads, and leaves this session open."""
        session = object.__new__(Session)
        session._disk, session._tiers = self._disk, self._tiers
        session._runtime = self._runtime.lent()
        return session

    @property
    def metrics(self) -> ReadMetrics:
        """The summed costs (:class:`asyncpq.ReadMetrics`) of all calls in this session that have ended."""
        return self._runtime.metrics

    @property
    def memory_cache(self) -> MemoryCache:
        """The session's memory cache (:class:`asyncpq.MemoryCache`), which can be inspected, cleared, or shared with
        another session: its argument ``memory_cache``."""
        return self._runtime.memory.whole

    def cache_counters(self) -> dict[str, dict[str, int]]:
        """Return counts since the session was opened, by cache: ``"disk"`` and ``"shared"``, if the session has them.

        Each is a dict: entries found (``hits``) and not found (``misses``), failed calls (``errors``), calls not made
        since the cache failed recently or is closed (``skipped``), and entries that this process removed
        (``evictions``).
        """
        return {tier.name: tier.counters() for tier in self._tiers}

    async def diagnose(self, url: str | os.PathLike[str] | None = None, *, writes: bool = False) -> Diagnosis:
        """Return what a report of a problem needs: versions, settings, and how the store of ``url`` answers.

        Args:
            url: an object, of which a few parts are fetched to measure latency and bandwidth; None for no store.
            writes: also try whether the store refuses to create an existing object, which indexes need. It creates an
                object of a random name beside ``url`` and deletes it.

        Returns:
            The document of ``asyncpq doctor``, without secrets: a dict with the keys of
            :class:`asyncpq.reports.documents.Diagnosis`. Errors of the store are in it, not raised.
        """
        self._runtime.check()
        from asyncpq.reports.diagnosis import diagnose

        caches = {tier.name: {"place": repr(tier), **tier.counters()} for tier in self._tiers}
        return await diagnose(self._runtime, caches, None if url is None else os.fspath(url), writes=writes)

    async def open_file(
        self, url: str | os.PathLike[str], *, decryption_properties: DecryptionProperties | None = None
    ) -> File:
        """Open a Parquet object and fetch its footer, usually with one GET, unless the footer is cached.

        Args:
            url: ``s3://bucket/key``, ``https://...``, a local path, or any url that fsspec supports.
            decryption_properties: ``FileDecryptionProperties`` of an encrypted file, made with
                ``pyarrow.parquet.encryption``. Data read with them is cached for this handle alone.

        Raises:
            ObjectNotFoundError, AccessDeniedError, CredentialsError, ...: the store refused the request.
            NotParquetError, CorruptFileError, ...: the object is not a readable Parquet file.
        """
        runtime = self._runtime
        runtime.check()
        if not isinstance(url, (str, os.PathLike)):
            raise InvalidOptionError(
                f"url={url!r}: must be a str or a path",
                option="url",
                hint="Session.open_dataset reads a list of files." if type(url) in (list, tuple) else None,
            )
        text = os.fspath(url)
        if not text:
            raise InvalidOptionError("url='': must be a str or a path, and not empty", option="url")
        decryption = None
        if decryption_properties is not None:
            await self._ready()
            from asyncpq.decoding.encrypted import FileDecryption

            decryption = FileDecryption(decryption_properties)
        shown = safe_url(text)
        operation = runtime.operation("open", shown)
        metrics = operation.metrics
        with operation:
            async with runtime.deadline(shown):
                with _hinting_at_many(text):
                    source = await open_source(runtime, text, decryption)
                    handle = source.handle
                    try:
                        version = await load_version(source, RequestContext(metrics))
                        await self._ready()
                        from asyncpq.decoding.field_types import check_arrow_schema

                        await check_arrow_schema(version, runtime, operation)
                    except BaseException:
                        await handle.close()
                        raise
                    source.describe(metrics)
        from asyncpq.file import File

        file = File(source, version)
        file.opening = metrics
        return file

    async def open_dataset(
        self,
        target: DatasetTarget,
        *,
        index: IndexChoice = None,
        view: Literal["snapshot", "listed", "table"] | None = None,
        **options: Unpack[DatasetKeywords],
    ) -> Dataset:
        """Open many Parquet files as one: those of a prefix, of a pattern, of a list, or of a table.

        Args:
            target: a prefix (a folder); a pattern with ``*``, ``**``, ``?``, ``[abc]`` or ``{a,b}``; a list of urls
                (of files, and of folders and patterns that end in a slash); or a table: a ``deltalake.DeltaTable``,
                a ``pyiceberg.table.Table``, a :class:`asyncpq.DuckLakeTable`, or your own :class:`asyncpq.Catalog`.
            index: an index that rules out files: an :class:`asyncpq.indexing.Index`, the url or place of an index, a
                :class:`asyncpq.indexing.FileIndex` of your own, or a list of one index and any number of your own.
                None: the index that :meth:`build_index` wrote below a prefix, if there is one. False: no index.
            view: which files a read sees (docs/datasets.md, "Views"). "listed", the default, with and without an index:
                files that exist when the read begins. "snapshot": files that an index lists; the default only for
                files that asyncpq wrote, which exist as their folder's index lists them. "table": files of the
                table's snapshot.
            format: "delta" or "iceberg" for the url of a table (of Iceberg its folder, or a ``.metadata.json``);
                "parquet" to read all files below a prefix although it looks like a table, or although asyncpq wrote
                them and its index may not list some.
            version: for a Delta table a version or a time, for an Iceberg table a snapshot id, a branch or tag, or a
                time; None for the current version. It is pinned until :meth:`open_dataset` is called again.
            schema: the columns, partition columns included; columns that a file lacks are null, the others are cast,
                if no value is lost. None: the columns of the files.
            schema_policy: "strict": all files have the columns of the first; "permissive": all footers are read, and
                columns that a file lacks are null, types are widened.
            partitioning: "hive" for folders such as ``year=2024``, names of the folders below the prefix, or None.
            partition_types: types of partition columns; others are int32 if all values fit, else int64, else strings.
            on_bad_file: "raise", the default; or "skip" leaves out files that are not Parquet, cannot be read, or do
                not fit the schema, and lists them in :attr:`Dataset.skipped`.
            listing_max_age_s: reads may use a listing, or a snapshot of an index, that is at most this old, and then
                miss files written since; 0: each read lists again.

        Raises:
            ObjectNotFoundError: there are no files, or ``index`` names an index that does not exist.
            SchemaMismatchError: the columns of the files have types that do not fit one schema.
            UnsupportedFeatureError: the table has a feature that asyncpq does not support.
            InvalidOptionError: options contradict each other; the folder of a table is passed as a prefix of files;
                view="listed" for files that only an index lists.
        """
        await self._ready("asyncpq.opening.targets")
        from asyncpq.datasets.model import View
        from asyncpq.opening.datasets import DatasetOptions
        from asyncpq.opening.targets import open_target
        from asyncpq.options import one_of

        if view is not None:
            one_of("view", view, ("snapshot", "listed", "table"))
        check_keywords("open_dataset()", options, DatasetKeywords, others=("index", "view"))
        is_http = isinstance(target, str) and target.lower().startswith(("http://", "https://"))
        with _hinting_at_many(str(target)) if is_http else nullcontext():
            return await open_target(
                self._runtime, target, DatasetOptions(**options), index, None if view is None else View(view)
            )

    async def build_index(
        self,
        target: DatasetTarget,
        kinds: Sequence[IndexKind],
        *,
        at: IndexTarget | None = None,
        building: BuildOptions = _BUILDING,
        progress: bool = False,
        workers: int = 1,
        **options: Unpack[TargetKeywords],
    ) -> Index:
        """Read the files of a dataset once, and write an index of the given ``kinds`` (docs/indexes.md).

        The session's ``on_event`` gets a :class:`asyncpq.FileEnded` for each finished file. Called again, an
        interrupted build continues where it stopped; an index that exists is refreshed to the current files.

        Args:
            target: as in :meth:`open_dataset`.
            kinds: kinds of :mod:`asyncpq.indexing`, such as ``[Bounds("day"), Keys("user"), Footers()]``.
            at: url of the index: of a folder, of a ``.json`` object, of a SQL database, or of a Valkey server; or a
                place of :mod:`asyncpq.indexing`. None: ``_asyncpq/`` below the prefix.
            building: memory, local files, and how often the build commits.
            progress: show the progress on stderr: bars in a terminal or a notebook, else a line every ten seconds
                (requires rich).
            workers: processes that read the files and write the index, within ``building.memory_bytes`` each; 1: this
                one. They start anew, so that a script needs ``if __name__ == "__main__":``, and open the store with the
                session's options. Clusters: :func:`asyncpq.distributed.build_index`.
            options: the arguments ``format`` to ``partition_types`` of :meth:`open_dataset`.

        Raises:
            ColumnNotFoundError: the dataset does not have a column that ``kinds`` name.
            InvalidOptionError: a column or place does not support a kind, or another index is at the place.
            ConcurrentCommitUnsupported: the store cannot create an object only if it does not exist.
            StoreError: a store failed. The next build uses the progress that was committed.
        """
        await self._ready("asyncpq.opening.indexes")
        from asyncpq.opening.datasets import DatasetOptions
        from asyncpq.opening.indexes import build
        from asyncpq.options import require_whole

        others = ("kinds", "at", "building", "progress", "workers")
        check_keywords("build_index()", options, TargetKeywords, others=others)
        require_whole("workers", workers)
        with self._shown(progress):
            if workers == 1:
                return await build(self._runtime, target, kinds, at, DatasetOptions(**options), building)
            await self._ready("asyncpq.distributed.build_tasks")
            from asyncpq.distributed.build_tasks import build_in_processes

            return await build_in_processes(self, target, kinds, workers, at=at, building=building, options=options)

    async def open_index(
        self,
        at: IndexTarget,
        *,
        table: DatasetTarget | None = None,
        format: Format | None = None,
        version: TableVersion | None = None,
        snapshot: int | None = None,
        building: BuildOptions = _BUILDING,
    ) -> Index:
        """Open an index that was built before.

        Args:
            at: as in :meth:`build_index`.
            table, format, version: the table of the index, as ``target`` of :meth:`open_dataset`; required to refresh
                and verify an index of a table.
            snapshot: number of an older snapshot; None for the newest.
            building: options for :meth:`asyncpq.indexing.Index.refresh` and ``compact``.

        Raises:
            ObjectNotFoundError: there is no index at the place.
        """
        await self._ready("asyncpq.opening.indexes")
        from asyncpq.opening.datasets import DatasetOptions
        from asyncpq.opening.indexes import open_existing

        options = DatasetOptions(format=format, version=version)
        return await open_existing(self._runtime, at, table, options, building, snapshot)

    async def optimize(
        self, source: DatasetTarget, target: str, sort_by: Sequence[str] | str = (), **options: Unpack[OptimizeKeywords]
    ) -> RewriteResult:
        """Rewrite rows, sorted, into files of which lookups read little (on a cluster: :func:`asyncpq.spark.optimize`).

        With ``zorder_by``, rows with equal ``sort_by`` are sorted by their place in a z-order. Rows that exceed the
        memory go to local files. The files are read back and compared with what was written before they are committed.
        The session's ``on_event`` gets a :class:`asyncpq.Progress` for each part of the work.

        Args:
            source: as ``target`` of :meth:`open_dataset`.
            target: url of an empty folder that does not overlap the source.
            sort_by: columns, or dotted paths in structs. Nulls come first, NaN last.
            zorder_by: 2 to 8 columns that conditions bound by ranges, such as coordinates.
            columns: columns to write; None for all.
            where: condition of the rows to write, as in :meth:`asyncpq.Dataset.scan`.
            layout: sizes of pages, row groups and files, compression and Bloom filters; ``sorted_by`` is set here.
            kinds: kinds of the index of ``target``; None: footers, and bounds of the first 32 columns.
            publish: "index": readers use the index in ``target``. "plain": readers may also list the folder as soon as
                ``_SUCCESS`` exists, the last file.
            building: memory and folder for sorting.
            progress, workers: as in :meth:`build_index`. Clusters: :func:`asyncpq.distributed.plan_optimize`.
            options: the arguments ``format`` to ``partition_types`` of :meth:`open_dataset`, for the source.

        Raises:
            InvalidOptionError: ``target`` is not empty or overlaps the source, or an option is invalid.
            SchemaMismatchError: Parquet cannot hold a column's values.
            CorruptFileError: the files differ from the source; they are deleted.
            StoreError: a store failed; written files are deleted if possible.
        """
        check_keywords("optimize()", options, OptimizeKeywords, others=("sort_by",))
        await self._ready("asyncpq.distributed.optimize")
        from asyncpq.distributed.optimize import optimize_here

        given: Any = dict(options)
        progress, workers = given.pop("progress", False), given.pop("workers", 1)
        with self._shown(progress):
            return await optimize_here(self, source, target, sort_by, workers, given)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show the progress of the calls that begin in the ``with`` block: rows that reads of a file have read, files
        that reads of a dataset have finished, and steps of index builds and rewrites.

        Calls of more than a second are shown on stderr: by bars in a terminal or a notebook, else by a line every ten
        seconds. Needs rich, which the extra ``asyncpq-parquet[cli]`` installs.

        Raises:
            UsageError: rich is not installed.
        """
        from asyncpq.reports.progress import ProgressBars

        with ProgressBars() as bars, self._runtime.watched(bars):
            yield

    def _shown(self, progress: bool) -> AbstractContextManager[None]:
        return self.progress() if progress else nullcontext()


def open_dataset(
    target: DatasetTarget,
    *,
    index: IndexChoice = None,
    view: Literal["snapshot", "listed", "table"] | None = None,
    **options: Unpack[DatasetSessionKeywords],
) -> OneOff[Dataset]:
    """Open a dataset for one-off use: ``async with asyncpq.open_dataset(url) as dataset``. Calls in one event loop with
    equal options share a session, as those of :func:`open_file` do.

    Args:
        target, index, view: as in :meth:`Session.open_dataset`.
        options: the other arguments of :meth:`Session.open_dataset`, and the arguments of :class:`Session`.
    """

    async def enter(stack: AsyncExitStack) -> Dataset:
        session_options, dataset_options = split_keywords(options)
        session = await stack.enter_async_context(SessionLoan(session_options, Session))
        return await session.open_dataset(target, index=index, view=view, **dataset_options)

    return OneOff("open_dataset", enter)


def open_file(
    url: str | os.PathLike[str],
    *,
    decryption_properties: DecryptionProperties | None = None,
    **session_options: Unpack[SessionKeywords],
) -> OneOff[File]:
    """Open one file for one-off use: ``async with asyncpq.open_file(url) as file``.

    Calls in one event loop with equal ``session_options`` share a session with its caches and connections. It ends 30
    seconds after the last one, and with the event loop. The file has the version of the time of the call.

    Args:
        url, decryption_properties: as in :meth:`Session.open_file`.
        session_options: the arguments of :class:`Session`.

    The ``async with`` block raises the errors of both.
    """

    async def enter(stack: AsyncExitStack) -> File:
        session = await stack.enter_async_context(SessionLoan(session_options, Session))
        file = await stack.enter_async_context(
            await session.open_file(url, decryption_properties=decryption_properties)
        )
        if file.opening is not None and not file.opening.requests:  # the caches had it
            await file.refresh()
        return file

    return OneOff("open_file", enter)
