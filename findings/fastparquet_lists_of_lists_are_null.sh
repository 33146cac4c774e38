#!/usr/bin/env bash
# fastparquet 2026.9.0: a column of lists of lists is read as nulls, whatever it holds, without an error or a warning.
#
# A plain list is read well, and so are maps. With one list more all values are lost: the column is there, of the right
# length, and each row is None. pyarrow 26.0.1 and DuckDB 2.0.1 read the same file.
# Expected: the values, or an error as for a type that is not known.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 fastparquet==2026.9.0 pandas==3.1.1 duckdb==2.0.1
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import sys

import duckdb
import fastparquet
import pyarrow as pa
import pyarrow.parquet as pq

path = sys.argv[1]
table = pa.table({"lists": [[1, 2], [3]], "lists_of_lists": [[[1], [2]], [[3, 4]]]})
pq.write_table(table, path)
frame = fastparquet.ParquetFile(path).to_pandas()
print(frame)
print("DuckDB:", duckdb.sql(f"FROM '{path}'").fetchall())
assert [list(value) for value in frame["lists"]] == [[1, 2], [3]]
assert frame["lists_of_lists"].tolist() == [None, None], "it reads them otherwise now"
assert pq.read_table(path).equals(table)
PYTHON
