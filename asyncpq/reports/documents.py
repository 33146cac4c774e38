"""The types of the JSON documents, which the command line prints with ``--format json`` and the page map draws.

All values are JSON values: text, whole numbers, floats, booleans, None, lists and objects. Byte ranges are
``[start, stop]`` with ``stop`` exclusive. Seconds are wall-clock time. Urls have no user info, query or secrets. Long
lists of objects are stored as one list for each field (:class:`PageLists`), so that 100,000 pages stay small.

docs/schemas has a JSON Schema of each document: after a change, ``ASYNCPQ_UPDATE_DOCS=1 pytest
tests/reports/test_documents.py`` writes them anew.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

#: What became of a row group, a page or a file. "statistics" are a row group's in the footer, "index" is an external
#: index, "limit" means that earlier rows sufficed, "cached" and "read" that it was (or would be) decoded: from a cache
#: tier, or fetched from the store. "unread": its column was not asked for.
Fate = Literal[
    "partition", "table", "index", "statistics", "bloom", "page index", "dictionary", "access", "limit", "late",
    "memory", "disk", "shared", "read", "unread",
]  # fmt: skip
Tier = Literal["memory", "disk", "shared", "store"]


class PageLists(TypedDict):
    """The data pages of one column chunk, in order: lists of equal length."""

    starts: list[int]  # first byte of each page, its header included
    sizes: list[int]  # bytes, header included
    first_rows: list[int]  # first row of each page, in the row group
    mins: NotRequired[list[str | None]]  # as text, of columns that were named; None: not stated, or not to be believed
    maxs: NotRequired[list[str | None]]


class Chunk(TypedDict):
    """The column chunk of one column in one row group: its location, pages, sizes and statistics."""

    column: int  # position in the file's ``columns``
    bytes: list[int]  # [start, stop]
    dictionary: list[int] | None  # bytes before the first data page, where the dictionary is; None: none, or unknown
    pages: PageLists | None  # None: without an OffsetIndex, page locations are not known
    offset_index: list[int] | None
    column_index: list[int] | None
    bloom_filter: list[int] | None
    codec: str
    encodings: list[str]  # of the data pages, where they are stated; else of all pages, levels included
    uncompressed_bytes: int
    values: int  # nulls included
    nulls: int | None  # None: not stated
    distinct: int | None  # None: not stated
    min: str | None  # as text; None: not stated, or not to be believed
    max: str | None


class RowGroupReport(TypedDict):
    """The location, rows and sizes of one row group of a file."""

    ordinal: int
    first_row: int
    rows: int
    bytes: list[int]  # from the first byte of its first chunk to the last of its last
    uncompressed_bytes: int
    chunks: list[Chunk]


class ColumnReport(TypedDict):
    """One leaf column of a file: its types, sizes, indexes and order."""

    name: str  # dotted path
    physical_type: str
    logical_type: str | None
    arrow_type: str
    nullable: bool
    repeated: bool  # below a list or map
    compressed_bytes: int  # of all its chunks
    uncompressed_bytes: int
    codecs: list[str]
    encodings: list[str]
    nulls: int | None
    min: str | None
    max: str | None
    pages: int | None  # data pages that OffsetIndexes locate; None if none does
    sorted: Literal["ascending", "descending"] | None  # shown by statistics of row groups and pages, not declared
    bloom_filters: int  # row groups that have one
    column_indexes: int
    offset_indexes: int


class Inspection(TypedDict):
    """The document of ``asyncpq inspect`` for one file, and of :meth:`asyncpq.File.inspect`: the file's layout."""

    document: Literal["inspection"]
    url: str
    size: int
    version: str  # ETag, version id or size
    guarantee: str
    writer: str | None  # created_by
    format_version: int
    rows: int
    footer: list[int]
    footer_encrypted: bool
    key_value_metadata: dict[str, str]  # values of more than 200 characters are cut
    embedded_indexes: list[str]
    columns: list[ColumnReport]
    row_groups: list[RowGroupReport]
    sorted_by: list[str]  # columns by which the file is sorted as a whole, as far as statistics show
    unreadable: dict[str, str]  # leaf columns that a read refuses as not supported, each with the reason
    legacy_calendar: list[str]  # columns with dates or timestamps in the calendar of old Spark versions
    fallbacks: list[str]  # indexes and statistics that are damaged or not believed; they are reported as absent
    requests: int  # that the inspection took
    bytes_fetched: int


