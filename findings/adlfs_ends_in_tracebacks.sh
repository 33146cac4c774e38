#!/usr/bin/env bash
# adlfs 2026.8.0: a filesystem made with asynchronous=True is never freed, and prints a traceback when the process ends.
#
# It registers a finalizer for itself that has the filesystem as an argument, so nothing frees it before the exit of the
# interpreter. There fsspec's sync() finds no loop of its own, because an asynchronous filesystem has none: each such
# process ends with "RuntimeError: Loop is not running" on stderr, although it read without a fault.
# Expected: no output, as of s3fs, which finalizes nothing that way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  adlfs==2026.8.0 fsspec==2026.9.0 s3fs==2026.9.0
cat > "$folder/use.py" <<'PYTHON'
import asyncio
import gc
import sys
import weakref

import fsspec


async def main() -> None:
    options = {"az": {"account_name": "account", "anon": True}, "s3": {"anon": True}}[sys.argv[1]]
    filesystem = fsspec.filesystem(sys.argv[1], asynchronous=True, skip_instance_cache=True, **options)
    freed = weakref.ref(filesystem)
    del filesystem
    gc.collect()
    print("freed" if freed() is None else "kept")


asyncio.run(main())
PYTHON
for protocol in az s3; do
    "$folder/venv/bin/python" "$folder/use.py" "$protocol" > "$folder/$protocol.out" 2> "$folder/$protocol.err"
    lines=$(grep -c 'Loop is not running' "$folder/$protocol.err" || true)
    echo "$protocol: $(cat "$folder/$protocol.out"); $lines lines of RuntimeError"
done
[ "$(cat "$folder/az.out")" = kept ] || { echo "adlfs frees its filesystem now" >&2; exit 1; }
grep -q "RuntimeError: Loop is not running" "$folder/az.err" || { echo "adlfs ends in silence now" >&2; exit 1; }
[ ! -s "$folder/s3.err" ]
