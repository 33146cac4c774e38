"""asyncpq's provider of credentials, by name: the server checks none."""

from __future__ import annotations

PROVIDER = "benchmarks.spark.credentials:any_credentials"


def any_credentials() -> dict[str, str]:
    return {"key": "test", "secret": "test"}
