#!/usr/bin/env bash
# Squid 5.7: a range past the end of a cached file gets status 200 and all of the file; its own 412 has Age 1.8 billion.
#
# "bytes=3000-" of a file of 3,000 bytes is what a client sends to go on with a download that is complete, or to see
# whether a file has grown. The server answers 416 with "Content-Range: bytes */3000" (RFC 9110, 15.5.17), and so do
# Varnish and Traffic Server out of their caches. Squid does while the file is not cached; once it is, it sends all of
# it. To If-Match with another ETag it says 412 out of its cache, with an Age of the seconds since 1970.
# Expected: 416, and an Age of a few seconds. It runs on Debian 12, whose packages it unpacks.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "$(cat "$folder/squid.pid" 2> /dev/null)" 2> /dev/null || true; sleep 1; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download squid=5.7-2+deb12u6 squid-common=5.7-2+deb12u6 \
    squid-langpack libecap3 libnetfilter-conntrack3 libnfnetlink0 libltdl7 > apt.log 2>&1
for package in *.deb; do dpkg -x "$package" root; done
chmod -R a+rwX "$folder"
python3 - "$folder" <<'PYTHON'
import email.utils
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
root = folder / "root"
stored = bytes(range(48, 58)) * 300


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        beyond = span is not None and int(span[1]) >= len(stored)
        status, body = (416, b"") if beyond else (412, b"") if "If-Match" in self.headers else (200, stored)
        self.send_response(status)
        if beyond:
            self.send_header("Content-Range", f"bytes */{len(stored)}")
        else:
            self.send_header("Cache-Control", "public, max-age=3600")
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", email.utils.formatdate(1_700_000_000, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/file", headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = free_port()
(folder / "squid.conf").write_text(f"""
pid_filename {folder}/squid.pid
http_port 127.0.0.1:{port} accel defaultsite=127.0.0.1 no-vhost
cache_peer 127.0.0.1 parent {server.server_port} 0 no-query originserver
http_access allow all
cache_log {folder}/cache.log
access_log none
coredump_dir {folder}
mime_table {root}/usr/share/squid/mime.conf
icon_directory {root}/usr/share/squid/icons
error_directory {root}/usr/share/squid-langpack/English
unlinkd_program {root}/usr/lib/squid/unlinkd
pinger_enable off
visible_hostname here
shutdown_lifetime 0 seconds
{"cache_effective_user nobody" if os.geteuid() == 0 else ""}
""")
environment = {**os.environ, "LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu")}
with (folder / "out.log").open("wb") as log:
    squid = subprocess.Popen(
        [root / "usr/sbin/squid", "-N", "-n", f"finding{port}", "-f", folder / "squid.conf"],
        stdout=log, stderr=log, env=environment,
    )  # fmt: skip
try:
    ends = time.monotonic() + 30
    while True:
        try:
            get(port, Range="bytes=3000-")
            break
        except OSError:
            assert squid.poll() is None and time.monotonic() < ends, (folder / "out.log").read_text()
            time.sleep(0.2)
    before, _ = get(port, Range="bytes=3000-")
    whole, body = get(port)
    after, again = get(port, Range="bytes=3000-")
    refused, _ = get(port, If_Match='"two"')
    age, now = int(refused.headers["Age"]), time.time()
    print(whole.headers["Via"])
    print("bytes=3000- of 3,000 bytes: not cached", before.status, "- cached", after.status, len(again), "bytes")
    print("If-Match with another ETag:", refused.status, refused.headers["X-Cache"], "Age:", age)
finally:
    squid.terminate()
    squid.wait()
assert (whole.status, body) == (200, stored)
assert before.status == 416 and (after.status, again) == (200, stored), "it refuses ranges past the end now"
assert refused.status == 412 and abs(age - now) < 86_400, "another Age now"
PYTHON
