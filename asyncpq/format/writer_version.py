"""Who wrote a file, and which of its statistics that makes untrustworthy."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_CREATED_BY: Final = re.compile(
    r"(?P<application>.*?)\s+version\s+v?(?P<version>(\d+)\.(\d+)(?:\.(\d+))?[^\s(]*)(?:\s*\(\s*build\s*(?P<build>[^)]*?)\s*\))?"
)
_CDH: Final = re.compile(r"-cdh(\d+)\.(\d+)")


class WriterVersion(NamedTuple):
    """A parsed ``created_by``, "<application> version <major>.<minor>.<patch><suffix> (build <build>)".

    Attributes:
        application: e.g. "parquet-mr".
        release: (major, minor, patch).
        version: as written, e.g. "1.5.0-cdh5.5.0".
        build: None when not written.
    """

    application: str
    release: tuple[int, int, int]
    version: str
    build: str | None

    @classmethod
    def parse(cls, created_by: str | None) -> WriterVersion | None:
        """The writer; None when it is missing or does not have the usual form."""
        found = _CREATED_BY.match(created_by) if created_by is not None and len(created_by) < 1000 else None
        if found is None:
            return None
        major, minor, patch = (int(number or 0) for number in found.group(3, 4, 5))
        return cls(found["application"], (major, minor, patch), found["version"], found["build"])


def has_sound_binary_statistics(created_by: str | None) -> bool:
    """Whether BYTE_ARRAY and FIXED_LEN_BYTE_ARRAY bounds can be trusted (PARQUET-251).

    parquet-mr before 1.8.0 wrote wrong ones, but for Cloudera's releases from 5.5.0 on, which have the
    fix; a writer that does not say who it is may be one of them.
    """
    writer = WriterVersion.parse(created_by)
    if writer is None:
        return False
    if writer.application != "parquet-mr" or writer.release >= (1, 8, 0):
        return True
    cdh = _CDH.search(writer.version)
    return cdh is not None and writer.release >= (1, 5, 0) and (int(cdh[1]), int(cdh[2])) >= (5, 5)


# The first releases known never to split a row between two pages of a chunk that has an OffsetIndex.
_ALIGNING: Final = {"parquet-cpp-arrow": (14, 0, 0), "parquet-mr": (1, 11, 0), "parquet-rs": (42, 0, 0)}


def begins_pages_on_rows(created_by: str | None) -> bool:
    """Whether every page that an OffsetIndex of this writer names begins with the first value of a row.

    The specification asks for it, yet writers split the rows of repeated columns, even between V2 pages;
    a page that is read alone then lacks the end of its last row, and nothing says so.
    """
    writer = WriterVersion.parse(created_by)
    return writer is not None and writer.release >= _ALIGNING.get(writer.application, (1 << 30, 0, 0))


def chains_delta_byte_arrays(created_by: str | None) -> bool:
    """Whether DELTA_BYTE_ARRAY pages may begin with a prefix of the last value of the page before (PARQUET-246).

    parquet-mr before 1.8.0 wrote such pages: none of them can be read alone.
    """
    writer = WriterVersion.parse(created_by)
    return writer is not None and writer.application == "parquet-mr" and writer.release < (1, 8, 0)


DICTIONARY_HEADER_PADDING: Final = 100
"""Bytes by which a chunk's sizes may be too small where :func:`omits_dictionary_header` is true."""


def omits_dictionary_header(created_by: str | None) -> bool:
    """Whether the writer may have left the dictionary page's header out of its chunks' sizes (PARQUET-816).

    parquet-mr up to 1.2.8 did; one that does not say its version may be as old.
    """
    if created_by is None or not created_by.startswith("parquet-mr"):
        return False
    writer = WriterVersion.parse(created_by)
    return writer is None or writer.release < (1, 2, 9)
