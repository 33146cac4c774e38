"""A credentials provider. Driver and executors import this module: they have the project's root on their path."""

from __future__ import annotations

#: Must never be seen: not in plans, event logs, UI, pickles, logs. LocalStack takes any secret.
CANARY = "canary-3f9c1e7ab2"

#: Name of :func:`localstack` as a setting.
PROVIDER = "tests.spark.credentials:localstack"


def localstack() -> dict[str, str]:
    """Storage options that S3 needs beside ``LakeStore.storage_options``."""
    return {"key": "test", "secret": CANARY}
