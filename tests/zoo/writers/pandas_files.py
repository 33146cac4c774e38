"""Files of pandas with its pyarrow engine: indexes, categories and nullable types in the schema's metadata."""

import sys

import pandas as pd
import pyarrow as pa
import rows


def frame(columns):
    """The columns as pandas has them."""
    made = {}
    for name, kind in rows.kinds("uuid"):
        values = columns[name]
        if kind == "category":
            made[name] = pd.Categorical(values)
        elif kind.startswith(("int", "uint")):
            made[name] = pd.array(values, dtype=kind.replace("uint", "UInt").replace("int", "Int").replace("UInt", "UInt"))
        elif kind.startswith("timestamp"):
            made[name] = pd.to_datetime(pd.Series(values, dtype=object), utc=kind == "timestamp_utc")
        elif kind == "bool":
            made[name] = pd.array(values, dtype="boolean")
        else:
            made[name] = pd.Series(values, dtype="object")
    return pd.DataFrame(made)


def main(folder):
    """Write every variant."""
    flat = frame(rows.flat())
    nested = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in rows.nested().items() if name != "pairs"})
    options = {"engine": "pyarrow", "row_group_size": rows.GROUP_ROWS, "data_page_size": 64}

    def write(source, **more):
        return lambda path: source.to_parquet(path, **dict(options, **more))

    rows.run(
        "pandas",
        pd.__version__ + " with pyarrow " + pa.__version__,
        folder,
        [
            ("flat-range", write(flat)),
            ("flat-defaults", lambda path: flat.to_parquet(path)),
            ("flat-index", write(flat.set_index("key"))),
            ("flat-indexes", write(flat.set_index(["bucket", "n"]))),
            ("flat-unnamed_index", write(flat.set_axis(flat["key"].rename(None)), compression="gzip")),
            ("flat-no_index", write(flat, index=False, compression=None)),
            ("flat-zone", write(flat.assign(ts_utc=flat["ts_utc"].dt.tz_convert("Europe/Paris")))),
            ("flat-arrow_types", lambda path: write(flat.convert_dtypes(dtype_backend="pyarrow"))(path)),
            ("flat-spark", write(flat, flavor="spark", use_deprecated_int96_timestamps=True)),
            ("nested-snappy", write(nested)),
            ("empty", write(flat.iloc[:0])),
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1])
