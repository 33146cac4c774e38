"""List the files of a dataset's target: a prefix, a pattern, or a list of urls."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from asyncpq.checkpoints import each
from asyncpq.datasets.model import DataFiles, NamedRow
from asyncpq.datasets.partitioning import Partitioning, folders_of, read_partitions
from asyncpq.datasets.table_markers import FoundTable, find_table, first_table, unseen_folders
from asyncpq.errors import Hint, InvalidOptionError, NotParquetError, ObjectNotFoundError, PartitionError
from asyncpq.objects.runtime import Runtime
from asyncpq.records import dataclass
from asyncpq.storage.base import ListedObject, ListedObjects, ObjectRow, RequestContext, Store
from asyncpq.storage.threads import results_of
from asyncpq.storage.urls import END_OF_KEY, names_bucket, refuse_one_slash, safe_url, split_url

if TYPE_CHECKING:
    from asyncpq.datasets.relisting import FoldersLeft

T = TypeVar("T")

#: Files and folders whose names begin with these are not data, as in pyarrow and Spark: ``_SUCCESS``, ``.part-0.crc``.
HIDDEN = (".", "_")
_HIDDEN_NAME = re.compile(f"/[{''.join(HIDDEN)}]")
#: End of the name of a file that Hadoop is still copying.
COPYING = "._COPYING_"
#: End of the name of an empty object that EMR and Hadoop write in place of a folder.
FOLDER_MARKER = "_$folder$"

#: Folder below a dataset's root that holds its index, if no other place is named.
INDEX_FOLDER = "_asyncpq/"
#: Hint of the error for an index that does not exist.
NOT_BUILT = Hint(
    f"Build it: build_index(). By default a folder's index is in {INDEX_FOLDER} below it.",
    f"`asyncpq index build` builds it. By default a folder's index is in {INDEX_FOLDER} below it.",
)

#: Paths of files that asyncpq wrote: a file is live once the folder's index lists it, or once ``SUCCESS`` exists.
WRITTEN = re.compile(r"data/[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}/\d{5,}-\d+(?:-\d+)?\.parquet")
_WRITTEN_SOMEWHERE = re.compile(rf"(.*/)?{WRITTEN.pattern}", re.DOTALL)
SUCCESS = "_SUCCESS"

#: Returns whether the index below a folder (the argument, a url) decides which files are live that asyncpq wrote there.
Commits = Callable[[str], Awaitable[bool]]

_FEW_OBJECTS = 1000  # are looked through on the event loop

_WILDCARD = re.compile(r"[*?\[]")
_CLASS = r"\[(?:![^/]|[^/!])[^]/]*\]"  # as [abc]
_BRACES = re.compile(rf"{_CLASS}|\{{((?:{_CLASS}|[^{{}}])*)\}}")
_ALTERNATIVE = re.compile(rf"(?:^|,)((?:{_CLASS}|[^,])*)")
_MOST_ALTERNATIVES = 1000  # patterns that the braces of one pattern stand for


@dataclass(frozen=True, slots=True)
class Target:
    """The files of a dataset, as the caller named them: a prefix, a pattern or a list of urls.

    Attributes:
        url: as passed by the caller, for messages: a prefix or pattern, or the first of ``urls``.
        folder: url with a slash at its end: the prefix, or the folders of a pattern before its first wildcard.
        prefixes: the urls that are listed; none begins with another.
        may_be_file: ``url`` may be the url of one file.
    """

    url: str
    urls: tuple[str, ...] | None = None  # urls of files, which are not listed; None for a prefix or pattern
    folder: str = ""
    prefixes: tuple[str, ...] = ()
    # matches the rest of a file's url after ``folder``; None if all files below ``folder`` are meant
    pattern: re.Pattern[str] | None = None
    may_be_file: bool = False


class FileRules(NamedTuple):
    """Which of the objects of a target are its files, and what their paths mean.

    Attributes:
        commits: called with a folder that has an index.
        partitioning: how the paths give values of partition columns; None if they have none.
        plain: files that asyncpq wrote and never committed are included; no table around the files is looked for.
    """

    commits: Commits
    partitioning: Partitioning | None = None
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a target at one time, in bytewise order of their names; for a list of urls in the list's order.

    Attributes:
        partitions: columns whose values are in the paths.
        errors: errors of files with invalid partition values in their paths.
        table: a table to which some of the files belong, so that some rows may be deleted or replaced; None for a list
            of urls.
        has_index: an index exists in ``_asyncpq/`` below the folder.
        is_written: asyncpq wrote files below the folder, and may have replaced them.
        listed: the listed objects, other files too.
    """

    files: DataFiles  # without the files of ``errors``
    partitions: pa.Schema = field(default_factory=lambda: pa.schema([]))
    errors: tuple[PartitionError, ...] = field(default=(), compare=False)
    table: FoundTable | None = None
    has_index: bool = field(default=False, compare=False)
    is_written: bool = field(default=False, compare=False)
    listed: Sequence[ListedObject] = field(default=(), repr=False, compare=False)


