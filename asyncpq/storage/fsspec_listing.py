"""The files below a folder of an fsspec filesystem."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.asyn import AsyncFileSystem

from asyncpq.errors import InvalidResponseError, ObjectNotFoundError
from asyncpq.metrics import RequestRecord
from asyncpq.storage.base import ListedObject, RequestContext, Wants
from asyncpq.storage.fsspec_path import FsspecPath, is_young, modified_of, recorded, validator_of
from asyncpq.storage.responses import RangeRequest
from asyncpq.storage.urls import safe_url

if TYPE_CHECKING:
    from asyncpq.storage.fsspec import FsspecStore

_AT_ONCE = 16  # folders that are listed at once


class FsspecFolder(FsspecPath):
    """A folder; its url ends in a slash. Made by FsspecStore."""

    def __init__(self, store: FsspecStore, path: str, url: str) -> None:
        super().__init__(store, path, url)
        self._folder = url

    async def fetch(self, context: RequestContext, wants: Wants | None) -> list[ListedObject]:
        """What is below it, in bytewise order; nothing where there is no such folder."""
        self._store.filesystem.invalidate_cache()
        if _lists_flat(self._store.filesystem):
            infos = list((await self._ask("find", self._path, context)).values())
        else:
            infos = await self._walk(context, wants)
        listed = [item for info in infos if (item := self._listed(info)) is not None]
        return sorted(listed, key=lambda item: os.fsencode(item.url))

    async def _walk(self, context: RequestContext, wants: Wants | None) -> list[Mapping[str, Any]]:
        """Folder by folder. fsspec's own walk leaves out folders that it fails to list."""
        found: list[Mapping[str, Any]] = []
        folders = [self._path]
        while folders:
            listings = await self._ask_many(folders[:_AT_ONCE], context)
            del folders[:_AT_ONCE]
            for folder, infos in listings:
                for info in infos:
                    name = str(info["name"]).rstrip("/")
                    if name == folder.rstrip("/"):
                        continue  # the folder itself, or a file of its name
                    if info.get("type") == "directory":
                        if wants is None or wants(self._url_of(name) + "/"):
                            folders.append(name)
                    else:
                        found.append(info)
        return found

    async def _ask_many(
        self, folders: Sequence[str], context: RequestContext
    ) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
        tasks = [asyncio.ensure_future(self._ask("ls", folder, context)) for folder in folders]
        try:
            return [(folder, await task) for folder, task in zip(folders, tasks, strict=True)]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _ask(self, name: str, path: str, context: RequestContext) -> Any:
        async def once(attempt: int) -> Any:
            record = RequestRecord("GET", context.purpose, 0, 0, 0, 0, attempt, context.round, 0.0)
            with recorded(record, context):
                return await self._call(RangeRequest(0, 0, self.url), name, path, detail=True)

        try:
            return await self._with_retries(once, context)
        except ObjectNotFoundError:  # also one that vanished meanwhile
            return {} if name == "find" else []

    def _listed(self, info: Mapping[str, Any]) -> ListedObject | None:
        name = str(info.get("name", ""))
        if (
            info.get("type", "file") != "file"
            or name.endswith("/")
            or not name.startswith(self._path.rstrip("/") + "/")
        ):
            return None
        url = self._url_of(name)
        if not isinstance(info.get("size"), int):
            raise InvalidResponseError("the filesystem does not say the object's size", url=safe_url(url))
        return ListedObject(url, info["size"], None if is_young(info) else validator_of(info), modified_of(info))

    def _url_of(self, name: str) -> str:
        return self._folder + name[len(self._path.rstrip("/")) + 1 :]


def _lists_flat(filesystem: Any) -> bool:
    """Whether its ``find`` is its own, and so not fsspec's walk."""
    kind = type(filesystem)
    if issubclass(kind, AsyncFileSystem):
        return kind._find is not AsyncFileSystem._find
    return kind.find is not fsspec.AbstractFileSystem.find
