#!/usr/bin/env bash
# pandas 3.1.1: to_csv("simplecache::file:///x.csv.gz") writes plain text under that name, and read_csv fails at gzip.
#
# pandas 3 takes chained urls of fsspec, and infers the compression from what stands before "::" alone: for zip://a.csv
# that is a name, for caches it is the word "simplecache", without any ending. So the file x.csv.gz is no gzip file, for
# gzip and for read_csv of its plain url, and one that is gzip is read as text. to_json and to_pickle do the same. The
# documentation says that the ending of the path decides. Dask 2026.8.0, with the same url, finds it.
# Expected: gzip, as for the same url without simplecache::.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pandas==3.1.1 fsspec==2026.9.0 'dask[dataframe]==2026.8.0'
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import gzip
import pathlib
import sys

import dask.dataframe
import pandas as pd

folder = pathlib.Path(sys.argv[1])
frame = pd.DataFrame({"a": [1, 2]})
written = {}
for name, write in {"csv": frame.to_csv, "json": frame.to_json, "pkl": frame.to_pickle}.items():
    for before in ("", "simplecache::file://"):
        path = folder / f"x.{name}.gz"
        write(f"{before}{path}")
        written[name, before] = path.read_bytes()[:2] == b"\x1f\x8b"
        print(f"{name}, {before or 'path alone'}: gzip {written[name, before]}, begins with {path.read_bytes()[:6]!r}")
for (name, before), is_gzip in written.items():
    assert is_gzip == (not before), f"{name} is otherwise now"
with gzip.open(folder / "good.csv.gz", "wt") as file:
    file.write("a\n1\n2\n")
url = f"simplecache::file://{folder}/good.csv.gz"
assert dask.dataframe.read_csv(url, blocksize=None).compute()["a"].tolist() == [1, 2]
assert pd.read_csv(url, compression="gzip")["a"].tolist() == [1, 2]
try:
    print("read_csv:", pd.read_csv(url)["a"].tolist())
except UnicodeDecodeError as error:
    print("read_csv:", error)
else:
    raise AssertionError("it is read now")
PYTHON
