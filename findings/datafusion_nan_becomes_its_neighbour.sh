#!/usr/bin/env bash
# DataFusion 55.0.0: SELECT x shows 0.5 for a NaN in a Parquet file whose only other number is 0.5; so SUM(x) is 1.0.
#
# Statistics leave NaN out, so that those of 0.5 and NaN are 0.5 to 0.5. DataFusion takes a column with equal bounds and
# no nulls for a constant, and does not read it. A COPY of the file stores 0.5. With
# datafusion.execution.collect_statistics=false, or for files without statistics, NaN is there.
# Expected: NaN, as bounds of floats say nothing about it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir datafusion==55.0.0 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from datafusion import SessionContext

values = [0.5, float("nan")]
answers = {}
for statistics in (False, True):
    path = f"{sys.argv[1]}/{statistics}.parquet"
    pq.write_table(pa.table({"x": values}), path, write_statistics=statistics)
    context = SessionContext()
    context.register_parquet("t", path)
    shown = context.sql("SELECT x, isnan(x) AS nan FROM t").to_pydict()
    total = context.sql("SELECT sum(x) AS total FROM t").to_pydict()["total"]
    context.sql(f"COPY t TO '{sys.argv[1]}/copy.parquet'").collect()
    copied = pq.read_table(f"{sys.argv[1]}/copy.parquet")["x"].to_pylist()
    answers[statistics] = repr((shown["x"], shown["nan"], total, copied))
    print(f"{values} {'with' if statistics else 'without'} statistics: x, isnan(x), sum, a copy: {answers[statistics]}")
assert answers[False] == "([0.5, nan], [False, True], [nan], [0.5, nan])", "changed"
assert answers[True] == "([0.5, 0.5], [False, False], [1.0], [0.5, 0.5])", "changed"
PYTHON
