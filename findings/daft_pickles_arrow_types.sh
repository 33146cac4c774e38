#!/usr/bin/env bash
# daft 0.6.14: Arrow columns of types that it lacks become Python objects, and pickles in the Parquet files it writes.
#
# Dictionaries of texts, string views, float16, decimal32 and time32 are some of these types. from_arrow() gives the
# type "Python" without a warning; write_parquet() stores each value's pickle as a BYTE_ARRAY, which no other reader
# understands. So text that went through a categorical column of pandas or pyarrow is lost to the readers of the table.
# Expected: the nearest type (a text), or an error that names the column.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DO_NOT_TRACK=true
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 daft==0.6.14
"$folder/venv/bin/python" - "$folder/out" <<'PYTHON'
import glob
import sys

import daft
import pyarrow as pa
import pyarrow.parquet as pq

texts = pa.array(["a", None, "b"])
table = pa.table({"plain": texts, "dictionary": texts.dictionary_encode(), "view": texts.cast(pa.string_view())})
daft.from_arrow(table).write_parquet(sys.argv[1])
(path,) = glob.glob(sys.argv[1] + "/*.parquet")
print(pq.ParquetFile(path).schema)
columns = pq.read_table(path).to_pydict()
print(columns)
assert columns["plain"] == ["a", None, "b"]
for name in ("dictionary", "view"):
    first = columns[name][0]
    assert isinstance(first, bytes) and first.endswith(b"a\x94."), f"{name} is stored otherwise now"
PYTHON
