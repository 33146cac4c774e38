"""Files of DataFusion (arrow-rs), through SQL's COPY; of versions without it, through DataFrame.write_parquet."""

import glob
import os
import shutil
import sys
import tempfile

import arrow_tables
import datafusion
import rows

PREFIX = "datafusion.execution.parquet."
SMALL = {"data_pagesize_limit": 512, "write_batch_size": rows.PAGE_ROWS, "max_row_group_size": rows.GROUP_ROWS}


def context(options):
    """A session with those options of the writer."""
    settings = {PREFIX + name: str(value) for name, value in options.items()}
    settings["datafusion.execution.target_partitions"] = "1"
    make = getattr(datafusion, "SessionConfig", None) or datafusion.Config
    try:
        config = make(settings)
    except TypeError:
        config = make()
        for name, value in settings.items():
            config = config.set(name, value)
    return datafusion.SessionContext(config)


def write(table, path, options):
    """One file; arrow-rs' tables come in through a Parquet file of pyarrow's, or as batches."""
    session = context(options)
    batches = table.combine_chunks().to_batches()
    if not batches:
        import pyarrow as pa

        batches = [pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], table.column_names)]
    frame = session.create_dataframe([batches])
    folder = tempfile.mkdtemp()
    try:
        compression = options.get("compression", "zstd(3)").split("(")[0]
        if options:
            session.register_record_batches("source", [batches])
            session.sql("COPY source TO '%s/x.parquet' STORED AS PARQUET" % folder).collect()
        else:
            frame.write_parquet(folder + "/x.parquet", compression=compression)
    except TypeError:
        frame.write_parquet(folder + "/x.parquet")
    found = [p for p in glob.glob(folder + "/**", recursive=True) if os.path.isfile(p)]
    shutil.copy(max(found, key=os.path.getsize), path)


def main(folder):
    """Write every variant."""
    scratch = os.path.join(tempfile.mkdtemp(), "x.parquet")

    def those_written(table):
        names = rows.usable(
            table.column_names, lambda name: write(arrow_tables.select(table, [name]), scratch, {})
        )
        return arrow_tables.select(table, names)

    flat, nested = those_written(arrow_tables.flat(without=("uuid",))), those_written(arrow_tables.nested())
    plain = {"dictionary_enabled": "false"}
    settings = {
        "defaults": {},
        "small": SMALL,
        "uncompressed": dict(SMALL, compression="uncompressed"),
        "snappy": dict(SMALL, compression="snappy"),
        "gzip": dict(SMALL, compression="gzip(6)"),
        "brotli": dict(SMALL, compression="brotli(4)"),
        "lz4_raw": dict(SMALL, compression="lz4_raw"),
        "v2-zstd": dict(SMALL, writer_version="2.0", compression="zstd(3)"),
        "v2-plain": dict(SMALL, writer_version="2.0", compression="uncompressed", **plain),
        "v1-plain": dict(SMALL, **plain),
        "row_limit": dict(SMALL, data_page_row_count_limit=rows.PAGE_ROWS, data_pagesize_limit=100000),
        "bloom": dict(SMALL, bloom_filter_on_write="true", bloom_filter_ndv="300"),
        "chunk_statistics": dict(SMALL, statistics_enabled="chunk"),
        "no_statistics": dict(SMALL, statistics_enabled="none"),
        "statistics_cut": dict(SMALL, statistics_truncate_length="8", column_index_truncate_length="8"),
        "small_dictionary": dict(SMALL, dictionary_page_size_limit="64"),
        "delta": dict(SMALL, encoding="delta_byte_array", **plain),
        "skip_arrow_schema": dict(SMALL, skip_arrow_metadata="true"),
    }
    variants = [
        ("flat-" + name, lambda path, options=options: write(flat, path, options)) for name, options in settings.items()
    ]
    variants += [
        ("nested-" + name, lambda path, options=settings[name]: write(nested, path, options))
        for name in ("defaults", "small", "v2-zstd", "v2-plain", "row_limit")
    ]
    text = arrow_tables.select(flat, [name for name in ("n", "key", "word", "long", "unicode") if name in flat.column_names])
    variants += [
        ("text-delta_length", lambda path: write(text, path, dict(SMALL, encoding="delta_length_byte_array", **plain))),
        ("text-delta", lambda path: write(text, path, dict(SMALL, writer_version="2.0", **plain))),
        ("empty", lambda path: write(flat.slice(0, 0), path, {})),
    ]
    rows.run("datafusion", datafusion.__version__, folder, variants)


if __name__ == "__main__":
    main(sys.argv[1])
