#!/usr/bin/env bash
# iceberg-go 0.7.0: a null and the text 'null' share a partition, and s IS NULL loses the null, in pyiceberg 0.12.0 too.
#
# The table is partitioned by a text (identity), and one append has the rows null and 'null'. Both go to one data
# file, whose partition value is 'null'. A scan without a filter still gives both, since the file has them; with a
# filter, the partition value counts: s IS NULL has no row, and s IS NOT NULL has both in iceberg-go, one in
# pyiceberg. Apart, in two appends, the rows are found.
# Expected: two partitions, as from the same rows by pyiceberg 0.12.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyiceberg==0.12.0 pyarrow==26.0.1
cd "$folder"
cat > main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/hadoop"
	"github.com/apache/iceberg-go/table"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	lake, err := hadoop.NewCatalog("lake", os.Args[1], nil)
	check(err)
	check(lake.CreateNamespace(ctx, table.Identifier{"db"}, nil))
	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "s", Type: iceberg.StringType{}})
	fields := []arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}
	spec, err := iceberg.NewPartitionSpecOpts(
		iceberg.AddPartitionFieldByName("s", "part", iceberg.IdentityTransform{}, schema, nil))
	check(err)
	for name, appends := range map[string][][]bool{"together": {{false, true}}, "apart": {{false}, {true}}} {
		id := table.Identifier{"db", name}
		events, err := lake.CreateTable(ctx, id, schema, catalog.WithPartitionSpec(&spec))
		check(err)
		for _, valid := range appends {
			builder := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
			builder.Field(0).(*array.StringBuilder).AppendValues([]string{"null", "null"}[:len(valid)], valid)
			rows := builder.NewRecordBatch()
			reader, err := array.NewRecordReader(rows.Schema(), []arrow.RecordBatch{rows})
			check(err)
			events, err = events.Append(ctx, reader, nil)
			check(err)
		}
		counts := []int64{}
		for _, filter := range []iceberg.BooleanExpression{
			iceberg.AlwaysTrue{},
			iceberg.IsNull(iceberg.Reference("s")),
			iceberg.NotNull(iceberg.Reference("s")),
		} {
			_, batches, err := events.Scan(table.WithRowFilter(filter)).ToArrowRecords(ctx)
			check(err)
			count := int64(0)
			for batch, err := range batches {
				check(err)
				count += batch.NumRows()
			}
			counts = append(counts, count)
		}
		fmt.Println(name, events.MetadataLocation(), counts[0], counts[1], counts[2])
	}
}
GO
(
    go mod init finding
    go get github.com/apache/iceberg-go@v0.7.0
    go mod tidy
    go build -o write .
) >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
./write "$folder/lake" > counts.txt
venv/bin/python - <<'PYTHON'
import pathlib

from pyiceberg.expressions import AlwaysTrue, IsNull, NotNull
from pyiceberg.table import StaticTable

for line in pathlib.Path("counts.txt").read_text().splitlines():
    name, location, *by_go = line.split()
    table = StaticTable.from_metadata(location)
    by_python = [len(table.scan(row_filter=where).to_arrow()) for where in (AlwaysTrue(), IsNull("s"), NotNull("s"))]
    partitions = [row["partition"]["part"] for row in table.inspect.partitions().to_pylist()]
    print(f"{name}: partitions {partitions}; rows, nulls, others: iceberg-go {by_go}, pyiceberg {by_python}")
    expected = ([2, 0, 2], [2, 0, 1]) if name == "together" else ([2, 1, 1], [2, 1, 1])
    assert ([int(count) for count in by_go], by_python) == expected, "changed"
    assert len(partitions) == (1 if name == "together" else 2), "changed"
PYTHON
