"""``asyncpq serve``: datasets over HTTP, with tokens, limits and four formats (extra ``serve``).

An HTTP request comes in; rows, documents and problems go out. The way through: ``configuration.py`` reads the TOML
file, ``app.py`` has the routes and what they share; ``access.py`` says who asks and what they may see, ``limits.py``
how much; ``requests.py`` reads the question, ``datasets.py`` puts it to a dataset whose versions ``pinning.py`` holds;
``responses.py`` writes the answer at the client's pace, ``problems.py`` errors. ``metrics.py`` counts, ``openapi.py``
describes, ``server.py`` runs it all with uvicorn, ``demo.py`` on data that it makes.
"""

from __future__ import annotations

from asyncpq.errors import UsageError
from asyncpq.serve.configuration import Configuration as Configuration
from asyncpq.serve.configuration import load_configuration as load_configuration

try:
    from asyncpq.serve.app import Service as Service
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "starlette":
        raise
    raise UsageError(
        "the service requires the package starlette, which is not installed", hint="Run pip install 'asyncpq[serve]'."
    ) from _error
