"""The causes in the processor's time why a read was not faster: decoding, the filter, loading modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from asyncpq.parquet.column_chunk import Codec
from asyncpq.reports import cures
from asyncpq.reports.cpu_work import CODEC_BYTES_S, SLOW_CODECS, decode_work, decompression_work
from asyncpq.reports.layout_causes import names_of
from asyncpq.reports.read_model import Facts, ReadModel
from asyncpq.reports.units import plural, seconds_text

if TYPE_CHECKING:
    from asyncpq.reports.documents import Cause

_LARGE_SHARE: Final = 0.4  # of a read's time


def slow_codec(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if pages are compressed with a codec that takes long to decompress."""
    slow = [column for column in facts.columns if column.codec in SLOW_CODECS and column.fetched]
    if not slow:
        return
    less = sum(
        [
            decompression_work(column, column.fetched) * (1 - CODEC_BYTES_S[column.codec] / CODEC_BYTES_S[Codec.ZSTD])
            for column in slow
        ]
    )
    names = sorted({Codec(column.codec).name.lower() for column in slow})
    yield from model.cause(
        "slow-codec",
        f"Pages are compressed with {' and '.join(names)}, which is slow to decompress",
        f"Decoding took {seconds_text(model.decode_s)}; zstd takes a third of the time at a similar size.",
        cures.advice("slow-codec"),
        saves=(0.0, 0, 0),
        more_s=model.less_work(model.decode_work - less),
        column=slow[0].name,
        snippets=cures.codec(),
    )


def decode_bound(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if decoding takes longest, of pages that have matching rows."""
    work: dict[str, float] = {}
    for column in facts.columns:
        work[column.name] = work.get(column.name, 0.0) + decode_work(column, column.fetched)
    needed = sum([decode_work(column, column.wanted) for column in facts.columns])
    if not work or model.decode_s < _LARGE_SHARE * model.now_s or needed * 2 < model.decode_work:
        return
    name, most = max(work.items(), key=lambda item: item[1])
    if any(column.name == name and column.codec in SLOW_CODECS for column in facts.columns):
        return  # that says more
    yield from model.cause(
        "decode-bound",
        f"Decoding takes longest, that of {name} most of it",
        f"{plural(sum([len(column.fetched) for column in facts.columns]), 'page')} of {names_of(facts.columns)} took "
        f"{seconds_text(model.decode_s)} to decode, {name} about {most / max(model.decode_work, 1e-9):.0%} of that.",
        f"Leave {name} out of columns= where it is not needed, or ask for fewer rows.",
        saves=(0.0, 0, 0),
        more_s=model.less_work(model.decode_work - most),
        column=name,
        snippets={"asyncpq": "await file.read(columns=[...])  # or: LimitOptions(decode_threads=...)"},
    )


def filter_bound(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if the filter takes longest."""
    if model.filter_s < _LARGE_SHARE * model.now_s or not facts.filters:
        return
    name = facts.filters[0]
    yield from model.cause(
        "filter-bound",
        f"The filter takes longest: its condition on {name} is expensive",
        f"Comparing rows took {seconds_text(model.filter_s)} of {seconds_text(model.now_s)}.",
        f"Add a condition on a column that is in order, or build an index of {name}, so that fewer rows are compared.",
        saves=(0.0, 0, 0),
        more_s=model.filter_s,
        column=name,
        snippets=cures.text_index(name),
    )


def python(facts: Facts, model: ReadModel) -> Iterator[Cause]:
    """Yield a cause if Python took far longer than the work of the read explains, as in a process's first read."""
    yield from model.cause(
        "busy-python",
        "Python was busy with other things, such as loading modules",
        f"{seconds_text(model.unexplained_s)} of {seconds_text(model.now_s)} are not explained by the read's pages and "
        "files: a process's first read loads modules, and other tasks, threads and programs take the processor.",
        "Keep the process and its session for the next reads (`asyncpq why --warm` shows the second one), and the "
        "event loop free.",
        saves=(0.0, 0, 0),
        more_s=model.unexplained_s,
    )
