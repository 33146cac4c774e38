#!/usr/bin/env bash
# Ladybug 0.22.0 meets chdb (ClickHouse) 26.9.0: ClickHouse reads no text column of its Parquet files with a dictionary.
#
# Texts of which few are different get a dictionary. Ladybug gives the place of the first data page as that of the end
# of the dictionary page less its header: it points into the dictionary page. Readers that go from page to page, such as
# pyarrow 26.0.1, DuckDB 2.0.1, Polars 2.1.0 and Ladybug, do not notice. ClickHouse takes it for the dictionary's end
# and fails: "Page size out of bounds". Kuzu 0.11.3, which Ladybug goes on from, writes the same.
# Expected: data_page_offset is where the first data page begins.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    ladybug==0.22.0 kuzu==0.11.3 pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0 chdb-core==26.9.0
cat > "$folder/look.py" <<'PYTHON'
import importlib
import os
import sys

import chdb
import duckdb
import polars as pl
import pyarrow.parquet as pq

name, path = sys.argv[1], sys.argv[2]
library = importlib.import_module(name)
connection = library.Connection(library.Database(":memory:"))
rows = "UNWIND range(1, 600) AS n RETURN n, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END AS word"
connection.execute(f"COPY ({rows}) TO '{path}'")
wanted = ["odd", "even"] * 300
assert pq.read_table(path)["word"].to_pylist() == wanted
assert pl.read_parquet(path)["word"].to_list() == wanted
assert [word for word, in duckdb.sql(f"SELECT word FROM '{path}'").fetchall()] == wanted
assert "180300" in str(chdb.query(f"SELECT sum(n) FROM file('{path}', Parquet)"))
try:
    said = str(chdb.query(f"SELECT count(word) FROM file('{path}', Parquet) WHERE word != ''"))
except Exception as error:
    said = str(error)
print(name, "in ClickHouse:", said[:110])
assert "Page size out of bounds" in said, "it reads them now"
sys.stdout.flush()
os._exit(0)
PYTHON
for name in ladybug kuzu; do
    "$folder/venv/bin/python" "$folder/look.py" "$name" "$folder/$name.parquet"
done
