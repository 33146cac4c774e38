"""``df.write.format("asyncpq")``: tasks write files, and one commit to the lake's index makes them visible.

Spark plans a write, runs its tasks and commits it in separate processes. A task that runs twice writes two files; the
commit lists those whose messages Spark passes to it. Others are deleted if the write fails, and by
:func:`asyncpq.spark.vacuum`.

Listings of such a folder ask the index which files are committed, also when another index is built. A refresh of the
index adds no uncommitted file. Messages of the first 1,000 tasks carry the footers, which are not read back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from asyncpq import errors
from asyncpq.datasets.listing import WRITTEN, is_file_of, parse_target
from asyncpq.distributed import run_on_worker
from asyncpq.errors import InvalidOptionError
from asyncpq.indexing.build import adding
from asyncpq.indexing.build.adding import DATA_FOLDER
from asyncpq.indexing.kinds import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
from asyncpq.indexing.manifest.commits import load
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.metrics import ReadMetrics
from asyncpq.options import BuildOptions
from asyncpq.session import Session
from asyncpq.spark.appended_columns import arranged, fitted
from asyncpq.spark.settings import (
    SETTING_NAMES,
    SparkSettings,
    camel_case,
    flag_option,
    option_spelling,
    refuse_secrets,
    with_three_slashes,
)
from asyncpq.spark.types.conversion import arrow_schema, from_spark
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.storage.base import ListedObject, RequestContext, writable
from asyncpq.storage.urls import safe_url
from asyncpq.writing.file_layout import BloomFilter, SortedBy, WriteOptions, check_options
from asyncpq.writing.file_writer import TAIL_BYTES, folder_url, write_files
from asyncpq.writing.lake_commit import BEGUN, Publish, is_uncommitted, job_folder, publish_plain

logger: logging.Logger = logging.getLogger(__name__)

#: The commit checks that older files still exist, since a vacuum may have removed them as orphans.
TRUSTED_S: Final = 8 * 3600.0

#: So many tasks send the ends of their files to the driver, for the index.
TAIL_TASKS: Final = 1000

_LISTS: Final = ("bloom_filters", "sorted_by", "dictionary_columns")
OPTION_NAMES: Final = tuple(camel_case(option.name) for option in fields(WriteOptions))
_KINDS: Final[Mapping[str, type[IndexKind]]] = {
    kind.name: kind for kind in (Bloom, Bounds, Footers, Keys, NGrams, Pages, Text, ValueSet)
}
#: Options of a write, apart from the settings.
WRITE_NAMES: Final = ("path", "publish", "indexKinds", "caseSensitive", "txnAppId", "txnVersion", *OPTION_NAMES)


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that one attempt of a Spark task wrote, as its message to the commit."""

    partition: int
    files: tuple[adding.AddedFile, ...]


