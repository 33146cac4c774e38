#!/usr/bin/env bash
# aiohttp 3.14.5 and Sanic 25.12.1: If-Range is not heeded, so a resumed download has bytes of two versions.
#
# If-Range says: send the rest only if the file still has this ETag, else all of it with status 200 (RFC 9110, 13.1.5:
# "MUST ignore the Range header field if the If-Range condition evaluates as false"). aiohttp sends ETags with static
# files and heeds only dates in If-Range; Sanic sends Last-Modified and heeds nothing. Both answer 206 with a part of
# the new file. A client that resumes by the book appends it to the beginning of the old one. Starlette 1.10.0 answers
# 200.
# Expected: 200 and the whole new file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    aiohttp==3.14.5 sanic==25.12.1 starlette==1.10.0 uvicorn==0.54.0
mkdir "$folder/served"
cat > "$folder/serve.py" <<'PYTHON'
import sys

which, folder, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if which == "aiohttp":
    from aiohttp import web

    app = web.Application()
    app.router.add_static("/", folder)
    web.run_app(app, host="127.0.0.1", port=port, print=None)
elif which == "sanic":
    from sanic import Sanic

    app = Sanic("served")
    app.static("/", folder, use_content_range=True, name="files")
    app.run("127.0.0.1", port, single_process=True, access_log=False, motd=False)
else:
    import uvicorn
    from starlette.staticfiles import StaticFiles

    uvicorn.run(StaticFiles(directory=folder), host="127.0.0.1", port=port, log_level="warning")
PYTHON
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import http.client
import os
import pathlib
import socket
import subprocess
import sys
import time

folder = pathlib.Path(sys.argv[1])
path = folder / "served" / "a.bin"


def get(port, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/a.bin", headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


seen = {}
for name in ("aiohttp", "sanic", "starlette"):
    path.write_bytes(b"old" * 1000)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, folder / "serve.py", name, folder / "served", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        ends = time.monotonic() + 60
        while True:
            try:
                answer, beginning = get(port, {"Range": "bytes=0-299"})
                break
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.2)
        etag = answer.headers.get("ETag") or answer.headers["Last-Modified"]
        assert (answer.status, beginning, etag.startswith("W/")) == (206, b"old" * 100, False)
        path.write_bytes(b"NEW" * 1000)
        os.utime(path, (1_700_000_100, 1_700_000_100))
        answer, rest = get(port, {"Range": "bytes=300-", "If-Range": etag})
        now = answer.headers.get("ETag") or answer.headers["Last-Modified"]
        assert now != etag
        seen[name] = answer.status
        print(f"{name}: the file was {etag}, is {now}; status {answer.status}, {len(rest)} bytes {rest[:6]}...")
    finally:
        server.kill()
        server.wait()
assert seen == {"aiohttp": 206, "sanic": 206, "starlette": 200}, f"otherwise now: {seen}"
PYTHON
