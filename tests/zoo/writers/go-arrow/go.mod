module writer

go 1.24

require github.com/apache/arrow-go/v18 @VERSION@