@dataclass(frozen=True, kw_only=True)
class LakeWrite:
    """The plan of one write, which tasks and the commit use. Picklable; without secrets."""

    folder: str  # url of the lake, with a slash at its end
    job: str = field(default_factory=lambda: uuid.uuid4().hex)  # its files are below ``data/<job>/``
    began: float = field(default_factory=time.time)  # seconds since the epoch
    struct: StructType  # columns of the files, in the lake's order and spelling
    # the position of each among the columns that are written; None: nulls; None for all: the same columns
    order: tuple[int | None, ...] | None = None
    overwrite: bool = False  # the commit retires all other files
    options: WriteOptions
    conf: ReadConf
    settings: SparkSettings
    kinds: tuple[IndexKind, ...] | None = None  # of a new index; None: those of the lake's index, or the default
    publish: Publish = "index"  # "plain": the folder was empty, and ``_SUCCESS`` follows the commit
    is_batch: bool = False  # ``job`` is that of a batch, which is committed once

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of a task to new files; return these. Readers see the files after :meth:`commit`."""
        columns = from_spark(self.struct, self.conf)
        if self.order is not None:
            batches = (arranged(batch, self.order, arrow_schema(self.struct)) for batch in batches)
        context = TaskContext.get()
        partition, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        stem = f"{job_folder(self.job)}{partition:05d}-{attempt}"
        converted = map(columns.convert, batches)
        files = write_partition(
            self.settings, self.folder, stem, converted, columns.schema, self.options, partition=partition
        )
        return TaskFiles(partition, tuple(files))

    def commit(self, files: Sequence[adding.AddedFile]) -> int:
        """Add ``files`` to the lake's index, and so make them visible; return the number of the index's new snapshot.

        If an earlier write has committed the same batch (``txnAppId`` and ``txnVersion``), the files are deleted, and
        the number is that of the newest snapshot. Raises the errors of :func:`asyncpq.indexing.build.adding.add_files`.
        The files are deleted if it is certain that nothing was committed.
        """
        schema = from_spark(self.struct, self.conf).schema
        if time.time() - self.began >= TRUSTED_S:
            files = [replace(file, tail=b"") for file in files]

        async def commit(session: Session) -> int:
            if self.is_batch:
                live, snapshot = await adding.live_paths(session.runtime, self.folder)
                if any(is_same_batch(path, self.job) for path in live):
                    await adding.discard_files(session.runtime, self.folder, job_folder(self.job))
                    logger.info("%s has this batch already: it is not written again", safe_url(self.folder))
                    return snapshot
            added = await adding.add_files(
                session.runtime,
                self.folder,
                files,
                schema,
                kinds=self.kinds,
                overwrite=self.overwrite,
                options=BuildOptions(),
            )
            return added.manifest.snapshot

        try:
            snapshot = run_on_worker(self.settings, commit)
        except errors.AsyncpqError as error:
            if is_uncommitted(error):
                self.discard()
            raise
        if self.publish == "plain":
            run_on_worker(self.settings, lambda session: publish_plain(session.runtime, self.folder, self.job))
        return snapshot

    def discard(self) -> None:
        """Delete the files of this write that were not committed. Errors are logged and not raised."""
        try:
            run_on_worker(
                self.settings, lambda session: adding.discard_files(session.runtime, self.folder, job_folder(self.job))
            )
        except errors.AsyncpqError as error:  # the caller raises the error that came first
            logger.warning("unused files could not be deleted below %s: %s", safe_url(self.folder), error)


def plan_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> LakeWrite:
    """Plan one ``save()`` of rows with this schema. With ``overwrite``, readers no longer see the lake's older files
    after its commit.

    Raises:
        InvalidOptionError: an option is invalid, or the folder has files that asyncpq did not write.
        SchemaMismatchError: the columns do not match those of the lake to which rows are appended.
        UnsupportedFeatureError, AmbiguousColumnError: asyncpq cannot write a column.
        StoreError: the store failed.
    """
    given = {name.lower(): value for name, value in options.items()}
    settings = SparkSettings.from_options(options)
    known = [*WRITE_NAMES, *map(camel_case, SETTING_NAMES)]
    unknown = sorted(given.keys() - set(map(str.lower, known)))
    if unknown:
        hint = errors.nearest(unknown[0], known, f"Options of a write are {', '.join(WRITE_NAMES)}.")
        raise errors.InvalidOptionError(f"the format asyncpq has no write option {unknown[0]!r}", hint=hint)
    if not given.get("path"):
        raise errors.InvalidOptionError(
            "the option path is missing: save() names no folder",
            hint="Use save('s3://bucket/lake/'). Spark loses the location and the options of tables: INSERT INTO t and"
            " insertInto do not reach them.",
        )
    folder = lake_folder("the folder", with_three_slashes(given["path"]))
    publish = given.get("publish", "index").lower()
    if publish not in ("index", "plain"):
        raise errors.InvalidOptionError(f"publish={given['publish']!r}: must be 'index' or 'plain'")
    batch = _batch_job(given, publish)
    conf = ReadConf(case_sensitive=flag_option(given, "caseSensitive"))
    written = parse_write_options(options)
    kinds = None if "indexkinds" not in given else _kinds(json_list("indexKinds", given["indexkinds"]))
    from_spark(schema, conf)  # raises if a type cannot be written
    base = run_on_worker(settings, lambda session: _look(session, folder, publish))
    struct, order = schema, None
    if base is not None and not overwrite:
        struct, order = fitted(schema, base.schema, conf, folder)
    columns = from_spark(struct, conf).schema
    with option_spelling([option.name for option in fields(WriteOptions)]):
        check_options(columns, written)
    parts = adding.lake_tables(columns, kinds)
    if base is not None and not overwrite and kinds is not None and {*parts} != {*base.tables[1:]}:
        raise errors.InvalidOptionError(
            "indexKinds: an append cannot change the index tables of the lake, which are"
            f" {', '.join(map(str, base.tables))}",
            url=safe_url(folder),
            hint="Append without indexKinds, or write with mode('overwrite').",
        )
    if base is None:
        run_on_worker(settings, lambda session: _begin(session, folder))
    return LakeWrite(
        folder=folder,
        job=batch or uuid.uuid4().hex,
        is_batch=batch is not None,
        struct=struct,
        order=order,
        overwrite=overwrite,
        options=written,
        conf=conf,
        settings=settings,
        kinds=kinds,
        publish="plain" if publish == "plain" else "index",
    )


def _batch_job(given: Mapping[str, str], publish: str) -> str | None:
    """Return a job name (see :func:`batch_job`) for the batch that the options ``txnAppId`` and ``txnVersion``
    identify; None without these options."""
    application, version = given.get("txnappid"), given.get("txnversion")
    if application is None and version is None:
        return None
    if not application or version is None or not re.fullmatch(r"-?\d+", version):
        raise errors.InvalidOptionError(
            f"txnAppId={application!r}, txnVersion={version!r}: must be a text and a whole number",
            hint="In foreachBatch, pass a name of the query, and the number of the batch.",
        )
    if publish == "plain":
        raise errors.InvalidOptionError(
            "txnAppId cannot be set with publish='plain', which writes only once, into an empty folder",
            hint="Leave out txnAppId and txnVersion, or set publish='index'.",
        )
    return batch_job(application, int(version))


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


def lake_folder(name: str, target: object) -> str:
    """Return the absolute url of the folder of a lake, with a slash at its end.

    Raises InvalidOptionError, which calls the argument ``name``, if ``target`` is not a url, is a pattern, or contains
    a credential.
    """
    if not isinstance(target, str) or not target:
        raise errors.InvalidOptionError(f"{name}: must be the url of a folder (str), not {target!r}")
    refuse_secrets(name, target)
    if any(character in target for character in "*?["):
        raise errors.InvalidOptionError(
            f"{name}: must be the url of one folder, not a pattern (it contains *, ? or [)", url=safe_url(target)
        )
    return folder_url(target)


async def listed(session: Session, url: str) -> Sequence[ListedObject]:
    """List the objects whose url begins with ``url``."""
    store, _ = await session.runtime.store(url)
    return await store.list_objects(url, context=RequestContext(ReadMetrics(), purpose="list"))


async def _look(session: Session, folder: str, publish: str) -> Manifest | None:
    """Return the manifest of the lake's index; None if the folder has no index yet. ``publish``: "index" or "plain".

    Raises InvalidOptionError if files in the folder prevent the write.
    """
    runtime = session.runtime
    place = await adding.lake_backend(runtime, folder, create=True)
    base = await load(place)
    if base is not None:
        adding.check_lake(base, place)
    if base is not None and publish == "index":
        return base
    objects = [item for item in await listed(session, folder) if item.url != folder + BEGUN]
    if publish == "plain" and objects:
        raise errors.InvalidOptionError(
            "publish='plain': the folder is not empty, so readers that list it would see old and new files",
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
    store, _ = await session.runtime.store(folder)
    context = RequestContext(ReadMetrics(), purpose="write")
    data = await listed(session, folder + DATA_FOLDER)
    if not data:
        await writable(store, safe_url(folder)).put_object(folder + BEGUN, b"", context=context)
    elif not await store.list_objects(folder + BEGUN, context=context):
        raise errors.InvalidOptionError(
            "the folder has files that asyncpq wrote, but its index _asyncpq/ is missing: readers of a new index would"
            " not see them",
            url=safe_url(data[0].url),
            hint="Write to another folder, or restore its _asyncpq/. If these files were never committed, delete them.",
        )


def _kinds(items: Sequence[Any]) -> tuple[IndexKind, ...]:
    kinds: list[IndexKind] = []
    for item in items:
        record = {"kind": item} if isinstance(item, str) else item
        kind = _KINDS.get(record.get("kind", "")) if isinstance(record, dict) else None
        if kind is None:
            raise errors.InvalidOptionError(
                f"indexKinds: {item!r} is not an index kind. Items must be names of {', '.join(_KINDS)}, or objects"
                ' such as {"kind": "keys", "columns": ["id"]}'
            )
        options = {name: value for name, value in record.items() if name not in ("kind", "columns")}
        try:
            kinds.append(kind(*record.get("columns", []), **options))
        except TypeError as error:
            raise errors.InvalidOptionError(f"indexKinds: invalid arguments for {kind.name}: {error}") from error
    return tuple(kinds)


def write_partition(
    settings: SparkSettings,
    target: str,
    stem: str,
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    options: WriteOptions,
    *,
    partition: int = 0,
) -> list[adding.AddedFile]:
    """Write the rows of a Spark task with :func:`write_files`; return the written files.

    Args:
        target, stem: url of the folder, and prefix of the files' names.
        partition: number of the task in its job. For the first ``TAIL_TASKS`` tasks, the files have tails (their last
            bytes, with the footers), in total at most ``TAIL_BYTES`` for each task.
    """
    begun = False

    async def pulled() -> AsyncIterator[pa.RecordBatch]:
        nonlocal begun
        begun = True
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def work(session: Session) -> list[adding.AddedFile]:
        return await write_files(session.runtime, target, stem, pulled(), schema, options)

    # rows can be read once: only another attempt of the task can repeat the write
    written = run_on_worker(settings, work, repeatable=lambda: not begun)
    budget = TAIL_BYTES if partition < TAIL_TASKS else 0
    for number, file in enumerate(written):
        if len(file.tail) > budget:
            written[number] = replace(file, tail=b"")
        budget -= len(written[number].tail)
    return written


class AsyncpqWriter(DataSourceArrowWriter):
    """The writer of one ``save()``, made by :func:`lake_writer`. See docs/spark.md."""

    def __init__(self, plan: LakeWrite) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of a task to new files, which readers see after :meth:`commit`; return these files."""
        return self.plan.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, make all files visible at once.

        After a StoreError it is not certain whether the files were committed; after other errors they were not.
        """
        written = [message for message in messages if isinstance(message, TaskFiles)]
        if len(written) < len(messages):
            raise errors.StoreError(
                f"the commit got the files of only {len(written)} of {len(messages)} tasks from Spark",
                url=safe_url(self.plan.folder),
                hint="Nothing was committed: write again.",
            )
        chosen = {message.partition: message for message in written}  # one attempt of each task
        self.plan.commit([file for _, message in sorted(chosen.items()) for file in message.files])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, delete the files of a write whose tasks failed, including files that no message names.

        If all tasks succeeded, the commit failed, but readers may see its files. So the files stay until a vacuum.
        """
        if not messages or any(message is None for message in messages):
            self.plan.discard()


