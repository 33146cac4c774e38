#!/usr/bin/env bash
# awkward 2.14.0: a time of day read from Parquet is a moment of 1970-01-01, and is written back as a timestamp.
#
# NumPy has no type for times of day, and awkward takes datetime64 for them without a word. to_parquet then writes a
# column of timestamps.
# Expected: an error, as for decimals, which awkward lacks too; or the column as it was.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    awkward==2.14.0 pyarrow==26.0.1 fsspec==2026.9.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import datetime as dt
import sys
from decimal import Decimal

import awkward as ak
import pyarrow as pa
import pyarrow.parquet as pq

before, after = f"{sys.argv[1]}/before.parquet", f"{sys.argv[1]}/after.parquet"
pq.write_table(pa.table({"opens": pa.array([dt.time(8, 30)], pa.time64("us"))}), before)
read = ak.from_parquet(before)
ak.to_parquet(read, after)
column = pq.read_table(after)["opens"]
print(f"read: {read.type}; written: {column.type}, {column[0]}")
assert pa.types.is_timestamp(column.type), "changed"
assert column[0].as_py() == dt.datetime(1970, 1, 1, 8, 30), "changed"

pq.write_table(pa.table({"price": [Decimal("1.5")]}), before)
try:
    ak.from_parquet(before)
except Exception as error:
    print(f"a decimal: {type(error).__name__}")
else:
    raise AssertionError("changed")
PYTHON
