"""The session of a command, from the options that all commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Concatenate, ParamSpec

from asyncpq import Session
from asyncpq.cli.output import write_line
from asyncpq.cli.parameters import Option, gathered, option_names, spread
from asyncpq.cli.running import run
from asyncpq.options import RequestOptions

P = ParamSpec("P")

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
                    from asyncpq.cli.figures import cost_text

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