def lake_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> AsyncpqWriter:
    """Plan one ``save()`` and return its writer. Raises the errors of :func:`plan_write`."""
    return AsyncpqWriter(plan_write(options, schema, overwrite=overwrite))


# -- options --------------------------------------------------------------------------------------


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse options with names like ``pageRows``, in any case.

    ``bloomFilters`` and ``sortedBy`` are JSON lists of names, or of objects such as ``{"column": "id", "fpp": 0.001}``;
    ``dictionaryColumns`` is a JSON list of names. An invalid value raises InvalidOptionError.
    """
    texts = {name.lower(): value for name, value in given.items()}
    values: dict[str, Any] = {}
    for option in fields(WriteOptions):
        name = camel_case(option.name)
        if name.lower() in texts:
            values[option.name] = _parsed(name, option.name, texts[name.lower()])
    with option_spelling(values):
        return WriteOptions(**values)


def _parsed(name: str, attribute: str, text: str) -> Any:
    if attribute == "compression":
        return text.lower()
    if attribute == "store_schema":
        return flag_option({name.lower(): text}, name)
    if attribute in _LISTS:
        return tuple(_item(name, attribute, item) for item in json_list(name, text))
    try:
        return int(text)
    except ValueError:
        raise InvalidOptionError(f"{name}={text!r}: must be a whole number") from None


def _item(name: str, attribute: str, item: Any) -> Any:
    if attribute == "dictionary_columns":
        if not isinstance(item, str):
            raise InvalidOptionError(f"{name}: must be a list of names, but has the item {item!r}")
        return item
    kind = BloomFilter if attribute == "bloom_filters" else SortedBy
    known = {camel_case(field.name): field.name for field in fields(kind)}
    record = {"column": item} if isinstance(item, str) else item
    if not isinstance(record, dict) or not isinstance(record.get("column"), str) or record.keys() - known.keys():
        raise InvalidOptionError(
            f"{name}: must be a list of names, or of objects with {', '.join(known)}, but has the item {item!r}"
        )
    return kind(**{known[key]: value for key, value in record.items()})


def json_list(name: str, text: str) -> list[Any]:
    """Parse an option whose value is a JSON list, or names separated by commas. ``name``: the option, for messages.

    Raises InvalidOptionError if a text that begins like JSON is not a JSON list.
    """
    if text.strip() and text.lstrip()[0] not in '[{"':
        return [name.strip() for name in text.split(",")]
    try:
        items = json.loads(text)
    except ValueError as error:
        raise InvalidOptionError(f"{name}: must be JSON: {error}", hint='A list is ["id", "day"].') from error
    if not isinstance(items, list):
        raise InvalidOptionError(f'{name}: must be a JSON list such as ["id", "day"], not {text}')
    return items
