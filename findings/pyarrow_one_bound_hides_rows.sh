#!/usr/bin/env bash
# pyarrow 26.0.1: is_nan(x) finds no NaN beside 1.0, and x.isin([0.0]) no 0.0 beside -0.0, in files with statistics.
#
# Where the least and the greatest value of a row group are equal, a dataset takes the column for that one value.
# Writers leave NaN out of statistics, and 0.0 equals -0.0, so there may be others. The same filter of the same rows in
# memory, or in a file without statistics, finds them. read_table(filters=...) is a dataset, too.
# Expected: the rows that the filter finds in memory.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

x = pc.field("x")
nan = float("nan")
cases = [
    ("is_nan(x)", [1.0, nan, 1.0], pc.is_nan(x), [nan]),
    ("x in (NaN)", [1.0, nan, 1.0], x.isin([nan]), [nan]),
    ("not (x in (1.0))", [1.0, nan, 1.0], ~x.isin([1.0]), [nan]),
    ("x in (0.0)", [-0.0, 0.0], x.isin([0.0]), [0.0]),
]
for name, values, condition, expected in cases:
    table = pa.table({"x": values})
    found = [table.filter(condition)]
    for statistics in (False, True):
        path = f"{sys.argv[1]}/{statistics}.parquet"
        pq.write_table(table, path, write_statistics=statistics)
        found.append(pq.read_table(path, filters=condition))
    answers = [repr(one["x"].to_pylist()) for one in found]
    print(f"{name} of {values}: in memory {answers[0]}, of a file {answers[1]}, of a file with statistics {answers[2]}")
    assert answers == [repr(expected), repr(expected), "[]"], "changed"
PYTHON
