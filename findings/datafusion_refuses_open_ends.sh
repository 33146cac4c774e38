#!/usr/bin/env bash
# DataFusion 55.0.0: ts < TIMESTAMP '9999-12-31' is an error on a column of microseconds that holds that very moment.
#
# A timestamp in SQL has nanoseconds, whatever the column has, and nanoseconds end in 2262: so does a string that is
# compared with the column. 9999-12-31 is the usual "no end" of histories and validity ranges. The column itself reads
# well; only arrow_cast('9999-12-31', 'Timestamp(Microsecond, None)') can be compared with it.
# Expected: the rows, as of DuckDB 2.0.1, Polars and pyarrow.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    datafusion==55.0.0 pyarrow==26.0.1 duckdb==2.0.1
cat > "$folder/use.py" <<'PYTHON'
import datetime

import datafusion
import duckdb
import pyarrow
import pyarrow.parquet

ends = [datetime.datetime(2024, 1, 1), datetime.datetime(9999, 12, 31)]
pyarrow.parquet.write_table(pyarrow.table({"ts": pyarrow.array(ends, pyarrow.timestamp("us"))}), "ends.parquet")
context = datafusion.SessionContext()
context.register_parquet("ends", "ends.parquet")
answers = []
for condition in (
    "ts < TIMESTAMP '9999-12-31'",
    "ts < '9999-12-31'",
    "ts < TIMESTAMP '2263-01-01'",
    "ts < arrow_cast('9999-12-31', 'Timestamp(Microsecond, None)')",
):
    try:
        answer = context.sql(f"SELECT count(*) AS n FROM ends WHERE {condition}").to_pydict()["n"][0]
    except Exception as error:
        answer = "Overflow" if "Overflow converting" in str(error) else str(error)
    answers.append(answer)
    print(f"{condition}: {answer}")
duck = duckdb.sql("SELECT count(*) FROM 'ends.parquet' WHERE ts < TIMESTAMP '9999-12-31'").fetchall()[0][0]
print(f"DuckDB: {duck}")
assert answers == ["Overflow", "Overflow", "Overflow", 1], answers
assert duck == 1
PYTHON
cd "$folder"
venv/bin/python use.py
