"""examples/fastapi_service.py answers below its mount, and leaves the rest to the application."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")

import httpx

from examples.fastapi_service import create_app
from tests.serve.services import NOTHING, TOKEN, bearer, configuration, problem, trips, write_lake


async def test_the_mounted_service_has_all_endpoints(tmp_path: Path) -> None:
    write_lake(tmp_path)
    app = create_app(configuration(f"{tmp_path}/"))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://app", headers=bearer(TOKEN)) as client,
    ):
        assert (await client.get("/")).json() == {"data": "/data/v1/datasets"}
        rows = (await client.get("/data/v1/trips/lookup?id=42")).json()["rows"]
        assert rows == trips().slice(42, 1).to_pylist()
        assert (await client.get("/data/openapi.json")).json()["servers"] == [{"url": "/data"}]
        assert (await client.get("/data/docs")).status_code == 200
        assert (await client.get("/docs")).status_code == 200  # FastAPI's own
        problem(await client.get("/data/v1/trips/count", headers=bearer(NOTHING)), 404)
        problem(await client.get("/data/v1/trips/count", headers=bearer("unknown")), 401)
