"""Small services for tests: a table in files, behind the application itself or behind a real server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import uvicorn

from asyncpq.serve import Service
from asyncpq.serve.access import token_digest
from asyncpq.serve.configuration import Configuration, parse_configuration
from asyncpq.serve.server import watch_connections
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

TOKEN = "a token for everything"
NORTH = "a token for the rows of north"
NOTHING = "a token without any right"
ROWS = 3000
REGIONS = ("north", "east", "south", None)


def trips(rows: int = ROWS, first: int = 0) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "user": [f"u{number % 97}" for number in numbers],
            "region": [REGIONS[number % 4] for number in numbers],
            "price": [None if number % 11 == 0 else number * 37 % 1000 / 8 for number in numbers],
            "secret": [number * 17 % 1009 for number in numbers],
            "place": [{"x": number % 7, "y": f"y{number % 3}"} for number in numbers],
            "place.z": [number % 5 for number in numbers],
        }
    )


def parquet(table: pa.Table) -> bytes:
    return parquet_bytes(table, row_group_size=700, data_page_size=2048, write_page_index=True)


def write_lake(folder: Path) -> pa.Table:
    """Write three files; return all rows."""
    table = trips()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        (folder / f"part-{number}.parquet").write_bytes(parquet(table.slice(number * 1000, 1000)))
    return table


def settings(url: str, **more: Any) -> dict[str, Any]:
    """Return a configuration as TOML has it, with the dataset ``trips`` and tokens for all, some and no rights."""
    return {
        "datasets": {"trips": {"url": url}},
        "tokens": {
            "all": {"sha256": token_digest(TOKEN).hex(), "metrics": True, "datasets": {"trips": {"plans": True}}},
            "north": {
                "sha256": token_digest(NORTH).hex(),
                "datasets": {"trips": {"columns": ["id", "user", "price", "place"], "rows": "region = 'north'"}},
            },
            "nothing": {"sha256": token_digest(NOTHING).hex()},
        },
        **more,
    }


def configuration(url: str, **more: Any) -> Configuration:
    return parse_configuration(settings(url, **more))


def storage(server: ObjectServer) -> dict[str, Any]:
    """Return the settings of a service whose files are in ``server``."""
    return {"storage": dict(server.storage_options)}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def client_of(configuration: Configuration, token: str | None = TOKEN) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a service without a server between them."""
    async with Service(configuration) as service:
        headers = {} if token is None else bearer(token)
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers) as client:
            vars(client)["service"] = service
            yield client


def service_of(client: httpx.AsyncClient) -> Service:
    """Return the service behind a client of :func:`client_of`."""
    service: Service = vars(client)["service"]
    return service


@asynccontextmanager
async def listening(app: Any, idle_s: float | None = None, **options: Any) -> AsyncIterator[str]:
    """Run an application behind a real server; return its url. ``idle_s``: of :func:`watch_connections`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        config = uvicorn.Config(app, log_level="critical", access_log=False, **options)
        if idle_s is not None:
            watch_connections(config, idle_s)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def problem(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Return the problem document of a response, which must have ``status``."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: Mapping[str, Any] = response.json()
    assert document["status"] == status
    assert document["type"] == "about:blank"
    assert document["title"]
    assert document["detail"]
    return document
