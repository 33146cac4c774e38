"""The setting of each Parquet writer that makes lookups in its files cheap, and the writer that a file names.

docs/writers.md shows what each setting changes: its command writes files with them and without, and looks rows up.
"""

from __future__ import annotations

import re
from typing import Final

from asyncpq.records import dataclass
from asyncpq.reports.file_shapes import PAGE_BYTES, PAGE_ROWS

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
        "COPY t TO 'path' (ROW_GROUP_SIZE 20480)  -- DuckDB writes no page index: small row groups instead",
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
