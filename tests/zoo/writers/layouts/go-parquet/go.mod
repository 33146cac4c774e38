module writer

go 1.24

require github.com/parquet-go/parquet-go @VERSION@
