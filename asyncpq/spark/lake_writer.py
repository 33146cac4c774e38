"""``df.write.format("asyncpq")``: tasks write files, and one commit to the lake's index makes them visible.

Spark plans a write, runs its tasks and commits it in separate processes. A task that runs twice writes two files; the
commit lists those whose messages Spark passes to it. Others are deleted if the write fails, and by
:func:`asyncpq.spark.vacuum`.

Listings of such a folder ask the index which files are live, also when another index is built. A refresh of the index
adds no uncommitted file. Messages of the first 1,000 tasks carry the footers, which are not read back.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from asyncpq.datasets.listing import SUCCESS, WRITTEN, is_file_of, parse_target
from asyncpq.errors import (
    AsyncpqError,
    ConcurrentCommitUnsupported,
    InvalidOptionError,
    SchemaMismatchError,
    StaleSnapshotError,
    StoreError,
    UnsupportedFeatureError,
    nearest,
)
from asyncpq.indexing.build.adding import (
    DATA_FOLDER,
    AddedFile,
    add_files,
    check_lake,
    discard_files,
    lake_backend,
    lake_tables,
)
from asyncpq.indexing.kinds import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
from asyncpq.indexing.manifest.commits import load
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.metrics import ReadMetrics
from asyncpq.options import BuildOptions
from asyncpq.session import Session
from asyncpq.spark.file_writer import WrittenFile, folder_url, write_partition
from asyncpq.spark.sessions import run
from asyncpq.spark.settings import (
    SETTING_NAMES,
    SparkSettings,
    camel_case,
    flag_option,
    refuse_secret_url,
    told_as_options,
)
from asyncpq.spark.types.conversion import ToParquet, from_spark
from asyncpq.spark.types.read_conf import ReadConf, find_name, nullable_struct
from asyncpq.spark.write_options import OPTION_NAMES, WriteOptions, check_options, json_option, parse_write_options
from asyncpq.storage.base import RequestContext, writable
from asyncpq.storage.urls import safe_url

_SPARK_VERSION_KEY: Final = "org.apache.spark.version"  # tells readers that dates use Spark 3's calendar

Publish = Literal["index", "plain"]

_KINDS: Final[Mapping[str, type[IndexKind]]] = {
    kind.name: kind for kind in (Bloom, Bounds, Footers, Keys, NGrams, Pages, Text, ValueSet)
}
#: Options of a write, apart from the settings.
WRITE_NAMES: Final = ("path", "publish", "indexKinds", "caseSensitive", *OPTION_NAMES)


@dataclass(frozen=True, kw_only=True)
class LakeWrite:
    """One ``save()``, for its tasks and its commit. Picklable; without secrets.

    Attributes:
        folder: url of the lake, with a slash at its end.
        job: name of the write; its files are below ``data/<job>/``.
        began: seconds since the epoch.
        struct: columns of the files, in the lake's order and spelling.
        order: for each of them its position among the columns that are written.
        overwrite: the commit retires all other files.
        kinds: of a new index; None: those of the lake's index, or the default.
        publish: "plain": the folder was empty, and ``_SUCCESS`` follows the commit; or "index".
    """

    folder: str
    job: str
    began: float
    struct: StructType
    order: tuple[int, ...]
    overwrite: bool
    options: WriteOptions
    conf: ReadConf
    settings: SparkSettings
    kinds: tuple[IndexKind, ...] | None = None
    publish: Publish = "index"


def plan_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> LakeWrite:
    """Plan one ``save()``.

    Raises:
        InvalidOptionError: an invalid option, or a folder with files that asyncpq did not write.
        SchemaMismatchError: the columns do not match those of the lake that rows are appended to.
        UnsupportedFeatureError, AmbiguousColumnError: columns that cannot be written.
        StoreError: the store failed.
    """
    given = {name.lower(): value for name, value in options.items()}
    settings = SparkSettings.from_options(options)
    _refuse_unknown(given)
    folder = _folder(given)
    publish = _publish(given.get("publish", "index"))
    conf = ReadConf(case_sensitive=flag_option(given, "caseSensitive"))
    written = parse_write_options(options)
    kinds = None if "indexkinds" not in given else _kinds(json_option("indexKinds", given["indexkinds"]))
    file_columns(schema, conf)  # raises if a type cannot be written
    base = run(settings, lambda session: _look(session, folder, publish))
    struct, order = schema, tuple(range(len(schema)))
    if base is not None and not overwrite:
        struct, order = fitted(schema, base.schema, conf, folder)
    columns = file_columns(struct, conf).schema
    with told_as_options([one.name for one in fields(WriteOptions)]):
        check_options(columns, written)
    parts = lake_tables(columns, kinds)
    if base is not None and not overwrite and kinds is not None and {*parts} != {*base.tables[1:]}:
        raise InvalidOptionError(
            f"indexKinds: the lake's index knows {', '.join(map(str, base.tables[1:])) or 'files alone'}",
            url=safe_url(folder),
            hint="Append without indexKinds, or overwrite.",
        )
    return LakeWrite(
        folder=folder,
        job=uuid.uuid4().hex,
        began=time.time(),
        struct=struct,
        order=order,
        overwrite=overwrite,
        options=written,
        conf=conf,
        settings=settings,
        kinds=kinds,
        publish=publish,
    )


def file_columns(struct: StructType, conf: ReadConf) -> ToParquet:
    """Conversion of rows of ``struct`` to columns of files, all of them nullable as in files that Spark writes.

    Raises:
        UnsupportedFeatureError: a type that cannot be written.
        AmbiguousColumnError: two fields with the same name.
    """
    if not struct.fields:
        raise UnsupportedFeatureError("rows without columns cannot be written", hint="Write at least one column.")
    found = from_spark(nullable_struct(struct), conf)
    metadata = {**(found.schema.metadata or {}), _SPARK_VERSION_KEY.encode(): pyspark.__version__.encode()}
    schema = found.schema.with_metadata(metadata)
    return ToParquet(schema, lambda batch: found.convert(batch).cast(schema))


async def _look(session: Session, folder: str, publish: Publish) -> Manifest | None:
    """The manifest of the lake's index; None for a new lake.

    Raises:
        InvalidOptionError: the folder has content that prevents the write.
    """
    runtime = session.runtime
    place = await lake_backend(runtime, folder, create=True)
    base = await load(place)
    if base is not None:
        check_lake(base, place)
    if base is not None and publish == "index":
        return base
    store = (await runtime.store(folder))[0]
    found = await store.list_objects(folder, context=RequestContext(ReadMetrics(), purpose="list"))
    if publish == "plain" and found:
        raise InvalidOptionError(
            "publish='plain': the folder is not empty, so readers that list it would see old and new files",
            url=safe_url(folder),
            hint="Write to a new folder, or omit this option, so that readers use the index.",
        )
    files = parse_target(folder)
    paths = [item.url[len(folder) :] for item in found if is_file_of(files, item.url)]
    foreign = [path for path in paths if not WRITTEN.fullmatch(path)]
    if paths and not foreign and base is None and any(item.url == folder + SUCCESS for item in found):
        raise InvalidOptionError(
            "the folder holds files that were written with publish=plain, and their index is missing: readers of a"
            " new index would not see them",
            url=safe_url(folder),
            hint="Write to another folder, or restore its _asyncpq/.",
        )
    if foreign:
        raise InvalidOptionError(
            f"the folder holds files that asyncpq did not write, such as {foreign[0]!r}: readers of the index would"
            " no longer see them",
            url=safe_url(folder),
            hint="Write to another folder.",
        )
    return base


def fitted(schema: StructType, lake: pa.Schema, conf: ReadConf, folder: str) -> tuple[StructType, tuple[int, ...]]:
    """The columns to append, in the lake's order and spelling, and their positions in ``schema``.

    Raises:
        SchemaMismatchError: they differ from the lake's columns.
        AmbiguousColumnError: several names differ only in case.
    """
    names = schema.fieldNames()
    places: list[int] = []
    for name in lake.names:
        at = find_name(names, name, conf)
        if at is None:
            raise _mismatch("the lake has such a column, and the rows that are appended have not", name, folder)
        places.append(at)
    left = set(range(len(names))) - set(places)
    if left:
        raise _mismatch("the lake has no such column", names[min(left)], folder)
    fields = [schema.fields[at] for at in places]
    struct = StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(lake.names, fields, strict=True)
        ]
    )
    for ours, theirs in zip(file_columns(struct, conf).schema, lake, strict=True):
        if ours.type != theirs.type:
            raise _mismatch(f"it is {ours.type}, and {theirs.type} in the lake", ours.name, folder)
    return struct, tuple(places)


def _mismatch(what: str, column: str, folder: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        what, url=safe_url(folder), column=column, hint="Cast the columns, or overwrite the lake."
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = [*WRITE_NAMES, *map(camel_case, SETTING_NAMES)]
    unknown = sorted(given.keys() - set(map(str.lower, known)))
    if unknown:
        hint = nearest(unknown[0], known, f"Known: {', '.join(WRITE_NAMES)}.")
        raise InvalidOptionError(f"writing has no option {unknown[0]!r}", hint=hint)


def _folder(given: Mapping[str, str]) -> str:
    path = given.get("path", "")
    if not path:
        raise InvalidOptionError("the folder to write to is missing", hint="Use save('s3://bucket/lake/').")
    refuse_secret_url("the folder", path)
    if any(character in path for character in "*?["):
        raise InvalidOptionError("the folder of a lake cannot be a pattern", url=safe_url(path))
    return folder_url(path)


def _publish(text: str) -> Publish:
    lowered = text.lower()
    if lowered not in ("index", "plain"):
        raise InvalidOptionError(f"publish={text!r}: must be index or plain")
    return "plain" if lowered == "plain" else "index"


def _kinds(listed: Any) -> tuple[IndexKind, ...]:
    if not isinstance(listed, list):
        raise InvalidOptionError("indexKinds: must be a list in JSON")
    found: list[IndexKind] = []
    for item in listed:
        record = {"kind": item} if isinstance(item, str) else item
        kind = _KINDS.get(record.get("kind", "")) if isinstance(record, dict) else None
        if kind is None:
            raise InvalidOptionError(
                f"indexKinds: must be names of {', '.join(_KINDS)}, or objects such as"
                ' {"kind": "keys", "columns": ["id"]}'
            )
        options = {name: value for name, value in record.items() if name not in ("kind", "columns")}
        try:
            found.append(kind(*record.get("columns", []), **options))
        except TypeError as error:
            raise InvalidOptionError(f"indexKinds: invalid arguments for {kind.name}: {error}") from error
    return tuple(found)


#: The commit checks that older files still exist, since a vacuum may have removed them as orphans.
TRUSTED_S: Final = 8 * 3600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that one attempt of a task wrote."""

    partition: int
    files: tuple[WrittenFile, ...]


