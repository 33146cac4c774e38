"""Demo data for the service: 200,000 trips in a temporary folder, and two tokens."""

from __future__ import annotations

import os
import secrets

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.serve.configuration import Configuration, parse_configuration, token_digest

ROWS = 200_000
_REGIONS = ("north", "east", "south", "west")
_FILES = 4


def make_demo(folder: str) -> tuple[Configuration, dict[str, str]]:
    """Write the files below ``folder``; return the configuration and the tokens by their names."""
    lake = os.path.join(folder, "trips")
    os.mkdir(lake)
    size = ROWS // _FILES
    for number in range(_FILES):
        pq.write_table(
            _trips(number * size, size),
            os.path.join(lake, f"part-{number}.parquet"),
            row_group_size=size,
            data_page_size=32 << 10,
            write_page_index=True,
        )
    tokens = {name: secrets.token_urlsafe(24) for name in ("all", "north")}
    configuration = parse_configuration(
        {
            "datasets": {"trips": {"url": f"{lake}/", "description": "Trips that the demo has made."}},
            "tokens": {
                "all": {
                    "sha256": token_digest(tokens["all"]).hex(),
                    "metrics": True,
                    "datasets": {"trips": {"plans": True}},
                },
                "north": {
                    "sha256": token_digest(tokens["north"]).hex(),
                    "datasets": {"trips": {"columns": ["id", "region", "price"], "rows": "region = 'north'"}},
                },
            },
        }
    )
    return configuration, tokens


def _trips(first: int, size: int) -> pa.Table:
    numbers = range(first, first + size)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "user": [f"u{number * 7919 % 5000}" for number in numbers],
            "region": [_REGIONS[number * 31 % 4] for number in numbers],
            "price": [number * 37 % 10_000 / 100 for number in numbers],
        }
    )


def greeting(configuration: Configuration, tokens: dict[str, str]) -> str:
    """Return a text for the terminal with example requests to the demo service."""
    server = configuration.server
    root = f"http://{server.host}:{server.port}"
    lines = [f"Docs: {root}/docs", ""]
    for name, token in tokens.items():
        lines.append(f"Token {name!r}: {token}")
    lines += [
        "",
        f"curl -H 'Authorization: Bearer {tokens['all']}' '{root}/v1/trips/lookup?id=42'",
        f"curl -H 'Authorization: Bearer {tokens['north']}' '{root}/v1/trips/scan?where=price>99&limit=3'",
    ]
    return "\n".join(lines)
