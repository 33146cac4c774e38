#!/usr/bin/env bash
# DuckLake in DuckDB 1.5.5, catalog in SQLite: a text in a struct loses apostrophes and backslashes in small inserts.
#
# An insert of up to 10 rows goes into the catalog, not into a Parquet file, unless DATA_INLINING_ROW_LIMIT says
# otherwise. SQLite has no structs: the row is a text there, and what is read back from it is other text: it's is its,
# back\slash is backslash. ducklake_flush_inlined_data() then makes a file of that. The same row beside 10 others, or in
# a catalog in a DuckDB file, stays as it is; so does a text outside of a struct.
# Expected: the same rows, however many are inserted at once.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    duckdb==1.5.5 duckdb-extension-ducklake==1.5.5 duckdb-extension-sqlite-scanner==1.5.5
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.util
import pathlib
import sys

import duckdb

folder = sys.argv[1]
duck = duckdb.connect(config={"autoinstall_known_extensions": False})
for name in ("ducklake", "sqlite_scanner"):
    package = pathlib.Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
    duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")

found = {}
for catalog, url in (("SQLite", f"sqlite:{folder}/a.sqlite"), ("DuckDB", f"{folder}/a.ducklake")):
    duck.execute(f"ATTACH 'ducklake:{url}' AS lake (DATA_PATH '{folder}/{catalog}')")
    for rows in (1, 11):
        duck.execute("CREATE OR REPLACE TABLE lake.t (plain VARCHAR, s STRUCT(a VARCHAR, b VARCHAR))")
        duck.execute(
            "INSERT INTO lake.t SELECT text, {'a': text, 'b': 'back\\slash'} FROM (VALUES ('it''s')) v(text), range(?)",
            [rows],
        )
        found[catalog, rows] = duck.execute("SELECT plain, s.a, s.b FROM lake.t LIMIT 1").fetchall()[0]
        matches = duck.execute("SELECT count(*) FROM lake.t WHERE s.a = plain").fetchall()[0][0]
        print(f"{catalog}, {rows} at once: {found[catalog, rows]}; {matches} rows where s.a = plain")
    duck.execute("CREATE OR REPLACE TABLE lake.t (s STRUCT(a VARCHAR))")
    duck.execute("INSERT INTO lake.t VALUES ({'a': 'it''s'})")
    duck.execute("CALL ducklake_flush_inlined_data('lake')")
    found[catalog, "flushed"] = duck.execute("SELECT s.a FROM lake.t").fetchall()[0][0]
    print(f"{catalog}, flushed to a file: {found[catalog, 'flushed']}")
    duck.execute("DETACH lake")
whole, cut = ("it's", "it's", "back\\slash"), ("it's", "its", "backslash")
assert found == {
    ("SQLite", 1): cut,
    ("SQLite", 11): whole,
    ("SQLite", "flushed"): "its",
    ("DuckDB", 1): whole,
    ("DuckDB", 11): whole,
    ("DuckDB", "flushed"): "it's",
}, found
PYTHON
