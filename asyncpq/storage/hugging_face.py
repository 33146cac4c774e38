"""The store of hf:// urls: files of repositories on the Hugging Face Hub, read over HTTP.

The Hub answers a file's url with the file, or with a redirect to a signed url of its CDN, which expires. So the store
``http`` reads the files: it remembers the signed urls, asks the Hub again once one has expired, and pins the version
that was opened.
Listings come from the Hub's API, page by page. Nothing here needs the package huggingface_hub.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from asyncpq.errors import Hint, InvalidOptionError, InvalidResponseError, ObjectNotFoundError, UnsupportedStoreError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import FirstNames, ListedObject, RequestContext, StoreLimits, Unpicklable, Wants
from asyncpq.storage.http import HttpObject, HttpStore
from asyncpq.storage.limits import ListingLimit, PageSequence
from asyncpq.storage.response_checks import MAX_SIZE
from asyncpq.storage.urls import FOLDER_HINT, safe_url, split_url, unknown_option, word_set

_ENDPOINT: Final = "https://huggingface.co"
_KINDS: Final = word_set("models datasets spaces")
_WITHOUT_EFFECT: Final = word_set("block_size expand_info")
_KNOWN: Final = ("token", "endpoint", "headers", "ssl", "client_kwargs")
_TRUE: Final = frozenset({"1", "on", "yes", "true"})
#: Revisions with a slash; all others end at the first one.
_REFS: Final = re.compile(r"refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)")
_NEXT: Final = re.compile(r"<([^<>]*)>\s*;\s*rel=\"?next\"?")
_LONGEST_PATH: Final = 4096  # characters
_FEW_FOLDERS: Final = 16  # are listed one by one
_HINT: Final = (
    "Write hf://datasets/OWNER/NAME@REVISION/PATH; a revision is a branch, a tag or a commit, by default main."
)
_DENIED_HINT: Final = (
    Hint(
        'Set HF_TOKEN, run "hf auth login", or pass storage_options={"hf": {"token": ...}}',
        'Set HF_TOKEN, or run "hf auth login"',
    )
    + "; accept the terms of a gated repository in a browser."
)


class Place(NamedTuple):
    """The repository, revision and path that an hf:// url names."""

    root: str  # the url up to the path, with its last slash
    kind: str  # "models", "datasets" or "spaces"
    repository: str  # OWNER/NAME
    revision: str
    path: str  # in the repository; "" is its root

    @property
    def file(self) -> str:
        """The path of the file at the Hub, percent-encoded."""
        kind = "" if self.kind == "models" else f"{self.kind}/"
        return f"/{kind}{quote(self.repository)}/resolve/{quote(self.revision, safe='')}/{quote(self.path)}"

    def tree(self, folder: str, *, deep: bool) -> str:
        """Return the path and query of the API request that lists ``folder``, which has no last slash. ``deep``: with
        its subfolders."""
        below = f"/{quote(folder)}" if folder else ""
        revision = quote(self.revision, safe="")
        return f"/api/{self.kind}/{quote(self.repository)}/tree/{revision}{below}?recursive={deep}&expand=False"


def parse_place(url: str) -> Place:
    """Parse an hf:// url. Raises UnsupportedStoreError if the url is malformed."""
    _, rest = split_url(url)
    kind, _, named = rest.partition("/")
    if kind == "buckets":
        raise UnsupportedStoreError("asyncpq does not read buckets of Hugging Face", url=safe_url(url), hint=_HINT)
    if kind not in _KINDS:
        kind, named = "models", rest
    repository, at, after = named.partition("@")
    if at and repository.count("/") == 1:
        special = _REFS.match(after)
        revision = after.partition("/")[0] if special is None else special[0]
        path = after[len(revision) + 1 :]
    else:
        owner, _, others = named.partition("/")
        name, _, path = others.partition("/")
        repository, revision = f"{owner}/{name}", "main"
    parts = path.split("/")
    if not all([*repository.split("/"), revision]) or "." in parts or ".." in parts:
        raise UnsupportedStoreError("the url names no file of a repository", url=safe_url(url), hint=_HINT)
    root = url[: len(url) - len(path)]
    return Place(root if root.endswith("/") else f"{root}/", kind, repository, unquote(revision), path)


