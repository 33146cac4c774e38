"""The options that several commands share, and what they become: a session, columns, keys and conditions.

Keys get the types of their columns. Shells complete names from the footer of the named file or dataset.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Concatenate, Final, ParamSpec

import pyarrow as pa

from asyncpq import Session
from asyncpq.cli.output import cost_text, write_line
from asyncpq.cli.parameters import Option, gathered, option_names, spread
from asyncpq.cli.running import run
from asyncpq.errors import AsyncpqError, InvalidOptionError
from asyncpq.options import RequestOptions

P = ParamSpec("P")

_WAIT_S: Final = 5.0  # for a store; a shell waits for its completions
_STORE = "Store and cost"  # the panel of the shared options in the help

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

    @cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        """The parameters of the command, without its session, and the options that make one."""
        own = list(inspect.signature(self._command, eval_str=True).parameters.values())[1:]
        shared = inspect.Parameter("shared", inspect.Parameter.KEYWORD_ONLY, annotation=SessionArguments)
        return [*own, shared]

    @property
    def __signature__(self) -> inspect.Signature:
        return spread(self._parameters)

    def __call__(self, **given: Any) -> None:
        """Run the command in a new event loop, with the values of its own and of the shared options."""
        arguments = gathered(self._parameters, given)
        shared: SessionArguments = arguments.pop("shared")

        async def with_open_session() -> None:
            session = shared.session()
            try:
                async with session:
                    await self._command(session, **arguments)
            finally:
                if shared.stats:
                    write_line(cost_text(session.metrics), err=True)

        run(with_open_session(), option_names(self.__signature__))


def with_session(command: Callable[Concatenate[Session, P], Coroutine[Any, Any, None]]) -> SessionCommand:
    """Return a command that makes a session from the options that all commands share, and runs ``command`` with it.

    ::

        @GROUP.command
        @with_session
        async def count(session: Session, source: ReadSource) -> None:
            async with opened(session, source) as target:
                write_line(await target.count())

    ``command`` is called with the session and its own arguments, by name: a parameter whose type is a dataclass has the
    fields of the class as options. Its docstring is the help text.
    """
    return SessionCommand(command)


# -- columns, keys and conditions -----------------------------------------------------------------


def complete_columns(url: str | None, incomplete: str) -> list[str]:
    """Return the texts to which a list of columns of the file at ``url``, such as ``id,us``, can be completed."""
    before, comma, name = incomplete.rpartition(",")
    taken = set(before.split(","))
    return [f"{before}{comma}{column}" for column in _columns(url) if column.startswith(name) and column not in taken]


def complete_key(url: str | None, incomplete: str) -> list[str]:
    """Return the texts to which the beginning of a ``NAME=VALUE`` can be completed: the names of the columns."""
    return [f"{column}=" for column in _columns(url) if f"{column}=".startswith(incomplete)]


def _columns(url: str | None) -> list[str]:
    """Return the names of the columns of the file or dataset at ``url``, with the store's options in the
    environment."""
    if not url:
        return []
    import asyncio

    from asyncpq.cli.url_targets import ReadSource, opened

    async def names() -> list[str]:
        async with SessionArguments().session() as session, opened(session, ReadSource(url)) as target:
            return list(target.schema.names)

    try:
        return asyncio.run(asyncio.wait_for(names(), _WAIT_S))
    except (AsyncpqError, OSError, TimeoutError):
        return []  # a shell has no place for an error: the command itself tells it


Keys = Annotated[
    list[str],
    Option(
        "--key",
        metavar="NAME=VALUE",
        help="A key column and its value, such as id=42. Again for the same column: one of several values; "
        "for other columns: values that belong together.",
        show_default=False,
        completes=complete_key,
    ),
]
OptionalKeys = Annotated[
    list[str] | None,
    Option(
        "--key",
        metavar="NAME=VALUE",
        help="Look up a key, such as id=42; as in asyncpq lookup.",
        show_default=False,
        completes=complete_key,
    ),
]
Columns = Annotated[
    str | None,
    Option(
        "--columns",
        metavar="A,B,...",
        help="Names of columns, with commas between them. All without it.",
        completes=complete_columns,
    ),
]

Where = Annotated[
    str | None,
    Option(
        "--where", metavar="SQL", help="The condition after WHERE in SQL, such as: \"id = 42 AND day >= '2024-05-01'\"."
    ),
]
Limit = Annotated[int | None, Option("-n", "--limit", metavar="N", help="At most this many rows.", min=0)]


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows that a command reads: the first that match a condition."""

    columns: Columns = None
    where: Where = None
    limit: Limit = None


def parse_columns(text: str | None, schema: pa.Schema) -> list[str] | None:
    """Split a text such as ``a,b.c`` into names of columns of ``schema``. Returns None, which means all columns, if
    ``text`` is None.

    Raises InvalidOptionError if there is no name in ``text``, or spaces in place of commas.
    """
    names = None if text is None else [name for part in text.split(",") if (name := part.strip())]
    if names == []:
        raise InvalidOptionError("--columns has no column name", hint="Leave the option out to read all columns.")
    known = set(schema.names)
    for name in names or ():
        words = name.split()
        if name not in known and len(words) > 1 and known.issuperset(words):
            raise InvalidOptionError(
                f"--columns {name}: names of columns are separated by commas",
                hint=f"Write --columns {','.join(words)}.",
            )
    return names


def parse_keys(texts: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    """Convert arguments ``name=value`` to the ``keys`` of a lookup, each value in the type of its column in ``schema``.

    A column that occurs several times has the list of its values. Times without a zone are UTC where the column has a
    zone; bytes are text, or hexadecimal after ``0x``.

    Raises:
        InvalidOptionError: an argument has no ``=``, or its value does not fit the column's type.
        ColumnNotFoundError: ``schema`` has no such column.
    """
    from asyncpq.engine.foreign_predicates import key_value  # most commands take no keys

    values: dict[str, list[Any]] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidOptionError(f"--key {text}: must be NAME=VALUE, such as id=42")
        try:
            values.setdefault(name, []).append(key_value(name, value, schema))
        except InvalidOptionError as error:
            hint = f"Write --key {name}{value}." if value.startswith("=") else None
            if "," in value:
                several = " ".join(f"--key {name}={part.strip()}" for part in value.split(",")[:2])
                hint = f"Repeat the option for each value: {several}"
            raise InvalidOptionError(f"--key {text}: {error.message}", hint=hint) from error
    return {name: several if len(several) > 1 else several[0] for name, several in values.items()}
