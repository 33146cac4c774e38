#!/usr/bin/env bash
# Spark 4.3.0 writes 1,000 rows of -0.0 and finds none of them where x = 0.0, x >= 0.0 or x IN (0.0, 5.0).
#
# To Spark the zeros are equal: asked of the frame before it is written, each condition has 1,000 rows, and so has x +
# 0.0 = 0.0 of the file, which is not pushed down, and x = 0.0 with filterPushdown off. Pushed down, the condition is
# held against the values of the column's dictionary, where 0.0 and -0.0 differ, and the row group is left out.
# Expected: the same rows, pushed down or not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyspark==4.3.0
cd "$folder"
venv/bin/python - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
session.sparkContext.setLogLevel("OFF")
for kind in ("DOUBLE", "FLOAT"):
    zero = f"CAST(0 AS {kind})"
    rows = session.sql(f"SELECT CAST('-0.0' AS {kind}) AS x FROM range(1000)")
    rows.write.mode("overwrite").parquet("zeros")
    for condition in (f"x = {zero}", f"x >= {zero}", f"x IN ({zero}, {zero} + 5)", f"x + {zero} = {zero}"):
        counts = rows.where(condition).count(), session.read.parquet("zeros").where(condition).count()
        print(f"{condition}: {counts[0]} rows of the frame, {counts[1]} of its file")
        assert counts == (1000, 1000 if "+ CAST(0 AS " + kind + ") =" in condition else 0), "Spark finds them now"
    session.conf.set("spark.sql.parquet.filterPushdown", "false")
    assert session.read.parquet("zeros").where(f"x = {zero}").count() == 1000
    session.conf.set("spark.sql.parquet.filterPushdown", "true")
session.stop()
PYTHON
