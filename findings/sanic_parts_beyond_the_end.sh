#!/usr/bin/env bash
# Sanic 25.12.1: Content-Range repeats the range that was asked for, also where the file ends before it or in it.
#
# Bytes 10 to 99 of a file of 20 are its last 10, and Content-Range must say 10-19 (RFC 9110, 14.4: else the answer is
# invalid, and clients must not combine it with others). Bytes 100 to 199 must be 416: that is how a client that reads
# piece by piece learns that there is no more. Sanic says 206, and "bytes 10-99/20" and "bytes 100-199/20".
# Expected: 206 and "bytes 10-19/20"; 416 and "bytes */20".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir sanic==25.12.1
mkdir "$folder/served"
printf '0123456789abcdefghij' > "$folder/served/a.bin"
: > "$folder/served/empty.bin"
cat > "$folder/serve.py" <<'PYTHON'
import sys

from sanic import Sanic

app = Sanic("served")
app.static("/", sys.argv[1], use_content_range=True, name="files")
app.run("127.0.0.1", int(sys.argv[2]), single_process=True, access_log=False, motd=False)
PYTHON
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import http.client
import socket
import subprocess
import sys
import time

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
folder = sys.argv[1]


def get(path, span):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Range": span})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers["Content-Range"], body


with open(f"{folder}/log", "wb") as log:
    server = subprocess.Popen(
        [sys.executable, f"{folder}/serve.py", f"{folder}/served", str(port)], stdout=log, stderr=log
    )
try:
    ends = time.monotonic() + 60
    while True:
        try:
            inside = get("/a.bin", "bytes=10-99")
            break
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
    beyond, empty = get("/a.bin", "bytes=100-199"), get("/empty.bin", "bytes=0-9")
finally:
    server.kill()
    server.wait()
print("10-99:", *inside)
print("100-199:", *beyond)
print("0-9 of the empty file:", *empty)
assert inside == (206, "bytes 10-99/20", b"abcdefghij"), "it says otherwise now"
assert beyond == (206, "bytes 100-199/20", b""), "it says otherwise now"
assert empty == (206, "bytes 0-9/0", b""), "it says otherwise now of the empty file"
PYTHON
