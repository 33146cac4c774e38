"""Predict the cost of a lookup through an index of kinds ``keys`` and ``footers`` that is not built yet.

A lookup reads the manifest, then the index's rows for the key, for the file and for its footer, and then the data. The
sizes of the segments are computed from the number of rows. The constants were measured with the folder backend, on
sorted and unsorted columns of numbers and texts; ``tests/reports/test_index_cost.py`` compares them with real indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asyncpq.options import KIB, MIB
from asyncpq.reports.lint_subject import Subject
from asyncpq.reports.lookup_cost import LookupCost

_MANIFEST_BYTES: Final = 1800
_GROUP_BYTES: Final = 64 * KIB  # of a row group of a segment, before compression
_GROUP_FOOTER_BYTES: Final = 52  # of each in the packed footer
_NUMBERS_BYTES: Final = 16  # of the four numbers of a row, before compression,
_PLACE_BYTES: Final = 0.95  # and after, where rows of a key are in any file
_RUN_SHARE: Final = 0.3  # of a row of the data, where keys and files are in one order: differences compress well
_FOOTER_ROW_BYTES: Final = 46  # of each column of each file,
_FOOTER_PLAIN_BYTES: Final = 280  # and before compression
_FILE_ROW_BYTES: Final = 22  # of each file,
_FILE_PLAIN_BYTES: Final = 150
_FEW_FILES_BYTES: Final = 1350  # and of its columns' footers
_SMALL_BYTES: Final = 64 * KIB  # smaller segments always come whole
_DECODED_TIMES: Final = 4  # a whole segment may have so many times its bytes in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedLake:
    """The facts about a lake (many files) from which the cost of an index that does not exist yet is predicted.

    Attributes:
        rows, files, columns: numbers of rows, files and columns of the lake.
        key_bytes: bytes of a key before compression.
        value_bytes: compressed bytes of a row of the key column in the data files.
        in_order: whether the ranges of the key in the files follow one another without overlap.
        whole_bytes: ``RequestOptions.whole_segment_bytes``.
    """

    rows: int
    files: int
    columns: int
    key_bytes: float
    value_bytes: float
    in_order: bool
    whole_bytes: int = MIB


def indexed_lake(subjects: Sequence[Subject], num_files: int, *, in_order: bool) -> IndexedLake:
    """Return the facts for :func:`index_cost`, estimated from ``subjects``: some of the lake's ``num_files`` files.

    ``in_order``: the ranges of the key in the files follow one another without overlap.
    """
    rows, compressed, lengths = 0, 0.0, list[int]()
    for subject in subjects:
        rows += subject.layout.version.metadata.num_rows
        size = sum([chunk.total_compressed_size for chunk in subject.chunks(subject.model.key)])
        compressed += size * subject.ratios.get(subject.model.key, 1.0)
        lengths += [len(zone.low) for zone in subject.keys.zones if isinstance(zone.low, bytes)]
    first = subjects[0].layout
    return IndexedLake(
        rows=rows * num_files // max(1, len(subjects)),
        files=num_files,
        columns=len(first.version.metadata.schema.leaves),
        key_bytes=sum(lengths) / len(lengths) + 2 if lengths else 9,
        value_bytes=compressed / max(1, rows),
        in_order=in_order,
        whole_bytes=first.source.runtime.options.requests.whole_segment_bytes,
    )


def index_cost(lake: IndexedLake) -> LookupCost:
    """Return the requests and bytes that one lookup spends on the index, including the index's manifest."""
    per_row = lake.value_bytes * _RUN_SHARE if lake.in_order else lake.value_bytes + _PLACE_BYTES
    keys = _segment(lake.rows * (lake.key_bytes + _NUMBERS_BYTES), lake.rows * per_row, lake.whole_bytes)
    footers = lake.files * (lake.columns + 1)  # rows
    # While keys take a second round, the footer of the segment of footers is fetched: then it does not come whole.
    whole = lake.whole_bytes if keys[0] == 1 else 0
    parts = [
        (1, _MANIFEST_BYTES),
        keys,
        _segment(footers * _FOOTER_PLAIN_BYTES, footers * _FOOTER_ROW_BYTES, whole),
        _segment(lake.files * _FILE_PLAIN_BYTES, _FEW_FILES_BYTES + lake.files * _FILE_ROW_BYTES, lake.whole_bytes),
    ]
    return LookupCost(sum(requests for requests, _ in parts), sum(size for _, size in parts), 0.0)


def _segment(plain: float, size: float, whole_bytes: int) -> tuple[int, float]:
    """Return the requests and bytes of a lookup in one segment of ``size`` bytes, which are ``plain`` bytes before
    compression."""
    if size <= _SMALL_BYTES or (size <= whole_bytes and plain <= _DECODED_TIMES * whole_bytes):
        return 1, size
    groups = max(1.0, plain / _GROUP_BYTES)
    return 2, max(4 * KIB, groups * _GROUP_FOOTER_BYTES) + size / groups
