"""The demo's data and tokens work."""

from __future__ import annotations

from pathlib import Path

from asyncpq.serve.demo import ROWS, greeting, make_demo
from tests.serve.services import bearer, client_of


async def test_the_demo_serves_what_it_made(tmp_path: Path) -> None:
    configuration, tokens = make_demo(str(tmp_path))
    async with client_of(configuration, token=tokens["all"]) as client:
        assert (await client.get("/v1/trips/count")).json()["rows"] == ROWS
        assert (await client.get("/v1/trips/lookup?id=42")).json()["rows"][0]["id"] == 42
        north = (await client.get("/v1/trips/scan?limit=3", headers=bearer(tokens["north"]))).json()["rows"]
        assert {row["region"] for row in north} == {"north"}
    text = greeting(configuration, tokens)
    assert all(token in text for token in tokens.values())
