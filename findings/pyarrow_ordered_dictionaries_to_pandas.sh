#!/usr/bin/env bash
# pyarrow 26.0.1: a chunked array of ordered dictionaries becomes one ordered pandas Categorical whose order is wrong.
#
# Each chunk has its own dictionary, in the order low < mid < high as far as it has them. to_pandas() appends what later
# chunks add, keeps ordered=True, and says high < mid: comparisons and sorting in pandas are then wrong, without an
# error.
# Expected: an error, or categories without an order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 pandas==2.3.3
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa

first = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["low", "high"]), ordered=True)
second = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["mid"]), ordered=True)
series = pa.chunked_array([first, second]).to_pandas()
print("categories:", list(series.cat.categories), "ordered:", series.cat.ordered)
print("above high:", list(series[series > "high"]))
assert list(series.cat.categories) == ["low", "high", "mid"], "the order of the categories has changed"
assert series.cat.ordered, "the categories are no longer ordered"
assert list(series[series > "high"]) == ["mid"]
PYTHON
