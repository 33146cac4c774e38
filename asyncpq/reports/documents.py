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
    """The data pages of one column chunk, in order: lists of equal length.

    Attributes:
        starts: first byte of each page in the file, its header included.
        sizes: compressed bytes of each page, header included.
        first_rows: first row of each page, counted in the row group.
        mins, maxs: bounds of each page as text, for columns in ``page_bounds``; None: not stated, or not trusted.
    """

    starts: list[int]
    sizes: list[int]
    first_rows: list[int]
    mins: NotRequired[list[str | None]]
    maxs: NotRequired[list[str | None]]


class Chunk(TypedDict):
    """The column chunk of one column in one row group: its location, pages, sizes and statistics.

    Attributes:
        column: position in the file's ``columns``.
        bytes: byte range of the chunk in the file: [start, stop], ``stop`` exclusive.
        dictionary: byte range before the first data page, where the dictionary is; None: none, or unknown.
        pages: the data pages; None: without an OffsetIndex, their locations are not known.
        offset_index, column_index, bloom_filter: byte range of each; None without one.
        codec: compression, such as "ZSTD".
        encodings: names of those of the data pages, where they are stated; else of all pages, levels included.
        uncompressed_bytes: size of all pages before compression.
        values: number of values, nulls included.
        nulls, distinct: numbers of nulls and of distinct values; None: not stated.
        min, max: bounds as text; None: not stated, or not trusted.
    """

    column: int
    bytes: list[int]
    dictionary: list[int] | None
    pages: PageLists | None
    offset_index: list[int] | None
    column_index: list[int] | None
    bloom_filter: list[int] | None
    codec: str
    encodings: list[str]
    uncompressed_bytes: int
    values: int
    nulls: int | None
    distinct: int | None
    min: str | None
    max: str | None


class RowGroupReport(TypedDict):
    """The location, rows and sizes of one row group of a file.

    Attributes:
        ordinal, first_row: position of the row group, and of its first row, in the file.
        rows: number of rows.
        bytes: byte range from the first byte of its first chunk to the last of its last.
        uncompressed_bytes: size of all its pages before compression.
        chunks: one for each leaf column.
    """

    ordinal: int
    first_row: int
    rows: int
    bytes: list[int]
    uncompressed_bytes: int
    chunks: list[Chunk]


class ColumnReport(TypedDict):
    """One leaf column of a file: its types, sizes, indexes and order.

    Attributes:
        name: dotted path.
        physical_type, logical_type, arrow_type: its types in Parquet and Arrow; ``logical_type`` is None without one.
        nullable: whether nulls may occur.
        repeated: whether it is below a list or map.
        compressed_bytes, uncompressed_bytes: sizes of all its chunks.
        codecs, encodings: names of all that its chunks have.
        nulls, min, max: number of nulls and bounds as text in all row groups; None: not stated by each, or not trusted.
        pages: number of data pages that OffsetIndexes locate; None if none does.
        sorted: order of the whole file, as far as statistics of row groups and pages show; None: not shown.
        bloom_filters, column_indexes, offset_indexes: numbers of row groups that have one.
    """

    name: str
    physical_type: str
    logical_type: str | None
    arrow_type: str
    nullable: bool
    repeated: bool
    compressed_bytes: int
    uncompressed_bytes: int
    codecs: list[str]
    encodings: list[str]
    nulls: int | None
    min: str | None
    max: str | None
    pages: int | None
    sorted: Literal["ascending", "descending"] | None
    bloom_filters: int
    column_indexes: int
    offset_indexes: int


