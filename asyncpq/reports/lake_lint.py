"""Find the causes of slow lookups in a lake of many files.

A lookup lists the files, opens each file that is not ruled out, and reads data from files whose bounds may hold the
key. The predictions extrapolate from the layouts of a sample of the files.

The cost of a lookup through an index of kinds ``keys`` and ``footers`` that is not built yet: it reads the manifest,
then the index's rows for the key, for the file and for its footer, and then the data. The sizes of the segments are
computed from the number of rows. The constants were measured with the folder backend, on sorted and unsorted columns of
numbers and texts; ``tests/reports/test_lake_lint.py`` compares them with real indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from asyncpq.objects.prices import Prices
from asyncpq.options import KIB, MIB
from asyncpq.reports.cures import CURES, advice
from asyncpq.reports.documents import Cause
from asyncpq.reports.lint import Linted
from asyncpq.reports.lint_rules import Subject, severity, unpriced
from asyncpq.reports.lookup_cost import KeyZones, LookupCost, LookupModel, Shape, middle, put_together

SMALL_FILE: Final = 16 << 20
FILE_BYTES: Final = 256 << 20
MANY_FILES: Final = 8
_FIRST_FILES: Final = 3  # of a read: they are planned before it is known how many follow


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFacts:
    """Facts about a lake (the files of a dataset) that are known before files are opened."""

    sizes: Sequence[int | None]  # of its files
    deletes: int  # files with deleted rows
    tables: Sequence[str]  # of its external indexes, such as "keys(user)"
    prices: Prices
    first_bytes: int  # of the first GET of a file in a new folder,
    tail_bytes: int  # and of the next files, once one was opened


def lint_lake(lake: LakeFacts, linted: Sequence[Linted]) -> list[Cause]:
    """Return the findings about a lake: about the lake as a whole, and about the files in ``linted``, a sample.

    The saving of a finding about a file is multiplied by the number of files that a lookup reads.
    """
    findings: list[Cause] = []
    for column in dict.fromkeys(name for item in linted for name in item.columns):
        files = [item for item in linted if column in item.subjects]
        read = _files_with(files, column, len(lake.sizes))
        findings += _merged([[cause for cause in item.findings if cause["column"] == column] for item in files], read)
        findings += [cause for cause in _of_lake(lake, files, column, read) if (cause["saves_seconds"] or 0) > 0]
    return [*findings, *_of_deletes(lake)]


def _files_with(files: Sequence[Linted], column: str, num_files: int) -> float:
    """Estimate how many of the dataset's ``num_files`` files a lookup by ``column`` must read, because their bounds
    include its key. The estimate is based on the bounds of ``files``, a sample."""
    if any(item.ends[column] is None for item in files):
        return float(num_files)
    ends = [item.ends[column] for item in files]
    shares = [
        mean([other[0] <= key <= other[1] for at, other in enumerate(ends) if other is not None and at != number])
        for number, own in enumerate(ends)
        if own is not None and len(ends) > 1
        for key in [middle(*own)]
    ]
    return 1 + mean(shares) * (num_files - 1) if shares else 1.0


def _merged(findings: Sequence[Sequence[Cause]], files_read: float) -> list[Cause]:
    """Join the findings of several files into one for each rule and column. Its saving is the mean saving in a file
    times ``files_read``."""
    by_rule: dict[tuple[str, str | None], list[Cause]] = {}
    for some in findings:
        for cause in some:
            by_rule.setdefault((cause["id"], cause["column"]), []).append(cause)
    merged: list[Cause] = []
    for causes in by_rule.values():
        share, first = len(causes) / max(1, len(findings)), causes[0].copy()
        first["detail"] = f"Of {len(findings)} files that were looked at, {len(causes)} have this. {first['detail']}"
        times = share * files_read
        first["saves_requests"] = _times(times, [cause["saves_requests"] for cause in causes])
        first["saves_bytes"] = _times(times, [cause["saves_bytes"] for cause in causes])
        seconds = [cause["saves_seconds"] for cause in causes if cause["saves_seconds"] is not None]
        first["saves_seconds"] = round(mean(seconds) * times, 6) if seconds else None
        merged.append(first)
    return merged


def _times(times: float, values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(mean(known) * times) if known else None


def _of_lake(lake: LakeFacts, files: Sequence[Linted], column: str, read: float) -> list[Cause]:
    num_files = len(lake.sizes)
    if num_files < 2 or not files:
        return []
    known = sorted(size for size in lake.sizes if size is not None) or [item.size for item in files]
    size, typical = mean(known), known[len(known) // 2]
    one = LookupCost(*[mean(values) for values in zip(*[item.subjects[column].before for item in files], strict=True)])
    data = LookupCost(max(0.0, one.requests - 1), max(0.0, one.num_bytes - min(size, lake.tail_bytes)), 0.0)
    parts = [
        _data(item.subjects[column].model, item.subjects[column].shape, item.subjects[column].keys, read)
        for item in files
    ]
    first = max(0.0, min(size, lake.first_bytes) - min(size, lake.tail_bytes))  # more than the next files take
    tails = num_files * min(size, lake.tail_bytes) + first
    before = LookupCost(
        num_files + mean(cost.requests for cost in parts), tails + mean(cost.num_bytes for cost in parts), 0.0
    )
    found: list[Cause] = []
    fewer = max(1, -(-int(size * num_files) // FILE_BYTES))
    if "footers" not in lake.tables and num_files >= MANY_FILES and typical < SMALL_FILE and fewer * 2 <= num_files:
        detail = f"{num_files:,} files of {typical:,} bytes (median): a lookup opens each that nothing rules out."
        cure = f"Put them together to {fewer:,} of about {FILE_BYTES >> 20} MiB."
        after = _put_together(lake, files[len(files) // 2].subjects[column], -(-num_files // fewer), fewer, read)
        found.append(_cause(lake, "tiny-files", "files are small", detail, cure, column, (before, after)))
    index = index_cost(indexed_lake([item.subjects[column] for item in files], num_files, in_order=read < 2))
    opening = min(size, lake.first_bytes)  # of the first file, for its columns
    after = LookupCost(index.requests + 1 + max(1.0, data.requests), index.num_bytes + opening + data.num_bytes, 0.0)
    if before.requests > after.requests and not {f"keys({column})", f"blooms({column})"} & set(lake.tables):
        detail = f"A lookup by {column} opens {num_files:,} files and reads data of {read:.1f}."
        cure = advice("no-index", column)
        found.append(_cause(lake, "no-index", "no external index of the column", detail, cure, column, (before, after)))
    return found


def _put_together(lake: LakeFacts, subject: Subject, times: int, num_files: int, read: float) -> LookupCost:
    """Return the cost of a lookup after compaction into ``num_files`` files, each with the rows of ``times`` old
    files. ``read``: the number of the new files that may have the key."""
    keys = KeyZones(subject.keys.zones, is_sorted=subject.keys.is_sorted or read < 2)
    shape, keys = put_together(subject.shape, keys, times)
    model = replace(subject.model, tail_bytes=lake.first_bytes, learns=False)
    data = _data(model, shape, keys, min(read, num_files))
    tails = num_files * min(shape.size, lake.first_bytes)
    return LookupCost(num_files + data.requests, tails + data.num_bytes, 0.0)


def _data(model: LookupModel, shape: Shape, keys: KeyZones, read: float) -> LookupCost:
    """Return the cost of a lookup in ``read`` files of the layout ``shape``, one of which has the key, without the
    first GET of each. The other columns are read only from the file with the key, if so many files are read that
    this saves bytes."""
    tail = LookupCost(1, min(shape.size, model.first_bytes(shape)), 0.0)
    many = replace(model, files=max(1, round(read)))
    early = min(read - 1, float(_FIRST_FILES))
    costs = [(1.0, many.mean_cost(shape, keys))]
    if read > 1:
        costs.append((early, model.mean_cost(shape, keys, found=False)))
        costs.append((read - 1 - early, many.mean_cost(shape, keys, found=False)))
    return LookupCost(
        sum(times * max(0.0, cost.requests - tail.requests) for times, cost in costs),
        sum(times * max(0.0, cost.num_bytes - tail.num_bytes) for times, cost in costs),
        0.0,
    )


def _of_deletes(lake: LakeFacts) -> list[Cause]:
    if lake.deletes * 10 <= len(lake.sizes):
        return []
    return [
        unpriced(
            "deleted-rows",
            "medium",
            "many files have deleted rows",
            f"{lake.deletes:,} of {len(lake.sizes):,} files have deleted rows: reads of these fetch which. "
            "No saving is predicted: it depends on which files a read comes to.",
            "Rewrite these files without the deleted rows.",
            snippets=CURES["deleted-rows"](""),
        )
    ]


def _cause(
    lake: LakeFacts, rule: str, title: str, detail: str, cure: str, column: str, costs: tuple[LookupCost, LookupCost]
) -> Cause:
    prices = lake.prices
    before, after = costs

    def seconds(cost: LookupCost) -> float:
        waves = max(1.0, cost.requests / prices.connections)
        return prices.latency_s * waves + prices.request_s * cost.requests + cost.num_bytes / prices.bandwidth_bytes_s

    saved = seconds(before) - seconds(after)
    return Cause(
        id=rule,
        severity=severity(saved / seconds(before)),
        title=title,
        detail=detail,
        saves_requests=round(before.requests - after.requests),
        saves_bytes=round(before.num_bytes - after.num_bytes),
        saves_seconds=round(saved, 6),
        column=column,
        cure=cure,
        snippets=CURES[rule](column),
    )


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