def parse_target(target: object) -> Target:
    """Parse a dataset's target: a prefix (a folder, with or without a final slash), a pattern, or one or more files.

    Patterns have ``*`` (not across folders), ``?``, ``[abc]``, ``{a,b}``, and ``**`` for any folders; ``[*]`` is a
    literal ``*``. A pattern that ends in a slash matches all files below the matching folders. Http urls name files.
    Items of a list are files, unless they end in a slash: these are folders, and may have wildcards.
    """
    if isinstance(target, (list, tuple)):
        urls = tuple(_text(url) for url in target)
        if not urls:
            raise InvalidOptionError("the list of urls is empty, but a dataset must have at least one file")
        return _listed(urls) if any(url.endswith("/") for url in urls) else Target(urls[0], urls)
    url = _text(target)
    protocol, rest = split_url(url)
    if protocol in ("http", "https"):
        return Target(url, (url,))
    patterns = _without_braces(url)
    begin = len(url) - len(rest)
    found = [_WILDCARD.search(text, begin) for text in patterns]
    if patterns == [url] and found == [None]:
        folder = url if url.endswith("/") else url + "/"
        return Target(url, None, folder, (folder,), None, may_be_file=not (url.endswith("/") or names_bucket(url)))
    starts = [text if at is None else text[: at.start()] for text, at in zip(patterns, found, strict=True)]
    folder = _shared_folder(starts)
    if len(folder) <= begin and protocol != "file":
        raise InvalidOptionError(
            "the pattern has a wildcard in the bucket's name", hint="Open each bucket as a dataset of its own."
        )
    prefixes: list[str] = []
    for start in sorted(set(starts)):
        if not prefixes or not start.startswith(prefixes[-1]):
            prefixes.append(start)
    pattern = "|".join([_translated(text[len(folder) :]) for text in patterns])
    return Target(url, None, folder, tuple(prefixes), re.compile(pattern, re.DOTALL))


def _shared_folder(urls: Sequence[str]) -> str:
    """Return the longest prefix of all urls that ends in a slash. If they share no folder, that is their protocol."""
    low, high = min(urls), max(urls)
    same = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return low[: low.rfind("/", 0, same) + 1]


def _listed(urls: Sequence[str]) -> Target:
    """Return the target of a list of urls that has folders: the pattern ``{a/,b/}`` below their common folder."""
    shared = _shared_folder(urls)
    protocol, rest = split_url(shared)
    if protocol in ("http", "https") or (not rest.strip("/") and protocol != "file"):
        raise InvalidOptionError(
            f"the list of urls contains a folder, {safe_url(next(url for url in urls if url.endswith('/')))}, "
            f"but {'http has no folders' if protocol in ('http', 'https') else 'its urls are in several buckets'}",
            hint="Name the files; or open each bucket as a dataset of its own.",
        )
    wildcard = _WILDCARD.search(shared)
    if wildcard is not None:
        shared = shared[: shared.rfind("/", 0, wildcard.start()) + 1]
    items = list[str]()
    for name in dict.fromkeys(url[len(shared) :] for url in urls):
        if name and not name.endswith("/"):
            items.append(_escaped(name, r"[*?\[{},]"))
        else:
            items += [_escaped(pattern or "**", rf"{_CLASS}|[\[{{}},]") for pattern in _without_braces(name)]
    if len(items) == 1:
        return parse_target(shared + items[0].removesuffix("**"))
    return parse_target(f"{shared}{{{','.join(items)}}}")


