#!/usr/bin/env bash
# Tornado 6.6.1: a static file that is replaced keeps its strong ETag as long as the server runs.
#
# StaticFileHandler takes the ETag from a hash of the file that it computes once for each path. The next file under that
# name is sent with the ETag of the first, beside its own Last-Modified. Clients that are told that an ETag names bytes
# combine ranges of both (RFC 9110, 8.8.1), and If-None-Match with the old ETag is 304 for ever. The setting
# static_hash_cache=False, which the documentation has for static_url(), ends that.
# Expected: another ETag for other bytes, as once the server is started again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir tornado==6.6.1
mkdir "$folder/served"
"$folder/venv/bin/python" - "$folder/served" <<'PYTHON'
import asyncio
import os
import pathlib
import sys

import tornado.httpclient
import tornado.httpserver
import tornado.testing
import tornado.web

path = pathlib.Path(sys.argv[1]) / "a.bin"


async def main() -> None:
    app = tornado.web.Application([("/(.*)", tornado.web.StaticFileHandler, {"path": sys.argv[1]})])
    socket, port = tornado.testing.bind_unused_port()
    server = tornado.httpserver.HTTPServer(app)
    server.add_socket(socket)
    client = tornado.httpclient.AsyncHTTPClient()
    answers = []
    for data, time in ((b"old" * 100, 1_700_000_000), (b"NEW" * 100, 1_700_000_100)):
        path.with_suffix(".part").write_bytes(data)
        os.utime(path.with_suffix(".part"), (time, time))
        path.with_suffix(".part").replace(path)
        answers.append(await client.fetch(f"http://127.0.0.1:{port}/a.bin"))
        assert answers[-1].body == data
        print(data[:3], answers[-1].headers["Etag"][:20], answers[-1].headers["Last-Modified"])
    again = await client.fetch(
        f"http://127.0.0.1:{port}/a.bin", headers={"If-None-Match": answers[0].headers["Etag"]}, raise_error=False
    )
    print("the new file, unless it has the old one's ETag:", again.code)
    server.stop()
    old, new = (answer.headers["Etag"] for answer in answers)
    assert old == new and not old.startswith("W/"), "they differ now"
    assert again.code == 304, "it is sent now"


asyncio.run(main())
PYTHON
