#!/usr/bin/env bash
# DuckLake in DuckDB 1.5.5: WHERE x = 6.02e23 finds no row of a FLOAT column, though SELECT x = 6.02e23 shows one.
#
# The lake has three Parquet files of one row each, as three inserts make them. The condition leaves out the file that
# has the number; the file, read by itself, gives the row. So it is for floats whose text has an exponent, from 1e16
# on and small ones such as 1e-10; for some of them >= or <= loses the row as well. Plain ones, such as 0.1 and
# 16777216, are found, and so is each of these numbers in a column of DOUBLE.
# Expected: the row.
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
duck.execute(f"ATTACH 'ducklake:{folder}/a.ducklake' AS lake (DATA_PATH '{folder}/data', DATA_INLINING_ROW_LIMIT 0)")
lost = {"6.02e23", "3.4e38", "1e16", "1e-10"}
for number, text in enumerate([*sorted(lost), "0.1", "19.99", "16777216"]):
    for kind in ("FLOAT", "DOUBLE"):
        table, value = f"lake.{kind}{number}", f"{text}::{kind}"
        duck.execute(f"CREATE TABLE {table} (x {kind})")
        for other in (value, "5", "1.5"):
            duck.execute(f"INSERT INTO {table} VALUES ({other})")
        shown = [equal for (equal,) in duck.execute(f"SELECT x = {value} FROM {table}").fetchall()]
        files = f"'{folder}/data/main/{kind}{number}/*.parquet'"
        queries = [f"SELECT count(*) FROM {source} WHERE x = {value}" for source in (files, table)]
        counts = [duck.execute(query).fetchall()[0][0] for query in queries]
        print(f"{kind} {text}: SELECT shows {sorted(shown)}; rows of the files and of the lake that match: {counts}")
        assert sorted(shown) == [False, False, True]
        assert counts == [1, 0 if kind == "FLOAT" and text in lost else 1], "changed"
PYTHON
