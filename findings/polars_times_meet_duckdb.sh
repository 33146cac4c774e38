#!/usr/bin/env bash
# Polars 2.1.0 meets DuckDB 2.0.1: a time of day in a file by Polars can be equal to a TIME, not before or after one.
#
# Polars writes times with nanoseconds, and DuckDB reads them as TIME_NS. DuckDB compares TIME_NS with TIME where the
# comparison is =, and refuses <, <=, >, >= and BETWEEN with a Binder Error that asks for a cast. Timestamps have no
# such border: TIMESTAMP_NS compares with TIMESTAMP in all ways.
# Expected: all comparisons, or none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    duckdb==2.0.1 polars==2.1.0
cat > "$folder/use.py" <<'PYTHON'
import datetime

import duckdb
import polars

moment = datetime.datetime(2024, 1, 1, 1, 2, 3)
moments = polars.Series([moment], dtype=polars.Datetime("ns"))
polars.DataFrame({"t": [moment.time()], "ts": moments}).write_parquet("t.parquet")
answers = []
for condition in (
    "t = TIME '01:02:03'",
    "t < TIME '02:00:00'",
    "t BETWEEN TIME '01:00:00' AND TIME '02:00:00'",
    "t < '02:00:00'",
    "ts < TIMESTAMP '2024-01-01 02:00:00'",
):
    try:
        answer = duckdb.sql(f"SELECT count(*) FROM 't.parquet' WHERE {condition}").fetchall()[0][0]
    except duckdb.BinderException as error:
        answer = str(error).splitlines()[0]
    answers.append(answer)
    print(f"{condition}: {answer}")
assert [answers[0], answers[3], answers[4]] == [1, 1, 1], answers
assert all("TIME_NS" in str(answer) for answer in answers[1:3]), answers
PYTHON
cd "$folder"
venv/bin/python use.py
