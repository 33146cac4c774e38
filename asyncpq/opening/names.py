"""What the text of a url alone says about the files it names."""

from __future__ import annotations

import os

from asyncpq.storage.urls import ICEBERG_METADATA


def names_many(url: str) -> bool:
    """Return whether the text of ``url`` shows that it names many files: a prefix, a pattern, a local folder or an
    Iceberg table's metadata."""
    return url.endswith(("/", *ICEBERG_METADATA)) or "*" in url or os.path.isdir(url)
