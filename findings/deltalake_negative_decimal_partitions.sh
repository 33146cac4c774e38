#!/usr/bin/env bash
# deltalake 1.6.6: a table partitioned by a decimal is lost with its first -5.25, which the log has as "-5.-25".
#
# The write raises an error, but it has committed by then. From then on nobody reads the table, or writes to it: not the
# rows of before either. Positive values and -5.00 are right.
# Expected: the partition value "-5.25", as Delta's protocol has it; or an error before the commit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder/table" <<'PYTHON'
import json
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

path = sys.argv[1]


def append(*values):
    prices = pa.array([Decimal(value) for value in values], pa.decimal128(10, 2))
    write_deltalake(path, pa.table({"id": range(len(values)), "price": prices}), partition_by=["price"], mode="append")


def error(call, *arguments):
    try:
        return call(*arguments)
    except Exception as caught:
        return str(caught)


append("5.25", "-5.00")
before = DeltaTable(path).to_pyarrow_table().num_rows
raised = error(append, "-5.25", "-0.01")
lines = [line for log in sorted(Path(path, "_delta_log").glob("*.json")) for line in log.read_text().splitlines()]
values = sorted(action["add"]["partitionValues"]["price"] for action in map(json.loads, lines) if "add" in action)
after = error(lambda: DeltaTable(path).to_pyarrow_table().num_rows)
print(f"{before} rows; then: {raised}; partition values {values}; then: {after}; an append of 1: {error(append, '1')}")
assert before == 2, "changed"
assert values == ["-5.-25", "-5.00", "0.-1", "5.25"], "changed"
assert "Failed to parse value" in str(raised), "changed"
assert "Failed to parse value" in str(after), "changed"
PYTHON
