#!/usr/bin/env bash
# HAProxy 2.6.12: once any client has fetched a file whole, all clients get 200 and all of it for each range.
#
# The same request, sent twice, gets ten bytes with status 206, and later 3,000 with 200 beside Accept-Ranges: bytes,
# because another client came between. The limitations of the cache in its manual name what it does not deliver, and
# ranges are not among them. If-Match is not looked at either, as caches may (RFC 9110, 13.1.1), so that the file comes
# where 412 came before; If-None-Match is. Squid, Varnish, Apache and nginx send the ten bytes from their caches.
# Expected: 206 and ten bytes. It runs on Debian 12, whose packages it unpacks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download haproxy=2.6.12-1+deb12u4 liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 > apt.log 2>&1
for package in *.deb; do dpkg -x "$package" root; done
python3 - "$folder" <<'PYTHON'
import http.client
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

folder = pathlib.Path(sys.argv[1])
stored = bytes(range(48, 58)) * 300


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(span[1]), int(span[2]) + 1) if span else (0, len(stored))
        status = 412 if self.headers.get("If-Match", '"one"') != '"one"' else 206 if span else 200
        body = b"" if status == 412 else stored[start:stop]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(stored)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Cache-Control", "public, max-age=3600")
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def get(port, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/file", headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    size = len(answer.read())
    connection.close()
    return answer.status, size


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.handle_error = lambda *arguments: None  # of connections that HAProxy leaves open
threading.Thread(target=server.serve_forever, daemon=True).start()
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
(folder / "haproxy.cfg").write_text(f"""
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
cache kept
  total-max-size 4
  max-age 3600
frontend clients
  bind 127.0.0.1:{port}
  http-request cache-use kept
  http-response cache-store kept
  default_backend servers
backend servers
  server one 127.0.0.1:{server.server_port}
""")
environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "root/usr/lib/x86_64-linux-gnu")}
binary = folder / "root/usr/sbin/haproxy"
haproxy = subprocess.Popen([binary, "-db", "-f", folder / "haproxy.cfg"], env=environment)
RANGE, OTHER = {"Range": "bytes=1000-1009"}, {"If_Match": '"two"'}
try:
    ends = time.monotonic() + 30
    while True:
        try:
            before = get(port, **RANGE), get(port, **OTHER)
            break
        except OSError:
            assert haproxy.poll() is None and time.monotonic() < ends
            time.sleep(0.2)
    whole = get(port)
    after = get(port, **RANGE), get(port, **OTHER)
    unchanged = get(port, If_None_Match='"one"')
finally:
    haproxy.kill()
    haproxy.wait()
print("a range, If-Match with another ETag; not cached:", before, "- cached:", after)
print("If-None-Match with its ETag:", unchanged)
assert before == ((206, 10), (412, 0)) and whole == (200, 3000)
assert after == ((200, 3000), (200, 3000)), "otherwise now"
assert unchanged == (304, 0)
PYTHON
