"""Code snippets that cure the findings of ``lint`` and ``why``: a table by the rule and the Parquet writer.

The setting of each Parquet writer that makes lookups in its files cheap is here, too; docs/writers.md shows what each
setting changes: its command writes files with them and without, and looks rows up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import Final

from asyncpq.records import dataclass
from asyncpq.reports.lookup_cost import GROUP_ROWS, PAGE_BYTES, PAGE_ROWS

SMALL_GROUP_ROWS: Final = 20_000  # where a row group is what a lookup reads
SMALL_PAGE_BYTES: Final = 64 << 10
ARROW_PAGES: Final = f"max_rows_per_page={PAGE_ROWS}, data_page_size={PAGE_BYTES}"
SPARK_PAGES: Final = (
    f'.option("parquet.page.row.count.limit", "{PAGE_ROWS}").option("parquet.page.size", "{PAGE_BYTES}")'
)
# Polars gives the pages of a column with a dictionary the bounds of their whole chunk: it takes chunks of few pages.
POLARS_PAGES: Final = f"row_group_size={SMALL_GROUP_ROWS}, data_page_size={SMALL_PAGE_BYTES}"
DELTA_PAGES: Final = f"data_page_row_count_limit={PAGE_ROWS}, data_page_size_limit={PAGE_BYTES}, write_batch_size=1024"


@dataclass(frozen=True, slots=True)
class WriterSetting:
    """One writer: its name in ``snippets``, what its files' ``created_by`` begins with, and code that writes small
    pages with indexes or, where the writer has none, small row groups."""

    name: str
    created_by: str  # a regular expression; "" if its files name the library that it writes with
    setting: str
    general: bool = False  # shown for files of any writer


#: In this order, the first whose ``created_by`` matches wrote the file.
WRITER_SETTINGS: Final = (
    WriterSetting(
        "pyarrow", "parquet-cpp", f"pq.write_table(table, path, write_page_index=True, {ARROW_PAGES})", general=True
    ),
    WriterSetting(
        "spark",
        "parquet-mr",
        f"df.write{SPARK_PAGES}.parquet(path)  # parquet-java 1.11 and later write page indexes",
        general=True,
    ),
    WriterSetting(
        "duckdb",
        "DuckDB",
        "COPY t TO 'path' (ROW_GROUP_SIZE 20480)  -- DuckDB 2: DATA_PAGE_SIZE_LIMIT 65536, WRITE_PAGE_INDEX true",
        general=True,
    ),
    WriterSetting(
        "polars",
        "Polars",
        f"df.write_parquet(path, {POLARS_PAGES})  # Polars 2.1 and later write page indexes",
        general=True,
    ),
    WriterSetting(
        "delta-rs",
        "delta-rs",
        f"write_deltalake(table, data, writer_properties=WriterProperties({DELTA_PAGES}))",
        general=True,
    ),
    WriterSetting(
        "carquet",
        "Carquet",
        f"carquet.write_table(table, path, write_page_index=True, row_group_size={SMALL_GROUP_ROWS})",
    ),
    WriterSetting(
        "chdb",
        "ClickHouse",
        "SELECT * FROM t INTO OUTFILE 'path' FORMAT Parquet "
        f"SETTINGS output_format_parquet_data_page_size = {SMALL_PAGE_BYTES}",
    ),
    WriterSetting("fastparquet", "fastparquet", f"fastparquet.write(path, df, row_group_offsets={SMALL_GROUP_ROWS})"),
    WriterSetting(
        "hyper", ".*hyper-db", f"COPY t TO 'path' WITH (FORMAT => 'parquet', rows_per_row_group => {SMALL_GROUP_ROWS})"
    ),
    WriterSetting("rugo", "rugo", f"write_parquet(morsel, max_page_bytes={SMALL_PAGE_BYTES})"),
    WriterSetting(
        "datafusion",
        "datafusion",
        f"COPY t TO 'path' STORED AS PARQUET OPTIONS ('format.data_page_row_count_limit' '{PAGE_ROWS}', "
        f"'format.dictionary_page_size_limit' '{SMALL_PAGE_BYTES}')",
    ),
    WriterSetting(
        "sedonadb",
        "",
        f'df.to_parquet(path, options={{"data_page_row_count_limit": {PAGE_ROWS}, '
        f'"dictionary_page_size_limit": {SMALL_PAGE_BYTES}}})',
    ),
    WriterSetting("geoarrow-rust-io", "", "write_parquet(table, path, generate_covering=True)"),
    WriterSetting("geoparquet-io", "", f"table.write(path, row_group_rows={SMALL_GROUP_ROWS})"),
    WriterSetting(
        "parquet-rs",
        "parquet-rs",
        f"WriterProperties::builder().set_data_page_row_count_limit({PAGE_ROWS})"
        f".set_dictionary_page_size_limit({SMALL_PAGE_BYTES})",
    ),
    WriterSetting("parquet-go", "github.com/parquet-go/", f"parquet.PageBufferSize({SMALL_PAGE_BYTES})"),
    WriterSetting("xitongsys-parquet-go", "parquet-go version latest", "pw.RowGroupSize = 4 << 20"),
    WriterSetting(
        "hyparquet-writer",
        "hyparquet",
        "parquetWriteFile({ filename, pageSize: 65536, columnData: "
        "columnData.map(column => ({ ...column, columnIndex: true, offsetIndex: true })) })",
    ),
    WriterSetting(
        "parquet-wasm",
        "",
        f"new WriterPropertiesBuilder().setDataPageSizeLimit({SMALL_PAGE_BYTES})"
        f".setDictionaryPageSizeLimit({SMALL_PAGE_BYTES})",
    ),
    WriterSetting("carpet", "", f"builder.withPageRowCountLimit({PAGE_ROWS}).withPageSize({PAGE_BYTES})"),
)
_BY_WRITER: Final = tuple((re.compile(each.created_by), each) for each in WRITER_SETTINGS if each.created_by)


def setting_of(created_by: str | None) -> WriterSetting | None:
    """Return the setting of the writer that a footer's ``created_by`` names; None if it names no known one."""
    return next((each for pattern, each in _BY_WRITER if created_by and pattern.match(created_by)), None)