def _escaped(name: str, special: str) -> str:
    """Return ``name`` as a pattern in which the characters of ``special`` stand for themselves; classes such as
    ``[ab]`` stay."""
    return re.sub(special, lambda match: match[0] if len(match[0]) > 1 else f"[{match[0]}]", name)


def _without_braces(pattern: str) -> list[str]:
    """Return the patterns without braces that a pattern such as ``x{a,b}`` stands for: ``xa`` and ``xb``."""
    parts, start = list[list[str]](), 0
    for match in _BRACES.finditer(pattern):
        alternatives = [] if match[1] is None else _ALTERNATIVE.findall(match[1])
        if len(alternatives) > 1:
            parts += [[pattern[start : match.start()]], list(dict.fromkeys(alternatives))]
            start = match.end()
    parts.append([pattern[start:]])
    number = math.prod(map(len, parts))
    if number > _MOST_ALTERNATIVES:
        raise InvalidOptionError(
            f"the braces of the pattern stand for {number} patterns, more than {_MOST_ALTERNATIVES}",
            hint="Use * where folders differ, and a condition on the column in their names.",
        )
    if len(parts) == 1:
        return [pattern]
    found = ["".join(chosen) for chosen in itertools.product(*parts)]  # the braces that were outside of these
    return list(dict.fromkeys(itertools.chain.from_iterable(map(_without_braces, found))))


def _text(url: object) -> str:
    if not isinstance(url, (str, os.PathLike)):
        raise InvalidOptionError(f"a dataset's url must be a str, a path or a list of them, not {type(url).__name__}")
    text = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise InvalidOptionError(f"a dataset's url must be a str that is not empty, not {text!r}")
    refuse_one_slash(text)
    return text


def _translated(pattern: str) -> str:
    """Translate a pattern into a regular expression. A wildcard does not match the first character of a hidden name."""
    shown = f"(?!{'|'.join(map(re.escape, HIDDEN))})"
    *folders, last = (f"{pattern}**" if not pattern or pattern.endswith("/") else pattern).split("/")
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
    runtime: Runtime,
    target: Target,
    context: RequestContext,
    rules: FileRules,
    *,
    allow_empty: bool = False,
    earlier: Listing | None = None,
    left: FoldersLeft | None = None,
) -> Listing:
    """List the current files of a target; return ``earlier``, an earlier listing of all, if nothing changed since. A
    list of urls takes no request.

    Args:
        runtime: of the session that lists.
        rules: which of the listed objects are files of the target.
        allow_empty: return an empty listing if there is no file, instead of raising ObjectNotFoundError.
        left: list only the files of these folders, of a target that has files; None for all.
    """
    commits, partitioning, plain = rules
    if target.urls is not None:
        return _listing([(url, None, None, False, None, None, None) for url in target.urls], "", partitioning)
    store, _ = await runtime.store(target.url)
    parts, around = await _list_prefixes(runtime, store, target.prefixes, context, alone=plain, left=left)
    objects = parts[0] if len(parts) == 1 else list(itertools.chain.from_iterable(parts))
    # a single file may change while its empty listing does not
    if (
        earlier is not None
        and left is None  # else the result has not all files, whatever the store has listed
        and around is None
        and objects
        and (objects is earlier.listed or (len(parts) > 1 and objects == earlier.listed))
    ):
        return earlier
    number = len(objects)
    found = await _worked(runtime, number, partial(_found, target, objects, left, plain=plain))
    files = found.files
    if not objects and target.may_be_file and left is None:
        files = list(ListedObjects.of(await _one_file(store, target.url, context)).rows)
    uncommitted = False
    if found.folders:
        committed = await _without_others(store, target, context, commits, found)
        uncommitted, files = len(committed) < len(files), committed
    if not found.counts and not (found.has_index and await commits(target.folder)):
        files = [row for row in files if row[0] not in found.written]

    def listed_files() -> Listing:
        names = [row[0] for row in files]
        urls = (row[0] for row in each(found.objects.rows))
        table = find_table(target.folder, urls, names, whole=target.pattern is None)
        if table is None and objects and files:  # one file, named by its url, is the caller's choice
            table = around
        if not files and not allow_empty and (plain or table is None):
            raise _nothing(target, hidden=bool(objects), uncommitted=bool(found.written) or uncommitted)
        root = "" if target.pattern is not None else target.folder
        listing = _listing(files, root, partitioning)
        return replace(
            listing, table=table, has_index=found.has_index, is_written=bool(found.written), listed=found.objects
        )

    return await _worked(runtime, number, listed_files)


