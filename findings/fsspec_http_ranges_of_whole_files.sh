#!/usr/bin/env bash
# fsspec 2026.9.0 over HTTP: cat_file(start=, end=) gives the whole file, where the server has no ranges.
#
# HTTP lets a server answer a range with status 200 and everything; that of Python's standard library does. cat_file()
# does not look at the status: 4 bytes asked for at the end of a file are the whole file, and its last 4 are right by
# chance only. open() of the same file system does look, and says that the server has no ranges. cat_ranges(), which
# readers of footers call, goes by cat_file().
# Expected: the bytes that were asked for, or an error as from open().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir fsspec==2026.9.0 aiohttp==3.14.5
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import functools
import http.server
import os
import sys
import threading

import fsspec


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


folder = f"{sys.argv[1]}/served"
os.mkdir(folder)
with open(f"{folder}/a.bin", "wb") as file:
    file.write(bytes(range(100)))
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/a.bin"
files = fsspec.filesystem("http")
got = files.cat_file(url, start=10, end=14)
many = files.cat_ranges([url], [10], [14])[0]
print("asked for 4 bytes; cat_file:", len(got), "cat_ranges:", len(many), "right:", got == bytes(range(10, 14)))
try:
    with files.open(url, block_size=8) as file:
        file.seek(50)
        file.read(4)
except ValueError as error:
    print("open:", error)
else:
    raise SystemExit("open() reads it now")
server.shutdown()
server.server_close()
assert len(got) == len(many) == 100, "it heeds the status now"
PYTHON
