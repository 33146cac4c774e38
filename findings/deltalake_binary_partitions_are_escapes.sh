#!/usr/bin/env bash
# deltalake 1.6.6: bytes in a partition column come back as others: b"ab" as the 12 bytes of the text \u0061\u0062.
#
# The writer puts an escape of six characters for each byte into the log, and escapes the backslash once more for
# JSON; the reader takes the characters for the bytes. The same holds for pysail 0.7.2, a Spark of its own in Rust.
# Queries find no row where the column has the bytes that were written. DuckDB 1.5.5 shows the text, too.
# Expected: the bytes, as from a column that is in the files, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

rows = pa.table({"id": [1, 2], "key": pa.array([b"ab", b"\xff\x00"]), "copy": pa.array([b"ab", b"\xff\x00"])})
write_deltalake(f"{sys.argv[1]}/t", rows, partition_by=["key"])
table = DeltaTable(f"{sys.argv[1]}/t")


def query(sql):
    return pa.table(QueryBuilder().register("t", table).execute(sql)).to_pylist()


by_query, by_arrow = query("SELECT * FROM t ORDER BY id"), table.to_pyarrow_table().sort_by("id").to_pylist()
print(by_query)
found = {column: query(f"SELECT id FROM t WHERE {column} = X'6162'") for column in ("key", "copy")}
print(found)
assert [row["copy"] for row in by_query] == [b"ab", b"\xff\x00"]
for shown in (by_query, by_arrow):
    assert [row["key"] for row in shown] == [rb"\u0061\u0062", rb"\u00FF\u0000"], "changed"
assert found == {"key": [], "copy": [{"id": 1}]}, "changed"
PYTHON
