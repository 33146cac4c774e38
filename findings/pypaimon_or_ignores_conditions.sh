#!/usr/bin/env bash
# pypaimon 2.1.0: dt = 'a' OR id = 3 reads rows of other partitions with other ids, where dt is a partition column.
#
# A filter by one kind of columns is exact: dt = 'a', id = 1 OR id = 3, dt = 'a' AND id = 1. An OR that has conditions
# on a partition column and on another column filters nothing: each row comes back. (dt = 'a' AND id = 1) OR
# (dt = 'b' AND id = 3), the filter for a few keys of a partitioned table, is such an OR.
# Expected: the rows that match, as for the other filters.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pypaimon==2.1.0
"$folder/venv/bin/python" - "$folder" 2> "$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import sys

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

schema = pa.schema([("id", pa.int64()), ("dt", pa.string())])
catalog = CatalogFactory.create({"warehouse": f"{sys.argv[1]}/lake"})
catalog.create_database("db", True)
catalog.create_table("db.t", Schema.from_pyarrow_schema(schema, partition_keys=["dt"]), True)
table = catalog.get_table("db.t")
builder = table.new_batch_write_builder()
write, commit = builder.new_write(), builder.new_commit()
write.write_arrow(pa.table({"id": [1, 2, 3, 4], "dt": ["a", "a", "b", "c"]}, schema=schema))
commit.commit(write.prepare_commit())


def ids(condition):
    builder = table.new_read_builder()
    builder = builder.with_filter(condition(builder.new_predicate_builder()))
    return sorted(builder.new_read().to_arrow(builder.new_scan().plan().splits())["id"].to_pylist())


one, other = (lambda p: p.and_predicates([p.equal("dt", "a"), p.equal("id", 1)])), lambda p: p.equal("id", 3)
cases = [
    ("dt = 'a'", lambda p: p.equal("dt", "a"), [1, 2]),
    ("id = 1 OR id = 3", lambda p: p.or_predicates([p.equal("id", 1), other(p)]), [1, 3]),
    ("dt = 'a' AND id = 1", one, [1]),
    ("dt = 'a' OR id = 3", lambda p: p.or_predicates([p.equal("dt", "a"), other(p)]), [1, 2, 3, 4]),
    (
        "(dt = 'a' AND id = 1) OR (dt = 'b' AND id = 3)",
        lambda p: p.or_predicates([one(p), p.and_predicates([p.equal("dt", "b"), other(p)])]),
        [1, 2, 3, 4],
    ),
]
for name, condition, expected in cases:
    found = ids(condition)
    print(f"{name}: {found}")
    assert found == expected, "changed"
PYTHON