Snippets = dict[str, str]
_SETTINGS: Final[Mapping[str, str]] = {each.name: each.setting for each in WRITER_SETTINGS if each.general}


def _pyarrow(settings: str, table: str = "table") -> str:
    return f"pq.write_table({table}, path, write_page_index=True, {settings})"


def _delta(properties: str) -> str:
    return f"write_deltalake(table, data, writer_properties=WriterProperties({properties}))"


# Code by the writer. $column stands for the name of the column of lookups, $text and $sql for the name as Python and
# SQL quote it.
_PAGES: Final = {**_SETTINGS, "asyncpq": "asyncpq index build URL --kind pages  # or: asyncpq optimize URL TARGET"}
_OPTIMIZE_OR_KEYS: Final = "asyncpq optimize URL TARGET  # or: asyncpq index build URL --kind keys:$column"
#: The bounds of each page, or chunks so small that those of the chunk are enough.
_PAGE_BOUNDS: Final = {**_PAGES, "asyncpq": _OPTIMIZE_OR_KEYS}
_ROW_GROUPS: Final = {
    "pyarrow": _pyarrow(f"row_group_size={GROUP_ROWS}, {ARROW_PAGES}"),
    "spark": f'df.write.option("parquet.block.size", str(64 << 20)){SPARK_PAGES}.parquet(path)',
    "duckdb": f"COPY t TO 'path' (ROW_GROUP_SIZE {GROUP_ROWS})",
    "polars": f"df.write_parquet(path, row_group_size={GROUP_ROWS}, data_page_size={SMALL_PAGE_BYTES})",
    "delta-rs": _delta(f"max_row_group_size={GROUP_ROWS}, {DELTA_PAGES}"),
    "asyncpq": "asyncpq optimize URL TARGET  # or: asyncpq index build URL --kind footers",
}
_STATISTICS: Final = {
    "pyarrow": _pyarrow(f"write_statistics=True, {ARROW_PAGES}"),
    "spark": f"df.write{SPARK_PAGES}.parquet(path)  # parquet-java writes statistics unless told otherwise",
    "duckdb": "COPY t TO 'path'  -- DuckDB writes statistics of row groups",
    "polars": f"df.write_parquet(path, statistics=True, {POLARS_PAGES})",
    "delta-rs": _delta(f"{DELTA_PAGES}, column_properties={{$text: ColumnProperties(statistics_enabled='PAGE')}}"),
    "asyncpq": "asyncpq optimize URL TARGET  # or: asyncpq index build URL --kind bounds:$column",
}
_EXACT_BOUNDS: Final = {
    "pyarrow": f"{_pyarrow(ARROW_PAGES)}  # bounds are not truncated",
    "spark": f'df.write.option("parquet.columnindex.truncate.length", "1024"){SPARK_PAGES}.parquet(path)',
    "asyncpq": _OPTIMIZE_OR_KEYS,
}
_ZSTD: Final = {
    "pyarrow": _pyarrow(f'compression="zstd", {ARROW_PAGES}'),
    "spark": f'df.write.option("compression", "zstd"){SPARK_PAGES}.parquet(path)',
    "duckdb": "COPY t TO 'path' (COMPRESSION zstd)",
    "polars": f'df.write_parquet(path, compression="zstd", {POLARS_PAGES})',
    "delta-rs": _delta(f'compression="ZSTD", {DELTA_PAGES}'),
    "asyncpq": "asyncpq optimize URL TARGET --compression zstd",
}
_FILTERED: Final = "ColumnProperties(bloom_filter_properties=BloomFilterProperties(True))"

