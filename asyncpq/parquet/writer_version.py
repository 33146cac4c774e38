"""Who wrote a file: ``created_by`` taken apart."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

Release: TypeAlias = tuple[int, int, int]

_MAX_LENGTH: Final = 1000
# "<application> version <version> (build <build>)"; ClickHouse leaves "version" out, delta-rs writes "py-1.6.6",
# Trino a single number.
_CREATED_BY: Final = re.compile(
    r"(?P<application>(?:(?!\(\s*build\b).)*?)\s+(?:version\s+)?(?P<version>(?:[a-z]{1,8}-)?v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?[^\s(]*)"
    r"(?:\s*\(\s*build\s*(?P<build>[^)]*?)\s*\))?"
)
_NO_VERSION: Final = re.compile(r"\s*\(\s*build\b| version")  # ends the application where no version stands behind it
_VARIANT: Final = re.compile(r"\s*\([^)]*\)$")  # "Polars (python)"


class WriterVersion(NamedTuple):
    """A parsed ``created_by``.

    Attributes:
        application: e.g. "parquet-mr"; without what stands in parentheses behind it.
        release: (major, minor, patch); None when not written.
        version: as written, e.g. "1.5.0-cdh5.5.0"; "" when not written.
        build: None when not written.
    """

    application: str
    release: Release | None
    version: str
    build: str | None

    @classmethod
    def parse(cls, created_by: str | None) -> WriterVersion | None:
        """The writer; None when the file does not name one."""
        text = "" if created_by is None or len(created_by) > _MAX_LENGTH else created_by.strip()
        if not text:
            return None
        found = _CREATED_BY.match(text)
        if found is None or not found["application"]:
            application = _NO_VERSION.split(text, maxsplit=1)[0]
            return cls(_VARIANT.sub("", application), None, "", None)
        major, minor, patch = (int(number or 0) for number in found.group(3, 4, 5))
        application = _VARIANT.sub("", found["application"])
        return cls(application, (major, minor, patch), found["version"], found["build"])
