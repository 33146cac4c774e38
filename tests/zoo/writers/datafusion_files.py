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


def config(options):
    """A configuration with those options of the writer."""
    settings = {PREFIX + name: str(value) for name, value in options.items()}
    settings["datafusion.execution.target_partitions"] = "1"
    made = datafusion.SessionConfig()
    for name, value in settings.items():
        made = made.set(name, value)
    return made


def known(options):
    """Those options that this version has."""
    found = {}
    for name, value in options.items():
        try:
            datafusion.SessionContext(config({name: value}))
        except BaseException:  # a panic
            continue
        found[name] = value
    return found


def write(table, path, options):
    """One file."""
    import pyarrow as pa

    session = datafusion.SessionContext(config(options))
    batches = table.combine_chunks().to_batches()
    if not batches:
        batches = [pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], table.column_names)]
    session.register_record_batches("source", [batches])
    folder = tempfile.mkdtemp()
    target = "COPY source TO '%s/x.parquet' " % folder
    for way in (
        lambda: session.sql(target + "STORED AS PARQUET").collect(),
        lambda: session.sql(target + "(FORMAT PARQUET, SINGLE_FILE_OUTPUT true)").collect(),
        lambda: session.table("source").write_parquet(folder + "/x.parquet"),
    ):
        try:
            way()
            break
        except Exception as caught:
            error = caught
    found = [p for p in glob.glob(folder + "/**", recursive=True) if os.path.isfile(p)]
    if not found:
        raise error
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
    small, plain = known(SMALL), {"dictionary_enabled": "false"}
    settings = {
        "defaults": {},
        "small": small,
        "uncompressed": dict(small, compression="uncompressed"),
        "snappy": dict(small, compression="snappy"),
        "gzip": dict(small, compression="gzip(6)"),
        "brotli": dict(small, compression="brotli(4)"),
        "lz4_raw": dict(small, compression="lz4_raw"),
        "v2-zstd": dict(small, writer_version="2.0", compression="zstd(3)"),
        "v2-plain": dict(small, writer_version="2.0", compression="uncompressed", **plain),
        "v1-plain": dict(small, **plain),
        "row_limit": dict(small, data_page_row_count_limit=rows.PAGE_ROWS, data_pagesize_limit=100000),
        "bloom": dict(small, bloom_filter_on_write="true", bloom_filter_ndv="300"),
        "chunk_statistics": dict(small, statistics_enabled="chunk"),
        "no_statistics": dict(small, statistics_enabled="none"),
        "statistics_cut": dict(small, statistics_truncate_length="8", column_index_truncate_length="8"),
        "small_dictionary": dict(small, dictionary_page_size_limit="64"),
        "skip_arrow_schema": dict(small, skip_arrow_metadata="true"),
    }
    variants = [
        ("flat-" + name, lambda path, options=options: write(flat, path, options)) for name, options in settings.items()
    ]
    variants += [
        ("nested-" + name, lambda path, options=settings[name]: write(nested, path, options))
        for name in ("defaults", "small", "v2-zstd", "v2-plain", "row_limit")
    ]
    text = arrow_tables.select(flat, [name for name in ("key", "word", "long", "unicode") if name in flat.column_names])
    variants += [
        ("text-delta_length", lambda path: write(text, path, dict(small, encoding="delta_length_byte_array", **plain))),
        ("text-delta", lambda path: write(text, path, dict(small, writer_version="2.0", **plain))),
        ("empty", lambda path: write(flat.slice(0, 0), path, {})),
    ]
    rows.run("datafusion", datafusion.__version__, folder, variants)


if __name__ == "__main__":
    main(sys.argv[1])
