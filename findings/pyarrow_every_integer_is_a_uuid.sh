#!/usr/bin/env bash
# pyarrow 26.0.1: every integer and date, nulls as well, is in a set of UUIDs.
#
# is_in over a column and a value set of types that cannot be compared raises ArrowTypeError, "Array type doesn't match
# type of values set": a column of texts and a set of UUIDs, or a column of integers and a set of 16 bytes each. Only
# for integers, floats and dates beside the extension type arrow.uuid it answers, with true for each row. So
# a filter that names the wrong column gives all rows of the file, as of a dataset.
# Expected: the same error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder/numbers.parquet" <<'PYTHON'
import sys
import uuid

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

one = uuid.UUID("12345678-1234-5678-1234-567812345678").bytes
uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([one], pa.binary(16)))


def answer(column: pa.Array, values: pa.Array) -> object:
    try:
        return pc.is_in(column, value_set=values).to_pylist()
    except pa.ArrowException as error:
        return type(error).__name__


columns = {
    "int32": pa.array([None, 0, 1], pa.int32()),
    "int64": pa.array([None, 0, 1], pa.int64()),
    "float64": pa.array([None, 0.5, 1.0]),
    "date32": pa.array([None, 0, 1], pa.int32()).cast(pa.date32()),
    "string": pa.array([None, "a", "b"]),
}
answers = {name: (answer(column, uuids), answer(column, uuids.storage)) for name, column in columns.items()}
for name, (of_uuids, of_bytes) in answers.items():
    print(f"{name}: in UUIDs {of_uuids}, in 16 bytes {of_bytes}")
pq.write_table(pa.table({"x": columns["int64"]}), sys.argv[1])
rows = ds.dataset(sys.argv[1]).to_table(filter=pc.field("x").isin(uuids))["x"].to_pylist()
print("rows of a dataset:", rows)
assert answers["int32"] == answers["int64"] == ([True, True, True], "ArrowTypeError")
assert answers["date32"][0] == [True, True, True]
assert answers["string"] == ("ArrowTypeError", "ArrowTypeError")
assert rows == [None, 0, 1]
PYTHON
