#!/usr/bin/env bash
# H2O 3.46.0.12: of Parquet, a uint32 of 4294967295 is -1, and a timestamp is a time only if it has milliseconds.
#
# import_file() of a file by pyarrow: unsigned integers above 2147483647 become negative. A timestamp of milliseconds is
# a column of type "time"; one of microseconds, which Polars and DuckDB write, or of nanoseconds is a column of type
# "int", whose numbers have that unit: year() takes it for milliseconds, and is 56302 in 2024. Nothing is said about it.
# Expected: 4294967295, which H2O holds in its columns, and times; or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir h2o==3.46.0.12 pyarrow==26.0.1
cat >"$folder/run.py" <<'PYTHON'
import datetime
import os
import socket
import sys

import h2o
import pyarrow as pa
import pyarrow.parquet as pq

moment = datetime.datetime(2024, 5, 1, 12)
times = {unit: pa.array([moment], pa.timestamp(unit)) for unit in ("ms", "us", "ns")}
path = os.path.join(sys.argv[1], "rows.parquet")
pq.write_table(pa.table({"u": pa.array([4294967295], pa.uint32()), "big": [4294967295], **times}), path)
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
h2o.init(port=port, nthreads=1, max_mem_size="1G", bind_to_localhost=True, verbose=False, ice_root=sys.argv[1])
try:
    h2o.no_progress()
    frame = h2o.import_file(path)
    rows = frame.as_data_frame(use_pandas=False)
    print(frame.types, rows)
    assert rows[1] == ["-1", "4294967295", "1714564800000", "1714564800000000", "1714564800000000000"], rows
    years = {unit: frame[unit].year().as_data_frame(use_pandas=False)[1][0] for unit in ("ms", "us")}
    print("years:", years)
    assert years == {"ms": "2024", "us": "56302"}, years
    assert [frame.types[unit] for unit in times] == ["time", "int", "int"], frame.types
finally:
    h2o.cluster().shutdown()
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
