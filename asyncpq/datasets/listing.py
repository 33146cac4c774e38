"""List the files of a prefix or a pattern, or take those of a list of urls."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from asyncpq.datasets.model import DataFile
from asyncpq.datasets.partitioning import Partitioning, read_partitions
from asyncpq.errors import InvalidOptionError, NotParquetError, ObjectNotFoundError, PartitionError
from asyncpq.storage.base import ListedObject, RequestContext, Store, Validator
from asyncpq.storage.urls import refuse_one_slash, safe_url, split_url

#: Names that begin so are not data, as pyarrow and Spark have it: ``_SUCCESS``, ``.part-0.crc``.
HIDDEN = (".", "_")

#: Folder below a dataset's root that holds its index, if no other place is named.
INDEX_FOLDER = "_asyncpq/"

#: Files that asyncpq wrote: they are there once the folder's index lists them, or all of them once ``SUCCESS`` is.
WRITTEN = re.compile(r"data/[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}/\d{5,}-\d+(?:-\d+)?\.parquet")
_WRITTEN_SOMEWHERE = re.compile(rf"(.*/)?{WRITTEN.pattern}", re.DOTALL)
SUCCESS = "_SUCCESS"

#: Whether the index in its place below a folder says which of the files count that asyncpq wrote there.
Commits = Callable[[str], Awaitable[bool]]

_WILDCARD = re.compile(r"[*?\[]")
_FORMATS = (
    (re.compile(r"_delta_log/"), "Delta"),
    (re.compile(r"metadata/[^/]+\.metadata\.json$"), "Iceberg"),
    (re.compile(r"\.hoodie/"), "Hudi"),
    (re.compile(r"_spark_metadata/"), "Spark Structured Streaming"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The files that a dataset is made of, as the caller named them."""

    url: str  # as it was given, for messages: a prefix or pattern, or the first of ``urls``
    urls: tuple[str, ...] | None = None  # of files, which are not listed; None for a prefix or pattern
    folder: str = ""  # url with a slash at its end: the root of a prefix, or what of a pattern has no magic
    prefix: str = ""  # the url that is listed
    # what the rest of a file's url behind ``folder`` matches; None for everything
    pattern: re.Pattern[str] | None = None
    may_be_file: bool = False  # it may name one file


@dataclass(frozen=True, slots=True)
class Listing:
    """Files at one time, by their names in bytewise order; those of a list in its order."""

    files: tuple[DataFile, ...]  # without those in ``errors``
    partitions: pa.Schema = field(default_factory=lambda: pa.schema([]))  # columns whose values the paths hold
    # files whose paths hold values that cannot be read
    errors: tuple[PartitionError, ...] = field(default=(), compare=False)
    # the table that the folder seems to be, e.g. "Delta": then its files are not all rows
    table_format: str | None = None
    has_index: bool = field(default=False, compare=False)  # there is an index in its place below the folder
    # asyncpq wrote files below the folder, and may have replaced them
    is_written: bool = field(default=False, compare=False)
    listed: Sequence[ListedObject] = field(default=(), repr=False, compare=False)  # what it was made of


def parse_target(target: object) -> Target:
    """Return the target that is a prefix (a folder, with or without a slash at its end), a pattern, one file, or files.

    Patterns have ``*`` (not across folders), ``?``, ``[abc]``, and ``**`` for any folders; ``[*]`` is the character.
    One that ends in a slash means all files below the folders that it matches. Http urls name files.
    """
    if isinstance(target, (list, tuple)):
        urls = tuple(_text(url) for url in target)
        if not urls:
            raise InvalidOptionError("a dataset needs a file: the list of urls is empty")
        for url in urls:
            if url.endswith("/"):
                raise InvalidOptionError(
                    "a list of urls names files, not folders", hint=f"Open the folder {safe_url(url)} by itself."
                )
        return Target(urls[0], urls)
    url = _text(target)
    protocol, rest = split_url(url)
    if protocol in ("http", "https"):
        return Target(url, (url,))
    wildcard = _WILDCARD.search(rest)
    if wildcard is None:
        folder = url if url.endswith("/") else url + "/"
        return Target(url, None, folder, folder, None, may_be_file=not url.endswith("/"))
    begin = len(url) - len(rest)
    prefix = url[: begin + wildcard.start()]
    slash = prefix.rfind("/", begin) + 1
    if slash <= begin and protocol != "file":
        raise InvalidOptionError("the bucket of a pattern must be named", hint="Open each bucket by itself.")
    folder = prefix[: max(slash, begin)]
    pattern = re.compile(_translated(url[len(folder) :]), re.DOTALL)
    return Target(url, None, folder, prefix, pattern)


