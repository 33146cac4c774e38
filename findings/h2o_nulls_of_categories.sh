#!/usr/bin/env bash
# H2O 3.46.0.12: in the Parquet files it exports, a null of a boolean or a category is the empty text.
#
# import_file() of a file by pyarrow makes categories of booleans, and of texts with few values; a null is missing there
# (isna() finds it). export_file(format="parquet") writes such columns as texts, and each missing value as "". A text
# column with many values keeps its nulls.
# Expected: null, for which the file's columns, all OPTIONAL, have room.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir h2o==3.46.0.12 pyarrow==26.0.1
cat >"$folder/run.py" <<'PYTHON'
import os
import socket
import sys

import h2o
import pyarrow as pa
import pyarrow.parquet as pq

count = 3000
path, out = os.path.join(sys.argv[1], "rows.parquet"), os.path.join(sys.argv[1], "out")
columns = {
    "paid": [None if row % 3 == 0 else row % 2 == 0 for row in range(count)],
    "few": [None if row % 3 == 0 else "ab"[row % 2] for row in range(count)],
    "many": [None if row % 3 == 0 else f"key-{row}" for row in range(count)],
}
pq.write_table(pa.table(columns), path)
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
h2o.init(port=port, nthreads=1, max_mem_size="1G", bind_to_localhost=True, verbose=False, ice_root=sys.argv[1])
try:
    h2o.no_progress()
    frame = h2o.import_file(path)
    assert frame.types == {"paid": "enum", "few": "enum", "many": "string"}, frame.types
    assert [frame[name].isna().sum() for name in columns] == [1000] * 3
    h2o.export_file(frame, out, format="parquet")
finally:
    h2o.cluster().shutdown()
parts = [pq.read_table(os.path.join(out, name)) for name in sorted(os.listdir(out)) if name.startswith("part-")]
table = pa.concat_tables(parts)
print("nulls:", {name: table[name].null_count for name in columns})
print("empty texts:", {name: table[name].to_pylist().count("") for name in columns})
assert [table[name].null_count for name in columns] == [0, 0, 1000]
assert [table[name].to_pylist().count("") for name in columns] == [1000, 1000, 0]
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
