"""Decode the metadata bytes of a Parquet file into Python objects, without I/O, pyarrow or asyncio.

The bytes of footers, page indexes, page headers and Bloom filters come in; typed, checked descriptions of them go out.
``metadata`` finds the metadata and decodes them with ``schema``, ``row_group`` and ``column_chunk``, which all use
``thrift``. ``page_index`` and ``chunk_pages`` locate pages. ``statistics`` interprets bounds; it ignores those that the
writer is known to get wrong (``writer_faults``).
"""