class Inspection(TypedDict):
    """The document of ``asyncpq inspect`` for one file, and of :meth:`asyncpq.File.inspect`: the file's layout.

    Attributes:
        url, size: url of the file, and its bytes.
        version: ETag, version id or size.
        guarantee: how the store ensures that all bytes are of one version.
        writer: ``created_by`` of the footer; None without one.
        format_version: ``version`` of the footer, 1 or 2.
        rows: number of rows.
        footer: byte range.
        footer_encrypted: whether the footer is encrypted.
        key_value_metadata: of the footer; values of more than 200 characters are cut.
        embedded_indexes: names of the indexes embedded in the file.
        columns, row_groups: the leaf columns, and the row groups in order.
        sorted_by: columns by which the file is sorted as a whole, as far as statistics show.
        unreadable: leaf columns that a read refuses as not supported, each with the reason.
        legacy_calendar: columns with dates or timestamps in the calendar of old Spark versions.
        fallbacks: indexes and statistics that are damaged or not trusted, and so reported as absent.
        requests, bytes_fetched: cost of the inspection.
    """

    document: Literal["inspection"]
    url: str
    size: int
    version: str
    guarantee: str
    writer: str | None
    format_version: int
    rows: int
    footer: list[int]
    footer_encrypted: bool
    key_value_metadata: dict[str, str]
    embedded_indexes: list[str]
    columns: list[ColumnReport]
    row_groups: list[RowGroupReport]
    sorted_by: list[str]
    unreadable: dict[str, str]
    legacy_calendar: list[str]
    fallbacks: list[str]
    requests: int
    bytes_fetched: int


class FileSummary(TypedDict):
    """One file of a dataset: its ``url``, ``size`` in bytes (None: not known), ``rows`` (None: not opened) and
    ``fate``: read, or what ruled it out."""

    url: str
    size: int | None
    rows: int | None
    fate: NotRequired[Fate]


class DatasetInspection(TypedDict):
    """The document of ``asyncpq inspect`` for a prefix, pattern or table, and of :meth:`asyncpq.Dataset.inspect`.

    Attributes:
        url: url of the dataset.
        view: which files a read sees, as :attr:`asyncpq.Dataset.view`.
        description: where the files come from, as text.
        schema: "name" and "arrow_type" of each column.
        partitions: names of the columns whose values are in paths.
        files, total_bytes: the files, and their size; None: not known.
        indexes: the indexes that rule out files.
        sample: the first file; None: ``fallbacks`` say why.
        fallbacks: why there is no sample.
        requests, bytes_fetched: cost of the inspection.
    """

    document: Literal["dataset inspection"]
    url: str
    view: str
    description: str
    schema: list[dict[str, str]]
    partitions: list[str]
    files: list[FileSummary]
    total_bytes: int | None
    indexes: list[dict[str, Any]]
    sample: Inspection | None
    fallbacks: list[str]
    requests: int
    bytes_fetched: int


class Request(TypedDict):
    """One request of a plan or a read.

    Attributes:
        url, method: url of the object or listing, and HTTP method, such as "GET".
        purpose: "tail", "footer", "index", "bloom", "data", "list", ...
        bytes: byte range; a suffix GET of n bytes is [-n, 0].
        useful_bytes: number of needed bytes of a planned request; the rest are gaps.
        columns: the columns that a planned request serves.
        round: round of requests, from 1; each waits for the one before.
        status, received: HTTP status and body bytes of a request that was sent.
        attempt: number of the try, from 1.
        hedge, throttled: whether it repeats a slow request, and whether the store asked to slow down.
        began_s: seconds since the call began.
        first_byte_s, seconds: seconds from sending to the first byte (None: not seen), and to the end of the body.
    """

    url: str
    method: str
    purpose: str
    bytes: list[int]
    useful_bytes: NotRequired[int]
    columns: NotRequired[list[str]]
    round: int
    status: NotRequired[int]
    received: NotRequired[int]
    attempt: NotRequired[int]
    hedge: NotRequired[bool]
    throttled: NotRequired[bool]
    began_s: NotRequired[float]
    first_byte_s: NotRequired[float | None]
    seconds: NotRequired[float]


class ChunkFates(TypedDict):
    """The fate (fetched, cached, or what ruled it out) of a column chunk that is read at least in part, and of its
    pages.

    Attributes:
        row_group: ordinal of the row group.
        column: position in the file's ``columns``.
        whole: whether the chunk is fetched as one piece, whatever its pages.
        predicate: whether the filter needs it.
        pages: ordinals of the pages that are read.
        fate: fate of the pages, if ``fates`` is missing.
        fates: one for each of ``pages``, if they differ.
    """

    row_group: int
    column: int
    whole: bool
    predicate: bool
    pages: list[int]
    fate: Fate
    fates: NotRequired[list[Fate]]


