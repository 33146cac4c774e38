#!/usr/bin/env bash
# Quart 0.22.0: the last n bytes of a file, bytes=-n, are always status 500, where Flask 3.1.3 sends them.
#
# With conditional=True, send_from_directory answers ranges. It seeks to the range's begin, which for bytes=-8 is -8,
# and no file begins there. Readers of Parquet, Zip and Zarr's shards begin with the last bytes, and take 500 for a
# failure of the server, to be tried again. Flask, whose interface Quart has, answers 206 for the same call.
# Expected: 206 with the last bytes; 206 with all of a file that has fewer (RFC 9110, 14.1.2).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir quart==0.22.0 flask==3.1.3
printf '0123456789abcdefghij' > "$folder/a.bin"
"$folder/venv/bin/python" - "$folder" 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import asyncio
import sys

import flask
import quart

RANGES = ("bytes=12-19", "bytes=12-", "bytes=-8", "bytes=-20", "bytes=-99")
seen = {}

app = flask.Flask("flask")
app.add_url_rule("/<name>", view_func=lambda name: flask.send_from_directory(sys.argv[1], name, conditional=True))
for asked in RANGES:
    answer = app.test_client().get("/a.bin", headers={"Range": asked})
    seen["Flask", asked] = answer.status_code, answer.data[:20]


async def ask() -> None:
    app = quart.Quart("quart")

    @app.get("/<name>")
    async def serve(name: str) -> quart.Response:
        return await quart.send_from_directory(sys.argv[1], name, conditional=True)

    for asked in RANGES:
        answer = await app.test_client().get("/a.bin", headers={"Range": asked})
        seen["Quart", asked] = answer.status_code, (await answer.get_data())[:20]


asyncio.run(ask())
for (name, asked), (status, data) in seen.items():
    print(f"{name}, {asked}: {status} {data!r}")
assert seen["Flask", "bytes=-8"] == (206, b"cdefghij")
assert seen["Quart", "bytes=12-19"] == seen["Quart", "bytes=12-"] == (206, b"cdefghij")
assert seen["Quart", "bytes=-8"][0] == 500, "it is sent now"
assert seen["Quart", "bytes=-99"][0] == 416, "it is sent now"
PYTHON
