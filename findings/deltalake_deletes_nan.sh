#!/usr/bin/env bash
# deltalake 1.6.6: DELETE WHERE x BETWEEN -1 AND 1 deletes a NaN, too, where the other numbers of its file match.
#
# Statistics leave NaN out. Where those of a file say that each of its numbers matches, DELETE removes the file as a
# whole, with its NaN. A table that keeps no statistics (delta.dataSkippingNumIndexedCols=0) keeps the NaN, and a
# read with the same filter does not give it.
# Expected: the NaN stays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyarrow.dataset import field

values = [0.5, 0.75, float("nan")]
left = []
for columns in ("0", "32"):
    path = f"{sys.argv[1]}/{columns}"
    write_deltalake(path, pa.table({"x": values}), configuration={"delta.dataSkippingNumIndexedCols": columns})
    matching = DeltaTable(path).to_pyarrow_table(filters=(field("x") >= -1) & (field("x") <= 1))["x"].to_pylist()
    DeltaTable(path).delete("x BETWEEN -1 AND 1")
    left.append(DeltaTable(path).to_pyarrow_table()["x"].to_pylist())
    print(f"statistics of {columns} columns: of {values}, {matching} match; after the DELETE there is {left[-1]}")
    assert matching == [0.5, 0.75], "changed"
assert repr(left) == "[[nan], []]", "changed"
PYTHON