#: What users may copy, by the rule.
CURES: Final[Mapping[str, Snippets]] = {
    "no-page-index": _PAGES,
    "no-column-index": _PAGES,
    "huge-pages": _PAGES,
    "chunk-bounds": _PAGE_BOUNDS,
    "small-row-groups": _ROW_GROUPS,
    "large-row-groups": _ROW_GROUPS,
    "no-statistics": _STATISTICS,
    "statistics-not-believed": _STATISTICS,
    "missing-bounds": _EXACT_BOUNDS,
    "truncated-bounds": _EXACT_BOUNDS,
    "uncompressed": _ZSTD,
    "slow-codec": _ZSTD,
    "no-bloom-filter": {
        "pyarrow": _pyarrow(f"bloom_filter_options={{$text: True}}, {ARROW_PAGES}"),
        "spark": f'df.write.option("parquet.bloom.filter.enabled#$column", "true"){SPARK_PAGES}.parquet(path)',
        "duckdb": "COPY t TO 'path' (ROW_GROUP_SIZE 20480)  -- with Bloom filters, where columns have dictionaries",
        "delta-rs": _delta(f"{DELTA_PAGES}, column_properties={{$text: {_FILTERED}}}"),
        "asyncpq": "asyncpq optimize URL TARGET --bloom $column  # or: index build URL --kind keys:$column",
    },
    "random-order": {
        "pyarrow": _pyarrow(ARROW_PAGES, "table.sort_by($text)"),
        "spark": f"df.sort($text).write{SPARK_PAGES}.parquet(path)",
        "duckdb": "COPY (FROM t ORDER BY $sql) TO 'path' (ROW_GROUP_SIZE 20480)",
        "polars": f"df.sort($text).write_parquet(path, {POLARS_PAGES})",
        "delta-rs": "DeltaTable(table).optimize.z_order([$text])",
        "asyncpq": "asyncpq optimize URL TARGET --sort-by $column  # or: index build URL --kind keys:$column",
    },
    "wide-bounds": {
        "pyarrow": _pyarrow(f"write_statistics=[$text], {ARROW_PAGES}"),
        "spark": f'df.write.option("parquet.statistics.truncate.length", "64"){SPARK_PAGES}.parquet(path)',
        "delta-rs": _delta(f"statistics_truncate_length=64, {DELTA_PAGES}"),
        "asyncpq": "asyncpq index build URL --kind footers",
    },
    "tiny-files": {
        "pyarrow": f'ds.write_dataset(ds.dataset(url), out, format="parquet", max_rows_per_file={8 * GROUP_ROWS})',
        "spark": "spark.read.parquet(url).coalesce(n).write.parquet(out)",
        "duckdb": "COPY (FROM 'url/**/*.parquet') TO 'out' (FORMAT parquet, FILE_SIZE_BYTES '256MB')",
        "polars": "pl.scan_parquet(url).sink_parquet(path)",
        "delta-rs": "DeltaTable(table).optimize.compact()",
        "asyncpq": "asyncpq optimize URL TARGET  # or: asyncpq index build URL --kind footers --kind bounds",
    },
    "deleted-rows": {
        "spark": "REORG TABLE t APPLY (PURGE)  -- of Iceberg: CALL system.rewrite_data_files(table => 't')",
        "delta-rs": "DeltaTable(table).optimize.compact()",
    },
    "legacy-calendar": {
        "spark": 'spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED"); '
        'spark.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED"); '
        "spark.read.parquet(url).write.parquet(out)",
        "asyncpq": "asyncpq optimize URL TARGET",
    },
    "no-index": {"asyncpq": "asyncpq index build URL --kind keys:$column --kind footers"},
    "big-footer": {"asyncpq": "asyncpq index build URL --kind footers"},
}


def snippets_for(rule: str, column: str = "") -> Snippets:
    """Return the code that cures a rule, by the writer. ``column``: that of the lookups."""
    names = {"column": column, "text": repr(column), "sql": quoted(column)}
    return {writer: Template(code).substitute(names) for writer, code in CURES[rule].items()}


def smaller_chunks() -> Snippets:
    """Return the snippets that write smaller column chunks or more pages. There is none that builds an index, which
    adds no pages."""
    return {**_PAGES, "asyncpq": "asyncpq optimize URL TARGET"}


