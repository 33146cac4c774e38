#!/usr/bin/env bash
# pyiceberg 0.12.0: append writes a null list or map of structs as an empty one; scan reads null ones as empty, too.
#
# The values are lost: other readers of the table find []. Lists and maps of other types, and null structs, keep their
# nulls. A file that pyarrow wrote and add_files registered has its nulls, which a scan by pyiceberg gives as empty.
# Expected: null.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

folder = sys.argv[1]
catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
catalog.create_namespace("n")
point = pa.struct([("x", pa.int64())])
rows = pa.table(
    {
        "numbers": pa.array([[1], None, []], pa.list_(pa.int64())),
        "points": pa.array([[{"x": 1}], None, []], pa.list_(point)),
        "labels": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "named": pa.array([[("a", {"x": 1})], None, []], pa.map_(pa.string(), point)),
    }
)


def second(table):
    """The values of the row whose lists and maps are null."""
    return {name: table[name][1].as_py() for name in rows.column_names}


appended = catalog.create_table("n.appended", rows.schema)
appended.append(rows)
(task,) = appended.scan().plan_files()
path = task.file.file_path.removeprefix("file://")
pq.write_table(rows, f"{folder}/own.parquet")
added = catalog.create_table("n.added", rows.schema)
added.add_files([f"file://{folder}/own.parquet"])
results = {
    "append, its file by pyarrow": second(pq.read_table(path, partitioning=None)),
    "add_files, its file by pyarrow": second(pq.read_table(f"{folder}/own.parquet")),
    "add_files, scan": second(added.scan().to_arrow()),
}
for name, values in results.items():
    print(f"{name}: {values}")
nulls = dict.fromkeys(rows.column_names)
empty = {**nulls, "points": [], "named": []}
assert list(results.values()) == [empty, nulls, empty], "changed"
PYTHON
