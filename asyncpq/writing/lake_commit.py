"""Commit written files to the lake's index, so that readers see them, or delete those of a write that failed."""

from __future__ import annotations

import logging
from typing import Final, Literal

from asyncpq.datasets.listing import INDEX_FOLDER, SUCCESS
from asyncpq.errors import AsyncpqError, ConcurrentCommitUnsupported, InvalidOptionError, StaleSnapshotError, StoreError
from asyncpq.indexing.build.adding import DATA_FOLDER, discard_files, lake_backend
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.storage.base import RequestContext, writable
from asyncpq.storage.urls import safe_url

logger: logging.Logger = logging.getLogger(__name__)

#: Path of an empty object that a folder's first write on Spark makes when it is planned. Data files without an index
#: and without this object have lost their index; with it, the first write may have failed.
BEGUN: Final = f"{INDEX_FOLDER}begun"

#: How readers learn which files are live. "index": from the index alone. "plain": the folder was empty, and its last
#: file ``_SUCCESS`` follows the commit, so that readers may also list it.
Publish = Literal["index", "plain"]


def job_folder(job: str) -> str:
    """Return the folder, relative to the lake's, for the files of the write with the id ``job``."""
    return f"{DATA_FOLDER}{job}/"


def is_uncommitted(error: AsyncpqError) -> bool:
    """Return whether a commit that failed with ``error`` certainly committed nothing. After other errors of a store,
    readers may see the files."""
    return not isinstance(error, StoreError) or isinstance(error, (StaleSnapshotError, ConcurrentCommitUnsupported))


async def publish_plain(runtime: Runtime, folder: str, job: str) -> None:
    """Delete the uncommitted files of the write ``job``, and then write ``_SUCCESS``, so that readers may list the
    folder. Before, a listing may contain uncommitted files."""
    await discard_files(runtime, folder, job_folder(job))
    store = writable((await runtime.store(folder))[0], safe_url(folder))
    await store.put_object(folder + SUCCESS, b"", context=RequestContext(ReadMetrics(), purpose="write"))


async def discard_job(runtime: Runtime, folder: str, job: str) -> None:
    """Delete the files of the write ``job`` that were not committed. Errors are logged and not raised."""
    try:
        await discard_files(runtime, folder, job_folder(job))
    except AsyncpqError as error:  # the caller raises the error that came first
        logger.warning("unused files could not be deleted below %s: %s", safe_url(folder), error)


async def check_target(runtime: Runtime, folder: str, job: str | None = None) -> None:
    """Check that files can be written to the folder and committed. Raises InvalidOptionError if it has files other
    than those of the write ``job``, and UnsupportedStoreError if the store cannot be written."""
    store, _ = await runtime.store(folder)
    listed = await store.list_objects(folder, context=RequestContext(ReadMetrics(), purpose="list"))
    paths = [path for item in listed if (path := item.url[len(folder) :]) != BEGUN]
    others = [path for path in paths if job is None or not path.startswith(job_folder(job))]
    if others:
        raise InvalidOptionError(
            f"the target is not empty: the folder contains {others[0]!r}",
            url=safe_url(folder),
            hint="Write to another folder. If all files are below data/, an interrupted run may have left them: delete"
            " them.",
        )
    await lake_backend(runtime, folder, create=True)
