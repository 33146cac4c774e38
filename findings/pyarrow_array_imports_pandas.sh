#!/usr/bin/env bash
# pyarrow 26.0.1: the first pa.array() of a Python list imports pandas 2.3.3, where it is installed; so does
# pa.scalar() of a text.
#
# It asks whether the list is an array of pandas. The call takes as long as the import: 295 modules, several times the
# import of pyarrow itself. Without pandas it takes microseconds.
# Expected: pandas is looked up among the modules that are already there; an object of pandas needs them to exist.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 pandas==2.3.3
for call in 'pa.array([1])' 'pa.scalar("a")'; do
    "$folder/venv/bin/python" - "$call" <<'PYTHON'
import sys
import time

import pyarrow as pa

before = {name for name in sys.modules if name.partition(".")[0] == "pandas"}
began = time.perf_counter()
eval(sys.argv[1])
took = time.perf_counter() - began
loaded = [name for name in sys.modules if name.partition(".")[0] == "pandas" and name not in before]
print(
    f"pyarrow {pa.__version__}: {sys.argv[1]} loads {len(loaded)} modules of pandas, in {took * 1000:.0f} ms; "
    f"before: {len(before)}"
)
assert loaded or before, "pandas stays where it is now"
PYTHON
done
