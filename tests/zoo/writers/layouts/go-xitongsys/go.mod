module writer

go 1.24

require github.com/xitongsys/parquet-go @VERSION@
