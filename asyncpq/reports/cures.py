"""How to write files and indexes that are read fast, for each writer: the snippets of :data:`Cause.snippets`."""

from __future__ import annotations

from typing import Final

PAGE_INDEX: Final = {
    "pyarrow": "pq.write_table(table, path, write_page_index=True)",
    "spark": "# Spark's writer has page indexes by default (parquet-mr 1.11 and newer)",
    "duckdb": "-- DuckDB writes no page index: rewrite with asyncpq optimize, or keep Pages() in an index",
    "polars": 'df.write_parquet(path, use_pyarrow=True, pyarrow_options={"write_page_index": True})',
    "delta-rs": "# delta-rs has page indexes by default (parquet-rs)",
    "asyncpq": "await session.build_index(url, [asyncpq.indexing.Pages()])",
}
SMALL_PAGES: Final = {
    "pyarrow": "pq.write_table(table, path, data_page_size=64 * 1024, write_page_index=True)",
    "spark": 'df.write.option("parquet.page.size", 65536).parquet(path)',
    "polars": "df.write_parquet(path, data_page_size=64 * 1024)",
    "delta-rs": "WriterProperties(data_page_size_limit=64 * 1024)",
}


def no_dictionary(column: str) -> dict[str, str]:
    """Return how to write a column without a dictionary."""
    return {
        "pyarrow": f"pq.write_table(table, path, use_dictionary=[...])  # all but {column!r}",
        "spark": f'df.write.option("parquet.enable.dictionary#{column}", "false").parquet(path)',
        "duckdb": "COPY t TO 'path' (FORMAT parquet, DICTIONARY_SIZE_LIMIT 1000)",
        "delta-rs": f'WriterProperties(column_properties={{"{column}": ColumnProperties(dictionary_enabled=False)}})',
    }


def sorted_by(column: str) -> dict[str, str]:
    """Return how to write rows in the order of a column, or to index it."""
    return {
        "pyarrow": f'pq.write_table(table.sort_by("{column}"), path, write_page_index=True)',
        "spark": f'df.repartitionByRange("{column}").sortWithinPartitions("{column}").write.parquet(path)',
        "duckdb": f"COPY (SELECT * FROM t ORDER BY {column}) TO 'path' (FORMAT parquet)",
        "polars": f'df.sort("{column}").write_parquet(path)',
        "delta-rs": f'table.optimize.z_order(["{column}"])',
        "asyncpq": indexed(column)["asyncpq"],
    }


def indexed(column: str) -> dict[str, str]:
    """Return how to build an index of a column."""
    return {"asyncpq": f'await session.build_index(url, [asyncpq.indexing.Keys("{column}")])'}


LARGE_FILES: Final = {
    "spark": "df.coalesce(n).write.parquet(path)",
    "delta-rs": "table.optimize.compact()",
    "duckdb": "COPY (SELECT * FROM 'path/*.parquet') TO 'one.parquet' (FORMAT parquet)",
    "asyncpq": "asyncpq optimize URL OUTPUT",
}
FOOTERS: Final = {"asyncpq": "await session.build_index(url, [asyncpq.indexing.Footers()])"}
DISK_CACHE: Final = {"asyncpq": 'asyncpq.Session(disk_cache="/var/cache/asyncpq")'}
