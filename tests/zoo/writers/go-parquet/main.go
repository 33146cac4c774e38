// Writes Go structs as Parquet files with parquet-go: `writer VERSION OUT`.
package main

import (
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"
)

const rows = 1000

type item struct {
	Name string `parquet:"name"`
	Size int32  `parquet:"size"`
}

type plain struct {
	ID       int64     `parquet:"id"`
	Shuffled int32     `parquet:"shuffled"`
	Small    *int32    `parquet:"small,optional"`
	Unsigned uint64    `parquet:"ulong"`
	Flag     *bool     `parquet:"flag,optional"`
	Float    *float32  `parquet:"float,optional"`
	Double   float64   `parquet:"double"`
	Category *string   `parquet:"category,optional"`
	Word     string    `parquet:"word"`
	Long     *string   `parquet:"long,optional"`
	Binary   []byte    `parquet:"binary,optional"`
	Price    int32     `parquet:"price,decimal(2:9)"`
	Amount   int64     `parquet:"amount,decimal(4:18)"`
	Day      int32     `parquet:"day,date"`
	AtMs     time.Time `parquet:"at_ms,timestamp(millisecond)"`
	AtUs     time.Time `parquet:"at_us,timestamp(microsecond)"`
	AtNs     time.Time `parquet:"at_ns,timestamp(nanosecond)"`
	Key      uuid.UUID `parquet:"key,uuid"`
	Empty    *int32    `parquet:"empty,optional"`
}

type encoded struct {
	ID       int64    `parquet:"id,delta"`
	Shuffled int32    `parquet:"shuffled,delta"`
	Runs     *int64   `parquet:"runs,optional"`
	Double   float64  `parquet:"double,split"`
	Float    *float32 `parquet:"float,optional"`
	Category *string  `parquet:"category,optional,dict"`
	Word     string   `parquet:"word,delta"`
	Long     *string  `parquet:"long,optional,dict"`
	Number   int64    `parquet:"number,dict"`
	Flag     bool     `parquet:"flag"`
}

type nested struct {
	ID      int64            `parquet:"id"`
	Numbers []int64          `parquet:"numbers,list"`
	Words   []string         `parquet:"words,list"`
	Bare    []int32          `parquet:"bare"`
	Point   *item            `parquet:"point,optional"`
	Items   []item           `parquet:"items,list"`
	Pairs   map[string]int64 `parquet:"pairs"`
	Tail    *string          `parquet:"tail,optional"`
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func some[T any](i, every int, value T) *T {
	if i%every == every-1 {
		return nil
	}
	return &value
}

func double(i int) float64 {
	switch {
	case i%97 == 3:
		return math.NaN()
	case i%89 == 5:
		return math.Copysign(0, -1)
	}
	return float64(i-500) * 0.75
}

func long(i int) string { return strings.Repeat("prefix", 14) + fmt.Sprintf("%05d", i*37%rows) }

func write[T any](name string, make func(int) T, options ...parquet.WriterOption) {
	out, err := os.Create(filepath.Join(os.Args[2], name+".parquet"))
	check(err)
	options = append(options, parquet.PageBufferSize(512), parquet.MaxRowsPerRowGroup(400))
	writer := parquet.NewGenericWriter[T](out, options...)
	for i := 0; i < rows; i++ {
		_, err := writer.Write([]T{make(i)})
		check(err)
	}
	check(writer.Close())
	check(out.Close())
}

func main() {
	fmt.Println("writer parquet-go", os.Args[1])
	start := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	makePlain := func(i int) plain {
		var binary []byte
		if i%4 != 3 {
			binary = []byte{byte(i), 255, 0, byte(i / 4)}
		}
		var key uuid.UUID
		key[0], key[15] = byte(i*37), byte(i)
		return plain{
			ID: int64(i), Shuffled: int32(i * 7919 % rows), Small: some(i, 5, int32(i*61%32768)), Unsigned: uint64(i) * 18446744073709551,
			Flag: some(i, 13, i%3 == 0), Float: some(i, 10, float32(double(i))), Double: double(i),
			Category: some(i, 6, fmt.Sprintf("kind-%d", i%12)), Word: fmt.Sprintf("z\u4e2d%d", i*31%400), Long: some(i, 8, long(i)),
			Binary: binary, Price: int32(i-500) * 3, Amount: int64(i-500) * 123456789, Day: int32(i - 365),
			AtMs: start.Add(time.Duration(i) * time.Minute), AtUs: start.Add(time.Duration(i) * 1000001 * time.Microsecond),
			AtNs: start.Add(time.Duration(i) * 1000000007), Key: key,
		}
	}
	makeEncoded := func(i int) encoded {
		return encoded{
			ID: int64(i), Shuffled: int32(i * 7919 % rows), Runs: some(i/100, 3, int64(i/100)), Double: double(i),
			Float: some(i, 10, float32(double(i))), Category: some(i, 6, fmt.Sprintf("kind-%d", i%12)),
			Word: fmt.Sprintf("w%d", i*31%400), Long: some(i, 8, long(i)), Number: int64(i%50) * 1000003, Flag: i%3 == 0,
		}
	}
	makeNested := func(i int) nested {
		row := nested{ID: int64(i), Point: some(i, 9, item{fmt.Sprintf("p%d", i%50), int32(i % 100)}), Tail: some(i, 5, fmt.Sprintf("t%d", i%77))}
		for j := 0; j < i%6; j++ {
			row.Numbers = append(row.Numbers, int64(i+j))
			row.Bare = append(row.Bare, int32(i-j))
		}
		row.Pairs = map[string]int64{}
		for j := 0; j < i%4; j++ {
			row.Words = append(row.Words, fmt.Sprintf("w%d", (i+j)%40))
			row.Items = append(row.Items, item{fmt.Sprintf("n%d", i%30), int32(j)})
			row.Pairs[fmt.Sprintf("k%d", j)] = int64(i * j)
		}
		return row
	}
	blooms := parquet.BloomFilters(parquet.SplitBlockFilter(10, "id"), parquet.SplitBlockFilter(10, "word"), parquet.SplitBlockFilter(10, "double"))
	variants := map[string][]parquet.WriterOption{
		"v1-none":    {parquet.DataPageVersion(1)},
		"v2-none":    {parquet.DataPageVersion(2), parquet.DataPageStatistics(true)},
		"v1-snappy":  {parquet.DataPageVersion(1), parquet.Compression(&parquet.Snappy)},
		"v2-zstd":    {parquet.DataPageVersion(2), parquet.Compression(&parquet.Zstd)},
		"v1-gzip":    {parquet.DataPageVersion(1), parquet.Compression(&parquet.Gzip)},
		"v2-lz4_raw": {parquet.DataPageVersion(2), parquet.Compression(&parquet.Lz4Raw)},
		"v2-brotli":  {parquet.DataPageVersion(2), parquet.Compression(&parquet.Brotli)},
	}
	for name, options := range variants {
		write("flat-"+name, makePlain, options...)
		write("encoded-"+name, makeEncoded, options...)
		write("nested-"+name, makeNested, options...)
	}
	write("flat-v2-bloom", makePlain, parquet.DataPageVersion(2), blooms)
	write("encoded-v1-sorted", makeEncoded, parquet.DataPageVersion(1), parquet.SortingWriterConfig(parquet.SortingColumns(parquet.Ascending("id"))))
}
