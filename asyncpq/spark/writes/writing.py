"""``df.write.format("asyncpq")``: files are written by tasks, and are there from one commit of the lake's index on.

Spark plans a write, runs its tasks, and commits it in processes of their own. A task that is run twice writes two
files: those count that the messages name which Spark hands to the commit. The others are deleted where the write
fails, and by :func:`asyncpq.spark.vacuum`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from asyncpq.datasets.listing import SUCCESS
from asyncpq.errors import AsyncpqError, ConcurrentCommitUnsupported, StaleSnapshotError, StoreError
from asyncpq.indexing.adding import DATA_FOLDER, NewFile, add_files, discard_files
from asyncpq.indexing.kinds import Kind
from asyncpq.metrics import ReadMetrics
from asyncpq.options import BuildOptions
from asyncpq.session import Session
from asyncpq.spark.sessions import run
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.writes.file_writer import WrittenFile, folder_url, write_partition
from asyncpq.spark.writes.write_planning import LakeWrite, Publish, file_columns, plan_write
from asyncpq.storage.base import RequestContext, writable
from asyncpq.storage.urls import safe_url

#: A file that is older when it is committed is looked at again: a vacuum may have taken it for an orphan.
TRUSTED_S: Final = 8 * 3600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """What one attempt of a task has written."""

    partition: int
    files: tuple[WrittenFile, ...]


class AsyncpqWriter(DataSourceArrowWriter):
    """See docs/spark.md. Made by :func:`lake_writer`."""

    def __init__(self, plan: LakeWrite) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """In a task: its rows as files, which nobody sees yet.

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
        """On the driver: all files become visible at once.

        Raises:
            AsyncpqError: nothing was committed; or, of a store that failed, nobody can say whether it was.
        """
        plan = self.plan
        told = [message for message in messages if isinstance(message, TaskFiles)]
        if len(told) < len(messages):
            raise StoreError("Spark does not say what all tasks have written", url=safe_url(plan.folder))
        chosen = {message.partition: message for message in told}  # of two attempts of one task, one counts
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
        """On the driver, once tasks have failed: their files are deleted, also those that nobody knows of.

        Where all tasks were done it is the commit that failed, perhaps only for this process: then they stay, for
        whatever removes what was never committed.
        """
        if messages and all(message is not None for message in messages):
            return
        discard(self.plan.settings, self.plan.folder, self.plan.job)


def task_names(job: str) -> tuple[int, str]:
    """In a task: its number, and what begins the names of its files; no other attempt has the same."""
    context = TaskContext.get()
    partition, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
    return partition, f"{_job_folder(job)}{partition:05d}-{attempt}"


def _job_folder(job: str) -> str:
    return f"{DATA_FOLDER}{job}/"


# -- committing -----------------------------------------------------------------------------------

#: After these nothing was committed for sure; after other errors of a store nobody can say.
_CERTAIN: Final = (StaleSnapshotError, ConcurrentCommitUnsupported)


def commit_or_discard(
    settings: SparkSettings,
    target: str,
    job: str,
    files: Sequence[WrittenFile],
    schema: pa.Schema,
    *,
    kinds: Sequence[Kind] | None = None,
    overwrite: bool = False,
    trusted: bool,
    publish: Publish,
) -> int:
    """:func:`commit_files`, and then :func:`publish_plainly` where that is asked for.

    Raises:
        AsyncpqError: as :func:`commit_files`. Where nothing was committed for sure, the files are deleted.
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
    """Delete the files of a job that were not committed, as far as that can be done."""
    folder = folder_url(target)
    try:
        run(settings, lambda session: discard_files(session._resources, folder, _job_folder(job)))
    except AsyncpqError as error:  # what went wrong first is what counts
        logger.warning("files that are not needed are left below %s: %s", safe_url(folder), error)


async def commit_files(
    session: Session,
    target: str,
    files: Sequence[WrittenFile],
    schema: pa.Schema,
    *,
    kinds: Sequence[Kind] | None = None,
    overwrite: bool = False,
    trusted: bool = True,
) -> int:
    """List files in the index of a lake, in one commit.

    Args:
        target: url of the lake.
        schema: of the files; see :func:`file_columns`.
        kinds: see :func:`asyncpq.indexing.adding.add_files`.
        overwrite: nothing else is there after it.
        trusted: no file can have been removed meanwhile; else each of them is looked at.

    Returns:
        number of the snapshot.

    Raises:
        AsyncpqError: as :func:`asyncpq.indexing.adding.add_files`.
    """
    new = [
        NewFile(
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
        session._resources, folder, new, schema, kinds=kinds, overwrite=overwrite, options=BuildOptions()
    )
    return done.manifest.snapshot


async def publish_plainly(session: Session, target: str, job: str) -> None:
    """Leave below ``target`` no file of the job but those that were committed, and say that it is done: ``_SUCCESS``.

    It is not atomic: who does not wait for ``_SUCCESS`` may see some files, or those of attempts that lost.
    """
    folder = folder_url(target)
    resources = session._resources
    await discard_files(resources, folder, _job_folder(job))
    store = writable((await resources.store(folder))[0], safe_url(folder))
    await store.put_object(folder + SUCCESS, b"", context=RequestContext(ReadMetrics(), purpose="write"))


def lake_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> AsyncpqWriter:
    """The writer of one ``save()``: made in the process that Spark plans it in.

    Raises:
        AsyncpqError: as :func:`asyncpq.spark.writes.write_planning.plan_write`.
    """
    return AsyncpqWriter(plan_write(options, schema, overwrite=overwrite))
