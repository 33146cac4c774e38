// Writes Parquet files with fraugster/parquet-go: `writer VERSION OUT`.
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"

	goparquet "github.com/fraugster/parquet-go"
	"github.com/fraugster/parquet-go/parquet"
	"github.com/fraugster/parquet-go/parquetschema"
)

const rows, groupRows = 600, 250

const flatSchema = `message flat {
  required int64 n;
  required int64 bucket (INT(64, true));
  required binary key (STRING);
  optional int32 i8 (INT(8, true));
  optional int32 u8 (INT(8, false));
  optional int32 u32 (INT(32, false));
  optional int64 u64 (INT(64, false));
  optional float f32;
  required double nan;
  required double zero;
  optional boolean flag;
  optional binary word (STRING);
  optional binary long (UTF8);
  optional binary raw;
  optional fixed_len_byte_array(4) fixed;
  optional int32 no_int;
  optional int32 day (DATE);
  optional int32 t_ms (TIME(MILLIS, true));
  optional int64 t_ns (TIME(NANOS, false));
  optional int64 ts_ms (TIMESTAMP(MILLIS, true));
  optional int64 ts_ns (TIMESTAMP(NANOS, false));
  optional int96 ts_96;
  optional int32 dec9 (DECIMAL(9, 2));
  optional int64 dec18 (DECIMAL(18, 4));
  optional fixed_len_byte_array(16) dec38 (DECIMAL(38, 10));
  optional binary dec_bytes (DECIMAL(20, 3));
  optional fixed_len_byte_array(16) uuid (UUID);
  optional binary kind (ENUM);
  optional binary json (JSON);
}`

const nestedSchema = `message nested {
  required int64 n;
  optional group numbers (LIST) { repeated group list { optional int32 element; } }
  repeated int32 bare;
  optional group point { optional int32 x; optional binary y (STRING); }
  repeated group points { required int32 x; repeated binary ys (STRING); }
  optional group pairs (MAP) { repeated group key_value { required binary key (STRING); optional int64 value; } }
  optional group old_pairs (MAP) { repeated group map (MAP_KEY_VALUE) { required binary key (STRING); optional int64 value; } }
  optional group two_levels (LIST) { repeated int32 array; }
}`

type row = map[string]interface{}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func bigEndian(value int64, width int) []byte {
	out := bytes.Repeat([]byte{byte(value >> 63)}, width)
	binary.BigEndian.PutUint64(out[width-8:], uint64(value))
	return out
}

func flat(n int64) row {
	nan, zero := float64(n)/8, 0.0
	if n%200 < 60 {
		nan = math.NaN()
	}
	if n%2 == 0 {
		zero = math.Copysign(0, -1)
	}
	out := row{"n": n, "bucket": n / 50, "key": []byte(fmt.Sprintf("key-%05d", n*7919%10007)), "nan": nan, "zero": zero}
	if n%7 != 3 {
		out["i8"], out["u8"], out["u32"] = int32(int8(n)), int32(uint8(n)), int32(uint32(n*7000003))
		out["u64"], out["f32"] = int64(uint64(n)*30000000000000003), float32(nan)
	}
	if n%5 == 3 {
		return out
	}
	var old [12]byte
	binary.LittleEndian.PutUint64(old[:], uint64(n)*1000000007)
	binary.LittleEndian.PutUint32(old[8:], uint32(2440000+n*10))
	out["flag"], out["word"] = n%2 == 0, []byte(fmt.Sprintf("word-%d", n%9))
	out["long"] = append(bytes.Repeat([]byte("y"), 70), []byte(fmt.Sprintf("%d\u00e9", n%20))...)
	out["raw"], out["fixed"] = []byte{byte(n), 255}[:n%3], []byte{byte(n), 255, 0, byte(n % 7)}
	out["day"], out["t_ms"], out["t_ns"] = int32(n*100-40000), int32(n*100000), n*100000000001
	out["ts_ms"], out["ts_ns"], out["ts_96"] = (n-300)*86400001, (n-300)*86400000000001, old
	out["dec9"], out["dec18"] = int32((n-300)*77), (n-300)*7777777777
	out["dec38"], out["dec_bytes"] = bigEndian((n-300)*77777777777, 16), bigEndian((n-300)*7777777, 8+int(n%3))
	out["uuid"], out["kind"] = bigEndian(n*7777777777777777, 16), []byte(fmt.Sprintf("E%d", n%3))
	out["json"] = []byte(fmt.Sprintf(`{"a": %d}`, n))
	return out
}

func nested(n int64) row {
	out := row{"n": n}
	var numbers, pairs, points []row
	var bare []int32
	for at := int64(0); at < n%4; at++ {
		bare = append(bare, int32(at*n))
		if (n+at)%6 == 0 {
			numbers = append(numbers, row{})
		} else {
			numbers = append(numbers, row{"element": int32(n * at)})
		}
		pair, point := row{"key": []byte(fmt.Sprintf("k%d", at))}, row{"x": int32(at)}
		if at != 1 {
			pair["value"], point["ys"] = n*at, [][]byte{[]byte("a"), []byte("b")}
		}
		pairs, points = append(pairs, pair), append(points, point)
	}
	filled := func(name string, values interface{}) row {
		if n%4 == 0 {
			return row{}
		}
		return row{name: values}
	}
	if n%4 > 0 {
		out["bare"], out["points"] = bare, points
	}
	if n%5 != 3 {
		out["numbers"], out["two_levels"] = filled("list", numbers), filled("array", bare)
		out["pairs"], out["old_pairs"] = filled("key_value", pairs), filled("map", pairs)
		out["point"] = row{"x": int32(n), "y": []byte(fmt.Sprintf("p%d", n%50))}
	}
	return out
}

func write(variant, schema string, make func(int64) row, count int64, options ...goparquet.FileWriterOption) {
	definition, err := parquetschema.ParseSchemaDefinition(schema)
	check(err)
	file, err := os.Create(filepath.Join(os.Args[2], variant+".parquet"))
	check(err)
	options = append(options, goparquet.WithSchemaDefinition(definition), goparquet.WithMaxPageSize(512))
	writer := goparquet.NewFileWriter(file, options...)
	for n := int64(0); n < count; n++ {
		check(writer.AddData(make(n)))
		if n%groupRows == groupRows-1 {
			check(writer.FlushRowGroup())
		}
	}
	check(writer.Close())
	check(file.Close())
}

func main() {
	fmt.Println("writer fraugster-parquet-go", os.Args[1])
	codecs := map[string]parquet.CompressionCodec{
		"none":   parquet.CompressionCodec_UNCOMPRESSED,
		"snappy": parquet.CompressionCodec_SNAPPY,
		"gzip":   parquet.CompressionCodec_GZIP,
	}
	for name, codec := range codecs {
		options := []goparquet.FileWriterOption{goparquet.WithCompressionCodec(codec), goparquet.WithCRC(name == "gzip")}
		for _, version := range []string{"v1", "v2"} {
			if version == "v2" {
				options = append(options, goparquet.WithDataPageV2())
			}
			write("flat-"+version+"-"+name, flatSchema, flat, rows, options...)
			write("nested-"+version+"-"+name, nestedSchema, nested, rows, options...)
		}
	}
	write("empty", flatSchema, flat, 0)
}
