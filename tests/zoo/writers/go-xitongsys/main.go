// Writes Go structs as Parquet files with xitongsys/parquet-go: `writer VERSION OUT`.
package main

import (
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/xitongsys/parquet-go-source/writerfile"
	"github.com/xitongsys/parquet-go/parquet"
	"github.com/xitongsys/parquet-go/writer"
)

const rows = 1000

type item struct {
	Name string `parquet:"name=name, type=BYTE_ARRAY, convertedtype=UTF8"`
	Size int32  `parquet:"name=size, type=INT32"`
}

type flat struct {
	ID       int64    `parquet:"name=id, type=INT64"`
	Shuffled int32    `parquet:"name=shuffled, type=INT32, encoding=DELTA_BINARY_PACKED"`
	Small    *int32   `parquet:"name=small, type=INT32, convertedtype=INT_16"`
	Uint     int32    `parquet:"name=uint, type=INT32, convertedtype=UINT_32"`
	Ulong    int64    `parquet:"name=ulong, type=INT64, convertedtype=UINT_64"`
	Flag     *bool    `parquet:"name=flag, type=BOOLEAN"`
	Float    *float32 `parquet:"name=float, type=FLOAT"`
	Double   float64  `parquet:"name=double, type=DOUBLE"`
	Category *string  `parquet:"name=category, type=BYTE_ARRAY, convertedtype=UTF8, encoding=PLAIN_DICTIONARY"`
	Word     string   `parquet:"name=word, type=BYTE_ARRAY, convertedtype=UTF8, encoding=DELTA_LENGTH_BYTE_ARRAY"`
	Tail     string   `parquet:"name=tail, type=BYTE_ARRAY, convertedtype=UTF8, encoding=DELTA_BYTE_ARRAY"`
	Long     *string  `parquet:"name=long, type=BYTE_ARRAY, convertedtype=UTF8"`
	Binary   *string  `parquet:"name=binary, type=BYTE_ARRAY"`
	Price    int32    `parquet:"name=price, type=INT32, convertedtype=DECIMAL, scale=2, precision=9"`
	Amount   *int64   `parquet:"name=amount, type=INT64, convertedtype=DECIMAL, scale=4, precision=18"`
	Day      *int32   `parquet:"name=day, type=INT32, convertedtype=DATE"`
	Clock    int32    `parquet:"name=clock, type=INT32, convertedtype=TIME_MILLIS"`
	AtMs     int64    `parquet:"name=at_ms, type=INT64, convertedtype=TIMESTAMP_MILLIS"`
	AtUs     *int64   `parquet:"name=at_us, type=INT64, convertedtype=TIMESTAMP_MICROS"`
	Local    int64    `parquet:"name=local, type=INT64, logicaltype=TIMESTAMP, logicaltype.isadjustedtoutc=false, logicaltype.unit=MICROS"`
	Empty    *int32   `parquet:"name=empty, type=INT32"`
}

type nested struct {
	ID      int64            `parquet:"name=id, type=INT64"`
	Numbers []int64          `parquet:"name=numbers, type=LIST, valuetype=INT64"`
	Words   *[]string        `parquet:"name=words, type=LIST, valuetype=BYTE_ARRAY, valueconvertedtype=UTF8"`
	Bare    []int32          `parquet:"name=bare, type=INT32, repetitiontype=REPEATED"`
	Point   *item            `parquet:"name=point"`
	Items   []item           `parquet:"name=items, type=LIST"`
	Pairs   map[string]int64 `parquet:"name=pairs, type=MAP, keytype=BYTE_ARRAY, keyconvertedtype=UTF8, valuetype=INT64"`
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

func write[T any](name string, codec parquet.CompressionCodec, make func(int) T) {
	out, err := os.Create(filepath.Join(os.Args[2], name+".parquet"))
	check(err)
	file := writerfile.NewWriterFile(out)
	target, err := writer.NewParquetWriter(file, new(T), 1)
	check(err)
	target.PageSize = 512
	target.CompressionType = codec
	for i := 0; i < rows; i++ {
		check(target.Write(make(i)))
		if i%400 == 399 {
			check(target.Flush(true))
		}
	}
	check(target.WriteStop())
	check(out.Close())
}

func main() {
	fmt.Println("writer xitongsys/parquet-go", os.Args[1])
	makeFlat := func(i int) flat {
		return flat{
			ID: int64(i), Shuffled: int32(i * 7919 % rows), Small: some(i, 5, int32(int16(i*61))), Uint: int32(uint32(i * 4294967)),
			Ulong: int64(uint64(i) * 18446744073709551), Flag: some(i, 13, i%3 == 0), Float: some(i, 10, float32(double(i))), Double: double(i),
			Category: some(i, 6, fmt.Sprintf("kind-%d", i%12)), Word: fmt.Sprintf("z\u4e2d%d", i*31%400), Tail: fmt.Sprintf("t%03d", i%77),
			Long:   some(i, 8, strings.Repeat("prefix", 14)+fmt.Sprintf("%05d", i*37%rows)),
			Binary: some(i, 4, string([]byte{byte(i), 255, 0, byte(i / 4)})),
			Price:  int32(i-500) * 3, Amount: some(i, 7, int64(i-500)*123456789), Day: some(i, 9, int32(i-365)), Clock: int32(i * 80000),
			AtMs: 1704067200000 + int64(i)*60000, AtUs: some(i, 5, 1704067200000000+int64(i)*1000001), Local: -305000000000000 + int64(i)*3600000001,
		}
	}
	makeNested := func(i int) nested {
		row := nested{ID: int64(i), Point: some(i, 9, item{fmt.Sprintf("p%d", i%50), int32(i % 100)}), Pairs: map[string]int64{}}
		for j := 0; j < i%6; j++ {
			row.Numbers = append(row.Numbers, int64(i+j))
			row.Bare = append(row.Bare, int32(i-j))
		}
		words := []string{}
		for j := 0; j < i%4; j++ {
			words = append(words, fmt.Sprintf("w%d", (i+j)%40))
			row.Items = append(row.Items, item{fmt.Sprintf("n%d", i%30), int32(j)})
			row.Pairs[fmt.Sprintf("k%d", j)] = int64(i * j)
		}
		row.Words = some(i, 7, words)
		return row
	}
	codecs := map[string]parquet.CompressionCodec{
		"none": parquet.CompressionCodec_UNCOMPRESSED, "snappy": parquet.CompressionCodec_SNAPPY,
		"gzip": parquet.CompressionCodec_GZIP, "zstd": parquet.CompressionCodec_ZSTD, "lz4": parquet.CompressionCodec_LZ4,
	}
	for name, codec := range codecs {
		write("flat-v1-"+name, codec, makeFlat)
		write("nested-v1-"+name, codec, makeNested)
	}
}
