#!/usr/bin/env bash
# pyarrow 26.0.1: columns= means other things to ParquetFile.read() than to read_table(), for the same file and names.
#
#   asked for          read_table()                 ParquetFile.read()
#   ["b", "zzz"]       an error                     b: the missing name is passed over
#   ["s.t"]            a column t, out of s         a column s with the one field t
#   ["s.t"], where a column is named "s.t"          that column, and the field t of s besides
#                      that column alone
# So code that goes from one to the other reads other tables, without an error.
# Expected: one rule, as both are of pyarrow.parquet and have the same argument.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pyarrow as pa
import pyarrow.parquet as pq

plain, dotted = f"{sys.argv[1]}/plain.parquet", f"{sys.argv[1]}/dotted.parquet"
table = pa.table({"a": [1], "b": [2], "s": [{"t": 3, "u": 4}]})
pq.write_table(table, plain)
pq.write_table(table.append_column("s.t", [[5]]), dotted)


def read(call, *arguments, **options) -> object:
    try:
        return call(*arguments, **options).to_pydict()
    except pa.ArrowInvalid as error:
        return str(error).partition(" in ")[0]


expected = [
    (plain, ["b", "zzz"], "No match for FieldRef.Name(zzz)", {"b": [2]}),
    (plain, ["s.t"], {"t": [3]}, {"s": [{"t": 3}]}),
    (dotted, ["s.t"], {"s.t": [5]}, {"s": [{"t": 3}], "s.t": [5]}),
]
for path, columns, *both in expected:
    seen = [read(pq.read_table, path, columns=columns), read(pq.ParquetFile(path).read, columns=columns)]
    print(columns, *seen, sep="   ")
    assert [str(value) for value in seen] == [str(value) for value in both], f"otherwise now, expected {both}"
PYTHON
