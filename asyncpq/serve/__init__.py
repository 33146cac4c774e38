"""``asyncpq serve``: datasets over HTTP, with tokens, limits and five formats (extra ``serve``).

An HTTP request comes in; rows, JSON documents and problems (errors as RFC 9457 documents) go out. ``configuration.py``
reads the TOML file. ``app.py`` has the routes and the work of one request. ``access.py`` has the tokens, their rights
to datasets, columns and rows, and the limits on their requests. ``requests.py`` parses a request, ``datasets.py`` reads
the dataset, in the versions of its files that an ETag names. ``responses.py`` writes rows as fast as the client takes
them, ``problems.py`` writes errors. ``prometheus.py`` counts for Prometheus, ``openapi.py`` describes the service,
``server.py`` runs it with uvicorn, and ``__main__.py`` starts it, and makes demo data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncpq.errors import UsageError, install_hint
from asyncpq.serve.configuration import Configuration as Configuration
from asyncpq.serve.configuration import load_configuration as load_configuration

if TYPE_CHECKING:
    from asyncpq.serve.app import Service as Service

_PACKAGES = ("starlette", "uvicorn", "prometheus_client", "sqlglot")


@contextmanager
def needed_packages() -> Iterator[None]:
    """Return a context manager that raises UsageError, with the install command, if an import in the block fails
    because a package of the extra ``serve`` is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        name = package.replace("_", "-")
        raise UsageError(
            f"the service requires the package {name}, which is not installed", hint=install_hint(name, "serve")
        ) from error


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name != "Service":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needed_packages():
            from asyncpq.serve.app import Service

        return Service
