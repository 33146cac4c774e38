"""Files of fastparquet."""

import os
import sys
import tempfile

import fastparquet
import numpy as np
import pandas as pd
import rows

ENCODINGS = {"string": "utf8", "binary": "bytes", "fixed4": "bytes", "bool": "bool", "date": "utf8"}
INTEGERS = {"int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64"}
INTEGERS.update({"uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64"})


def series(kind, values, plain):
    """A column; ``plain`` ones have no nulls and numpy's types."""
    if kind == "category":
        return pd.Series(pd.Categorical(values))
    if kind in INTEGERS and not plain:
        return pd.Series(pd.array(values, dtype=INTEGERS[kind]))
    if kind in INTEGERS:
        return pd.Series(np.array([0 if value is None else value for value in values], dtype=kind))
    if kind in ("float32", "float64"):
        return pd.Series(np.array([np.nan if value is None else value for value in values], dtype=kind))
    if kind == "bool":
        held = [bool(value) for value in values] if plain else pd.array(values, dtype="boolean")
        return pd.Series(held)
    if kind.startswith("timestamp"):
        return pd.Series(pd.to_datetime(pd.Series(values, dtype=object)))
    if kind == "date":
        return pd.Series(pd.to_datetime(pd.Series([None if v is None else str(v) for v in values])))
    if kind.startswith("time_"):
        return pd.Series(pd.to_timedelta([None if v is None else str(v) for v in values]))
    if kind.startswith("decimal"):
        return pd.Series([np.nan if value is None else float(value) for value in values])
    if kind == "uuid":
        return pd.Series([None if value is None else value.bytes for value in values], dtype=object)
    return pd.Series(values, dtype=object)


def frame(columns, plain=False):
    """The columns that this version writes, and how it must be told to write objects."""
    scratch = os.path.join(tempfile.mkdtemp(), "x.parquet")
    made, encodings = {}, {}

    def attempt(name):
        kind = rows.KINDS[name]
        encoding = {name: {"uuid": "bytes"}.get(kind, ENCODINGS.get(kind, "utf8"))}
        one = series(kind, columns[name], plain)
        fastparquet.write(scratch, pd.DataFrame({name: one}), object_encoding=encoding)
        made[name] = one
        encodings.update(encoding)

    names = rows.usable(list(rows.KINDS), attempt)
    return pd.DataFrame({name: made[name] for name in names}), encodings


def main(folder):
    """Write every variant."""
    columns = rows.flat()
    flat, encodings = frame(columns)
    plain, _ = frame(columns, plain=True)
    plain = plain[[name for name in plain.columns if plain[name].notnull().all()]]
    nested = pd.DataFrame(
        {"n": range(rows.ROWS), "json": [{"a": at, "b": [at, None]} if at % 7 else None for at in range(rows.ROWS)]}
    )

    def write(source, **options):
        settings = dict(row_group_offsets=rows.GROUP_ROWS, object_encoding=encodings, write_index=False)
        settings.update(options)
        return lambda path: fastparquet.write(path, source, **settings)

    def pages(path):
        before = fastparquet.writer.MAX_PAGE_SIZE
        fastparquet.writer.MAX_PAGE_SIZE = 1000
        try:
            write(flat)(path)
        finally:
            fastparquet.writer.MAX_PAGE_SIZE = before

    def version2(path):
        os.environ["FASTPARQUET_DATAPAGE_V2"] = "1"
        before = fastparquet.writer.DATAPAGE_VERSION
        fastparquet.writer.DATAPAGE_VERSION = 2
        try:
            write(flat, compression="GZIP")(path)
        finally:
            fastparquet.writer.DATAPAGE_VERSION = before

    def by_appending(path):
        write(flat)(path)
        write(flat, append=True)(path)

    rows.run(
        "fastparquet",
        fastparquet.__version__,
        folder,
        [
            ("flat-defaults", lambda path: fastparquet.write(path, flat, object_encoding=encodings)),
            ("flat-none", write(flat)),
            ("flat-snappy", write(flat, compression="SNAPPY")),
            ("flat-gzip", write(flat, compression="GZIP")),
            ("flat-zstd", write(flat, compression="ZSTD")),
            ("flat-lz4", write(flat, compression="LZ4")),
            ("flat-lz4_raw", write(flat, compression="LZ4_RAW")),
            ("flat-brotli", write(flat, compression="BROTLI")),
            ("flat-int96", write(flat, times="int96")),
            ("flat-statistics", write(flat, stats=True)),
            ("flat-no_statistics", write(flat, stats=False)),
            ("flat-has_nulls", write(flat, has_nulls=True)),
            ("flat-index", write(flat.set_index("n"), write_index=True)),
            ("flat-small_pages", pages),
            ("flat-v2-gzip", version2),
            ("flat-appended", by_appending),
            ("plain-required", write(plain, has_nulls=False)),
            ("plain-fixed_text", write(plain, has_nulls=False, fixed_text={"key": 9})),
            ("json-nested", write(nested, object_encoding={"json": "json"})),
            ("empty", write(flat.iloc[:0], row_group_offsets=[0])),
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1])