class FileFates(TypedDict):
    """The fates of the row groups and pages of the file at ``url``: one of ``row_groups`` for each row group,
    ``chunks`` for the row groups that are read."""

    url: str
    row_groups: list[Fate]
    chunks: list[ChunkFates]


class RuledOut(TypedDict):
    """The number (``count``) of files, row groups, pages or rows that one mechanism ruled out: ``by``, a ``Fate``, or
    "filter" for rows. ``detail``: such as the condition, or the name of the index."""

    by: str
    count: int
    detail: str


class FunnelStep(TypedDict):
    """One step of the funnel from files to row groups, pages and rows: of ``total`` at this ``level``, ``kept`` are
    left, and ``ruled_out`` has an item for each mechanism that ruled out others."""

    level: Literal["files", "row groups", "pages", "rows"]
    total: int
    ruled_out: list[RuledOut]
    kept: int


class PlanDocument(TypedDict):
    """The document of ``asyncpq explain``, :meth:`asyncpq.Plan.to_dict` and :meth:`asyncpq.DatasetPlan.to_dict`.

    Attributes:
        url: url of the file or dataset.
        view: as :attr:`asyncpq.Dataset.view`; None for a file.
        version, guarantee: as in :class:`Inspection`; None for a dataset.
        columns, where, limit: names of the columns, condition as text, and maximum of rows; None: all rows.
        funnel: steps from all files to the rows that would be read.
        files: fates in the files that would be read, the first 100.
        files_to_read, skipped: number of files to read, and urls of bad files.
        requests: of the first round, the first 10,000.
        num_requests, num_bytes: of the first round.
        cached_bytes: needed bytes that caches have.
        rounds, late_columns: number of rounds; columns that a second round fetches for matching rows only.
        estimates: "strategy" and "seconds" of each strategy; the chosen one first.
        prices: latency and bandwidth that the estimates assume, as text.
        index, listing: what the index ruled out, in lines; cost of the listing, as text (None: none).
        fallbacks: slower paths that the read would take, and ignored metadata.
        metadata_requests: number of requests that planning sent.
        explain: the plan as text.
        layouts: layouts of the files that would be read, for the page map.
    """

    document: Literal["plan"]
    url: str
    view: str | None
    version: str | None
    guarantee: str | None
    columns: list[str]
    where: str | None
    limit: int | None
    funnel: list[FunnelStep]
    files: list[FileFates]
    files_to_read: int
    skipped: list[str]
    requests: list[Request]
    num_requests: int
    num_bytes: int
    cached_bytes: int
    rounds: int
    late_columns: list[str]
    estimates: list[dict[str, Any]]
    prices: str
    index: list[str]
    listing: str | None
    fallbacks: list[str]
    metadata_requests: int
    explain: str
    layouts: NotRequired[list[Inspection]]


class MetricsDocument(TypedDict):
    """The cost of a read: :meth:`asyncpq.ReadMetrics.to_dict`. ``metrics``: counts and times by the names of the
    attributes of :class:`asyncpq.ReadMetrics`. ``requests``: in the order of their ends."""

    document: Literal["metrics"]
    metrics: dict[str, Any]
    requests: list[Request]


class TimeSplit(TypedDict):
    """The seconds that a read spent on each activity. They add up to ``total_s``.

    ``network_s``: a request was under way. With none under way, ``caches_s``: waiting for the disk or shared cache;
    ``decode_s``: decompressing and decoding; ``filter_s``: comparing rows with the filter; ``other_s``: all
    else, which is not measured apart: planning, loading of modules, other tasks of the event loop, other threads and
    programs. The cause "busy-python" says how many modules were loaded, if the read explains little of it.
    """

    total_s: float
    network_s: float
    caches_s: float
    decode_s: float
    filter_s: float
    other_s: float


#: From the most severe; a note costs nothing: ``lint --strict`` passes over it.
Severity = Literal["high", "medium", "low", "note"]


class Cause(TypedDict):
    """One reason why a read was not faster (``why``), or why lookups are slow (``lint``), with its cure.

    Attributes:
        id: stable name, such as "no-page-index".
        severity: "high", "medium", "low"; or "note", which costs nothing.
        title, cure: one line each.
        detail: the observation, with figures.
        saves_requests, saves_bytes, saves_seconds: predicted, for ``why``'s lookup or one by ``column``; None: unknown.
        column: the column that it concerns; None: all.
        snippets: code of the cure by writer, such as "pyarrow". In ``lint``, the file's own writer comes first.
    """

    id: str
    severity: Severity
    title: str
    detail: str
    saves_requests: int | None
    saves_bytes: int | None
    saves_seconds: float | None
    column: str | None
    cure: str

    snippets: dict[str, str]


