#!/usr/bin/env bash
# koa-range 0.3.0, which local-web-server 5.4.0 serves with: a range that ends after the file does is never completed.
#
# "bytes=0-65535" of a file of 20 bytes is valid, and means all of it (RFC 9110, 14.1.2). The answer says
# Content-Length: 65536 and Content-Range: bytes 0-65535/20, and has 20 bytes: the client waits for the others, as long
# as it has patience. So does one that reads a file block by block, at the last block.
# Expected: bytes 0-19/20, and Content-Length: 20.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --prefix "$folder" --no-audit --no-fund --silent koa@3.0.1 koa-range@0.3.0 koa-static@5.0.0
mkdir "$folder/served"
printf '0123456789abcdefghij' > "$folder/served/a.bin"
cat > "$folder/ask.cjs" <<'JAVASCRIPT'
const http = require("node:http");
const Koa = require("koa");
const app = new Koa();
app.use(require("koa-range"));
app.use(require("koa-static")(process.argv[2]));
const server = app.listen(0, "127.0.0.1", () => {
  const place = { port: server.address().port, path: "/a.bin", headers: { Range: "bytes=0-65535" } };
  http.get({ host: "127.0.0.1", ...place }, (answer) => {
    const parts = [];
    let ended = false;
    answer.on("data", (part) => parts.push(part));
    answer.on("end", () => { ended = true; });
    answer.on("error", () => {});
    setTimeout(() => {
      const said = [answer.statusCode, answer.headers["content-range"], answer.headers["content-length"]].join(" | ");
      const come = Buffer.concat(parts).toString();
      console.log(said, "| has come after 3 s:", come, "| ended:", ended);
      const same = said === "206 | bytes 0-65535/20 | 65536" && come === "0123456789abcdefghij" && !ended;
      if (!same) console.error("otherwise now");
      process.exit(same ? 0 : 1);
    }, 3000);
  });
});
JAVASCRIPT
node "$folder/ask.cjs" "$folder/served"
