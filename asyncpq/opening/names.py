"""What the text of a url alone says about the files it names."""

from __future__ import annotations

import os

from asyncpq.storage.urls import ICEBERG_METADATA, names_bucket


def names_many(url: str) -> bool:
    """Return whether the text of ``url`` shows that it names many files: a prefix, a bucket, a pattern, a local folder
    or an Iceberg table's metadata."""
    if url.endswith(("/", *ICEBERG_METADATA)) or "*" in url:
        return True
    return names_bucket(url) or os.path.isdir(url)
