"""The few endpoints of the Hugging Face Hub that asyncpq asks, and a CDN with signed urls that expire."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, unquote, urlsplit

from asyncpq.testing import Fault, LoggedRequest, ObjectServer

TOKEN = "hf_SECRET"
_FILE = re.compile(r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_TREE = re.compile(r"/api/(models|datasets|spaces)/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?")


class Hub:
    """Repositories by kind, name and revision: files by path.

    Attributes:
        token: which every request must have; None for a public repository.
        valid: how often a signature is taken before it expires; None for ever.
        page: entries of a page of listings.
    """

    def __init__(self, server: ObjectServer, cdn: ObjectServer) -> None:
        self.server, self.cdn = server, cdn
        self.token: str | None = None
        self.valid: int | None = None
        self.page = 3
        self.files: dict[tuple[str, str, str], dict[str, bytes]] = {}
        self._numbers = itertools.count()
        self._used: dict[str, int] = {}
        server.faults = self._answer
        cdn.faults = self._check

    def put(self, path: str, data: bytes, *, kind: str = "datasets", name: str = "o/n", revision: str = "main") -> None:
        self.files.setdefault((kind, name, revision), {})[path] = data
        self.cdn.put(f"blobs/{kind}/{name}/{revision}/{path}", data)

    def delete(self, path: str) -> None:
        del self.files["datasets", "o/n", "main"][path]
        self.cdn.delete(f"blobs/datasets/o/n/main/{path}")

    def _answer(self, request: LoggedRequest) -> Fault:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return Fault(status=401, code="", headers={"X-Error-Code": "RepoNotFound"})
        path, _, query = request.target.partition("?")
        tree = _TREE.fullmatch(path)
        if tree is not None:
            return self._list(request, tree, query)
        found = _FILE.fullmatch(path)
        files = self._repository(found[1] or "models", found[2], found[3]) if found is not None else None
        if found is None or files is None or unquote(found[4]) not in files:
            return Fault(status=404, code="", headers={"X-Error-Code": "EntryNotFound"})
        place = f"blobs/{found[1] or 'models'}/{found[2]}/{unquote(found[3])}/{found[4]}"
        return Fault(redirect=f"{self.cdn.endpoint}/{place}?X-Amz-Signature=SECRET{next(self._numbers)}")

    def _repository(self, kind: str, name: str, revision: str) -> dict[str, bytes] | None:
        return self.files.get((kind, name, unquote(revision)))

    def _list(self, request: LoggedRequest, tree: re.Match[str], query: str) -> Fault:
        files = self._repository(tree[1], tree[2], tree[3])
        if files is None:
            return Fault(status=404, code="", headers={"X-Error-Code": "RevisionNotFound"})
        options = parse_qs(query)
        folder = f"{unquote(tree[4])}/" if tree[4] else ""
        entries: dict[str, dict[str, object]] = {}
        for path, data in sorted(files.items()):
            if not path.startswith(folder):
                continue
            for at in range(len(folder), len(path)):
                if path[at] == "/":
                    entries[path[:at]] = {"type": "directory", "path": path[:at], "oid": "0", "size": 0}
            entries[path] = {"type": "file", "path": path, "oid": "1", "size": len(data), "lfs": {"size": len(data)}}
        if folder and not entries:
            return Fault(status=404, code="", headers={"X-Error-Code": "EntryNotFound"})
        if options["recursive"] == ["False"]:
            entries = {path: entry for path, entry in entries.items() if "/" not in path[len(folder) :]}
        begin = int(options.get("cursor", ["0"])[0])
        self.server.put(request.path[1:], json.dumps(list(entries.values())[begin : begin + self.page]).encode())
        if begin + self.page >= len(entries):
            return Fault()
        following = urlsplit(request.target).path + f"?recursive={options['recursive'][0]}&cursor={begin + self.page}"
        return Fault(headers={"Link": f'<{self.server.endpoint}{following}>; rel="next"'})

    def _check(self, request: LoggedRequest) -> Fault | None:
        assert "authorization" not in request.headers
        used = self._used[request.target] = self._used.get(request.target, 0) + 1
        return Fault(status=403, code="AccessDenied") if self.valid is not None and used > self.valid else None


@asynccontextmanager
async def running_hub() -> AsyncIterator[Hub]:
    async with ObjectServer() as server, ObjectServer() as cdn:
        yield Hub(server, cdn)
