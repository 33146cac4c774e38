#!/usr/bin/env bash
# deltalake 1.6.6: of a table that it made with column mapping, to_pandas() and to_pyarrow_table() give nulls alone.
#
# write_deltalake(..., configuration={"delta.columnMapping.mode": "name"}) makes a table whose files have other names
# than its columns. deltalake's own queries (QueryBuilder), and Delta on Spark, read its values. DeltaTable.to_pandas(),
# to_pyarrow_table() and to_pyarrow_dataset() give as many rows as it has, with null in each column that is no
# partition, and no row for filters=[("id", "=", 2)]. Nothing is said about it. A table with deletion vectors these
# methods refuse, and name the feature.
# Expected: the values, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    deltalake==1.6.6 pyarrow==26.0.1 pandas==3.1.1
cat >"$folder/run.py" <<'PYTHON'
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "a"}]
for partitions in None, ["name"]:
    url = f"{sys.argv[1]}/table-{bool(partitions)}"
    mapping = {"delta.columnMapping.mode": "name"}
    write_deltalake(url, pa.Table.from_pylist(rows), partition_by=partitions, configuration=mapping)
    table = DeltaTable(url)
    query = QueryBuilder().register("t", table).execute("SELECT id, name FROM t ORDER BY id")
    assert pa.table(query.read_all()).to_pylist() == rows
    read = table.to_pyarrow_table()
    print(f"partitions {partitions}:", read.to_pylist())
    assert read.num_rows == 3
    assert {row["id"] for row in read.to_pylist()} == {None}
    assert sorted(filter(None, read["name"].to_pylist())) == (["a", "a", "b"] if partitions else [])
    assert table.to_pyarrow_dataset().to_table().to_pylist() == read.to_pylist()
    assert table.to_pandas()["id"].isna().all()
    assert table.to_pyarrow_table(filters=[("id", "=", 2)]).num_rows == 0
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
