#!/usr/bin/env bash
# Starlette 1.10.0: GZipMiddleware leaves a file's strong ETag beside other bytes, so resumed downloads are damaged.
#
# A strong ETag names bytes: compressed and plain ones must have different ETags (RFC 9110, 8.8.3.3), and nginx and
# Apache change theirs. StaticFiles behind GZipMiddleware sends one ETag for both, and compresses whole files but not
# ranges. A download that breaks off within the compressed file, and is resumed with If-Range, gets the rest of the
# plain file.
# Expected: another ETag, or a weak one, beside Content-Encoding: gzip; then the answer to the second request is 200.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir starlette==1.10.0 httpx==0.28.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import asyncio
import pathlib
import sys
import zlib

import httpx
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

folder = pathlib.Path(sys.argv[1]) / "served"
folder.mkdir()
stored = b"".join(b"line %d\n" % number for number in range(10_000))
(folder / "a.csv").write_bytes(stored)


async def main() -> None:
    app = GZipMiddleware(StaticFiles(directory=folder))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        async with client.stream("GET", "/a.csv", headers={"Accept-Encoding": "gzip"}) as first:
            compressed = b"".join([part async for part in first.aiter_raw()])
        assert first.headers["Content-Encoding"] == "gzip"
        assert zlib.decompress(compressed, 31) == stored
        plain = await client.get("/a.csv", headers={"Accept-Encoding": "identity"})
        resume = {"Accept-Encoding": "gzip", "Range": "bytes=1000-", "If-Range": first.headers["ETag"]}
        async with client.stream("GET", "/a.csv", headers=resume) as second:
            rest = b"".join([part async for part in second.aiter_raw()])
    print("ETag of the compressed file:", first.headers["ETag"], "of the plain one:", plain.headers["ETag"])
    print("the rest:", second.status_code, second.headers.get("Content-Range"), rest[:12])
    etag = first.headers["ETag"]
    assert etag == plain.headers["ETag"] and not etag.startswith("W/"), "they differ now"
    assert second.status_code == 206 and rest == stored[1000:], "another rest now"
    try:
        zlib.decompress(compressed[:1000] + rest, 31)
    except zlib.error as error:
        print("what the client has put together:", error)
    else:
        raise SystemExit("it is whole now")


asyncio.run(main())
PYTHON
