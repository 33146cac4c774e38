"""``asyncpq serve``: datasets over HTTP, with tokens, limits and four formats (extra ``serve``).

An HTTP request comes in; rows, JSON documents and problems (errors as RFC 9457 documents) go out. ``configuration.py``
reads the TOML file. ``app.py`` has the routes. ``access.py`` authenticates tokens and checks their rights,
``limits.py`` limits concurrent requests. ``requests.py`` parses a request, ``datasets.py`` reads the dataset, and
``pinning.py`` fixes the versions of its files. ``responses.py`` writes rows as fast as the client takes them,
``problems.py`` writes errors. ``metrics.py`` counts for Prometheus, ``openapi.py`` describes the service, ``server.py``
runs it with uvicorn, and ``demo.py`` makes demo data.
"""

from __future__ import annotations

from asyncpq.errors import UsageError, install_hint
from asyncpq.serve.configuration import Configuration as Configuration
from asyncpq.serve.configuration import load_configuration as load_configuration

try:
    from asyncpq.serve.app import Service as Service
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "starlette":
        raise
    raise UsageError(
        "the service requires the package starlette, which is not installed", hint=install_hint("starlette", "serve")
    ) from _error
