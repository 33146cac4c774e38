module writer

go 1.24

require github.com/fraugster/parquet-go @VERSION@