def _text(url: object) -> str:
    if not isinstance(url, (str, os.PathLike)):
        raise InvalidOptionError(f"a dataset's url must be a str or a path, not a {type(url).__name__}")
    text = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise InvalidOptionError("a dataset's url must be text")
    refuse_one_slash(text)
    return text


def _translated(pattern: str) -> str:
    """Return a regular expression for paths; a wildcard does not match the beginning of a hidden name."""
    shown = f"(?!{'|'.join(map(re.escape, HIDDEN))})"
    *folders, last = (f"{pattern}**" if pattern.endswith("/") else pattern).split("/")
    parts = [
        f"(?:{shown}[^/]*/)*" if folder == "**" else f"{shown if _WILDCARD.match(folder) else ''}{_segment(folder)}/"
        for folder in folders
    ]
    if last == "**":
        return "".join(parts) + f"(?:{shown}[^/]*/)*{shown}[^/]+"
    return "".join(parts) + (shown if _WILDCARD.match(last) else "") + _segment(last)


def _segment(segment: str) -> str:
    parts: list[str] = []
    start = 0
    while start < len(segment):
        character = segment[start]
        end = segment.find("]", start + 2 + segment.startswith("[!", start)) if character == "[" else -1
        if end > 0:
            inside = segment[start + 1 : end]
            negated = inside.startswith("!")
            members = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[negated:])
            parts.append(f"(?!/)[{'^' * negated}{members}]")
            start = end + 1
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(character) or re.escape(character))
            start += 1
    return re.sub(r"(?:\[\^/\]\*)+", "[^/]*", "".join(parts))


async def list_files(
    store: Store,
    target: Target,
    context: RequestContext,
    commits: Commits,
    *,
    partitioning: Partitioning | None = None,
    allow_empty: bool = False,
    earlier: Listing | None = None,
    plain: bool = False,
) -> Listing:
    """Return the files that are there now; ``earlier``, if nothing has changed. A list of urls takes no request.

    Args:
        store: of the target.
        commits: called with a folder that has an index.
        allow_empty: there may be no files; else that raises ObjectNotFoundError.
        plain: include files that asyncpq wrote and never committed.
    """
    if target.urls is not None:
        return _listing([(url, None, None) for url in target.urls], "", partitioning)
    behind = len(target.folder)
    objects = await store.list_objects(target.prefix, context=context)
    if earlier is not None and objects and objects is earlier.listed:  # an empty one says nothing of a single file
        return earlier
    files = [listed for listed in objects if is_file_of(target, listed.url)]
    if not objects and target.may_be_file:
        files = await _one_file(store, target.url, context)
    has_index = any(listed.url.startswith(f"{INDEX_FOLDER}latest", behind) for listed in objects)
    written, uncommitted = set[str](), False
    if not plain:
        if target.pattern is None:
            written = {listed.url for listed in files if WRITTEN.fullmatch(listed.url, behind)}
        if objects:  # a single file is read by its name, whoever wrote it
            committed = await _without_others(store, target, context, commits, objects, files)
            uncommitted, files = len(committed) < len(files), committed
    counts = not written or any(listed.url == target.folder + SUCCESS for listed in objects)
    if not counts and not (has_index and await commits(target.folder)):
        files = [listed for listed in files if listed.url not in written]
    if not files and not allow_empty:
        raise _nothing(target, hidden=bool(objects), uncommitted=bool(written) or uncommitted)
    root = "" if target.pattern is not None else target.folder
    listing = _listing([(listed.url, listed.size, listed.validator) for listed in files], root, partitioning)
    table_format = _table_format([listed.url[behind:] for listed in objects])
    return replace(listing, table_format=table_format, has_index=has_index, is_written=bool(written), listed=objects)


