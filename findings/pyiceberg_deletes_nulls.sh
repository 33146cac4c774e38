#!/usr/bin/env bash
# pyiceberg 0.12.0: delete(paid != true) also deletes rows where paid is null, which scan(paid != true) does not give.
#
# Only in some files: where the bounds of a file prove that each value differs, the file is deleted as a whole, with its
# nulls. Where they do not, nulls stay. NaN goes the same way where x > 0.5. Of NOT IN, a scan gives all nulls, and the
# delete deletes those of some files.
# Expected: the rows are deleted that a scan with the same filter gives.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import GreaterThan, NotEqualTo, NotIn

catalog = SqlCatalog("c", uri=f"sqlite:///{sys.argv[1]}/catalog.db", warehouse=f"file://{sys.argv[1]}")
catalog.create_namespace("n")
nan = float("nan")
files = [
    pa.table({"id": [1, 2], "paid": [True, None], "n": [5, None], "x": [0.0, nan]}),
    pa.table({"id": [3, 4], "paid": [False, None], "n": [7, None], "x": [1.0, nan]}),
]
for number, (filter_, matching, deleted) in enumerate(
    (
        (NotEqualTo("paid", True), [3], [3, 4]),
        (NotIn("n", {5, 9}), [2, 3, 4], [3, 4]),
        (GreaterThan("x", 0.5), [3], [3, 4]),
    )
):
    table = catalog.create_table(f"n.t{number}", files[0].schema)
    for file in files:
        table.append(file)
    found = sorted(table.scan(row_filter=filter_).to_arrow()["id"].to_pylist())
    table.delete(filter_)
    left = table.scan().to_arrow()["id"].to_pylist()
    gone = [id_ for id_ in (1, 2, 3, 4) if id_ not in left]
    print(f"{filter_}: the scan gives the rows {found}, the delete deletes {gone}")
    assert (found, gone) == (matching, deleted), "changed"
PYTHON