class Lint(TypedDict):
    """The document of ``asyncpq lint``, :meth:`asyncpq.File.lint` and :meth:`asyncpq.Dataset.lint`.

    Attributes:
        url: url of the file or dataset.
        files_checked: number of files that were examined.
        findings: the most severe first, and of these the largest saving.
        columns: columns for whose lookups savings are predicted.
        prices: latency and bandwidth that predictions assume, as text.
        requests, bytes_fetched: number of requests and bytes that the check took.
    """

    document: Literal["lint"]
    url: str
    files_checked: int
    findings: list[Cause]
    columns: list[str]
    prices: str
    requests: int
    bytes_fetched: int


class Why(TypedDict):
    """The document of ``asyncpq why``, :meth:`asyncpq.File.why` and :meth:`asyncpq.Dataset.why`: what one read cost and
    why.

    Attributes:
        url: url of the file or dataset.
        view: as :attr:`asyncpq.Dataset.view`; None for a file.
        verb: the read that was run.
        keys: of a lookup, as text; else None.
        columns, where: names of the columns, and the condition as text; None: all rows.
        rows: number of rows returned.
        funnel: steps from all files to the rows returned.
        requests, rounds: the requests that were sent, and the number of rounds.
        bytes: "fetched", "wanted" (of the matching rows' pages), "chunks" (whole), "objects"; None: not known.
        time: the seconds of the read.
        tiers: number of parts (footers, pages, ...) found in each ``Tier``.
        causes: reasons why the read is not faster, the largest saving first.
        files: fates in the files that were read.
        layouts: layouts of the files that were read, the first 20.
        others: all other files of a dataset, with their fates.
        plan: the plan of the read.
        metrics: as in :class:`MetricsDocument`.
    """

    document: Literal["why"]
    url: str
    view: str | None
    verb: Literal["lookup", "scan", "count"]
    keys: dict[str, list[str]] | None
    columns: list[str]
    where: str | None
    rows: int
    funnel: list[FunnelStep]
    requests: list[Request]
    rounds: int
    bytes: dict[str, int | None]
    time: TimeSplit
    tiers: dict[str, int]
    causes: list[Cause]
    files: list[FileFates]
    layouts: list[Inspection]
    others: list[FileSummary]
    plan: PlanDocument
    metrics: dict[str, Any]


class IndexTableDocument(TypedDict):
    """One table of an index, with the fields of :class:`asyncpq.indexing.TableReport`. ``bytes``: its approximate
    size."""

    kind: str
    columns: list[str]
    options: dict[str, Any]
    files: int
    rows: int
    bytes: int
    segments: int


class IndexDocument(TypedDict):
    """The document of ``asyncpq index show``: the state of an index.

    Attributes:
        url: url of the index.
        snapshot, created: number of the newest snapshot, and its time (ISO 8601).
        as_of: when the files were listed; None until the first build ends.
        files, rows: numbers of indexed files and of their rows.
        bytes: approximate size of all segments.
        tables: the tables of the index.
        builds: number of builds running or interrupted.
        stale: numbers of files that are "new", "changed" and "gone" since; None: not asked.
    """

    document: Literal["index"]
    url: str
    snapshot: int
    created: str
    as_of: str | None
    files: int
    rows: int
    bytes: int
    tables: list[IndexTableDocument]
    builds: int
    stale: dict[str, int] | None


class IndexBuild(TypedDict):
    """The document of ``asyncpq index build`` and ``refresh``: the changes to the index at ``url``, now at
    ``snapshot``.

    ``added`` and ``removed`` are numbers of files; a replaced file counts in both. ``resumed``: number of files that an
    earlier, interrupted build had read. ``problems``: "url" and "error" of files that could not be read.
    """

    document: Literal["index build"]
    url: str
    snapshot: int
    added: int
    removed: int
    resumed: int
    problems: list[dict[str, str]]


