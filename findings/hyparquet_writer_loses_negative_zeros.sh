#!/usr/bin/env bash
# hyparquet-writer 0.17.0: -0.0 is stored as 0.0 where the writer chooses a dictionary, which it does unasked.
#
# Few different doubles in a column are written as a dictionary. The writer finds them with a Map of JavaScript, for
# which the two zeros are one key, so that the first of them stands for both. With `encoding: 'PLAIN'` the signs are
# kept.
# Expected: the doubles that were given, whatever the encoding.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
cd "$folder"
npm install --silent --no-audit --no-fund hyparquet-writer@0.17.0
cat > write.mjs <<'JAVASCRIPT'
import { parquetWriteFile } from 'hyparquet-writer'

const data = Array.from({ length: 100 }, (_, at) => (at % 2 ? -0 : 0))
const column = { name: 'x', type: 'DOUBLE', data }
parquetWriteFile({ filename: 'default.parquet', columnData: [column] })
parquetWriteFile({ filename: 'plain.parquet', columnData: [{ ...column, encoding: 'PLAIN' }] })
JAVASCRIPT
node write.mjs
venv/bin/python - <<'PYTHON'
import pyarrow.parquet as pq

signs = {}
for name in ("default", "plain"):
    encodings = pq.read_metadata(f"{name}.parquet").row_group(0).column(0).encodings
    signs[name] = [str(value) for value in pq.read_table(f"{name}.parquet")["x"].to_pylist()[:4]]
    print(name, encodings, signs[name])
assert signs["plain"] == ["0.0", "-0.0", "0.0", "-0.0"]
assert signs["default"] == ["0.0", "0.0", "0.0", "0.0"], "the signs are kept now"
PYTHON