async def _worked(runtime: Runtime, number: int, work: Callable[[], T]) -> T:
    """Return the result of ``work``, on so many objects: in a thread if the event loop would stand still."""
    return work() if number <= _FEW_OBJECTS else await runtime.in_thread(work)


@dataclass(frozen=True, slots=True)
class _Found:
    """A listing of a target, before it is known which files are committed."""

    objects: ListedObjects
    files: list[ObjectRow]
    has_index: bool
    written: set[str]  # urls of files that asyncpq wrote below the target's own folder
    counts: bool  # these files count
    folders: dict[str, str]  # other folders of files that asyncpq wrote, by the file's url


def _found(target: Target, objects: Sequence[ListedObject], left: FoldersLeft | None, *, plain: bool) -> _Found:
    """Return what of the target is among ``objects``; with ``left``, in these folders."""
    behind = len(target.folder)
    objects = ListedObjects.of(objects)
    if left is not None:  # stores may list other folders, too
        objects = ListedObjects([row for row in objects.rows if left.covers(row[0][: row[0].rfind("/") + 1])])
    files = [row for row in each(objects.rows) if is_file_of(target, row[0], row[1])]
    has_index = any(row[0].startswith(f"{INDEX_FOLDER}latest", behind) for row in objects.rows)
    written, folders = set[str](), dict[str, str]()
    if not plain:
        own = None if target.pattern is not None else target.folder
        for url, *_ in each(files):
            match = _WRITTEN_SOMEWHERE.fullmatch(url) if "data/" in url else None
            if match is not None:
                folder = match[1] or ""
                if folder == own:
                    written.add(url)
                else:
                    folders[url] = folder
    counts = not written or any(row[0] == target.folder + SUCCESS for row in objects.rows)
    return _Found(objects, files, has_index, written, counts, folders)


async def _list_prefixes(
    runtime: Runtime,
    store: Store,
    prefixes: Sequence[str],
    context: RequestContext,
    *,
    alone: bool,
    left: FoldersLeft | None,
) -> tuple[list[Sequence[ListedObject]], FoundTable | None]:
    """List the objects of each of ``prefixes``, perhaps without those of other folders than ``left``; at the same time,
    unless ``alone``, look for a table around them, which is returned, too."""
    folders = [] if alone else unseen_folders(runtime, prefixes)
    listing = results_of([store.list_objects(prefix, context=context, wants=left) for prefix in prefixes])
    if not folders:
        return await listing, None
    work: list[Awaitable[Any]] = [listing, first_table(runtime, store, folders, context)]
    parts, around = await results_of(work)
    return parts, around


async def _without_others(
    store: Store, target: Target, context: RequestContext, commits: Commits, found: _Found
) -> list[ObjectRow]:
    """Return the files without the uncommitted files that asyncpq wrote below other folders than the target's.

    Raises InvalidOptionError if such a folder has an index that alone knows which of its files were committed.
    """
    urls = {row[0] for row in found.objects.rows}

    async def exists(url: str) -> bool:
        if url.startswith(target.prefixes):
            return url in urls
        return any(listed.url == url for listed in await store.list_objects(url, context=context))

    async def counts_whole(folder: str) -> bool:
        if await exists(f"{folder}{INDEX_FOLDER}latest") and await commits(folder):
            raise InvalidOptionError(
                "asyncpq wrote this folder, and only its index knows which files are committed and not replaced",
                url=safe_url(folder),
                hint=Hint(
                    'Open that folder by itself; or pass format="parquet", to read every file that is there.',
                    "Name that folder.",
                ),
            )
        return await exists(folder + SUCCESS)

    whole = {folder: await counts_whole(folder) for folder in dict.fromkeys(found.folders.values())}
    return [row for row in found.files if row[0] not in found.folders or whole[found.folders[row[0]]]]


