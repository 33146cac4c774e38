#!/usr/bin/env bash
# pyarrow 26.0.1: a UUID column in Parquet cannot be filtered; the way round works only for files without statistics.
#
# Columns of the Parquet type UUID are read as arrow.uuid, which has no kernel for ==; a scalar of the same type does
# not help. To cast the column to binary(16) in the filter does, in memory and for a file without statistics. With them,
# as they are written by default, pyarrow puts their bounds as "x >= ..." beside the filter, without the cast, and
# fails. Sorting and grouping by such a column fail as well. DuckDB 2.0.1 filters it.
# Expected: == on a key works.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 duckdb==2.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
import uuid

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

key = uuid.UUID(int=1)
table = pa.table({"x": pa.array([uuid.UUID(int=number).bytes for number in (1, 2)], pa.uuid())})
filters = {
    "x == key": [("x", "==", key)],
    "x == scalar": pc.field("x") == pa.scalar(key.bytes, pa.uuid()),
    "cast(x) == bytes": pc.field("x").cast(pa.binary(16)) == pa.scalar(key.bytes, pa.binary(16)),
}
seen = {}
for statistics in (True, False):
    path = f"{sys.argv[1]}/{statistics}.parquet"
    pq.write_table(table, path, write_statistics=statistics)
    for name, condition in filters.items():
        try:
            seen[statistics, name] = pq.read_table(path, filters=condition).num_rows
        except pa.ArrowNotImplementedError as error:
            seen[statistics, name] = str(error)
for (statistics, name), result in seen.items():
    print(f"{'with' if statistics else 'without'} statistics: {name}: {result}")
print("DuckDB:", duckdb.sql(f"FROM '{path}' WHERE x = '{key}'").fetchall())
assert [type(result) for result in seen.values()] == [str, str, str, str, str, int], "more filters work now"
PYTHON
