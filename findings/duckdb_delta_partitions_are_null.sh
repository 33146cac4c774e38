#!/usr/bin/env bash
# Delta 4.4.0 on Spark meets DuckDB 1.5.5: the partition column of a table with column mapping is NULL in every row.
#
# Column mapping gives columns other names in files and in the log, so that they can be renamed later; here none is.
# DuckDB shows the other columns well, but NULL for the partition's, and WHERE p = 'x' has no row. A table without the
# mapping is read well.
# Expected: the values, as of deltalake 1.6.6, which reads with the same kernel.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    delta-spark==4.4.0 deltalake==1.6.6 duckdb==1.5.5 duckdb-extension-delta==1.5.5 pyarrow==26.0.1
cat > "$folder/write.py" <<'PYTHON'
import pathlib

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for key, value in {
    "spark.ui.enabled": "false",
    "spark.jars.ivy": str(pathlib.Path("ivy").resolve()),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}.items():
    builder = builder.config(key, value)
session = configure_spark_with_delta_pip(builder).getOrCreate()
session.sparkContext.setLogLevel("OFF")
for name, mapping in (("plain", ""), ("mapped", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")):
    table = f"delta.`{pathlib.Path(name).resolve()}`"
    session.sql(f"CREATE TABLE {table} (id BIGINT, p STRING) USING delta PARTITIONED BY (p) {mapping}")
    session.sql(f"INSERT INTO {table} VALUES (1, 'x'), (2, 'y')")
session.stop()
PYTHON
cat > "$folder/use.py" <<'PYTHON'
import importlib.util
import pathlib

import duckdb
from deltalake import DeltaTable, QueryBuilder

duck = duckdb.connect(config={"autoinstall_known_extensions": False})
package = pathlib.Path(importlib.util.find_spec("duckdb_extension_delta").origin).parent
duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
found = {}
for name in ("plain", "mapped"):
    rows = QueryBuilder().register("t", DeltaTable(name)).execute("SELECT id, p FROM t ORDER BY id").read_all()
    shown = duck.execute(f"SELECT id, p FROM delta_scan('{name}') ORDER BY id").fetchall()
    matching = duck.execute(f"SELECT id FROM delta_scan('{name}') WHERE p = 'x'").fetchall()
    print(f"{name}: deltalake {rows['p'].to_pylist()}, DuckDB {shown}, where p = 'x' {matching}")
    assert rows["p"].to_pylist() == ["x", "y"], rows
    found[name] = (shown, matching)
assert found == {"plain": ([(1, "x"), (2, "y")], [(1,)]), "mapped": ([(1, None), (2, None)], [])}, found
PYTHON
cd "$folder"
venv/bin/python write.py 2>"$folder/log" || { cat "$folder/log"; exit 1; }
venv/bin/python use.py
