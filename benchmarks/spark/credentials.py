"""asyncpq's provider of credentials, by name: the server checks none."""

from __future__ import annotations

PROVIDER = "benchmarks.spark.credentials:any_credentials"


def any_credentials() -> dict[str, dict[str, str]]:
    return {"s3": {"key": "test", "secret": "test"}}