class HuggingFaceStore(Unpicklable):
    """The store of hf:// urls; see :class:`asyncpq.storage.base.Store`.

    ``storage_options`` are those of huggingface_hub's filesystem: ``token`` (False for none) and ``endpoint``; and
    ``headers``, ``ssl`` and ``client_kwargs`` of :class:`asyncpq.storage.http.HttpStore`. Without them, token and
    endpoint come from where huggingface_hub looks: ``HF_TOKEN``, its file, ``HF_ENDPOINT``.
    """

    def __init__(self, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits) -> None:
        options = {name: value for name, value in storage_options.items() if name not in _WITHOUT_EFFECT}
        endpoint = options.pop("endpoint", None) or os.environ.get("HF_ENDPOINT") or _ENDPOINT
        if not isinstance(endpoint, str) or not endpoint.startswith(("https://", "http://")):
            raise InvalidOptionError("the endpoint of Hugging Face must begin with https:// or http://")
        self._endpoint = endpoint.rstrip("/")
        token = _token(options.pop("token", None))
        unknown = sorted(options.keys() - set(_KNOWN))
        if unknown:
            raise unknown_option("hf", unknown, _KNOWN, f"Use only {', '.join(_KNOWN)}.")
        if token is not None:
            options["headers"] = {"Authorization": f"Bearer {token}", **(options.get("headers") or {})}
        self._limits = limits
        self._http = HttpStore(options, retry=retry, limits=limits)

    def __repr__(self) -> str:
        return "<HuggingFaceStore>"

    async def open_object(self, url: str) -> HttpObject:
        """Return a handle on a file; sends no request."""
        place = parse_place(url)
        if not place.path or place.path.endswith("/"):
            raise ObjectNotFoundError("the url names a folder, not a file", url=safe_url(url), hint=FOLDER_HINT)
        return await self._open(place.file, url)

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> list[ListedObject]:
        """List files with the Hub's API; folder by folder if ``wants`` leaves few folders."""
        place = parse_place(url)
        folders, num_listed = [place.path.rpartition("/")[0]], 0
        limit = ListingLimit(safe_url(url), self._limits.max_listed_objects)
        listed = list[ListedObject]()
        while folders:
            if wants is not None and num_listed + len(folders) > _FEW_FOLDERS:
                return await self.list_objects(url, context=context)  # each folder takes a request of its own
            folder = folders.pop()
            num_listed += 1
            for entry in await self._tree(place, folder, limit, url, context, deep=wants is None):
                path, kind = entry["path"], entry["type"]
                if folder and not path.startswith(f"{folder}/"):
                    raise InvalidResponseError(
                        f"the Hub lists {path[:200]!r} in the folder {folder!r}", url=safe_url(url)
                    )
                if len(path) > _LONGEST_PATH:
                    raise limit.endless("folders lie in folders without an end")
                if kind == "directory":
                    if wants is not None and path.startswith(place.path) and wants(f"{place.root}{path}/"):
                        folders.append(path)
                elif path.startswith(place.path):
                    # a listing has the file's digest, and no response has that as its ETag
                    listed.append(ListedObject(place.root + path, entry["size"], None))
        limit.check(len(listed))
        return sorted(listed, key=lambda item: os.fsencode(item.url))

    async def first_names(self, url: str, *, context: RequestContext) -> FirstNames:
        """Return what a folder holds directly."""
        place = parse_place(url)
        limit = ListingLimit(safe_url(url), self._limits.max_listed_objects)
        entries = await self._tree(place, place.path.rstrip("/"), limit, url, context, deep=False)
        names = [f"{place.root}{entry['path']}{'/' * (entry['type'] == 'directory')}" for entry in entries]
        return FirstNames(names, True)

    async def _tree(
        self, place: Place, folder: str, limit: ListingLimit, url: str, context: RequestContext, *, deep: bool
    ) -> list[dict[str, Any]]:
        """Return the entries of a folder's listing, from all its pages; none if the repository has no such folder."""
        entries: list[dict[str, Any]] = []
        sequence = PageSequence(limit)
        first = place.tree(folder, deep=deep)
        sequence.begin(first)
        path: str | None = first
        while path is not None:
            document = await self._open(path, url)
            try:
                body, headers = await document.fetch_document(context)
            except ObjectNotFoundError as error:
                if error.message.endswith("EntryNotFound"):
                    return []
                raise ObjectNotFoundError(
                    "there is no such repository or revision", url=safe_url(url), hint=_HINT
                ) from error
            page = _entries(body, url)
            limit.receive(len(page))
            entries += page
            path = self._next_page(headers.get("link", ""), path, url)
            if path is not None:
                sequence.follow(path, page)
        return entries

    def _next_page(self, link: str, path: str, url: str) -> str | None:
        """Return path and query of the next page; None after the last page. A page on another server is refused, since
        the token is sent to the endpoint alone."""
        found = _NEXT.search(link)
        if found is None:
            return None
        target = urljoin(self._endpoint + path, found[1])
        if not target.startswith(f"{self._endpoint}/"):
            host = urlsplit(target).hostname
            raise InvalidResponseError(
                f"the next page of the listing is on another server, which is not allowed: {host}", url=safe_url(url)
            )
        return str(target.removeprefix(self._endpoint))

    async def _open(self, path: str, url: str) -> HttpObject:
        handle = await self._http.open_object(self._endpoint + path)
        handle.url = safe_url(url)
        handle.denied_hint = _DENIED_HINT
        return handle

    async def credential_identity(self, url: str) -> str:
        """Return a digest of the token; "" without one."""
        return await self._http.credential_identity(self._endpoint)

    async def close(self) -> None:
        """Close all connections of the store. Idempotent."""
        await self._http.close()


def _entries(body: bytes, url: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(body)
        if not isinstance(entries, list):
            raise ValueError
        for entry in entries:
            size = 0 if entry["type"] == "directory" else entry["size"]
            if not isinstance(entry["path"], str) or type(size) is not int or not 0 <= size <= MAX_SIZE:
                raise ValueError
            entry["path"].encode()  # a lone surrogate is no part of a url
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidResponseError(
            "the response is not a listing as the Hub's API returns it", url=safe_url(url)
        ) from error
    return entries


def _token(given: object) -> str | None:
    """Return the token to use: the given one, or else that of the environment or of huggingface_hub's file. None if
    there is none, or ``given`` is False."""
    if isinstance(given, str):
        return given
    environment = os.environ
    if given is False or (given is None and environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _TRUE):
        return None
    if given is not None and given is not True:
        raise InvalidOptionError(f"the token of Hugging Face must be a str or a bool, not {type(given).__name__}")
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    if not token:
        cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = Path(environment.get("HF_HOME") or cache / "huggingface")
        try:
            token = Path(environment.get("HF_TOKEN_PATH") or home / "token").expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError):
            token = ""
    return token.strip() or None
