#!/usr/bin/env bash
# Delta 4.4.0 on Spark meets chdb (ClickHouse) 26.9.0: lists of structs are empty in tables with column mapping.
#
# Each ARRAY<STRUCT<...>> comes as [], without an error, whatever it holds: length() is 0, arrayJoin() has no rows.
# Lists of texts, maps and structs of the same table are read well, and so is the same list in a table without the
# mapping.
# Expected: the values, as of deltalake 1.6.6 and DuckDB.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    delta-spark==4.4.0 deltalake==1.6.6 chdb-core==26.9.0 pyarrow==26.0.1
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
    session.sql(f"CREATE TABLE {table} (items ARRAY<STRUCT<x: INT>>, tags ARRAY<STRING>) USING delta {mapping}")
    session.sql(f"INSERT INTO {table} VALUES (array(named_struct('x', 1), named_struct('x', 2)), array('a', 'b'))")
session.stop()
PYTHON
cat > "$folder/use.py" <<'PYTHON'
import pathlib

import chdb
from deltalake import DeltaTable, QueryBuilder

found = {}
for name in ("plain", "mapped"):
    table = QueryBuilder().register("t", DeltaTable(name)).execute("SELECT items FROM t").read_all()
    right = table["items"].to_pylist()
    assert right == [[{"x": 1}, {"x": 2}]], right
    query = f"SELECT items, tags FROM deltaLakeLocal('{pathlib.Path(name).resolve()}')"
    found[name] = chdb.query(query, "JSONCompactEachRow").data().strip()
    print(f"{name}: items {right} in deltalake; items and tags {found[name]} in ClickHouse")
assert found == {"plain": '[[{"x":1},{"x":2}], ["a","b"]]', "mapped": '[[], ["a","b"]]'}, found
PYTHON
cd "$folder" # below which ClickHouse reads files
venv/bin/python write.py 2>"$folder/log" || { cat "$folder/log"; exit 1; }
venv/bin/python use.py