class FileSummary(TypedDict):
    """One file of a dataset: its url, size, rows and fate (read, or what ruled it out)."""

    url: str
    size: int | None
    rows: int | None  # None: not opened
    fate: NotRequired[Fate]


class DatasetInspection(TypedDict):
    """The document of ``asyncpq inspect`` for a prefix, pattern or table, and of :meth:`asyncpq.Dataset.inspect`."""

    document: Literal["dataset inspection"]
    url: str
    view: str
    description: str
    schema: list[dict[str, str]]  # name and arrow_type of each column
    partitions: list[str]
    files: list[FileSummary]
    total_bytes: int | None
    indexes: list[dict[str, Any]]
    sample: Inspection | None  # of the first file
    fallbacks: list[str]  # why there is no sample of a file
    requests: int
    bytes_fetched: int


class Request(TypedDict):
    """One request of a plan or a read."""

    url: str
    method: str
    purpose: str  # "tail", "footer", "index", "bloom", "data", "list", ...
    bytes: list[int]  # [start, stop]; a suffix GET of n bytes is [-n, 0]
    useful_bytes: NotRequired[int]  # of a planned request; the rest are gaps
    columns: NotRequired[list[str]]  # that it serves
    round: int  # from 1
    status: NotRequired[int]  # of a request that was sent, as are all below
    received: NotRequired[int]
    attempt: NotRequired[int]
    hedge: NotRequired[bool]
    throttled: NotRequired[bool]
    began_s: NotRequired[float]  # since the call began
    first_byte_s: NotRequired[float | None]  # since the request began
    seconds: NotRequired[float]  # from sending to the end of the body


class ChunkFates(TypedDict):
    """The fate (fetched, cached, or what ruled it out) of a column chunk that is read at least in part, and of its
    pages."""

    row_group: int
    column: int  # position in the file's columns
    whole: bool  # fetched as one piece, whatever its pages
    predicate: bool  # the filter needs it
    pages: list[int]  # ordinals of the pages that are read
    fate: Fate  # of those pages where ``fates`` is missing
    fates: NotRequired[list[Fate]]  # one for each of ``pages``, where they differ


class FileFates(TypedDict):
    """The fates of the row groups and pages of one file: fetched, cached, or what ruled them out."""

    url: str
    row_groups: list[Fate]  # one for each row group
    chunks: list[ChunkFates]  # of the row groups that are read


class RuledOut(TypedDict):
    """The number of files, row groups, pages or rows that one mechanism, such as statistics, ruled out."""

    by: str  # a Fate, or "filter" for rows
    count: int
    detail: str  # such as the condition, or the name of the index


class FunnelStep(TypedDict):
    """One step of the funnel from files to row groups, pages and rows: how many are left, and what ruled out others."""

    level: Literal["files", "row groups", "pages", "rows"]
    total: int
    ruled_out: list[RuledOut]
    kept: int


class PlanDocument(TypedDict):
    """The document of ``asyncpq explain``, :meth:`asyncpq.Plan.to_dict` and :meth:`asyncpq.DatasetPlan.to_dict`."""

    document: Literal["plan"]
    url: str
    view: str | None  # None: of one file
    version: str | None
    guarantee: str | None
    columns: list[str]
    where: str | None
    limit: int | None
    funnel: list[FunnelStep]
    files: list[FileFates]  # of the files that would be read, the first 100
    files_to_read: int
    skipped: list[str]
    requests: list[Request]  # of the first round, the first 10,000
    num_requests: int
    num_bytes: int
    cached_bytes: int
    rounds: int
    late_columns: list[str]
    estimates: list[dict[str, Any]]  # strategy and seconds; the chosen one first
    prices: str
    index: list[str]
    listing: str | None
    fallbacks: list[str]
    metadata_requests: int
    explain: str  # the plan as text
    layouts: NotRequired[list[Inspection]]  # of the files that would be read, for the page map