async def _without_others(
    store: Store,
    target: Target,
    context: RequestContext,
    commits: Commits,
    objects: Sequence[ListedObject],
    files: list[ListedObject],
) -> list[ListedObject]:
    """Return ``files`` without uncommitted ones that asyncpq wrote below other folders than the target's.

    Raises InvalidOptionError if an index decides which of such files are live.
    """
    own = None if target.pattern is not None else target.folder
    urls = {listed.url for listed in objects}

    async def exists(url: str) -> bool:
        if url.startswith(target.prefix):
            return url in urls
        return any(listed.url == url for listed in await store.list_objects(url, context=context))

    async def counts_whole(folder: str) -> bool:
        if await exists(f"{folder}{INDEX_FOLDER}latest") and await commits(folder):
            raise InvalidOptionError(
                "which of the files count, the index of their folder says: others may be replaced, or never committed",
                url=safe_url(folder),
                hint='Open that folder by itself; or pass format="parquet", to read every file that is there.',
            )
        return await exists(folder + SUCCESS)

    whole: dict[str | None, bool] = {None: True, own: True}  # folders, and whether all of their files count
    kept: list[ListedObject] = []
    for listed in files:
        match = _WRITTEN_SOMEWHERE.fullmatch(listed.url)
        folder = None if match is None else match[1] or ""
        if folder not in whole:
            assert folder is not None
            whole[folder] = await counts_whole(folder)
        if whole[folder]:
            kept.append(listed)
    return kept


def may_be_uncommitted(url: str) -> bool:
    """Whether the name is one of a file that asyncpq wrote: other objects decide whether it counts."""
    return _WRITTEN_SOMEWHERE.fullmatch(url) is not None


def is_file_of(target: Target, url: str) -> bool:
    """Whether an object of this url, which begins as ``target.folder`` does, is among the target's files."""
    if target.urls is not None:
        return url in target.urls
    if target.pattern is not None:
        return target.pattern.fullmatch(url, len(target.folder)) is not None
    return not any(segment.startswith(HIDDEN) for segment in url[len(target.folder) :].split("/"))


async def is_one_file(store: Store, target: Target, context: RequestContext) -> bool:
    """Whether a target names one file: there is an object of its very url, and nothing below it."""
    try:
        if not target.may_be_file or not await _one_file(store, target.url, context):
            return False
    except NotParquetError:  # an empty object stands for a folder
        return False
    below = await store.list_objects(target.prefix, context=context)
    return not any(is_file_of(target, listed.url) for listed in below)


async def _one_file(store: Store, url: str, context: RequestContext) -> list[ListedObject]:
    """Return the object of that url itself, if there is one."""
    try:
        handle = await store.open_object(url)
        try:
            tail = await handle.fetch_tail(8, context=context.step("stat", context.round + 1))
        finally:
            await handle.close()
    except ObjectNotFoundError:
        return []
    validator = tail.validator
    return [ListedObject(url, validator.size, validator if validator.is_strong else None)]


def _nothing(target: Target, hidden: bool, uncommitted: bool) -> ObjectNotFoundError:
    """Return the error for a target without files, though there are ``hidden`` or ``uncommitted`` ones."""
    what = "no files but hidden ones, whose names begin with `_` or `.`, are" if hidden else "nothing is"
    message, hint = f"{what} at the dataset's url", "Look for a mistyped bucket, folder or file, or write to it first."
    if uncommitted:
        message = "the files at the dataset's url were written by asyncpq and never committed, or lack their index"
        hint = 'Write them again; or pass format="parquet" to read every file that is there.'
    elif target.pattern is not None:
        message = "no file matches the pattern"
        hint = "A pattern names files; one that ends in a slash means all files in the folders that it matches."
    return ObjectNotFoundError(message, url=safe_url(target.url), hint=hint)


def _table_format(paths: Sequence[str]) -> str | None:
    likely = (path for path in paths if path[:1] in "_.m")
    return next((name for path in likely for begin, name in _FORMATS if begin.match(path)), None)


def _listing(
    entries: Sequence[tuple[str, int | None, Validator | None]], root: str, partitioning: Partitioning | None
) -> Listing:
    if partitioning is not None and partitioning.names is not None and not root:
        raise InvalidOptionError(
            "partitioning by names of folders needs a prefix: patterns and lists have no root to count from"
        )
    urls = [url for url, _, _ in entries]
    partitions = read_partitions([folders_of(url, root) for url in urls], urls, partitioning)
    files = tuple(
        DataFile(url=url, validator=validator, size=size, partition=partition)
        for number, ((url, size, validator), partition) in enumerate(zip(entries, partitions.values, strict=True))
        if number not in partitions.errors
    )
    return Listing(files, partitions.schema, tuple(partitions.errors.values()))


def folders_of(url: str, root: str) -> str:
    """Return the folders of a file below the root, or behind the bucket."""
    path = url[len(root) :] if root else split_url(url)[1]
    return path[: path.rfind("/") + 1]
