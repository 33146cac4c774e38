#!/usr/bin/env bash
# DuckLake in DuckDB 1.5.5: a flush of small inserts makes two HUGEINT keys one, in all versions of the table.
#
# Rows of small inserts wait in the catalog, where a HUGEINT is exact. ducklake_flush_inlined_data() writes them to a
# Parquet file, where DuckDB has a DOUBLE for HUGEINT: 2^53 and 2^53 + 1 become one value. A read of the version before
# the flush gives the rows of that file too, so what was distinct then is not any more. An insert of more than 10 rows
# is rounded at once.
# Expected: decimal(38, 0), as DuckDB hands the type to Arrow, or an error; a version always has the same rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    duckdb==1.5.5 duckdb-extension-ducklake==1.5.5
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.util
import pathlib
import sys

import duckdb

folder = sys.argv[1]
duck = duckdb.connect(config={"autoinstall_known_extensions": False})
package = pathlib.Path(importlib.util.find_spec("duckdb_extension_ducklake").origin).parent
duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
duck.execute(f"ATTACH 'ducklake:{folder}/a.ducklake' AS lake (DATA_PATH '{folder}/data')")
duck.execute("CREATE TABLE lake.t (key HUGEINT)")
duck.execute("INSERT INTO lake.t VALUES (9007199254740992), (9007199254740993)")
version = duck.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()[0][0]


def keys(at: str = "") -> list[int]:
    return [key for (key,) in duck.execute(f"SELECT key FROM lake.t {at} ORDER BY key").fetchall()]


before = keys()
print(f"before the flush: {before}")
duck.execute("CALL ducklake_flush_inlined_data('lake')")
after, travelled = keys(), keys(f"AT (VERSION => {version})")
print(f"after it: {after}; at version {version}, from before it: {travelled}")
assert before == [9007199254740992, 9007199254740993], before
assert after == travelled == [9007199254740992, 9007199254740992], (after, travelled)
PYTHON
