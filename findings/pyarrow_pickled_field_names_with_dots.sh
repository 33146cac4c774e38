#!/usr/bin/env bash
# pyarrow 26.0.1: a pickled expression that names a struct's field with a dot in its name has another field.
#
# pc.struct_field(column, ["a.b", "c"]) is the field "c" of the field "a.b". Its options are written as the text
# ".a.b.c", without a mark for the dot in the name, and read as "c" of "b" of "a". So a filter that works in one process
# fails in another (dask, multiprocessing); where the table has fields of both spellings, it reads the wrong one.
# pc.field("a.b", "c") survives.
# Expected: an expression equals its copy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import pickle

import pyarrow as pa
import pyarrow.compute as pc

rows = [{"a.b": {"c": number}, "a": {"b": {"c": -number}}} for number in range(3)]
table = pa.table({"s": rows})
given = pc.struct_field(pc.field("s"), ["a.b", "c"]) > 1
copy = pickle.loads(pickle.dumps(given))
print("pyarrow", pa.__version__)
print("given", given, table.filter(given).num_rows)
print("copy ", copy, table.filter(copy).num_rows)
direct = pc.field("s", "a.b", "c") > 1
assert pickle.loads(pickle.dumps(direct)).equals(direct)
assert table.filter(given).num_rows == 1
assert not copy.equals(given), "the copy is the same expression now"
assert table.filter(copy).num_rows == 0
PYTHON
