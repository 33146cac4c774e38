"""The session of a command, from the options that all commands share, and the files, datasets and indexes it opens."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

from asyncpq import Session
from asyncpq.cli.output import write_line
from asyncpq.cli.parameters import Argument, Option
from asyncpq.cli.running import run
from asyncpq.cli.tables import names_table, no_versions, open_files, target_of
from asyncpq.engine.target_facts import default_index_url, url_facts
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError
from asyncpq.options import RequestOptions

if TYPE_CHECKING:
    from asyncpq import Dataset, File
    from asyncpq.indexing import Index
    from asyncpq.typing import TableVersion

P = ParamSpec("P")

_STORE = "Store and cost"  # the panel of the shared options in the help

Url = Annotated[
    str,
    Argument(
        metavar="URL",
        help="A file, prefix, pattern or table: a local path, s3://bucket/key, https://..., or any url of fsspec; the "
        "folder of a Delta or Iceberg table; ducklake:CATALOG#TABLE.",
        show_default=False,
    ),
]
IndexUrl = Annotated[
    str | None,
    Option(
        "--index",
        metavar="URL",
        help="Use the index at this url. Without it, the one below the prefix, if there is one.",
        show_default=False,
    ),
]

#: How the sessions of all commands plan requests. Tests fix the prices, so that plans are the same everywhere.
REQUESTS = RequestOptions()


@dataclass(frozen=True, slots=True)
class SessionArguments:
    """The options that all commands share. Each field is an option, as the command line has it."""

    profile: Annotated[
        str | None,
        Option("--profile", metavar="NAME", help="Profile of the AWS configuration.", rich_help_panel=_STORE),
    ] = None
    endpoint_url: Annotated[
        str | None,
        Option("--endpoint-url", metavar="URL", help="Url of an S3-compatible server.", rich_help_panel=_STORE),
    ] = None
    region: Annotated[
        str | None, Option("--region", metavar="NAME", help="Region of the bucket.", rich_help_panel=_STORE)
    ] = None
    no_sign_request: Annotated[
        bool, Option("--no-sign-request", help="Read a public bucket without credentials.", rich_help_panel=_STORE)
    ] = False
    disk_cache: Annotated[
        str | None,
        Option(
            "--disk-cache",
            metavar="FOLDER",
            help="Folder of a cache on disk that later commands use.",
            rich_help_panel=_STORE,
        ),
    ] = None
    stats: Annotated[
        bool, Option("--stats", help="Print the cost of the command to stderr.", rich_help_panel=_STORE)
    ] = False

    def storage_options(self) -> dict[str, Any]:
        """Return the ``storage_options`` of a :class:`asyncpq.Session`."""
        options: dict[str, Any] = {}
        if self.profile is not None:
            options["profile"] = self.profile
        if self.endpoint_url is not None:
            options["endpoint_url"] = self.endpoint_url
        if self.region is not None:
            options["client_kwargs"] = {"region_name": self.region}
        if self.no_sign_request:
            options["anon"] = True
        return {"s3": options, "s3a": options} if options else {}

    def session(self) -> Session:
        """Return a new session with these options."""
        return Session(self.storage_options(), disk_cache=self.disk_cache, requests=REQUESTS)


class SessionCommand:
    """A command that makes a session from the options that all commands share."""

    def __init__(self, command: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._command = command
        self.__name__ = command.__name__
        self.__doc__ = command.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        own = list(inspect.signature(self._command, eval_str=True).parameters.values())[1:]
        hints = get_type_hints(SessionArguments, include_extras=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
            for field in fields(SessionArguments)
        ]
        return inspect.Signature([*(one.replace(kind=keyword) for one in own), *shared])

    def __call__(self, **given: Any) -> None:
        """Run the command in a new event loop, with the values of its own and of the shared options."""
        shared = {field.name: given.pop(field.name) for field in fields(SessionArguments) if field.name in given}
        arguments = SessionArguments(**shared)

        async def with_open_session() -> None:
            session = arguments.session()
            try:
                async with session:
                    await self._command(session, **given)
            finally:
                if arguments.stats:
                    from asyncpq.cli.figures import cost_text

                    write_line(cost_text(session.metrics), err=True)

        run(with_open_session())


def with_session(command: Callable[Concatenate[Session, P], Coroutine[Any, Any, None]]) -> SessionCommand:
    """Return a command that makes a session from the options that all commands share, and runs ``command`` with it.

    ::


        @GROUP.command
        @with_session
        async def count(session: Session, url: Url) -> None:
            async with opened(session, url) as target:
                write_line(await target.count())

    ``command`` is called with the session and its own arguments, by name. Its docstring is the help text.
    """
    return SessionCommand(command)


async def open_existing_index(session: Session, url: str, at: str | None, *, refreshes: bool = False) -> Index:
    """Open the index of the files at ``url``. ``at`` is the index's url; by default the index is below the prefix.

    With ``refreshes``, the index of a table is opened with the table, which a refresh needs.
    """
    if at is None and (names_table(url) or "*" in url):
        raise InvalidOptionError(
            "--at is missing: only the index of a prefix has a default place", hint="Add --at URL, the index's url."
        )
    try:
        if at is None:
            return await session.open_index(default_index_url(url))
        named = await target_of(session, url) if refreshes else None
        if named is None or not named.is_table:
            return await session.open_index(at)
        return await session.open_index(at, table=named.target, format=named.format)
    except ObjectNotFoundError as error:
        error.hint = "`asyncpq index build` builds it; --at names one that is elsewhere."
        raise


async def only_file(dataset: Dataset, why: str) -> str:
    """Return the url of a dataset's only file. Raises InvalidOptionError, which begins with ``why``, if it has another
    number of them."""
    files = await dataset.files()
    if len(files) != 1:
        raise InvalidOptionError(
            f"{why}, but the url names {len(files)}",
            url=dataset.url,
            hint="Name one of its files; `asyncpq inspect` lists them.",
        )
    return files[0]


@asynccontextmanager
async def opened(
    session: Session, url: str, index: str | None = None, version: TableVersion | None = None
) -> AsyncIterator[File | Dataset]:
    """Open the file or dataset at ``url``. If the url may mean either, the file is opened if it exists. With the url of
    an ``index``, the dataset is always opened. ``version``: of a table; None for the current one."""
    if index is not None or names_table(url) or url_facts(url).many:
        async with await open_files(session, url, index, version) as dataset:
            yield dataset
        return
    try:
        file = await session.open_file(url)
    except ObjectNotFoundError as missing:
        try:
            lake = await open_files(session, url, version=version)
        except ObjectNotFoundError:
            missing.hint = "Look for a mistyped folder, bucket or file."
            raise missing from None
        async with lake:
            yield lake
        return
    async with file:
        if version is not None:
            raise no_versions(url)
        yield file
