"""What the text of a url alone says about the files it names."""

from __future__ import annotations

import os
import re
from typing import Final

from asyncpq.storage.urls import ICEBERG_METADATA

_BUCKET: Final = re.compile(r"(?:s3a?|gs|gcs|az|abfss?)://[^/]+")


def names_many(url: str) -> bool:
    """Return whether the text of ``url`` shows that it names many files: a prefix, a bucket, a pattern, a local folder
    or an Iceberg table's metadata."""
    if url.endswith(("/", *ICEBERG_METADATA)) or "*" in url:
        return True
    return _BUCKET.fullmatch(url) is not None or os.path.isdir(url)
