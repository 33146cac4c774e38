"""All options, with units in their names. This module alone owns their defaults.

The classes are frozen and keyword-only; ``dataclasses.replace`` makes a changed copy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, NoReturn

from asyncpq.errors import InvalidOptionError
from asyncpq.records import dataclass

KIB = 1024
MIB = 1024 * KIB

DEFAULT_BATCH_SIZE = 65_536
"""Maximum of rows in a scan's batch, if the caller does not pass ``batch_size``."""

LateMaterialization = Literal["auto", "always", "never"]
BloomFilterUse = Literal["auto", "always", "never"]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise InvalidOptionError if ``value``, the argument called ``name``, is not one of ``known``."""
    if value not in known:
        raise InvalidOptionError(f"{name}={value!r}: must be {' or '.join(map(repr, known))}", option=name)


def whole_number(name: str, value: Any, least: int) -> int | None:
    """Check and return ``value``, the argument called ``name``: None, or an integer of at least ``least``, also one of
    numpy. Raises InvalidOptionError."""
    if value is None:
        return None
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < least:
        raise _no_whole_number(name, value, least)
    return number


def require_whole(name: str, value: object, least: int = 1) -> None:
    """Raise InvalidOptionError if ``value``, the argument called ``name``, is not an integer of at least ``least``."""
    if type(value) is not int or value < least:
        raise _no_whole_number(name, value, least)


def _no_whole_number(name: str, value: object, least: int) -> InvalidOptionError:
    is_whole = isinstance(value, float) and value.is_integer() and value >= least
    hint = f"Pass an int instead of a float: int({value!r})." if is_whole else None
    return InvalidOptionError(f"{name}={value!r}: must be a whole number of at least {least}", option=name, hint=hint)


def require_class(name: str, value: object, kind: type) -> None:
    """Raise InvalidOptionError if ``value``, the argument called ``name``, is not an instance of ``kind``."""
    is_group = kind.__name__.endswith("Options")
    hint = f"Write {name}=asyncpq.{kind.__name__}(...)." if is_group else None
    _require(isinstance(value, kind), name, value, f"must be a {kind.__name__}", hint)


def _require_numbers(options: object, at_least: float, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        _require(_is_number(value) and value >= at_least, name, value, f"must be a number of at least {at_least}")


def _require_whole_numbers(options: object, at_least: int, *names: str) -> None:
    for name in names:
        require_whole(name, getattr(options, name), at_least)


def _require_positive(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        _require(_is_number(value) and value > 0, name, value, "must be a positive number")


def _given(options: object, *names: str) -> list[str]:
    return [name for name in names if getattr(options, name) is not None]


def _require_choice(options: object, name: str, *choices: str) -> None:
    *first, last = [f'"{choice}"' for choice in choices]
    rule = f"must be {', '.join(first)} or {last}"
    _require(getattr(options, name) in choices, name, getattr(options, name), rule)


def _require_flags(options: object, *names: str) -> None:
    for name in names:
        _require(isinstance(getattr(options, name), bool), name, getattr(options, name), "must be True or False")


def _require(condition: bool, name: str, value: object, rule: str, hint: str | None = None) -> None:
    if not condition:
        raise InvalidOptionError(f"{name}={value!r}: {rule}", option=name, hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePolicy:
    """The rule for how long cached bytes of an object are served before the store is asked for the version.

    Make one with :func:`etag`, :func:`ttl` or :func:`immutable`, which say what each rule means.

    Attributes:
        kind: the rule, by the name of its function.
        max_age_s: seconds for which caches alone may serve a read; ignored by "immutable".
    """

    kind: Literal["etag", "ttl", "immutable"]
    max_age_s: float = 0.0

    def __post_init__(self) -> None:
        _require_choice(self, "kind", "etag", "ttl", "immutable")
        _require_numbers(self, 0, "max_age_s")


def etag(max_age_s: float = 5.0) -> CachePolicy:
    """Return a policy that serves from caches alone for ``max_age_s`` seconds after the object's last validation.

    Every GET of the object validates it, since it carries If-Match. After that time, a read that finds all in caches
    sends one conditional GET; with 0, each such read does. If the store cannot tell versions apart, footer, indexes and
    pages are fetched again after that time. Pass it as ``Session(cache_policy=...)``.
    """
    return CachePolicy(kind="etag", max_age_s=max_age_s)


def ttl(max_age_s: float) -> CachePolicy:
    """Return a policy that serves from caches until ``max_age_s`` seconds after the object was opened or validated.

    GETs of reads do not extend that time. Afterwards the object is validated as with :func:`etag`.
    """
    return CachePolicy(kind="ttl", max_age_s=max_age_s)


def immutable() -> CachePolicy:
    """Return a policy that never validates: for objects whose key is never written twice."""
    return CachePolicy(kind="immutable")


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOptions:
    """Options for how reads become range GETs: ``requests`` of :class:`asyncpq.Session`. A value that is not allowed
    raises :class:`asyncpq.InvalidOptionError`.

    Attributes:
        tail_bytes: bytes of the first GET of an object, from its end. It should cover footer and page indexes. Later
            objects of the same folder are asked for as much as the footers of earlier ones needed.
        gap_bytes: two ranges with fewer bytes than this between them are fetched as one. None: the number of bytes that
            arrive in the time that one more request costs, as the session has measured it (16 KiB before it has).
        part_bytes: merged ranges of more bytes than this are cut into parts of this size, which are fetched at once.
        max_requests: maximum number of ranges that one read fetches at once: close ones are merged until no more are
            left; None for no bound. A merged range larger than ``part_bytes`` takes several requests.
        latency_s: assumed seconds to the first byte of a GET; None: as the session has measured it (0.03 at first).
        bandwidth_bytes_s: assumed bytes per second of a read; None: as the session has measured it (200e6 at first,
            500e6 for a round with more requests than connections).
        late_materialization: "always" fetches predicate columns first and the others only for matching rows; "never"
            fetches all in one round; "auto" does what is expected to be faster.
        bloom_filters: for equality conditions: "always" reads Bloom filters before any data; "never" ignores them;
            "auto" reads those that need no request, and others if they save more than they cost.
        whole_segment_bytes: a segment (part) of an index of at most this size, and of at most four times this size
            decoded, is fetched whole, once, and kept in memory.
    """

    tail_bytes: int = 640 * KIB
    gap_bytes: int | None = None
    part_bytes: int = 8 * MIB
    max_requests: int | None = None
    latency_s: float | None = None
    bandwidth_bytes_s: float | None = None
    late_materialization: LateMaterialization = "auto"
    bloom_filters: BloomFilterUse = "auto"
    whole_segment_bytes: int = MIB

    def __post_init__(self) -> None:
        _require_whole_numbers(self, 8, "tail_bytes")
        _require_whole_numbers(self, 0, "whole_segment_bytes", *_given(self, "gap_bytes"))
        _require_whole_numbers(self, 64 * KIB, "part_bytes")
        _require_whole_numbers(self, 1, *_given(self, "max_requests"))
        _require_numbers(self, 0, *_given(self, "latency_s"))
        _require_positive(self, *_given(self, "bandwidth_bytes_s"))
        for name in _given(self, "latency_s", "bandwidth_bytes_s"):
            _require(getattr(self, name) < math.inf, name, getattr(self, name), "must be finite")
        _require_choice(self, "late_materialization", "auto", "always", "never")
        _require_choice(self, "bloom_filters", "auto", "always", "never")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryOptions:
    """Options for when a failed or slow request is sent again: ``retry`` of :class:`asyncpq.Session`. A value that is
    not allowed raises :class:`asyncpq.InvalidOptionError`.

    Attributes:
        max_attempts: tries of one request, the first included.
        backoff_base_s: the wait before try n+1 is a random number of seconds up to ``backoff_base_s * 2**n``.
        backoff_max_s: maximum of one such wait, in seconds.
        connect_timeout_s: seconds to connect (DNS, TCP and TLS).
        first_byte_timeout_s: seconds from sending a request to its response head; ``connect_timeout_s`` is added, since
            a connection may have to be made first.
        stall_timeout_s: longest silence inside a response body, in seconds.
        min_throughput_bytes_s: a response body that arrives at fewer bytes per second on average than this is given up
            after ``stall_timeout_s`` seconds, and requested again.
        read_timeout_s: seconds for opening a file or dataset, for one whole lookup, take, count or plan, and for each
            batch of a scan; then the call raises :class:`asyncpq.DeadlineExceededError`. None for no bound.
        retry_budget: the number of retries that all requests of a store have left together, at first and at most. A
            retry takes 1; its success gives 1 back, any other success 0.2. If none is left, a failed request is not
            retried. None for no bound.
        hedge_ratio: fraction of small GETs that may be sent a second time, if no response comes within the time that 95
            % of the recent ones took; 0 for none.
    """

    max_attempts: int = 6
    backoff_base_s: float = 0.05
    backoff_max_s: float = 5.0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 20.0
    stall_timeout_s: float = 20.0
    min_throughput_bytes_s: float = 1024.0
    read_timeout_s: float | None = 120.0
    retry_budget: float | None = 100.0
    hedge_ratio: float = 0.0

    def __post_init__(self) -> None:
        _require_whole_numbers(self, 1, "max_attempts")
        _require_numbers(self, 0, "backoff_base_s", "backoff_max_s", "min_throughput_bytes_s", "hedge_ratio")
        _require(self.hedge_ratio <= 1.0, "hedge_ratio", self.hedge_ratio, "must not be more than 1")
        if self.retry_budget is not None:
            _require_numbers(self, 0, "retry_budget")
        _require_positive(self, "connect_timeout_s", "first_byte_timeout_s", "stall_timeout_s")
        if self.read_timeout_s is not None:
            _require_positive(self, "read_timeout_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitOptions:
    """Bounds on the resources of one session, and on those that one file may take: ``limits`` of
    :class:`asyncpq.Session`. A value that is not allowed raises :class:`asyncpq.InvalidOptionError`.

    A unit is what a read fetches in one step: rows of one or several row groups, in all columns that the read needs.

    Attributes:
        max_connections: maximum number of open connections for one protocol, such as "s3", to all hosts together.
        lookup_connections: number of ``max_connections`` that scans leave free for lookups.
        in_flight_bytes: maximum bytes that all reads together have fetched, or are fetching, ahead of their consumers.
            A read may exceed it by its next unit.
        unit_bytes: compressed bytes that a unit of a scan should have.
        round_bytes: lookups and takes up to this size are fetched in one round; larger ones unit by unit, as scans.
        decode_threads: number of threads that decode pages; 0 decodes on the event loop.
        inline_decode_bytes: a unit of fewer compressed bytes than this is decoded on the event loop, since a thread
            would cost more, unless it may decode to more than 16 times this size; 0: none is. A unit of at least twice
            this size is decoded by several threads.
        max_footer_bytes: maximum bytes of a footer; a larger one raises ResourceLimitError.
        max_footer_elements: maximum list elements of a footer in all (schema elements, column chunks, pairs of
            metadata, and their lists); more raise ResourceLimitError.
        max_schema_elements: maximum columns and groups of a schema; more raise ResourceLimitError. Each takes about 600
            bytes of memory.
        max_page_bytes: maximum uncompressed bytes of a page or dictionary; a larger one raises ResourceLimitError.
        max_decoded_bytes: maximum decoded bytes of one unit of a scan, or of one row group of a read, in all columns
            together; more raise ResourceLimitError. It also limits the memory of one file's deleted rows, the size of a
            metadata file of a table, and of all commits of a Delta log together, and the decoded size of such a file
            beyond 256 times its own.
        max_restarts: how often a read starts again because its object changed, before it raises ObjectChangedError.
        files_ahead: maximum number of files of a dataset whose footers one read fetches ahead of their rows, and of
            files whose rows it fetches at once.
        max_postings: maximum entries that a read takes from one segment (part) of an index; if it needs more, it does
            not use the segment.
        max_listed_objects: maximum objects of one listing of a store; more raise ResourceLimitError. Each takes about
            300 bytes of memory.
    """

    max_connections: int = 64
    lookup_connections: int = 16
    in_flight_bytes: int = 64 * MIB
    unit_bytes: int = 8 * MIB
    round_bytes: int = 64 * MIB
    decode_threads: int = 2
    inline_decode_bytes: int = 512 * KIB
    max_footer_bytes: int = 256 * MIB
    max_footer_elements: int = 1 << 22
    max_schema_elements: int = 1 << 18
    max_page_bytes: int = 256 * MIB
    max_decoded_bytes: int = 2048 * MIB
    max_restarts: int = 2
    files_ahead: int = 128
    max_postings: int = 1_000_000
    max_listed_objects: int = 10_000_000

    def __post_init__(self) -> None:
        from_0 = ("decode_threads", "max_restarts", "lookup_connections", "round_bytes", "inline_decode_bytes")
        _require_whole_numbers(self, 0, *from_0)
        _require_whole_numbers(self, 1, *[limit.name for limit in fields(self) if limit.name not in from_0])
        _require(
            self.lookup_connections < self.max_connections,
            "lookup_connections",
            self.lookup_connections,
            f"must be less than max_connections={self.max_connections}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Options for what reads check, and in which form they return values: ``read`` of :class:`asyncpq.Session`. A value
    that is not allowed raises :class:`asyncpq.InvalidOptionError`.

    Attributes:
        verify_crc: check page CRCs if the file has them.
        validate_utf8: raise :class:`asyncpq.CorruptFileError` for rows whose text is not UTF-8; by default their bytes
            come unchanged, as with pyarrow.
        validate_arrow_schema: raise :class:`asyncpq.CorruptFileError` for files whose stored Arrow schema
            (``ARROW:schema`` in the footer) is damaged, as pyarrow does; by default it is ignored, so that columns have
            the types of the Parquet schema alone, and ``fallbacks`` say so.
        trust_statistics: prune by statistics and page indexes of files and tables (bounds and row counts in a log or
            catalog); False reads everything and filters. Partition values always count.
        require_pinning: raise :class:`asyncpq.UnsupportedStoreError` for stores that cannot pin or compare versions.
        extension_types: names of Arrow extension types registered in Python that a file may name; others come as their
            storage type. Canonical types need no listing.
        int96_unit: unit of timestamps stored as INT96: "ns", as in pyarrow, for the years 1677 to 2262; or "us",
            without digits after microseconds. Tables of a format without nanoseconds are read in "us".
        legacy_calendar: how dates before 1582-10-15 and timestamps before 1900 are read from files whose footer says
            that Spark wrote them in its old calendar. "rebase" converts them as Spark does; "refuse" raises
            :class:`asyncpq.UnsupportedFeatureError` for them; "ignore" returns what is stored, as pyarrow does.
    """

    verify_crc: bool = True
    validate_utf8: bool = False
    validate_arrow_schema: bool = False
    trust_statistics: bool = True
    require_pinning: bool = False
    extension_types: frozenset[str] = frozenset()
    int96_unit: Literal["ns", "us"] = "ns"
    legacy_calendar: Literal["rebase", "refuse", "ignore"] = "rebase"

    def __post_init__(self) -> None:
        flags = ("verify_crc", "validate_utf8", "validate_arrow_schema", "trust_statistics", "require_pinning")
        _require_flags(self, *flags)
        names = self.extension_types
        _require(type(names) is frozenset, "extension_types", names, "must be a frozenset of names")
        _require_choice(self, "int96_unit", "ns", "us")
        _require_choice(self, "legacy_calendar", "rebase", "refuse", "ignore")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskCacheOptions:
    """The cache on disk that all processes of one user on a host share: ``disk_cache`` of :class:`asyncpq.Session`. A
    value that is not allowed raises :class:`asyncpq.InvalidOptionError`.

    Attributes:
        path: the cache's folder, owned by this user alone; it is made if it does not exist.
        max_bytes: maximum bytes of all files in the folder. An entry larger than an eighth of it is not kept.
        timeout_s: seconds after which an entry that the disk has not returned counts as a miss.
    """

    path: str
    max_bytes: int = 10_240 * MIB
    timeout_s: float = 2.0

    def __post_init__(self) -> None:
        is_path = type(self.path) is str and self.path != "" and "\0" not in self.path
        _require(is_path, "path", self.path, "must be the path of a folder")
        _require_whole_numbers(self, MIB, "max_bytes")
        _require_positive(self, "timeout_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedCacheOptions:
    """A cache in a Valkey or Redis server, shared by many hosts: ``shared_cache`` of :class:`asyncpq.Session`. Cannot
    be pickled: it may hold secrets. A value that is not allowed raises :class:`asyncpq.InvalidOptionError`.

    Attributes:
        url: valkey://, valkeys:// (TLS), redis://, rediss:// (TLS) or unix://, with user and password if the server
            requires them. Never shown.
        secret: authenticates entries: entries with another secret, or without one, are misses. None trusts every
            client that can write to the server. Never shown.
        prefix: text with which every key in the server begins.
        ttl_s: seconds for which the server keeps an entry.
        timeout_s: seconds for one call, plus the time of its bytes at ``min_throughput_bytes_s``; up to four times as
            long if the event loop was busy. After that, the read fetches from the store. A limit above the time of such
            a fetch gains nothing.
        min_throughput_bytes_s: every byte that a call requests adds to the time limit at this rate.
        connect_timeout_s: seconds for address lookup, TCP, TLS and authentication; no call waits so long.
        retry_after_s: seconds for which reads do without the cache after the server failed or was too slow.
        max_connections: maximum number of connections to the server; half of them write.
        max_entry_bytes: entries larger than this are not written.
        max_read_bytes: pages of a read that fetches more than this are not written.
    """

    url: str = field(repr=False)
    secret: bytes | str | None = field(default=None, repr=False)
    prefix: str = "asyncpq:"
    ttl_s: float = 86_400.0
    timeout_s: float = 0.05
    min_throughput_bytes_s: float = 50e6
    connect_timeout_s: float = 1.0
    retry_after_s: float = 5.0
    max_connections: int = 8
    max_entry_bytes: int = 8 * MIB
    max_read_bytes: int = 256 * MIB

    def __post_init__(self) -> None:
        schemes = ("valkey://", "valkeys://", "redis://", "rediss://", "unix://")
        url: object = self.url
        secret: object = self.secret
        # neither value is shown
        if not (isinstance(url, str) and url.startswith(schemes)):
            raise InvalidOptionError(
                f"the url of the shared cache must be a text that begins with one of {', '.join(schemes)}",
                hint='Begin it with its scheme, such as "valkey://127.0.0.1:6379".',
            )
        if secret is not None and not (isinstance(secret, (bytes, str)) and secret):
            raise InvalidOptionError("the secret of the shared cache must be None, or bytes or a str that is not empty")
        _require(isinstance(self.prefix, str), "prefix", self.prefix, "must be a str")
        _require_positive(self, "ttl_s", "timeout_s", "min_throughput_bytes_s", "connect_timeout_s", "retry_after_s")
        _require_whole_numbers(self, 1, "max_connections", "max_entry_bytes")
        _require_whole_numbers(self, 0, "max_read_bytes")

    def __reduce__(self) -> NoReturn:
        raise TypeError("SharedCacheOptions cannot be pickled, since it may contain a password and a secret")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """Options for building, refreshing and compacting indexes: ``building`` of :meth:`asyncpq.Session.build_index`. A
    segment is an immutable, sorted part of an index, such as one Parquet file. A value that is not allowed raises
    :class:`asyncpq.InvalidOptionError`.

    Attributes:
        memory_bytes: approximate bytes of memory for index rows that are not written yet; further rows go to local
            files. While a large file is read, its Bloom filters take 8 bytes a value in addition.
        files_at_once: maximum number of files whose rows are read at once; files of which only the footer is read count
            towards ``LimitOptions.files_ahead`` instead.
        checkpoint_files: after this many files, or after about a minute, the build commits its progress, invisible to
            readers, so that it can be resumed. A build on Spark commits after this many files, and at most
            ``max_segments`` times.
        segment_rows, segment_bytes: maximum rows of a segment, and its approximate maximum bytes in memory.
        max_segments: a refresh that leaves more segments of an index kind than this merges them.
        grace_s: seconds without a heartbeat (a small write) after which a build counts as dead: it fails if it goes on,
            and other builds may use its progress.
        folder: local folder for index rows that exceed ``memory_bytes``; None for the system's temporary folder.
    """

    memory_bytes: int = 256 * MIB
    files_at_once: int = 4
    checkpoint_files: int = 4096
    segment_rows: int = 4_000_000
    segment_bytes: int = 64 * MIB
    max_segments: int = 8
    grace_s: float = 900.0
    folder: str | None = None

    def __post_init__(self) -> None:
        others = ("grace_s", "folder")
        _require_whole_numbers(self, 1, *[option.name for option in fields(self) if option.name not in others])
        _require_numbers(self, 1, "grace_s")
        _require(self.folder is None or isinstance(self.folder, str), "folder", self.folder, "must be a path or None")


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOptions:
    """The options of a :class:`asyncpq.Session`, beside ``storage_options``. A value that is not allowed raises
    :class:`asyncpq.InvalidOptionError`.

    Attributes:
        memory_cache_bytes: maximum bytes in the memory cache; 0 disables the cache.
        disk_cache, shared_cache: cache tiers below memory; None disables a tier.
        cache_policy: how long cached bytes are served without validation: ``asyncpq.etag(max_age_s)``,
            ``asyncpq.ttl(max_age_s)`` or ``asyncpq.immutable()``; or one for each url pattern (:mod:`fnmatch`): the
            first match counts, other objects have ``etag()``. A pattern may match the url as given, or the path of a
            local file.
        negative_ttl_s: seconds during which opening an object that was missing fails without a request; 0 always asks
            the store. Missing objects are remembered in memory only.
        cache_namespace: sessions share cached bytes only within one namespace, whatever their credentials are. None: a
            namespace made from the storage options and the identity of the credentials.
        requests: how reads become requests.
        retry: timeouts, and when failed requests are sent again.
        limits: memory, connections and threads that the session may use.
        read: what reads check, and how values come.
    """

    memory_cache_bytes: int = 256 * MIB
    disk_cache: DiskCacheOptions | None = None
    shared_cache: SharedCacheOptions | None = None
    cache_policy: CachePolicy | Mapping[str, CachePolicy] = field(default_factory=etag)
    negative_ttl_s: float = 0.0
    cache_namespace: str | None = None
    requests: RequestOptions = field(default_factory=RequestOptions)
    retry: RetryOptions = field(default_factory=RetryOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    read: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        _require_whole_numbers(self, 0, "memory_cache_bytes")
        _require_numbers(self, 0, "negative_ttl_s")
        policies: Any = self.cache_policy if isinstance(self.cache_policy, Mapping) else {"*": self.cache_policy}
        for pattern, policy in policies.items():
            _require(
                isinstance(pattern, str) and isinstance(policy, CachePolicy),
                "cache_policy",
                self.cache_policy,
                "must be a CachePolicy, or a mapping of url patterns to CachePolicies",
                "Write asyncpq.etag(5), asyncpq.ttl(60) or asyncpq.immutable().",
            )
        groups = {"requests": RequestOptions, "retry": RetryOptions, "limits": LimitOptions, "read": ReadOptions}
        for name, option_class in groups.items():
            require_class(name, getattr(self, name), option_class)
        disk, namespace = self.disk_cache, self.cache_namespace
        is_disk = disk is None or isinstance(disk, DiskCacheOptions)
        _require(is_disk, "disk_cache", disk, "must be a path, a DiskCacheOptions or None")
        is_name = namespace is None or isinstance(namespace, str)
        _require(is_name, "cache_namespace", namespace, "must be a str or None")
        if self.shared_cache is not None and not isinstance(self.shared_cache, SharedCacheOptions):
            # not shown: a url holds a password
            raise InvalidOptionError(
                f"shared_cache must be a url, a SharedCacheOptions or None, not {type(self.shared_cache).__name__}"
            )

    def policy(self, *urls: str) -> CachePolicy:
        """Return the cache policy for an object: that of the first pattern that matches one of its ``urls``; else
        ``etag()``."""
        if isinstance(self.cache_policy, CachePolicy):
            return self.cache_policy
        matching = (
            policy for pattern, policy in self.cache_policy.items() if any(fnmatchcase(url, pattern) for url in urls)
        )
        return next(matching, _DEFAULT_POLICY)


_DEFAULT_POLICY = etag()
