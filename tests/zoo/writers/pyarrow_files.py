"""Files of pyarrow, 0.17 and later."""

import sys

import arrow_tables
import pyarrow as pa
import pyarrow.parquet as pq
import rows

SMALL = {"data_page_size": 64, "write_batch_size": rows.PAGE_ROWS}
ENCODED = {
    "DELTA_BINARY_PACKED": ["n", "bucket", "i32", "i64", "u32", "u64", "day", "ts_ms", "ts_us"],
    "DELTA_BYTE_ARRAY": ["key", "long", "unicode", "fixed"],
    "DELTA_LENGTH_BYTE_ARRAY": ["word", "raw", "no_text"],
    "BYTE_STREAM_SPLIT": ["f32", "f64", "nan"],
    "RLE": ["flag"],
}
STREAM_SPLIT = ["f32", "f64", "nan", "i32", "i64", "u32", "u64", "fixed", "dec9", "dec38", "uuid"]


def main(folder):
    """Write every variant."""
    flat, nested = arrow_tables.flat(), arrow_tables.nested()
    # Before write_batch_size, a page has 1,024 rows at least.
    large, large_nested = arrow_tables.flat(4000), arrow_tables.nested(4000)
    large = arrow_tables.select(large, ["n", "bucket", "i32", "f64", "word", "long", "no_int", "day", "ts_us", "dec38"])
    encodings = {name: encoding for encoding, names in ENCODED.items() for name in names}

    def write(source, **options):
        settings = dict(row_group_size=rows.GROUP_ROWS, version="2.0", **SMALL)
        settings.update(options)
        if settings.pop("no_batch_size", False) or not _knows("write_batch_size"):
            settings.pop("write_batch_size", None)
        if settings["version"] == "2.0" and _major() >= 6:
            settings["version"] = "2.6"
        return lambda path: pq.write_table(source, path, **settings)

    def by_parts(path):
        with pq.ParquetWriter(path, flat.schema, **({"write_page_index": True} if _major() >= 13 else {})) as writer:
            for start in range(0, flat.num_rows, 130):
                writer.write_table(flat.slice(start, 130))

    v2 = "2.0"
    rows.run(
        "pyarrow",
        pa.__version__,
        folder,
        [
            ("flat-v1-snappy", write(flat)),
            ("flat-v1-defaults", lambda path: pq.write_table(flat, path)),
            ("flat-v1-none-plain", write(flat, compression="none", use_dictionary=False)),
            ("flat-v1-format1", write(flat, version="1.0", compression="gzip", coerce_timestamps="us", allow_truncated_timestamps=True)),
            ("flat-v1-int96", write(flat, use_deprecated_int96_timestamps=True)),
            ("flat-v1-brotli-no_schema", write(flat.replace_schema_metadata(None), compression="brotli", store_schema=False)),
            ("flat-v1-lz4-one_group", write(flat, compression="lz4", row_group_size=5000)),
            ("flat-v2-zstd", write(flat, compression="zstd", data_page_version=v2)),
            ("flat-v2-none-plain", write(flat, compression="none", use_dictionary=False, data_page_version=v2)),
            ("flat-v2-gzip-large_pages", write(flat, compression="gzip", data_page_version=v2, data_page_size=1 << 20)),
            (
                "flat-v2-delta",
                write(flat, use_dictionary=False, column_encoding=encodings, data_page_version=v2, compression="zstd"),
            ),
            ("flat-v1-delta", write(flat, use_dictionary=False, column_encoding=encodings)),
            (
                "flat-v1-stream_split",
                write(flat, use_dictionary=False, column_encoding={name: "BYTE_STREAM_SPLIT" for name in STREAM_SPLIT}),
            ),
            ("flat-v1-stream_split_floats", write(arrow_tables.select(flat, ["n", "f32", "f64", "nan"]), use_dictionary=False, use_byte_stream_split=True)),
            ("flat-v1-dictionary_full", write(flat, dictionary_pagesize_limit=256)),
            ("flat-v1-no_statistics", write(flat, write_statistics=False)),
            ("flat-v1-index", write(flat, write_page_index=True)),
            ("flat-v2-index-checksum", write(flat, write_page_index=True, data_page_version=v2, write_page_checksum=True)),
            ("flat-v1-index-bloom", write(flat, write_page_index=True, bloom_filter_options=_bloom(flat))),
            ("flat-v2-chunking", write(flat, use_content_defined_chunking=True, data_page_version=v2)),
            ("flat-v1-decimals_as_integers", write(flat, store_decimal_as_integer=True, write_page_index=True)),
            ("flat-v1-max_rows_per_page", write(flat, max_rows_per_page=37, write_page_index=True)),
            ("flat-v1-parts", by_parts),
            ("nested-v1-snappy", write(nested)),
            ("nested-v1-none-plain", write(nested, use_dictionary=False, compression="none")),
            ("nested-v2-zstd", write(nested, compression="zstd", data_page_version=v2)),
            ("nested-v2-old_names", write(nested, use_compliant_nested_type=False, data_page_version=v2)),
            ("nested-v1-index", write(nested, write_page_index=True)),
            ("nested-v2-index", write(nested, write_page_index=True, data_page_version=v2, compression="none")),
            ("nested-v2-large_pages", write(nested, data_page_version=v2, data_page_size=1 << 20, no_batch_size=True)),
            ("large-v1-pages", write(large, row_group_size=5000)),
            ("large-v2-pages", write(large, row_group_size=5000, data_page_version=v2, use_dictionary=False)),
            ("large_nested-v1-pages", write(large_nested, row_group_size=5000)),
            ("large_nested-v2-pages", write(large_nested, row_group_size=5000, data_page_version=v2)),
            ("empty", write(flat.slice(0, 0))),
            ("empty-v2-index", write(flat.slice(0, 0), data_page_version=v2, write_page_index=True)),
        ],
    )


def _bloom(source):
    names = [n for n, k in rows.kinds("bool") if n in source.column_names]
    return {name: {"ndv": 500, "fpp": 0.05} for name in names}


def _major():
    return int(pa.__version__.split(".")[0])


def _knows(option):
    import inspect

    return option in (pq.write_table.__doc__ or "") or option in inspect.signature(pq.write_table).parameters


if __name__ == "__main__":
    main(sys.argv[1])
