#!/usr/bin/env bash
# CherryPy 18.10.0: with tools.etags.autotags, If-Match with a file's own ETag makes a range of it 412.
#
# The tool takes the ETag from a hash of the body. Parts have no ETag, and the tool compares what the client
# sends with none. So a client that asks for the rest of what it has, of the same version alone, is told that the file
# has changed, though it has not; the whole file, with the same condition, is 200.
# Expected: 206.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir cherrypy==18.10.0
mkdir "$folder/served"
printf '0123456789abcdefghij' > "$folder/served/a.bin"
"$folder/venv/bin/python" - "$folder/served" <<'PYTHON'
import http.client
import socket
import sys

import cherrypy

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
cherrypy.config.update({"server.socket_port": port, "log.screen": False, "engine.autoreload.on": False})
tools = {"tools.staticdir.on": True, "tools.staticdir.dir": sys.argv[1]}
cherrypy.tree.mount(None, "/", {"/": {**tools, "tools.etags.on": True, "tools.etags.autotags": True}})
cherrypy.engine.start()


def ask(**headers: str) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/a.bin", headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return response.status, response.headers["ETag"], response.read()[:20]


try:
    whole = ask()
    etag = whole[1]
    assert etag is not None and not etag.startswith("W/")
    conditional, other, part = ask(If_Match=etag), ask(If_Match='"other"'), ask(Range="bytes=5-9")
    bad = ask(Range="bytes=5-9", If_Match=etag)
finally:
    cherrypy.engine.exit()
for name, (status, sent, data) in {
    "whole": whole,
    "whole, If-Match": conditional,
    "whole, If-Match of another": other,
    "part": part,
    "part, If-Match": bad,
}.items():
    print(f"{name}: {status}, ETag {sent}, {data[:10]!r}")
assert (whole[0], conditional[0], other[0], part[0], part[2]) == (200, 200, 412, 206, b"56789")
assert bad[0] == 412, "it is sent now"
PYTHON
