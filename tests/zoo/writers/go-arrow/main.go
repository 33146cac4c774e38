// Writes every Arrow table of a folder as Parquet files with arrow-go: `writer VERSION TABLES OUT`.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func encoded(encoding parquet.Encoding, columns ...string) []parquet.WriterProperty {
	properties := []parquet.WriterProperty{parquet.WithDictionaryDefault(false)}
	for _, column := range columns {
		properties = append(properties, parquet.WithEncodingFor(column, encoding))
	}
	return properties
}

// Leaves out a file that the library panics at.
func write(variant string, table arrow.Table, properties []parquet.WriterProperty) {
	path := filepath.Join(os.Args[3], variant+".parquet")
	defer func() {
		if failure := recover(); failure != nil {
			check(os.Remove(path))
			fmt.Printf("skipped %s: %v\n", variant, failure)
		}
	}()
	out, err := os.Create(path)
	check(err)
	properties = append(properties, parquet.WithDataPageSize(512), parquet.WithBatchSize(40), parquet.WithMaxRowGroupLength(250))
	writer, err := pqarrow.NewFileWriter(table.Schema(), out, parquet.NewWriterProperties(properties...), pqarrow.DefaultWriterProps())
	check(err)
	check(writer.WriteTable(table, 250))
	check(writer.Close())
}

func main() {
	fmt.Println("writer arrow-go", os.Args[1])
	pages := parquet.WithDataPageVersion
	codec := parquet.WithCompression
	deltas := append(encoded(parquet.Encodings.DeltaBinaryPacked, "n", "bucket", "i32", "i64", "ts_us"),
		encoded(parquet.Encodings.DeltaByteArray, "key", "long")...)
	deltas = append(deltas, encoded(parquet.Encodings.DeltaLengthByteArray, "unicode", "raw")...)
	variants := map[string][]parquet.WriterProperty{
		"v1-none-plain":         {pages(parquet.DataPageV1), parquet.WithDictionaryDefault(false)},
		"v1-snappy-dictionary":  {pages(parquet.DataPageV1), codec(compress.Codecs.Snappy)},
		"v2-zstd-dictionary":    {pages(parquet.DataPageV2), codec(compress.Codecs.Zstd)},
		"v2-gzip-delta":         append(deltas, pages(parquet.DataPageV2), codec(compress.Codecs.Gzip)),
		"v1-brotli-split":       append(encoded(parquet.Encodings.ByteStreamSplit, "f32", "f64", "nan"), pages(parquet.DataPageV1), codec(compress.Codecs.Brotli)),
		"v2-lz4_raw-indexes":    {pages(parquet.DataPageV2), codec(compress.Codecs.Lz4Raw), parquet.WithPageIndexEnabled(true)},
		"v1-none-no_statistics": {pages(parquet.DataPageV1), parquet.WithStats(false)},
		"v1-none-bloom":         {pages(parquet.DataPageV1), parquet.WithBloomFilterEnabled(true), parquet.WithPageIndexEnabled(true)},
	}
	for _, table := range []string{"flat", "nested", "empty"} {
		source, err := os.Open(filepath.Join(os.Args[2], table+".arrow"))
		check(err)
		reader, err := ipc.NewFileReader(source)
		check(err)
		var records []arrow.RecordBatch
		for i := 0; i < reader.NumRecords(); i++ {
			record, err := reader.RecordBatchAt(i)
			check(err)
			record.Retain()
			records = append(records, record)
		}
		whole := array.NewTableFromRecords(reader.Schema(), records)
		for name, properties := range variants {
			write(table+"-"+name, whole, properties)
		}
	}
}
