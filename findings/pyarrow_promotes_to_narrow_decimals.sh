#!/usr/bin/env bash
# pyarrow 26.0.1: permissive promotion of int32, int64 or uint64 and a decimal chooses a type its cast refuses.
#
# unify_schemas(promote_options="permissive") counts one digit too few for every integer but 8-bit ones: int32 and
# decimal128(9, 2) become decimal128(11, 2), where the cast of any int32, even of 1, asks for 12. concat_tables then
# fails for all values. A decimal beside a float column becomes float, and loses digits without a word.
# Expected: decimal128(12, 2), and double or an error for the float, as numbers keep their digits in promotions of
# integers (int32 and float become double).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
cat > "$folder/use.py" <<'PYTHON'
from decimal import Decimal

import pyarrow

prices = pyarrow.table({"x": pyarrow.array([Decimal("1.50")], pyarrow.decimal128(9, 2))})
seen = {}
for kind in ("int8", "int16", "int32", "int64", "uint32", "uint64"):
    whole = pyarrow.table({"x": pyarrow.array([1], kind)})
    chosen = pyarrow.unify_schemas([whole.schema, prices.schema], promote_options="permissive").field("x").type
    try:
        pyarrow.concat_tables([whole, prices], promote_options="permissive")
        seen[kind] = (chosen.precision, None)
    except pyarrow.ArrowInvalid as error:
        seen[kind] = (chosen.precision, int(str(error).rpartition(" ")[2]))
    print(f"{kind} and decimal128(9, 2) become {chosen}; digits that the cast asks for: {seen[kind][1]}")
assert seen == {
    "int8": (9, None),
    "int16": (9, None),
    "int32": (11, 12),
    "int64": (20, 21),
    "uint32": (11, 12),
    "uint64": (21, 22),
}, seen

floats = pyarrow.table({"x": pyarrow.array([0.5], "float32")})
exact = pyarrow.table({"x": pyarrow.array([Decimal("16777217.25")], pyarrow.decimal128(10, 2))})
whole = pyarrow.table({"x": pyarrow.array([16777217], "int32")})
of_decimals = pyarrow.concat_tables([floats, exact], promote_options="permissive").column("x")
of_integers = pyarrow.concat_tables([floats, whole], promote_options="permissive").column("x")
print(f"float and decimal: {of_decimals.type} {of_decimals.to_pylist()}")
print(f"float and int32: {of_integers.type} {of_integers.to_pylist()}")
assert (str(of_decimals.type), of_decimals.to_pylist()) == ("float", [0.5, 16777216.0])
assert (str(of_integers.type), of_integers.to_pylist()) == ("double", [0.5, 16777217.0])
PYTHON
cd "$folder"
venv/bin/python use.py