class AsyncpqWriter(DataSourceArrowWriter):
    """The writer of one ``save()``, made by :func:`lake_writer`. See docs/spark.md."""

    def __init__(self, plan: LakeWrite) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of a task as files that are not visible yet.

        Raises:
            AsyncpqError: a value cannot be written, or the store failed.
        """
        plan = self.plan
        columns = file_columns(plan.struct, plan.conf)
        order = list(plan.order)
        batches = (columns.convert(batch.select(order)) for batch in iterator)
        partition, stem = task_names(plan.job)
        written = write_partition(
            plan.settings, plan.folder, stem, batches, columns.schema, plan.options, partition=partition
        )
        return TaskFiles(partition, tuple(written))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, make all files visible at once.

        Raises:
            AsyncpqError: nothing was committed; after an error of the store that is not certain.
        """
        plan = self.plan
        told = [message for message in messages if isinstance(message, TaskFiles)]
        if len(told) < len(messages):
            raise StoreError("Spark does not report the files of all tasks", url=safe_url(plan.folder))
        chosen = {message.partition: message for message in told}  # one attempt of each task
        files = [file for _, message in sorted(chosen.items()) for file in message.files]
        schema = file_columns(plan.struct, plan.conf).schema
        commit_or_discard(
            plan.settings,
            plan.folder,
            plan.job,
            files,
            schema,
            kinds=plan.kinds,
            overwrite=plan.overwrite,
            trusted=time.time() - plan.began < TRUSTED_S,
            publish=plan.publish,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, delete the files of failed tasks, including those without a message.

        If all tasks succeeded, the commit failed, perhaps only in this process. Then the files stay until a vacuum.
        """
        if messages and all(message is not None for message in messages):
            return
        discard(self.plan.settings, self.plan.folder, self.plan.job)


def task_names(job: str) -> tuple[int, str]:
    """The number of this task, and the prefix of its file names, which no other attempt has."""
    context = TaskContext.get()
    partition, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
    return partition, f"{_job_folder(job)}{partition:05d}-{attempt}"


def _job_folder(job: str) -> str:
    return f"{DATA_FOLDER}{job}/"


# -- committing -----------------------------------------------------------------------------------

#: After these errors nothing was committed; after other errors of a store that is not certain.
_CERTAIN: Final = (StaleSnapshotError, ConcurrentCommitUnsupported)


def commit_or_discard(
    settings: SparkSettings,
    target: str,
    job: str,
    files: Sequence[WrittenFile],
    schema: pa.Schema,
    *,
    kinds: Sequence[IndexKind] | None = None,
    overwrite: bool = False,
    trusted: bool,
    publish: Publish,
) -> int:
    """Run :func:`commit_files`, and :func:`publish_plainly` if asked to; return the number of the snapshot.

    Raises:
        AsyncpqError: as :func:`commit_files`. If certainly nothing was committed, the files are deleted.
    """
    try:
        snapshot = run(
            settings,
            lambda session: commit_files(
                session, target, files, schema, kinds=kinds, overwrite=overwrite, trusted=trusted
            ),
        )
    except AsyncpqError as error:
        if not isinstance(error, StoreError) or isinstance(error, _CERTAIN):
            discard(settings, target, job)
        raise
    if publish == "plain":
        run(settings, lambda session: publish_plainly(session, target, job))
    return snapshot


def discard(settings: SparkSettings, target: str, job: str) -> None:
    """Delete the uncommitted files of a job; errors are logged."""
    folder = folder_url(target)
    try:
        run(settings, lambda session: discard_files(session.runtime, folder, _job_folder(job)))
    except AsyncpqError as error:  # the caller raises the error that came first
        logger.warning("unused files could not be deleted below %s: %s", safe_url(folder), error)


async def commit_files(
    session: Session,
    target: str,
    files: Sequence[WrittenFile],
    schema: pa.Schema,
    *,
    kinds: Sequence[IndexKind] | None = None,
    overwrite: bool = False,
    trusted: bool = True,
) -> int:
    """List files in the index of a lake in one commit.

    Args:
        target: url of the lake.
        schema: of the files; see :func:`file_columns`.
        kinds: see :func:`asyncpq.indexing.build.adding.add_files`.
        overwrite: retire all other files.
        trusted: skip the check that the files still exist.

    Returns:
        The number of the snapshot.

    Raises:
        AsyncpqError: as :func:`asyncpq.indexing.build.adding.add_files`.
    """
    new = [
        AddedFile(
            path=file.path,
            validator=file.validator,
            num_rows=file.rows,
            footer_start=file.footer_start,
            tail=file.tail if trusted else b"",
        )
        for file in files
    ]
    folder = folder_url(target)
    done = await add_files(
        session.runtime, folder, new, schema, kinds=kinds, overwrite=overwrite, options=BuildOptions()
    )
    return done.manifest.snapshot


async def publish_plainly(session: Session, target: str, job: str) -> None:
    """Delete the job's files that were not committed, then write ``_SUCCESS``.

    This is not atomic: readers that do not wait for ``_SUCCESS`` may see some files, or those of failed attempts.
    """
    folder = folder_url(target)
    runtime = session.runtime
    await discard_files(runtime, folder, _job_folder(job))
    store = writable((await runtime.store(folder))[0], safe_url(folder))
    await store.put_object(folder + SUCCESS, b"", context=RequestContext(ReadMetrics(), purpose="write"))


def lake_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> AsyncpqWriter:
    """Make the writer of one ``save()``, in the process in which Spark plans it.

    Raises:
        AsyncpqError: as :func:`plan_write`.
    """
    return AsyncpqWriter(plan_write(options, schema, overwrite=overwrite))
