"""Build an index: the files of a dataset come in, committed segments go out.

``index_source`` lists the files and compares them with a snapshot. ``index_builder`` reserves ids for the new files,
lets a BuildExecutor (``build_executor``) read them, and commits. ``file_rows`` reads one file and makes its rows of
each table (with ``file_values`` and ``page_index_rows``); ``sorting`` sorts these. ``maintenance`` compacts,
vacuums and verifies; ``adding`` commits files that asyncpq wrote; ``embedding`` puts index bytes into Parquet files.
"""
