#!/usr/bin/env bash
# Delta 4.4.0 on Spark 4.1: a timestamp of 9999-12-31 is in the year 1816 in deltalake 1.6.6, in 2262 in Polars 2.1.0.
#
# Spark writes timestamps as INT96 unless spark.sql.parquet.outputTimestampType says otherwise. Its readers make
# nanoseconds of it, which end in 2262: deltalake lets them wrap, Polars takes the end for whatever is beyond. So the
# rows that are valid without end are over, and what was valid until 1500 goes on until 2084. There is no error or
# warning; a filter goes by the wrong times. The log has the right bounds of the file, in microseconds.
# Expected: the microseconds that the table's type has, as of DuckDB 1.5.5, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyspark==4.1.4 delta-spark==4.4.0 \
    deltalake==1.6.6 polars==2.1.0 duckdb==1.5.5 duckdb-extension-delta==1.5.5 pyarrow==26.0.1
cat > "$folder/write.py" <<'PYTHON'
import pathlib

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for key, value in {
    "spark.ui.enabled": "false",
    "spark.jars.ivy": str(pathlib.Path("ivy").resolve()),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}.items():
    builder = builder.config(key, value)
session = configure_spark_with_delta_pip(builder).getOrCreate()
session.sparkContext.setLogLevel("OFF")
print("outputTimestampType:", session.conf.get("spark.sql.parquet.outputTimestampType"))
rows = "SELECT * FROM VALUES (1, TIMESTAMP'9999-12-31 23:59:59'), (2, TIMESTAMP'1500-01-01 00:00:00') AS t(id, until)"
session.sql(rows).coalesce(1).write.format("delta").save("t")
print("Spark:", session.read.format("delta").load("t").where("until > TIMESTAMP'2030-01-01'").collect())
session.stop()
PYTHON
cat > "$folder/use.py" <<'PYTHON'
import datetime
import importlib.util
import pathlib

import duckdb
import polars
from deltalake import DeltaTable, QueryBuilder

query = QueryBuilder().register("t", DeltaTable("t"))
duck = duckdb.connect(config={"autoinstall_known_extensions": False})
package = pathlib.Path(importlib.util.find_spec("duckdb_extension_delta").origin).parent
duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
duck.execute("SET TimeZone = 'UTC'")
of_polars = polars.scan_delta("t").sort("id").collect()
years = {
    "deltalake": [
        time.year for time in query.execute("SELECT until FROM t ORDER BY id").read_all()["until"].to_pylist()
    ],
    "Polars": of_polars["until"].dt.year().to_list(),
    "DuckDB": [year for (year,) in duck.execute("SELECT year(until) FROM delta_scan('t') ORDER BY id").fetchall()],
}
day = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
valid = {
    "deltalake": query.execute("SELECT id FROM t WHERE until > TIMESTAMP '2030-01-01 00:00:00'")
    .read_all()["id"]
    .to_pylist(),
    "Polars": polars.scan_delta("t").filter(polars.col("until") > day).sort("id").collect()["id"].to_list(),
    "DuckDB": [id_ for (id_,) in duck.execute("SELECT id FROM delta_scan('t') WHERE until > '2030-01-01'").fetchall()],
}
for reader in years:
    print(f"{reader}: until {years[reader]}; valid in 2030: {valid[reader]}")
assert years == {"deltalake": [1816, 2084], "Polars": [2262, 2262], "DuckDB": [9999, 1500]}, years
assert valid["deltalake"] == [2] and valid["DuckDB"] == [1], valid
PYTHON
cd "$folder"
venv/bin/python write.py 2>"$folder/log" || { cat "$folder/log"; exit 1; }
venv/bin/python use.py
