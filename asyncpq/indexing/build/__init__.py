"""Build an index: from the files of a dataset to committed segments.

``differences`` compares the files (found by ``lakes``) with a snapshot. ``builder`` reserves ids for the new files,
lets a BuildExecutor (``build_executor``) read them, and commits. ``file_rows`` reads one file and makes its rows of
each table (``file_bounds``, ``file_values``, ``page_indexes``); ``sorting`` sorts them. ``maintenance`` compacts,
vacuums and verifies; ``adding`` commits files that asyncpq wrote; ``embedding`` puts index bytes into Parquet files.
"""
