#!/usr/bin/env bash
# deltalake 1.6.6: DELETE WHERE x < 5.0 deletes NaN, too, if all other rows of its file hold one number, such as 0.5.
#
# Statistics leave NaN out, so that those of the file are 0.5 to 0.5, and the query takes the column for a constant, as
# DataFusion does (datafusion_nan_becomes_its_neighbour.sh). Beside two numbers, NaN stays: to DELETE it is greater than
# all numbers.
# Expected: NaN stays in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

nan = float("nan")
for number, (values, expected) in enumerate((([0.5, 0.75, nan], [nan]), ([0.5, 0.5, nan], []))):
    path = f"{sys.argv[1]}/{number}"
    write_deltalake(path, pa.table({"x": values}))
    DeltaTable(path).delete("x < 5.0")
    left = DeltaTable(path).to_pyarrow_table()["x"].to_pylist()
    print(f"{values} after DELETE WHERE x < 5.0: {left}")
    assert repr(left) == repr(expected), "changed"
PYTHON