class MetricsDocument(TypedDict):
    """The cost of a read: :meth:`asyncpq.ReadMetrics.to_dict`. Keys are the names of the metrics."""

    document: Literal["metrics"]
    metrics: dict[str, Any]
    requests: list[Request]


class TimeSplit(TypedDict):
    """The seconds that a read spent on each activity. They add up to ``total_s``."""

    total_s: float
    network_s: float  # at least one request was under way
    caches_s: float  # waiting for the disk or the shared tier, no request under way
    decode_s: float  # decompressing and decoding, no request under way
    filter_s: float  # comparing rows with the filter, no request under way
    other_s: float  # planning, imports and the event loop


#: From the most severe; a note costs nothing: ``lint --strict`` passes over it.
Severity = Literal["high", "medium", "low", "note"]


class Cause(TypedDict):
    """One reason why a read was not faster (``why``), or why lookups are slow (``lint``), with its cure."""

    id: str  # stable, such as "no-page-index"
    severity: Severity
    title: str  # one line
    detail: str  # the observation, with figures
    saves_requests: int | None  # predicted, for the lookup of ``why``, or for one lookup by the column of ``lint``
    saves_bytes: int | None
    saves_seconds: float | None
    column: str | None
    cure: str  # one line
    # How to write it, by writer: "pyarrow", "spark", "duckdb", "polars", "delta-rs", "asyncpq". Of ``lint``, the writer
    # that the file names comes first, also another one.
    snippets: dict[str, str]


class Lint(TypedDict):
    """The document of ``asyncpq lint``, :meth:`asyncpq.File.lint` and :meth:`asyncpq.Dataset.lint`."""

    document: Literal["lint"]
    url: str
    files_checked: int
    findings: list[Cause]  # the most severe first, and of these the largest saving
    columns: list[str]  # for whose lookups savings are predicted
    prices: str
    requests: int
    bytes_fetched: int


class Why(TypedDict):
    """The document of ``asyncpq why``, :meth:`asyncpq.File.why` and :meth:`asyncpq.Dataset.why`: what one read cost and
    why."""

    document: Literal["why"]
    url: str
    view: str | None
    verb: Literal["lookup", "scan", "count"]
    keys: dict[str, list[str]] | None  # as text
    columns: list[str]
    where: str | None
    rows: int  # returned
    funnel: list[FunnelStep]
    requests: list[Request]
    rounds: int
    bytes: dict[str, int | None]  # "fetched", "wanted" (of the matching rows' pages), "chunks" (whole), "objects"
    time: TimeSplit
    tiers: dict[str, int]  # parts found, by Tier
    causes: list[Cause]  # reasons why it is not faster, the largest saving first
    files: list[FileFates]
    layouts: list[Inspection]  # of the files that were read, the first 20
    others: list[FileSummary]  # all other files of a dataset, with their fates
    plan: PlanDocument
    metrics: dict[str, Any]


class IndexTableDocument(TypedDict):
    """One table of an index."""

    kind: str
    columns: list[str]
    options: dict[str, Any]
    files: int  # live files whose entries the table has
    rows: int
    bytes: int  # approximate
    segments: int


class IndexDocument(TypedDict):
    """The document of ``asyncpq index show``: the state of an index."""

    document: Literal["index"]
    url: str
    snapshot: int
    created: str  # ISO 8601
    as_of: str | None  # when the files were listed; None until the first build ends
    files: int
    rows: int
    bytes: int
    tables: list[IndexTableDocument]
    builds: int  # running or interrupted
    stale: dict[str, int] | None  # files that are "new", "changed" and "gone" since; None: not asked