def may_be_uncommitted(url: str) -> bool:
    """Whether the url is that of a file that asyncpq wrote. Such a file is read only if an index lists it, or its
    folder contains ``_SUCCESS``."""
    return _WRITTEN_SOMEWHERE.fullmatch(url) is not None


def is_file_of(target: Target, url: str, size: int | None = None) -> bool:
    """Whether the object at ``url``, which is below ``target.folder`` and has ``size`` bytes (None: unknown), is among
    the target's files."""
    if target.urls is not None:
        return url in target.urls
    url = url.removesuffix(END_OF_KEY)
    if url.endswith(COPYING) or (size == 0 and url.endswith(FOLDER_MARKER)):
        return False
    if target.pattern is not None:
        return target.pattern.fullmatch(url, len(target.folder)) is not None
    return _HIDDEN_NAME.search(url, len(target.folder) - 1) is None


async def is_one_file(store: Store, target: Target, context: RequestContext) -> bool:
    """Whether a target is a single file: an object is at exactly the target's url, and no file of it below."""
    try:
        if not target.may_be_file or not await _one_file(store, target.url, context):
            return False
    except NotParquetError:  # an empty object stands for a folder
        return False
    below = await store.list_objects(target.folder, context=context)
    return not any(is_file_of(target, listed.url, listed.size) for listed in below)


async def _one_file(store: Store, url: str, context: RequestContext) -> list[ListedObject]:
    """Return a list with the object at exactly ``url``, found without a listing; empty if it is missing."""
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


def _literal(pattern: str) -> str | None:
    """Return ``pattern`` with its brackets and braces as parts of names; None if it has none that the user wrote. A
    list with folders became a pattern whose alternatives end in ``/`` or ``**``."""
    is_list = re.search(r"(?:/|\*\*)[,}]", pattern) is not None
    if re.search(_CLASS if is_list else rf"{_CLASS}|\{{", pattern) is None:
        return None
    return _escaped(pattern, r"\[" if is_list else r"[\[{]")


def _nothing(target: Target, hidden: bool, uncommitted: bool) -> ObjectNotFoundError:
    """Return the error for a target without files. ``hidden``, ``uncommitted``: whether it has files that reads
    ignore, since their names are hidden or they were never committed."""
    what = "only hidden files, whose names begin with `_` or `.`, are" if hidden else "nothing is"
    message, hint = f"{what} at the dataset's url", "Look for a mistyped bucket, folder or file, or write to it first."
    if uncommitted:
        message = "the files at the dataset's url were written by asyncpq and never committed, or lack their index"
        hint = "Write them again" + Hint('; or pass format="parquet" to read every file that is there.', ".")
    elif target.url.startswith("ducklake:"):  # as the command line names such a table
        hint = 'Pass asyncpq.DuckLakeTable(catalog, "schema.table").'
    elif target.pattern is not None:
        message = "no file matches the pattern"
        hint = "A pattern names files; one that ends in a slash means all files in the folders that it matches."
        literal = _literal(safe_url(target.url))
        if literal is not None:
            hint += f" If [ or {{ is part of a name, write [[] or [{{] for it: {literal}"
    return ObjectNotFoundError(message, url=safe_url(target.url), hint=hint)


def _listing(rows: Sequence[ObjectRow | NamedRow], root: str, partitioning: Partitioning | None) -> Listing:
    if partitioning is not None and partitioning.names is not None and not root:
        raise InvalidOptionError(
            "partitioning by folder names needs a prefix: patterns and lists of urls have no root folder",
            hint='Open the prefix, or pass partitioning="hive".',
        )
    urls = [row[0] for row in rows]
    partitions = read_partitions([folders_of(url, root) for url in urls], urls, partitioning)
    if partitions.errors:
        rows = [row for number, row in enumerate(rows) if number not in partitions.errors]
    of_folders: dict[str, Mapping[str, Any]] = {}
    if partitioning is not None:
        of_folders = {url[: url.rfind("/") + 1]: own for url, own in zip(urls, partitions.values, strict=True)}
    return Listing(DataFiles(rows, of_folders), partitions.schema, tuple(partitions.errors.values()))
