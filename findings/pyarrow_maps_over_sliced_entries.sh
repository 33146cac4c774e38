#!/usr/bin/env bash
# pyarrow 26.0.1: to_pylist() of a map array whose entries are a slice shows the entries before the slice.
#
# The array is valid, and equals() one whose entries are not a slice. pc.map_lookup() finds the right entries, and a
# list array over the same slice shows them. to_pylist() takes keys and values of the struct without its offset, so
# each map has the entries of its predecessor.
# Expected: [[('a', 1)], [('b', 2), ('c', 3)]] from both arrays, as they are equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
import pyarrow.compute as pc

offsets = pa.array([0, 1, 3], pa.int32())
fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())]
entries = pa.StructArray.from_arrays([pa.array(["x", "a", "b", "c"]), pa.array([0, 1, 2, 3])], fields=fields)[1:]
sliced = pa.Array.from_buffers(pa.map_(pa.string(), pa.int64()), 2, [None, offsets.buffers()[1]], children=[entries])
whole = pa.MapArray.from_arrays(offsets, pa.array(["a", "b", "c"]), pa.array([1, 2, 3]))
sliced.validate(full=True)
print("pyarrow", pa.__version__, "equal:", sliced.equals(whole))
print("sliced", sliced.to_pylist(), pc.map_lookup(sliced, "a", "first").to_pylist())
print("whole ", whole.to_pylist(), pc.map_lookup(whole, "a", "first").to_pylist())
assert sliced.equals(whole)
assert sliced.to_pylist() == [[("x", 0)], [("a", 1), ("b", 2)]], "it shows the right entries now"
PYTHON