class IndexBuild(TypedDict):
    """The document of ``asyncpq index build`` and ``refresh``: the changes to the index."""

    document: Literal["index build"]
    url: str
    snapshot: int
    added: int  # files; a replaced file counts as removed, too
    removed: int
    resumed: int  # files that an earlier, interrupted build had read
    problems: list[dict[str, str]]  # "url" and "error" of files that could not be read


class IndexVerification(TypedDict):
    """The document of ``asyncpq index verify``: the differences between the index and a sample of the files."""

    document: Literal["index verification"]
    url: str
    files: int  # compared
    changed: int  # left out, since they were replaced or deleted
    rows: int
    problems: list[str]


class IndexUpkeep(TypedDict):
    """The document of ``asyncpq index compact`` and ``vacuum``: the merged and the removed parts of the index."""

    document: Literal["index upkeep"]
    url: str
    segments_written: int
    segments_replaced: int  # they stay until a vacuum
    segments_removed: int
    snapshots_removed: int
    files_removed: int  # data files that asyncpq wrote and no snapshot lists


class Optimization(TypedDict):
    """The document of ``asyncpq optimize``: what was read and written, and the time of each step."""

    document: Literal["optimization"]
    target: str
    files: list[str]
    rows: int
    bytes_before: int | None
    bytes_after: int
    snapshot: int
    seconds: dict[str, float]  # of each step


class Rows(TypedDict):
    """The document of ``asyncpq query``, ``lookup`` and ``take`` with ``--format json``. docs/cli.md says how values of
    each type are written."""

    document: Literal["rows"]
    url: str
    columns: list[dict[str, str]]  # name and arrow_type of each column
    rows: list[dict[str, Any]]


class SchemaDocument(TypedDict):
    """The document of ``asyncpq schema``: the columns of a file, dataset or table."""

    document: Literal["schema"]
    url: str
    columns: list[dict[str, Any]]  # "name", "arrow_type" and "nullable" of each


class Count(TypedDict):
    """The document of ``asyncpq count``: the number of rows, and the cost of the read."""

    document: Literal["count"]
    url: str
    where: str | None
    rows: int


class StoreDiagnosis(TypedDict):
    """Measurements of how a store answers requests for one object. After an error, later fields are missing or None."""

    url: str
    settings: dict[str, str]  # where credentials came from, endpoint, region
    client: str | None  # that sends the requests
    server: str | None
    guarantee: str | None  # how surely reads see one version
    size: int | None  # of the object
    first_s: float | None  # of the first GET, connection included
    latency_s: float | None  # of a small GET, the median of some
    bandwidth_bytes_s: float | None  # of one GET; None: the object is too small
    parallel_bytes_s: float | None  # of several GETs together
    supports: dict[str, bool | None]  # "ranges", "suffix ranges", "If-Match", "create if absent"; None: not tried
    requests: list[Request]
    error: str | None  # that ended the diagnosis
    error_type: str | None


class Diagnosis(TypedDict):
    """The document of ``asyncpq doctor`` and :meth:`asyncpq.Session.diagnose`. It holds no secrets."""

    document: Literal["diagnosis"]
    versions: dict[str, str | None]  # of asyncpq, Python and packages; None: not installed
    platform: dict[str, str]
    environment: list[str]  # names of variables that are set and concern stores, without their values
    caches: dict[str, dict[str, Any]]  # "memory", "disk", "shared"
    store: StoreDiagnosis | None  # None: no url was given


class CacheUsage(TypedDict):
    """The document of ``asyncpq cache show`` and ``clear``: the number and size of a cache's entries."""

    document: Literal["cache"]
    kind: Literal["disk", "shared"]
    place: str
    entries: int
    bytes: int | None  # None: not known
    removed: int | None  # entries that ``clear`` removed; None: of ``show``
