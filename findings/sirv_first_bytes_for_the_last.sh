#!/usr/bin/env bash
# sirv 3.0.2: a range of the last 8 bytes gives the first 9, and one of the first byte gives the whole file.
#
# Both answers are 206, with a Content-Range that is true but is not what was asked for: a client that does not compare
# the two takes the beginning of a file for its end. Ranges with both ends, other than 0-0, are right.
# Expected: the last 8 bytes; 1 byte.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --prefix "$folder" --no-audit --no-fund --silent sirv@3.0.2
mkdir "$folder/served"
printf '0123456789abcdefghij' > "$folder/served/a.bin"
cat > "$folder/ask.mjs" <<'JAVASCRIPT'
import http from "node:http";
import sirv from "sirv";

const server = http.createServer(sirv(process.argv[2]));
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const url = `http://127.0.0.1:${server.address().port}/a.bin`;
const seen = {};
for (const range of ["bytes=-8", "bytes=0-0", "bytes=5-7"]) {
  const answer = await fetch(url, { headers: { Range: range } });
  seen[range] = `${answer.status} ${answer.headers.get("content-range")} ${await answer.text()}`;
  console.log(range, "->", seen[range]);
}
server.closeAllConnections();
server.close();
const before = {
  "bytes=-8": "206 bytes 0-8/20 012345678",
  "bytes=0-0": "206 bytes 0-19/20 0123456789abcdefghij",
  "bytes=5-7": "206 bytes 5-7/20 567",
};
if (JSON.stringify(seen) !== JSON.stringify(before)) throw new Error("otherwise now");
JAVASCRIPT
node "$folder/ask.mjs" "$folder/served"
