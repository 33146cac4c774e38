#!/usr/bin/env bash
# Express 5.3.0, Flask 3.1.3, Twisted 26.10.0: the last 64 KiB of a smaller file are 416 or 500, not the file.
#
# "If the selected representation is shorter than the specified suffix-length, the entire representation is used" (RFC
# 9110, 14.1.2): so readers fetch a footer of unknown length, in one request. express.static and Flask's
# send_from_directory (send, Werkzeug) call the range unsatisfiable, and Twisted's static.File fails on a negative
# number. All three send the last bytes of larger files. Starlette 1.10.0 sends the whole small file.
# Expected: 206 and all 1,000 bytes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    flask==3.1.3 werkzeug==3.1.9 twisted==26.10.0 starlette==1.10.0 uvicorn==0.54.0
npm install --prefix "$folder" --no-audit --no-fund --silent express@5.3.0
mkdir "$folder/served"
cat > "$folder/serve.py" <<'PYTHON'
import sys

which, folder, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if which == "flask":
    from flask import Flask, send_from_directory

    app = Flask("served", static_folder=None)
    app.get("/<path:name>")(lambda name: send_from_directory(folder, name))
    app.run("127.0.0.1", port)
elif which == "twisted":
    from twisted.internet import reactor
    from twisted.web import server, static

    reactor.listenTCP(port, server.Site(static.File(folder)), interface="127.0.0.1")
    reactor.run()
else:
    import uvicorn
    from starlette.staticfiles import StaticFiles

    uvicorn.run(StaticFiles(directory=folder), host="127.0.0.1", port=port, log_level="warning")
PYTHON
cat > "$folder/serve.js" <<'JAVASCRIPT'
const express = require("express");
express().use(express.static(process.argv[3])).listen(Number(process.argv[4]), "127.0.0.1");
JAVASCRIPT
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import http.client
import pathlib
import socket
import subprocess
import sys
import time

folder = pathlib.Path(sys.argv[1])
data = bytes(range(250)) * 4
(folder / "served" / "a.bin").write_bytes(data)


def last(port, number):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/a.bin", headers={"Range": f"bytes=-{number}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


seen = {}
for name in ("express", "flask", "twisted", "starlette"):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = ["node", folder / "serve.js"] if name == "express" else [sys.executable, folder / "serve.py"]
    with (folder / f"{name}.log").open("wb") as log:
        server = subprocess.Popen([*program, name, folder / "served", str(port)], stdout=log, stderr=log)
    try:
        ends = time.monotonic() + 60
        while True:
            try:
                few = last(port, 100)
                break
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.2)
        assert few == (206, data[-100:])
        status, body = last(port, 65536)
        seen[name] = status
        print(f"{name}: the last 100 bytes: {few[0]}; the last 65536: {status}, right: {body == data}")
    finally:
        server.kill()
        server.wait()
assert seen == {"express": 416, "flask": 416, "twisted": 500, "starlette": 206}, f"otherwise now: {seen}"
PYTHON
