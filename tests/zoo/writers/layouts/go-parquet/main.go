// Writes the rows with parquet-go: `writer VERSION OUT`.
package main

import (
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"

	"github.com/parquet-go/parquet-go"
)

const rows = 1_000_000

type row struct {
	ID       int64   `parquet:"id"`
	Key      string  `parquet:"key"`
	Text     string  `parquet:"text"`
	Category string  `parquet:"category"`
	X        float64 `parquet:"x"`
	Zero     float64 `parquet:"zero"`
	N        *int64  `parquet:"n,optional"`
	At       int64   `parquet:"at,timestamp(microsecond)"`
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

func write(path string, options ...parquet.WriterOption) {
	file, err := os.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	writer := parquet.NewGenericWriter[row](file, options...)
	for i := int64(0); i < rows; i++ {
		if _, err := writer.Write([]row{make_row(i)}); err != nil {
			log.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		log.Fatal(err)
	}
	if err := file.Close(); err != nil {
		log.Fatal(err)
	}
}

func main() {
	out := os.Args[2]
	write(filepath.Join(out, "default.parquet"))
	write(filepath.Join(out, "tuned.parquet"), parquet.PageBufferSize(65536))
	fmt.Printf("writer parquet-go %s\n", os.Args[1])
}
