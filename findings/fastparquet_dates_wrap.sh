#!/usr/bin/env bash
# fastparquet 2026.9.0: a date after 2262, such as 9999-12-31 for "no end", is read as one of the 19th century.
#
# A DATE counts days. fastparquet makes nanoseconds of them, and those of 9999-12-31 do not fit 64 bits: they wrap,
# without an error or a warning, and a filter on the column goes by what came of it. The same dates as timestamps in
# microseconds are read well, and pyarrow 26.0.1 makes days or seconds of the dates for pandas.
# Expected: another unit, as pandas has them, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 fastparquet==2026.9.0 pandas==3.1.1
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import datetime
import sys

import fastparquet
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

path = sys.argv[1]
days = [datetime.date(1, 1, 1), datetime.date(2024, 2, 29), datetime.date(9999, 12, 31)]
table = pa.table({"as_date": days}).append_column("as_time", pa.array(days).cast(pa.timestamp("us")))
pq.write_table(table, path)
frame = fastparquet.ParquetFile(path).to_pandas()
print(frame, frame.dtypes, sep="\n")
assert pq.read_table(path)["as_date"].to_pylist() == days
assert [value.date() for value in frame["as_time"]] == days
assert [value.year for value in frame["as_date"]] == [1754, 2024, 1816], "it reads the dates otherwise now"
late = fastparquet.ParquetFile(path).to_pandas(filters=[("as_date", ">", pd.Timestamp("2100-01-01"))], row_filter=True)
print("rows after 2100:", len(late))
assert len(late) == 0
PYTHON
