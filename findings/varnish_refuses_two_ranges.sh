#!/usr/bin/env bash
# Varnish 7.1.1: a request of two ranges, both within the file, gets 416 and no bytes, cached or not.
#
# 416 says that no range overlaps the file, or that the ranges are invalid or too many (RFC 9110, 15.5.17); "bytes=0-9,
# 20-29" of 3,000 bytes is neither, and a server that knows single ranges alone ignores the header and sends 200 (14.2).
# The server behind it sends multipart/byteranges, as nginx and Apache do: their clients fail once Varnish is put before
# them. Squid, Apache and nginx send both parts from their caches, Traffic Server the file.
# Expected: 206 with both parts, or 200 with the file. It runs on Debian 12, whose packages it unpacks, and needs gcc.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download varnish=7.1.1-2+deb12u1 libvarnishapi3=7.1.1-2+deb12u1 libjemalloc2 > apt.log 2>&1
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
        spans = re.findall(r"(\d+)-(\d+)", self.headers.get("Range", ""))
        body = stored
        self.send_response(206 if spans else 200)
        if spans:
            part = "--x\r\nContent-Range: bytes {}-{}/3000\r\n\r\n{}\r\n"
            parts = [part.format(start, end, stored[int(start) : int(end) + 1].decode()) for start, end in spans]
            body = ("".join(parts) + "--x--\r\n").encode()
            self.send_header("Content-Type", "multipart/byteranges; boundary=x")
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
    return answer.status, size, answer.headers.get("Content-Range")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.handle_error = lambda *arguments: None  # of connections that Varnish leaves open
threading.Thread(target=server.serve_forever, daemon=True).start()
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
(folder / "one.vcl").write_text(f"""
vcl 4.1;
backend one {{ .host = "127.0.0.1"; .port = "{server.server_port}"; }}
""")
libraries = folder / "root/usr/lib/x86_64-linux-gnu"
environment = {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{libraries}/varnish"}
command = [folder / "root/usr/sbin/varnishd", "-j", "none", "-F", "-n", folder / "work", "-a", f"127.0.0.1:{port}"]
with (folder / "out.log").open("wb") as log:
    varnish = subprocess.Popen(
        [*command, "-f", folder / "one.vcl", "-s", "malloc,16m"], stdout=log, stderr=log, env=environment
    )
try:
    ends = time.monotonic() + 60
    while True:
        try:
            missed = get(port, Range="bytes=0-9,20-29")
            break
        except OSError:
            assert varnish.poll() is None and time.monotonic() < ends, (folder / "out.log").read_text()
            time.sleep(0.2)
    single = get(port, Range="bytes=20-29")
    cached = get(port, Range="bytes=0-9,20-29")
finally:
    varnish.terminate()
    varnish.wait()
direct = get(server.server_port, Range="bytes=0-9,20-29")
print("two ranges, from the server:", direct, "- from Varnish:", missed, "- once it has the file:", cached)
print("one range:", single)
assert direct[0] == 206 and single == (206, 10, "bytes 20-29/3000")
assert missed == cached == (416, 0, "bytes */3000"), "otherwise now"
PYTHON
