"""Documents of reads that never happened, of any size: what the page map is drawn from in its tests."""

from __future__ import annotations

import random
from typing import Any

from asyncpq.reports.documents import (
    Cause,
    Chunk,
    ChunkFates,
    ColumnReport,
    DatasetInspection,
    FileFates,
    FileSummary,
    FunnelStep,
    Inspection,
    MetricsDocument,
    PlanDocument,
    Request,
    RowGroupReport,
    TimeSplit,
    Why,
)

HOSTILE = "</script><script>alert(1)</script><!--<script>\"'&{{script}}\u2028\u202e\x00"
NAMES = ("id", "user", "ts", "price", "city", "note", "quantity", "currency", "device", "country")


def inspection(
    *, columns: int = 10, row_groups: int = 8, pages: int | None = 20, url: str = "s3://lake/trips/part-00000.parquet"
) -> Inspection:
    """A file of ``row_groups`` of 100,000 rows; without indexes where ``pages`` is None."""
    drawn = random.Random(columns * row_groups)
    names = [NAMES[at] if at < len(NAMES) else f"feature_{at:05}" for at in range(columns)]
    sizes = [drawn.randrange(4, 60) * (30_000 if pages is None else max(200, 600_000 // pages)) for _ in names]
    at, groups = 4, []
    for ordinal in range(row_groups):
        chunks: list[Chunk] = []
        begin = at
        for column, size in enumerate(sizes):
            chunk = _chunk(drawn, column, at, size, pages)
            chunks.append(chunk)
            at = chunk["bytes"][1]
        compressed = at - begin
        groups.append(
            RowGroupReport(
                ordinal=ordinal,
                first_row=ordinal * 100_000,
                rows=100_000,
                bytes=[begin, at],
                uncompressed_bytes=compressed * 3,
                chunks=chunks,
            )
        )
    if pages is not None:
        at = _index_ranges(groups, at, pages)
    footer = 600 * columns * row_groups // 10 + 400
    return Inspection(
        document="inspection",
        url=url,
        size=at + footer,
        version='"9b2cf535f27731c974343645a3985328"',
        guarantee="pinned",
        writer="parquet-cpp-arrow version 26.0.0",
        format_version=2,
        rows=100_000 * row_groups,
        footer=[at, at + footer],
        footer_encrypted=False,
        key_value_metadata={},
        embedded_indexes=[],
        columns=[_column(name, ordinal, groups) for ordinal, name in enumerate(names)],
        row_groups=groups,
        sorted_by=["ts"] if columns > 2 else [],
        unreadable={},
        legacy_calendar=[],
        fallbacks=[],
        requests=1,
        bytes_fetched=655_360,
    )


def _chunk(drawn: random.Random, column: int, at: int, size: int, pages: int | None) -> Chunk:
    dictionary = None
    begin = at
    if column % 3 == 1:
        weight = size * (pages or 10) // 10
        dictionary = [at, at + weight]
        at += weight
    located = None
    if pages is None:
        at += size * 10
    else:
        sizes = [size + drawn.randrange(size // 2 + 1) for _ in range(pages)]
        starts = []
        for one in sizes:
            starts.append(at)
            at += one
        first = [ordinal * 100_000 // pages for ordinal in range(pages)]
        located = {"starts": starts, "sizes": sizes, "first_rows": first}
    return Chunk(
        column=column,
        bytes=[begin, at],
        dictionary=dictionary,
        pages=located,  # type: ignore[typeddict-item]
        offset_index=None,
        column_index=None,
        bloom_filter=None,
        codec="ZSTD",
        encodings=["RLE_DICTIONARY", "PLAIN"] if dictionary else ["DELTA_BINARY_PACKED"],
        uncompressed_bytes=3 * (at - begin),
        values=100_000,
        nulls=0,
        distinct=None,
        min="0",
        max="99999",
    )


def _index_ranges(groups: list[RowGroupReport], at: int, pages: int) -> int:
    chunks = [chunk for group in groups for chunk in group["chunks"]]
    for chunk in chunks:
        if chunk["column"] == 0:
            chunk["bloom_filter"] = [at, at + 65_536]
            at += 65_536
    for chunk in chunks:
        chunk["column_index"] = [at, at + 20 * pages]
        at += 20 * pages
    for chunk in chunks:
        chunk["offset_index"] = [at, at + 12 * pages]
        at += 12 * pages
    return at


def _column(name: str, ordinal: int, groups: list[RowGroupReport]) -> ColumnReport:
    chunks = [group["chunks"][ordinal] for group in groups]
    located = [len(chunk["pages"]["starts"]) for chunk in chunks if chunk["pages"] is not None]
    return ColumnReport(
        name=name,
        physical_type="INT64",
        logical_type=None,
        arrow_type="int64" if ordinal % 3 != 1 else "string",
        nullable=True,
        repeated=False,
        compressed_bytes=sum(chunk["bytes"][1] - chunk["bytes"][0] for chunk in chunks),
        uncompressed_bytes=sum(chunk["uncompressed_bytes"] for chunk in chunks),
        codecs=["ZSTD"],
        encodings=chunks[0]["encodings"] if chunks else [],
        nulls=0,
        min="0",
        max="99999",
        pages=sum(located) if located else None,
        sorted="ascending" if name == "ts" else None,
        bloom_filters=sum(chunk["bloom_filter"] is not None for chunk in chunks),
        column_indexes=sum(chunk["column_index"] is not None for chunk in chunks),
        offset_indexes=sum(chunk["offset_index"] is not None for chunk in chunks),
    )


def fates(
    layout: Inspection, *, columns: tuple[int, ...], groups: tuple[int, ...], pages: tuple[int, ...]
) -> FileFates:
    """The fates of a read of these ``pages`` of ``columns`` in ``groups``; other row groups fell to statistics."""
    chunks = []
    for group in groups:
        for column in columns:
            located = layout["row_groups"][group]["chunks"][column]["pages"]
            chunks.append(
                ChunkFates(
                    row_group=group,
                    column=column,
                    whole=located is None,
                    predicate=column == columns[0],
                    pages=[] if located is None else [page for page in pages if page < len(located["starts"])],
                    fate="memory" if column == columns[-1] and len(columns) > 2 else "read",
                )
            )
    return FileFates(
        url=layout["url"],
        row_groups=[
            "read" if group["ordinal"] in groups else ("bloom" if group["ordinal"] % 5 == 4 else "statistics")
            for group in layout["row_groups"]
        ],
        chunks=chunks,
    )


def requests(layout: Inspection, found: FileFates, *, timed: bool = True) -> list[Request]:
    """The requests of those pages: the tail in round 1, one for each chunk's pages in round 2."""
    sent = [_request(layout, "tail", [-655_360, 0], 1, 0.0, 0.031, 0.036, timed)]
    began = 0.038
    for chunk in found["chunks"]:
        place = layout["row_groups"][chunk["row_group"]]["chunks"][chunk["column"]]
        if chunk["fate"] != "read":
            continue
        start, stop = place["bytes"]
        if place["pages"] is not None and chunk["pages"]:
            start = place["pages"]["starts"][chunk["pages"][0]]
            stop = place["pages"]["starts"][chunk["pages"][-1]] + place["pages"]["sizes"][chunk["pages"][-1]]
        seconds = 0.021 + (stop - start) / 80e6
        sent.append(_request(layout, "data", [start, stop], 2, began, 0.02, seconds, timed))
        began += 0.0004
    return sent


def _request(
    layout: Inspection,
    purpose: str,
    span: list[int],
    step: int,
    began: float,
    first: float,
    seconds: float,
    timed: bool,
) -> Request:
    request = Request(url=layout["url"], method="GET", purpose=purpose, bytes=span, round=step)
    if not timed:
        return request
    request["status"], request["received"], request["attempt"] = 206, span[1] - span[0], 1
    request["hedge"] = request["throttled"] = False
    request["began_s"], request["first_byte_s"], request["seconds"] = began, first, seconds
    return request


def funnel(files: int, kept: int, groups: int, groups_kept: int, pages: int, pages_kept: int) -> list[FunnelStep]:
    steps = [
        FunnelStep(level="files", total=files, ruled_out=[], kept=kept),
        FunnelStep(level="row groups", total=groups, ruled_out=[], kept=groups_kept),
        FunnelStep(level="pages", total=pages, ruled_out=[], kept=pages_kept),
        FunnelStep(level="rows", total=100_000 * groups, ruled_out=[], kept=1),
    ]
    if files > kept:
        steps[0]["ruled_out"] = [{"by": "index", "count": files - kept, "detail": "by_id (bloom)"}]
    bloom = groups // 5
    steps[1]["ruled_out"] = [
        {"by": "statistics", "count": groups - groups_kept - bloom, "detail": "id = 42"},
        {"by": "bloom", "count": bloom, "detail": "id"},
    ]
    steps[2]["ruled_out"] = [{"by": "page index", "count": pages - pages_kept, "detail": "id = 42"}]
    steps[3]["ruled_out"] = [{"by": "filter", "count": 100_000 * groups - 1, "detail": "id = 42"}]
    return steps


def causes() -> list[Cause]:
    return [
        Cause(
            id="far-store",
            severity="high",
            title="The store is far away: 31 ms to the first byte",
            detail="Two rounds of requests wait 51 of 74 ms for first bytes.",
            saves_requests=0,
            saves_bytes=0,
            saves_seconds=0.05,
            column=None,
            cure="Run where the bucket is, or keep footers in a disk cache.",
            snippets={"asyncpq": 'Session(disk_cache="~/.cache/asyncpq")'},
        ),
        Cause(
            id="unsorted",
            severity="medium",
            title="Rows are in random order of id",
            detail="Statistics of 3 of 8 row groups include the key.",
            saves_requests=4,
            saves_bytes=1_200_000,
            saves_seconds=0.012,
            column="id",
            cure="Sort by id when writing.",
            snippets={"pyarrow": 'table.sort_by("id")', "spark": 'df.sortWithinPartitions("id")'},
        ),
    ]


def plan_document(layout: Inspection, found: FileFates) -> PlanDocument:
    sent = requests(layout, found, timed=False)[1:]
    groups = len(layout["row_groups"])
    return PlanDocument(
        document="plan",
        url=layout["url"],
        view=None,
        version=layout["version"],
        guarantee="pinned",
        columns=["id", "price"],
        where="id = 42",
        limit=None,
        funnel=funnel(1, 1, groups, 1, 400, 3),
        files=[found],
        files_to_read=1,
        skipped=[],
        requests=sent,
        num_requests=len(sent),
        num_bytes=sum(one["bytes"][1] - one["bytes"][0] for one in sent),
        cached_bytes=0,
        rounds=1,
        late_columns=[],
        estimates=[{"strategy": "one round", "seconds": 0.031}, {"strategy": "whole column chunks", "seconds": 0.2}],
        prices="30 ms to the first byte, 200 MB/s",
        index=[],
        listing=None,
        fallbacks=[],
        metadata_requests=1,
        explain="read s3://lake/trips/part-00000.parquet\n  where: id = 42",
    )


def metrics_document(sent: list[Request]) -> MetricsDocument:
    metrics: dict[str, Any] = {
        "requests": len(sent),
        "rounds": 2,
        "bytes_fetched": sum(max(0, one["bytes"][1] - one["bytes"][0]) for one in sent),
        "rows_returned": 1,
        "rows_scanned": 5000,
        "cache_hits": 3,
        "memory_hits": 3,
        "disk_hits": 0,
        "shared_hits": 0,
        "wait_s": 0.06,
        "decode_s": 0.002,
        "row_groups_total": 8,
        "row_groups_read": 1,
        "pages_total": 60,
        "pages_read": 3,
        "files_total": 0,
        "fallbacks": [],
    }
    return MetricsDocument(document="metrics", metrics=metrics, requests=sent)


def why(
    layout: Inspection, found: FileFates, *, lake: int = 0, reasons: list[Cause] | None = None, verb: str = "lookup"
) -> Why:
    """The story of one read, of one file or of a ``lake`` of so many."""
    sent = requests(layout, found)
    fetched = sum(abs(one["bytes"][1] - one["bytes"][0]) for one in sent)
    total = max(one["began_s"] + one["seconds"] for one in sent) + 0.004
    others = [
        FileSummary(url=f"s3://lake/trips/part-{at:05}.parquet", size=80_000_000, rows=800_000, fate=_lake_fate(at))
        for at in range(1, lake)
    ]
    groups = len(layout["row_groups"])
    pages = sum(len(c["pages"]["starts"]) for g in layout["row_groups"] for c in g["chunks"] if c["pages"] is not None)
    touched = [layout["row_groups"][c["row_group"]]["chunks"][c["column"]]["bytes"] for c in found["chunks"]]
    return Why(
        document="why",
        url="s3://lake/trips/" if lake else layout["url"],
        view="listed" if lake else None,
        verb=verb,  # type: ignore[typeddict-item]
        keys={"id": ["42"]} if verb == "lookup" else None,
        columns=["id", "price", "note"],
        where="id = 42",
        rows=1,
        funnel=funnel(max(1, lake), 1, groups, len({c["row_group"] for c in found["chunks"]}), pages, 3),
        requests=sent,
        rounds=2,
        bytes={
            "fetched": fetched,
            "wanted": fetched // 3,
            "chunks": sum(stop - start for start, stop in touched),
            "objects": layout["size"] * max(1, lake),
        },
        time=TimeSplit(
            total_s=total, network_s=total - 0.009, caches_s=0.001, decode_s=0.004, filter_s=0.001, other_s=0.003
        ),
        tiers={"memory": 2, "disk": 0, "shared": 0, "store": 9},
        causes=causes() if reasons is None else reasons,
        files=[found],
        layouts=[layout],
        others=others,
        plan=plan_document(layout, found),
        metrics=metrics_document(sent)["metrics"],
    )


def _lake_fate(ordinal: int) -> Any:
    return ("partition", "index", "index", "index", "statistics", "index", "bloom")[ordinal % 7]


def dataset_inspection(files: int) -> DatasetInspection:
    return DatasetInspection(
        document="dataset inspection",
        url="s3://lake/trips/",
        view="listed",
        description=f"{files} files",
        schema=[{"name": name, "arrow_type": "int64"} for name in NAMES],
        partitions=["day"],
        files=[
            FileSummary(url=f"s3://lake/trips/day={at % 30}/part-{at:05}.parquet", size=80_000_000, rows=None)
            for at in range(files)
        ],
        total_bytes=files * 80_000_000,
        indexes=[{"at": "s3://lake/trips/_asyncpq/", "description": "index", "tables": ["files", "keys(c1)"]}],
        fallbacks=[],
        sample=inspection(url="s3://lake/trips/day=0/part-00000.parquet"),
        requests=2,
        bytes_fetched=655_360,
    )


def every_document() -> list[Any]:
    """One document of each kind, and the story of a read of a lake."""
    layout = inspection()
    found = fates(layout, columns=(0, 3, 5), groups=(3,), pages=(7,))
    return [
        why(layout, found),
        why(layout, found, lake=20),
        plan_document(layout, found),
        layout,
        dataset_inspection(5),
        metrics_document(requests(layout, found)),
    ]
