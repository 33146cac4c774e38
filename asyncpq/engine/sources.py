"""Sources of rows for another library, which reads them many times, in threads of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Unpack

import pyarrow as pa

from asyncpq import blocking
from asyncpq.dataset import Dataset
from asyncpq.datasets.model import View
from asyncpq.errors import AsyncpqError, InvalidOptionError, UsageError
from asyncpq.file import File
from asyncpq.opening.keywords import DatasetSessionKeywords, split_keywords
from asyncpq.options import DEFAULT_BATCH_SIZE
from asyncpq.scan.arrow_stream import OtherThread

if TYPE_CHECKING:
    from asyncpq import DatasetPlan, Plan
    from asyncpq.typing import DatasetTarget, IndexChoice, Predicate

__all__ = ["DatasetSessionKeywords", "Source", "SourceTarget", "source_of"]

_LISTING_AGE_S: Final = 3600.0  # longer than a query reads from its listing

#: What :func:`source_of` takes: a target of :meth:`asyncpq.Session.open_dataset`, or an open file or dataset.
SourceTarget: TypeAlias = "DatasetTarget | blocking.File | blocking.Dataset | File | Dataset"
_Opened: TypeAlias = blocking.BlockingFile | blocking.BlockingDataset
_Verb: TypeAlias = Callable[[Any], Any]  # calls a verb of an open file or dataset, blocking or not


class Source:
    """A file, dataset or table for another library, which scans it in its own threads. Made by :func:`source_of`.

    Every method may be called in any thread, any number of times at once, but not in the event loop of an async target.

    Attributes:
        schema: Arrow schema of the columns when the source was made.
        url: url of the target for messages, without user info, query and secrets.
    """

    schema: pa.Schema
    url: str

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Predicate | None = None,
        *,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> AbstractContextManager[pa.RecordBatchReader]:
        """Stream matching rows, as an Arrow C stream.

        Used as ``with source.scan(...) as reader``. The reader takes a batch from the scan only when its consumer asks
        for one, so a slow consumer slows the requests down. Leaving the block, or dropping the reader, ends the scan.

        Args:
            columns, where, limit, batch_size: as in :meth:`asyncpq.File.scan`.

        Raises:
            UsageError: the session is closed; or its event loop has ended, or runs in this thread.
            AsyncpqError: the read failed; the reader raises it.
        """
        return self._scan(lambda opened: opened.scan(columns, where, limit=limit, batch_size=batch_size))

    def plan(
        self, columns: Sequence[str] | None = None, where: Predicate | None = None, *, limit: int | None = None
    ) -> Plan | DatasetPlan:
        """Return the plan of a :meth:`scan` with these arguments: the files and pages that it rules out, and its
        requests and bytes. Fetches metadata, and no data."""
        return self._plan(lambda opened: opened.plan(columns, where, limit=limit))

    def _scan(self, make: _Verb) -> AbstractContextManager[pa.RecordBatchReader]:
        """Begin the scan that ``make`` returns for the open file or dataset."""
        raise NotImplementedError

    def _plan(self, make: _Verb) -> Plan | DatasetPlan:
        """Return the plan that ``make`` returns for the open file or dataset."""
        raise NotImplementedError


def source_of(
    target: SourceTarget,
    *,
    index: IndexChoice = None,
    view: Literal["snapshot", "listed", "table"] | None = None,
    caller: str,
    awaiting: str,
    **options: Unpack[DatasetSessionKeywords],
) -> Source:
    """Open a target for another library, and return it with its schema.

    A url, list or table is opened again for each call of the source's methods, in a session that the sources and
    one-off calls of this process with equal options share (:func:`asyncpq.blocking.open_file`). An open file or dataset
    is read in its own session, which must stay open.

    Args:
        target: as in :meth:`asyncpq.Session.open_dataset`; or an open :class:`asyncpq.blocking.File` or ``Dataset``; or
            an open :class:`asyncpq.File` or :class:`asyncpq.Dataset`, in whose event loop this function is called, and
            whose source is used in other threads.
        index, view: as in :meth:`asyncpq.Session.open_dataset`.
        caller: name of the function that users call, for messages, such as ``asyncpq.polars.scan()``.
        awaiting: code with which users read an async file or dataset in its own event loop, for messages, such as
            ``await frame.collect_async()``.
        options: the other arguments of :meth:`asyncpq.Session.open_dataset`, and those of :class:`asyncpq.Session`.

    Raises:
        InvalidOptionError: an option is not known, or an open file or dataset comes with options.
        UsageError: an async file or dataset is passed outside of its event loop.
        AsyncpqError: the target cannot be opened.
    """
    if not isinstance(target, (blocking.BlockingFile, blocking.BlockingDataset, File, Dataset)):
        return _Reopened(target, index, view, options)
    if index is not None or view is not None or options:
        raise InvalidOptionError(
            "an open file or dataset takes no options", hint="Pass them where the session and the dataset are made."
        )
    return _InLoop(target, caller, awaiting) if isinstance(target, (File, Dataset)) else _InSession(target)


class _InSession(Source):
    """An open file or dataset of :mod:`asyncpq.blocking`."""

    def __init__(self, opened: _Opened) -> None:
        self.schema, self.url = opened.schema, opened.url
        self._opened = opened

    def _scan(self, make: _Verb) -> AbstractContextManager[pa.RecordBatchReader]:
        return _reading(make(self._opened))

    def _plan(self, make: _Verb) -> Plan | DatasetPlan:
        plan: Plan | DatasetPlan = make(self._opened)
        return plan


@contextmanager
def _reading(scan: blocking.Scan | blocking.DatasetScan, *kept: object) -> Iterator[pa.RecordBatchReader]:
    """Return the reader of ``scan``, which ends with the block; until then, ``kept`` stays."""
    reader = scan.to_reader()
    try:
        yield reader
    finally:
        scan.end_soon()


class _Reopened(Source):
    """A target that each call opens, in one session for all of them."""

    def __init__(
        self,
        target: DatasetTarget,
        index: IndexChoice,
        view: Literal["snapshot", "listed", "table"] | None,
        options: DatasetSessionKeywords,
    ) -> None:
        self._target = os.fspath(target) if isinstance(target, (str, os.PathLike)) else target
        self._of_session, of_dataset = split_keywords(options)
        self._arguments: dict[str, Any] = {"index": index, "view": view, **of_dataset}
        self._session: blocking.OneOffSession | None = None
        _, dataset = self._open()
        self.schema, self.url = dataset.schema, dataset.url
        if dataset.view is View.LISTED:  # a call reads what is listed as it begins, and does not list again
            self._arguments.setdefault("listing_max_age_s", _LISTING_AGE_S)

    def _open(self) -> tuple[blocking.OneOffSession, blocking.BlockingDataset]:
        """Open the target. Its scans end when the session is dropped."""
        session = self._session
        if session is None or session.closed:  # in a forked process
            session = self._session = blocking.OneOffSession(self._of_session)
        try:
            return session, session.open_dataset(self._target, **self._arguments)
        except AsyncpqError:
            session.retire()
            self._session = None  # the next call has another; scans of other threads keep this one
            raise

    def _scan(self, make: _Verb) -> AbstractContextManager[pa.RecordBatchReader]:
        session, dataset = self._open()
        return _reading(make(dataset), session)

    def _plan(self, make: _Verb) -> Plan | DatasetPlan:
        _session, dataset = self._open()
        plan: Plan | DatasetPlan = make(dataset)
        return plan


class _InLoop(Source):
    """An open async file or dataset, whose event loop runs in another thread than the calls."""

    def __init__(self, opened: File | Dataset, caller: str, awaiting: str) -> None:
        try:
            self._loop = OtherThread(asyncio.get_running_loop())
        except RuntimeError as error:
            raise UsageError(
                f"{caller} got an async file or dataset outside of its event loop",
                hint=f"Call {caller.rpartition('.')[2]} in the coroutine that uses it, or pass a file or dataset of "
                "asyncpq.blocking, or a url.",
            ) from error
        self.schema, self.url = opened.schema, opened.url
        self._opened = opened
        self._hint: Final = f"Write `{awaiting}`."

    def _scan(self, make: _Verb) -> AbstractContextManager[pa.RecordBatchReader]:
        self._loop.check(self._hint)  # now, as other threads pull the batches
        return self._begun(make)

    @contextmanager
    def _begun(self, make: _Verb) -> Iterator[pa.RecordBatchReader]:
        async def begin() -> tuple[Any, pa.RecordBatchReader]:
            stream = await make(self._opened).__aenter__()
            return stream, await stream.to_reader()

        stream, reader = self._loop.call(begin)
        try:
            yield reader
        finally:
            self._loop.post(stream.close)

    def _plan(self, make: _Verb) -> Plan | DatasetPlan:
        self._loop.check(self._hint)
        plan: Plan | DatasetPlan = self._loop.call(lambda: make(self._opened))
        return plan
