#!/usr/bin/env bash
# got 14.6.6: with `cache`, a part of a file that is in the cache is the answer to requests of any other part.
#
# A cache that does not know ranges must not store status 206 (RFC 9111, 3), and http-cache-semantics 4.3.0, with which
# got decides, does not. It reads `status`, though, and cacheable-request 13.0.19 hands it Node's response, which has
# `statusCode`: every response counts as one with status 200. The second range gets status 206, the Content-Range and
# the bytes of the first; so does a request of the whole file. make-fetch-happen 15.0.6 asks the server.
# Expected: the bytes that were asked for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes > package.log
npm install --silent --no-audit --no-fund \
    got@14.6.6 cacheable-request@13.0.19 http-cache-semantics@4.3.0 make-fetch-happen@15.0.6
cat > run.mjs <<'JS'
import assert from "node:assert/strict";
import http from "node:http";
import got from "got";
import fetching from "make-fetch-happen";

const stored = Buffer.from("0123456789abcdefghijklmnopqrstuvwxyz");
let requests = 0;
const server = http.createServer((request, response) => {
  requests += 1;
  const common = { "Cache-Control": "max-age=3600", ETag: '"one"', "Accept-Ranges": "bytes" };
  const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
  if (!range) {
    response.writeHead(200, { ...common, "Content-Length": stored.length });
    return response.end(stored);
  }
  const [start, end] = [Number(range[1]), Number(range[2])];
  response.writeHead(206, {
    ...common,
    "Content-Length": end - start + 1,
    "Content-Range": `bytes ${start}-${end}/${stored.length}`,
  });
  response.end(stored.subarray(start, end + 1));
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const url = `http://127.0.0.1:${server.address().port}/file`;

const cache = new Map();
async function byGot(range) {
  const answer = await got(url, { cache, headers: range ? { Range: range } : {} });
  return [answer.statusCode, answer.headers["content-range"] ?? null, answer.body];
}
const fetched = fetching.defaults({ cachePath: "cache" });
async function byFetch(range) {
  const answer = await fetched(url, { headers: range ? { Range: range } : {} });
  return [answer.status, answer.headers.get("content-range"), await answer.text()];
}

const first = [206, "bytes 0-4/36", "01234"];
for (const [name, get, second, whole, sent] of [
  ["got", byGot, first, first, 1],
  ["make-fetch-happen", byFetch, [206, "bytes 10-14/36", "abcde"], [200, null, stored.toString()], 3],
]) {
  requests = 0;
  const seen = [await get("bytes=0-4"), await get("bytes=10-14"), await get(null)];
  console.log(`${name}: bytes 0-4, bytes 10-14, all:`, JSON.stringify(seen), "requests:", requests);
  assert.deepEqual(seen, [first, second, whole], "otherwise now");
  assert.equal(requests, sent);
}
server.close();
server.closeAllConnections();
JS
node run.mjs
