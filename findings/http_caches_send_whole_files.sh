#!/usr/bin/env bash
# hishel, undici, make-fetch-happen and others: once a file is cached whole, a range of it gets 200 and all of it.
#
# Before, the same request got status 206 and its ten bytes. A cache may answer a range from the file that it has, with
# 206, or pass it on; these do neither, and drop the Range header: a reader of parts works until something else in the
# program fetches the file whole, and then gets its first bytes for any others, unless it looks at the status. A server
# may ignore Range (RFC 9110, 14.2), but its own response says Accept-Ranges: bytes. CacheControl and node-fetch-cache
# pass it on.
# Expected: status 206 and ten bytes, whatever is in the cache.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-cache-dir 'hishel[async,httpx]==2.0.0' httpx==0.28.1 \
    requests==2.34.2 requests-cache==1.3.3 CacheControl==0.14.4 aiohttp==3.14.5 aiohttp-client-cache==0.15.0
npm init --yes > package.log
npm install --silent --no-audit --no-fund undici@7.30.2 axios@1.21.1 \
    axios-cache-interceptor@1.12.3 make-fetch-happen@15.0.6 node-fetch-cache@5.1.0
cat > run.mjs <<'JS'
import axios from "axios";
import { setupCache } from "axios-cache-interceptor";
import fetching from "make-fetch-happen";
import NodeFetchCache from "node-fetch-cache";
import * as undici from "undici";

const url = process.argv[2];
const dispatcher = new undici.Agent().compose(undici.interceptors.cache());
const cached = setupCache(axios.create());
const fetched = fetching.defaults({ cachePath: "cache" });
const clients = {
  undici: async (headers) => {
    const answer = await undici.request(url, { headers, dispatcher });
    return [answer.statusCode, (await answer.body.text()).length];
  },
  "axios-cache-interceptor": async (headers) => {
    const answer = await cached.get(url, { headers, responseType: "text" });
    return [answer.status, answer.data.length];
  },
  "make-fetch-happen": async (headers) => {
    const answer = await fetched(url, { headers });
    return [answer.status, (await answer.text()).length];
  },
  "node-fetch-cache": async (headers) => {
    const answer = await NodeFetchCache(url, { headers });
    return [answer.status, (await answer.text()).length];
  },
};
const seen = {};
for (const [name, get] of Object.entries(clients)) {
  const range = { Range: "bytes=5000-5009" };
  seen[name] = [await get(range), await get({}), await get(range)];
}
console.log(JSON.stringify(seen));
process.exit(0);
JS
venv/bin/python - <<'PYTHON'
import asyncio
import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp_client_cache
import cachecontrol
import hishel
import hishel.httpx
import httpx
import requests
import requests_cache

stored = bytes(range(48, 58)) * 1000
RANGE = {"Range": "bytes=5000-5009"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(span[1]), int(span[2]) + 1) if span else (0, len(stored))
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(stored)}")
        for name, value in (
            ("Content-Length", str(stop - start)),
            ("Cache-Control", "max-age=3600"),
            ("ETag", '"one"'),
            ("Accept-Ranges", "bytes"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(stored[start:stop])

    def log_message(self, *arguments):
        pass


async def asynchronous(url):
    seen = {}
    async with aiohttp_client_cache.CachedSession(cache=aiohttp_client_cache.CacheBackend()) as session:
        answers = []
        for headers in (RANGE, {}, RANGE):
            async with session.get(url, headers=headers) as answer:
                answers.append([answer.status, len(await answer.read())])
        seen["aiohttp-client-cache"] = answers
    storage = hishel.AsyncSqliteStorage(database_path="hishel.db")
    transport = hishel.httpx.AsyncCacheTransport(next_transport=httpx.AsyncHTTPTransport(), storage=storage)
    async with httpx.AsyncClient(transport=transport) as client:
        answers = []
        for headers in (RANGE, {}, RANGE):
            answer = await client.get(url, headers=headers)
            answers.append([answer.status_code, len(answer.content)])
        seen["hishel"] = answers
    return seen


with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/file"
    seen = asyncio.run(asynchronous(url))
    for name, session in (
        ("requests-cache", requests_cache.CachedSession(backend="memory", cache_control=True)),
        ("CacheControl", cachecontrol.CacheControl(requests.Session())),
    ):
        answers = [session.get(url, headers=headers) for headers in (RANGE, {}, RANGE)]
        seen[name] = [[answer.status_code, len(answer.content)] for answer in answers]
    seen |= json.loads(subprocess.run(["node", "run.mjs", url], check=True, capture_output=True).stdout)
    server.shutdown()
passes_on = ("CacheControl", "node-fetch-cache")
for name, answers in seen.items():
    print(f"{name}: the range {answers[0]}, the whole {answers[1]}, the range {answers[2]}")
    last = [206, 10] if name in passes_on else [200, 10_000]
    assert answers == [[206, 10], [200, 10_000], last], "otherwise now"
assert len(seen) == 8
PYTHON
