#!/usr/bin/env bash
# deltalake 1.6.6: DELETE WHERE x BETWEEN -1 AND 1 deletes a NaN beside 0.5, although its SELECT says it does not match.
#
# Statistics of a file leave NaN out. Where they say that each number matches, the file is removed as a whole, with its
# NaN. Where they say that none matches, the file stays: DELETE WHERE x <> 1.0, for which NaN counts as another number,
# leaves the NaN beside 1.0 there, and so does DELETE WHERE x > 5 (for its SELECT, NaN is greater than all numbers).
# Expected: the rows are deleted that SELECT with the same condition gives for the same rows without statistics.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

nan = float("nan")
PLAIN = {"delta.dataSkippingNumIndexedCols": "0"}


def table(name, values, configuration):
    path = f"{sys.argv[1]}/{name}"
    write_deltalake(path, pa.table({"x": values}), configuration=configuration)
    return path


def rows(path, where="true"):
    query = QueryBuilder().register("t", DeltaTable(path)).execute(f"SELECT x FROM t WHERE {where} ORDER BY x")
    return pa.table(query.read_all())["x"].to_pylist()


for number, (where, values, plain, kept) in enumerate(
    (
        ("x BETWEEN -1 AND 1", [0.5, nan], [nan], []),
        ("x <> 1.0", [1.0, nan], [1.0], [1.0, nan]),
        ("x > 5", [1.0, nan], [1.0], [1.0, nan]),
    )
):
    left = []
    for name, configuration in (("plain", PLAIN), ("usual", {})):
        path = table(f"{name}{number}", values, configuration)
        DeltaTable(path).delete(where)
        left.append(rows(path))
    print(f"{values} after DELETE WHERE {where}: {left[0]} without statistics, {left[1]} with them")
    assert repr(left) == repr([plain, kept]), "changed"
PYTHON
