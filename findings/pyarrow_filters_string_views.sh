#!/usr/bin/env bash
# DataFusion 55.0.0 meets pyarrow 26.0.1: pyarrow reads a file's copy by DataFusion, but cannot filter or sort texts.
#
# DataFusion writes the texts as it reads them, with "string view" in the Arrow schema of the footer. pyarrow takes the
# type from there, and has few kernels for it: filters= with ==, in, < or >, sort_by(), take(), join() and min_max() all
# fail with "no kernel", where those of the file that was copied work. The Parquet types of both are the same.
# Expected: a filter works on any text column.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 datafusion==55.0.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import datafusion
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

given, copy = f"{sys.argv[1]}/given.parquet", f"{sys.argv[1]}/copy.parquet"
pq.write_table(pa.table({"x": ["a", "b"]}), given)
datafusion.SessionContext().read_parquet(given).write_parquet(copy)
calls = {
    "==": lambda path: pq.read_table(path, filters=[("x", "==", "a")]),
    "in": lambda path: pq.read_table(path, filters=[("x", "in", ["a"])]),
    "sort_by": lambda path: pq.read_table(path).sort_by("x"),
    "take": lambda path: pq.read_table(path).take([0]),
    "min_max": lambda path: pc.min_max(pq.read_table(path)["x"]),
}
types = [pq.ParquetFile(path).schema.column(0).logical_type.type for path in (given, copy)]
assert types[0] == types[1]
failed = []
for name, call in calls.items():
    call(given)
    try:
        call(copy)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        print(f"{name}: {error}")
        failed.append(name)
assert pq.read_table(copy).to_pydict() == pq.read_table(given).to_pydict()
assert failed == list(calls), f"these work now: {set(calls) - set(failed)}"
PYTHON