def without_dictionary(columns: Sequence[str]) -> Snippets:
    """Return the snippets that write ``columns`` without a dictionary; other columns keep theirs."""
    spark = "".join(f'.option("parquet.enable.dictionary#{column}", "false")' for column in columns)
    properties = ", ".join(f"{column!r}: ColumnProperties(dictionary_enabled=False)" for column in columns)
    names = f"[name for name in table.column_names if name not in {list(columns)}]"
    return {
        "pyarrow": _pyarrow(f"use_dictionary={names}, {ARROW_PAGES}"),
        "spark": f"df.write{spark}{SPARK_PAGES}.parquet(path)",
        "duckdb": "COPY t TO 'path' (DICTIONARY_SIZE_LIMIT 1024)  -- larger dictionaries are not written",
        "delta-rs": _delta(f"{DELTA_PAGES}, column_properties={{{properties}}}"),
    }


def with_dictionary_of(columns: Sequence[str]) -> Snippets:
    """Return the snippets that write ``columns`` with a dictionary."""
    spark = "".join(f'.option("parquet.enable.dictionary#{column}", "true")' for column in columns)
    properties = ", ".join(f"{column!r}: ColumnProperties(dictionary_enabled=True)" for column in columns)
    return {
        "pyarrow": _pyarrow(f"use_dictionary={list(columns)}, {ARROW_PAGES}"),
        "spark": f"df.write{spark}{SPARK_PAGES}.parquet(path)",
        "duckdb": "COPY t TO 'path'  -- DuckDB uses dictionaries where they are small",
        "polars": f"df.write_parquet(path, {POLARS_PAGES})  # uses dictionaries where they are small",
        "delta-rs": _delta(f"{DELTA_PAGES}, column_properties={{{properties}}}"),
    }


def tail(num_bytes: int) -> Snippets:
    """Return the snippet that sets the size of the first GET to ``num_bytes`` bytes at the end of the object."""
    return {
        "asyncpq": f"Session(requests=RequestOptions(tail_bytes={num_bytes}))",
        "pyarrow": _pyarrow(f"row_group_size={GROUP_ROWS}, {ARROW_PAGES}"),
        "spark": f'df.write.option("parquet.block.size", str(64 << 20)){SPARK_PAGES}.parquet(path)',
    }


def text_index(column: str) -> Snippets:
    """Return the snippet that builds an index of a column's n-grams, or of its words."""
    return {"asyncpq": f"asyncpq index build URL --kind ngrams:{column}  # or, for words: --kind text:{column}"}


def advice(rule: str, column: str = "the column", *, has_filters: bool = False) -> str:
    """Return the cure of a rule in words. ``lint`` and ``why`` say the same. ``has_filters``: the column has Bloom
    filters already."""
    text = _ADVICE[rule].format(column=column)
    return text.replace(_OR_FILTERS, "") if has_filters else text


_OR_FILTERS: Final = ", or write Bloom filters"
_ADVICE: Final[Mapping[str, str]] = {
    "no-page-index": "Write page indexes, or build an index of kind pages.",
    "no-column-index": "Write files with complete page indexes.",
    "huge-pages": f"Write pages of at most {PAGE_ROWS:,} rows and {PAGE_BYTES >> 10} KiB.",
    "random-order": f"Sort the rows by {{column}}; or build an index of it{_OR_FILTERS}.",
    "no-bloom-filter": "Write Bloom filters of {column}, or build an index of it: rows keep their order.",
    "no-statistics": "Write statistics of {column}.",
    "statistics-not-believed": "Write the file with a newer release of its writer, or with another one.",
    "missing-bounds": "Write exact bounds of {column}.",
    "truncated-bounds": "Write exact bounds of {column}.",
    "chunk-bounds": "Write the bounds of each page; with Polars, write row groups of about 20,000 rows.",
    "huge-dictionary": "Write {column} without a dictionary.",
    "dictionary-fallback": "Write {column} without a dictionary.",
    "big-footer": "Fetch more at first, write fewer columns or larger row groups, or build an index of kind footers.",
    "slow-codec": "Compress with zstd.",
    "tiny-files": "Merge the files, to about 256 MiB each.",
    "no-index": "Build an index of kinds keys:{column} and footers.",
}


def with_own_setting(rule: str, snippets: Snippets, created_by: str | None) -> Snippets:
    """Put the setting of the writer that wrote the file first, if it cures ``rule``. ``created_by``: the footer's."""
    own = setting_of(created_by)
    if own is None or CURES.get(rule) not in (_PAGES, _PAGE_BOUNDS):
        return snippets
    return {own.name: own.setting, **snippets}


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
