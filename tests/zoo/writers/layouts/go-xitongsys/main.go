// Writes the rows with xitongsys/parquet-go: `writer VERSION OUT`.
package main

import (
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"

	"github.com/xitongsys/parquet-go/writer"
)

const rows = 1_000_000

type row struct {
	ID       int64   `parquet:"name=id, type=INT64"`
	Key      string  `parquet:"name=key, type=BYTE_ARRAY, convertedtype=UTF8"`
	Text     string  `parquet:"name=text, type=BYTE_ARRAY, convertedtype=UTF8"`
	Category string  `parquet:"name=category, type=BYTE_ARRAY, convertedtype=UTF8"`
	X        float64 `parquet:"name=x, type=DOUBLE"`
	Zero     float64 `parquet:"name=zero, type=DOUBLE"`
	N        *int64  `parquet:"name=n, type=INT64"`
	At       int64   `parquet:"name=at, type=INT64, convertedtype=TIMESTAMP_MICROS"`
}

func make_row(i int64) row {
	text := fmt.Sprintf("%08d", i)
	for j := uint32(0); j < 8; j++ {
		text += fmt.Sprintf("%08x", uint32(i)*(2654435761+2*j))
	}
	r := row{
		ID: i, Key: fmt.Sprintf("k%08d", i*7919%rows), Text: text, Category: fmt.Sprintf("c%d", i%50),
		X: float64(i) / 4, At: 1_767_225_600_000_000 + i*1_000_001,
	}
	if i%1000 == 7 {
		r.X = math.NaN()
	}
	if i%2 == 1 {
		r.Zero = math.Copysign(0, -1)
	}
	if i%3 != 0 {
		n := i % 1000
		r.N = &n
	}
	return r
}

func write(path string, change func(*writer.ParquetWriter)) {
	file, err := os.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	pw, err := writer.NewParquetWriterFromWriter(file, new(row), 1)
	if err != nil {
		log.Fatal(err)
	}
	change(pw)
	for i := int64(0); i < rows; i++ {
		if err := pw.Write(make_row(i)); err != nil {
			log.Fatal(err)
		}
	}
	if err := pw.WriteStop(); err != nil {
		log.Fatal(err)
	}
	if err := file.Close(); err != nil {
		log.Fatal(err)
	}
}

func main() {
	out := os.Args[2]
	write(filepath.Join(out, "default.parquet"), func(pw *writer.ParquetWriter) {})
	write(filepath.Join(out, "tuned.parquet"), func(pw *writer.ParquetWriter) {
		pw.RowGroupSize = 4 << 20
	})
	fmt.Printf("writer xitongsys-parquet-go %s\n", os.Args[1])
}
