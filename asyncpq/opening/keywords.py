"""The keyword arguments of sessions and datasets, spelled out once for type checkers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

from asyncpq.caching.memory import MemoryCache
from asyncpq.errors import InvalidOptionError, nearest
from asyncpq.events import Event
from asyncpq.options import (
    BuildOptions,
    CachePolicy,
    DiskCacheOptions,
    LimitOptions,
    ReadOptions,
    RequestOptions,
    RetryOptions,
    SessionOptions,
    SharedCacheOptions,
)
from asyncpq.storage.urls import as_storage_option

if TYPE_CHECKING:
    import inspect

    import pyarrow as pa

    from asyncpq.datasets.schemas import SchemaPolicy
    from asyncpq.indexing.kinds import IndexKind
    from asyncpq.tables import Format
    from asyncpq.typing import Predicate, TableVersion
    from asyncpq.writing import WriteOptions


class SessionOptionKeywords(TypedDict, total=False):
    """The fields of :class:`asyncpq.options.SessionOptions` that are keyword arguments of :class:`Session`."""

    memory_cache_bytes: int
    cache_policy: CachePolicy | Mapping[str, CachePolicy]
    negative_ttl_s: float
    cache_namespace: str | None
    requests: RequestOptions
    retry: RetryOptions
    limits: LimitOptions
    read: ReadOptions


class OptionKeywords(SessionOptionKeywords, total=False):
    """The keyword-only arguments of :class:`Session`, without ``storage_options``."""

    memory_cache: MemoryCache | None
    disk_cache: str | os.PathLike[str] | DiskCacheOptions | None
    shared_cache: str | SharedCacheOptions | None
    on_event: Callable[[Event], None] | None


class SessionKeywords(OptionKeywords, total=False):
    """All arguments of :class:`Session`."""

    storage_options: Mapping[str, Any] | None


class SessionSignature:
    """The ``__signature__`` of a session's class, made when it is asked for: with all options and their defaults, where
    that of ``__init__`` has ``**keywords``."""

    def __get__(self, session: object, owner: type) -> inspect.Signature:
        import inspect

        options, annotations = SessionOptions(), SessionKeywords.__annotations__
        order = ("storage_options", "memory_cache", "disk_cache", "shared_cache", "on_event")
        parameters: list[inspect.Parameter] = []
        for name in (*order, *(name for name in annotations if name not in order)):
            kind = inspect.Parameter.KEYWORD_ONLY if parameters else inspect.Parameter.POSITIONAL_OR_KEYWORD
            annotation = annotations[name].__forward_arg__
            default = getattr(options, name, None)
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
        return inspect.Signature(parameters)


class TargetKeywords(TypedDict, total=False):
    """The keyword arguments that say which files and columns a dataset has: fields of
    :class:`asyncpq.opening.datasets.DatasetOptions`."""

    format: Format | None
    version: TableVersion | None
    schema: pa.Schema | None
    schema_policy: SchemaPolicy
    partitioning: Literal["hive"] | Sequence[str] | None
    partition_types: pa.Schema | Mapping[str, pa.DataType] | None


class DatasetKeywords(TargetKeywords, total=False):
    """Keyword arguments of a dataset: all fields of :class:`asyncpq.opening.datasets.DatasetOptions`."""

    on_bad_file: Literal["raise", "skip"]
    listing_max_age_s: float


class RewriteKeywords(TargetKeywords, total=False):
    """Keyword arguments that say which rows a rewrite writes, and how; those of its source included."""

    zorder_by: Sequence[str]
    columns: Sequence[str] | None
    where: Predicate | None
    layout: WriteOptions | None
    kinds: Sequence[IndexKind] | None
    publish: Literal["plain", "index"]
    building: BuildOptions


class OptimizeKeywords(RewriteKeywords, total=False):
    """The keyword arguments of :meth:`asyncpq.Session.optimize`."""

    progress: bool
    workers: int


class DatasetSessionKeywords(SessionKeywords, DatasetKeywords, total=False):
    """All keyword arguments of :class:`asyncpq.Session`, and those of :meth:`asyncpq.Session.open_dataset` but
    ``index`` and ``view``; they explain each."""


def split_keywords(options: DatasetSessionKeywords) -> tuple[SessionKeywords, DatasetKeywords]:
    """Split keyword arguments into those of the session and those of the dataset. Raises InvalidOptionError for an
    unknown argument."""
    given = dict(options)
    check_keywords("open_dataset()", given, DatasetSessionKeywords, others=("index", "view"))
    dataset = {name: given.pop(name) for name in DatasetKeywords.__annotations__ if name in given}
    return cast("SessionKeywords", given), cast("DatasetKeywords", dataset)


_GROUPS: Final[Mapping[str, Any]] = {
    "retry": RetryOptions,
    "requests": RequestOptions,
    "limits": LimitOptions,
    "read": ReadOptions,
}
#: Names that other libraries give to options of sessions.
_MEANT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("retries", "max_retries", "num_retries", "attempts", "retry_count"), "max_attempts"),
    **dict.fromkeys(("timeout", "timeout_s", "read_timeout", "request_timeout"), "read_timeout_s"),
    "connect_timeout": "connect_timeout_s",
    **dict.fromkeys(("concurrency", "max_concurrency", "connections", "pool_size"), "max_connections"),
    **dict.fromkeys(("max_pool_connections", "connection_limit"), "max_connections"),
    **dict.fromkeys(("threads", "max_threads", "num_threads", "max_workers"), "decode_threads"),
    **dict.fromkeys(("cache", "cache_dir", "cache_path", "cache_folder", "cache_storage"), "disk_cache"),
    **dict.fromkeys(("redis", "redis_url", "valkey", "valkey_url"), "shared_cache"),
    **dict.fromkeys(("cache_bytes", "cache_size", "memory_bytes"), "memory_cache_bytes"),
    **dict.fromkeys(("as_of", "snapshot_id", "timestamp", "version_as_of"), "version"),
    **dict.fromkeys(("ttl", "etag", "immutable"), "cache_policy"),
}
_OF_READS: Final = frozenset({"columns", "where", "filter", "filters", "limit"})


def check_keywords(call: str, given: Mapping[str, object], known: type, *, others: Sequence[str] = ()) -> None:
    """Raise InvalidOptionError for a keyword argument that a call does not have, with a hint at what is meant.

    Args:
        call: what is called, for the message.
        given: the keyword arguments of the caller.
        known: the TypedDict of all that are allowed.
        others: further arguments of the call, for the hint.
    """
    names = known.__annotations__
    for name in given:
        if name not in names:
            raise InvalidOptionError(f"{call} has no argument {name}", hint=_hint(name, [*names, *others]))


def _hint(name: str, known: Sequence[str]) -> str | None:
    meant = _MEANT.get(name.lower(), name)
    where = "" if "memory_cache_bytes" in known else " to the Session"
    verb = "Pass" if where else "Write"
    for group, options in _GROUPS.items():
        if meant in [option.name for option in fields(options)]:
            return f"{verb} {group}=asyncpq.{options.__name__}({meant}=...){where}."
    if meant in SessionKeywords.__annotations__ and meant not in known:
        return f"Pass {meant}= to the Session."
    if meant in known:
        return f"Write {meant}=...."
    if name in ("filesystem", "fs"):
        return "Name the store by its protocol, such as s3://, and pass storage_options= to the Session."
    option = as_storage_option(name)
    if option is not None:
        return f"{verb} {option}{where}."
    if name in _OF_READS:
        return f"Pass {'where' if name.startswith('filter') else name}= to read(), scan() or another read."
    if name in DatasetKeywords.__annotations__:
        return f"Pass {name}= to open_dataset()."
    return nearest(name, known, f"Its arguments: {', '.join(known)}.")