class IndexVerification(TypedDict):
    """The document of ``asyncpq index verify``: the differences between the index and a sample of the files. The fields
    are those of :class:`asyncpq.indexing.Verified`."""

    document: Literal["index verification"]
    url: str
    files: int
    changed: int
    rows: int
    problems: list[str]


class IndexUpkeep(TypedDict):
    """The document of ``asyncpq index compact`` and ``vacuum``: numbers of merged and removed parts of the index.

    ``segments_replaced`` stay until a vacuum. ``files_removed``: data files that asyncpq wrote and no snapshot lists.
    """

    document: Literal["index upkeep"]
    url: str
    segments_written: int
    segments_replaced: int
    segments_removed: int
    snapshots_removed: int
    files_removed: int


class Optimization(TypedDict):
    """The document of ``asyncpq optimize``: the fields of :class:`asyncpq.RewriteResult`."""

    document: Literal["optimization"]
    target: str
    files: list[str]
    rows: int
    bytes_before: int | None
    bytes_after: int
    snapshot: int
    seconds: dict[str, float]


class Rows(TypedDict):
    """The document of ``asyncpq query``, ``lookup`` and ``take`` with ``--format json``: "name" and "arrow_type" of
    each of ``columns``, and each row by column name. docs/cli.md says how values of each type are written."""

    document: Literal["rows"]
    url: str
    columns: list[dict[str, str]]
    rows: list[dict[str, Any]]


class SchemaDocument(TypedDict):
    """The document of ``asyncpq schema``: "name", "arrow_type" and "nullable" of each of the ``columns`` of the file,
    dataset or table at ``url``."""

    document: Literal["schema"]
    url: str
    columns: list[dict[str, Any]]


class Count(TypedDict):
    """The document of ``asyncpq count``: ``rows`` is the number of rows of ``url`` that match ``where`` (None: all
    rows)."""

    document: Literal["count"]
    url: str
    where: str | None
    rows: int


class StoreDiagnosis(TypedDict):
    """Measurements of how a store answers requests for one object. After an error, later fields are missing or None.

    Attributes:
        url: url of the object.
        settings: where credentials came from, endpoint, region.
        client, server: what sends the requests, and the server's name; None: not known.
        guarantee: how the store ensures that all bytes are of one version: "pinned", "compared", "bracketed" or "none".
        size: bytes of the object.
        first_s, latency_s: seconds of the first GET, connection included; median seconds of small GETs after it.
        bandwidth_bytes_s: bytes per second of one GET; None: the object is too small.
        parallel_bytes_s: bytes per second of several GETs together.
        supports: whether the store has "ranges", "suffix ranges", "If-Match", "create if absent"; None: not tried.
        requests: the requests of the diagnosis.
        error, error_type: text and class of the error that ended it; None without one.
    """

    url: str
    settings: dict[str, str]
    client: str | None
    server: str | None
    guarantee: str | None
    size: int | None
    first_s: float | None
    latency_s: float | None
    bandwidth_bytes_s: float | None
    parallel_bytes_s: float | None
    supports: dict[str, bool | None]
    requests: list[Request]
    error: str | None
    error_type: str | None


class Diagnosis(TypedDict):
    """The document of ``asyncpq doctor`` and :meth:`asyncpq.Session.diagnose`. It holds no secrets.

    Attributes:
        versions: of asyncpq, Python and packages; None: not installed.
        platform: "system", "machine", "cpus" and "event_loop", as text.
        environment: names of variables that are set and concern stores, without their values.
        caches: "memory", "disk" and "shared", each with its settings and sizes.
        store: the store of the url; None: no url was given.
    """

    document: Literal["diagnosis"]
    versions: dict[str, str | None]
    platform: dict[str, str]
    environment: list[str]
    caches: dict[str, dict[str, Any]]
    store: StoreDiagnosis | None


class CacheUsage(TypedDict):
    """The document of ``asyncpq cache show`` and ``clear``: the ``entries`` of the cache at ``place`` (a folder or
    url), and their ``bytes`` (None: not known). ``removed``: entries that ``clear`` removed; None for ``show``."""

    document: Literal["cache"]
    kind: Literal["disk", "shared"]
    place: str
    entries: int
    bytes: int | None
    removed: int | None
