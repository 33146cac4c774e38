#!/usr/bin/env bash
# deltalake 1.6.6 meets chdb (ClickHouse) 26.9.0: decimals in a Delta table's partitions are wrong past 18 digits.
#
# Partition column DECIMAL(19, 2), values 1.23 and 4.56: ClickHouse shows 22689495210662748487.68 and a like number, the
# value times 2**64, which does not even fit into 19 digits. A sum is of these, and WHERE d = 1.23 has no row. With
# DECIMAL(18, 2) all is well; so is a DECIMAL(19, 2) that the table is not partitioned by.
# Expected: the log's value, as of deltalake, DuckDB 1.5.5 and Polars 2.1.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir deltalake==1.6.6 chdb-core==26.9.0 \
    duckdb==1.5.5 duckdb-extension-delta==1.5.5 polars==2.1.0 pyarrow==26.0.1
cat > "$folder/use.py" <<'PYTHON'
import importlib.util
import pathlib
from decimal import Decimal

import chdb
import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

duck = duckdb.connect(config={"autoinstall_known_extensions": False})
package = pathlib.Path(importlib.util.find_spec("duckdb_extension_delta").origin).parent
duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
written = [Decimal("1.23"), Decimal("4.56")]
found = {}
for digits, partitions in ((18, ["d"]), (19, ["d"]), (38, ["d"]), (19, [])):
    table = f"{pathlib.Path.cwd()}/{digits}{'d' * len(partitions)}"
    values = pa.array(written, pa.decimal128(digits, 2))
    write_deltalake(table, pa.table({"id": [1, 2], "d": values}), partition_by=partitions)
    rows = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT d FROM t ORDER BY id").read_all()
    assert rows["d"].to_pylist() == written, rows
    assert duck.execute(f"SELECT d FROM delta_scan('{table}') ORDER BY id").fetchall() == [(d,) for d in written]
    assert polars.scan_delta(table).sort("id").collect()["d"].to_list() == written
    select, where = f"FROM deltaLakeLocal('{table}') ORDER BY id", f"FROM deltaLakeLocal('{table}') WHERE d = 1.23"
    shown = [Decimal(line) for line in str(chdb.query(f"SELECT d {select}", "TSV")).split()]
    matching = str(chdb.query(f"SELECT id {where}", "TSV")).split()
    print(f"DECIMAL({digits}, 2), partitions {partitions}: ClickHouse {shown}, where d = 1.23: {matching}")
    found[digits, len(partitions)] = (shown, matching)
assert found[18, 1] == found[19, 0] == (written, ["1"]), found
assert found[19, 1] == found[38, 1] == ([value * 2**64 for value in written], []), found
PYTHON
cd "$folder"
venv/bin/python use.py
