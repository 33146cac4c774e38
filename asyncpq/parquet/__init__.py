"""Decode the bytes of a Parquet file into a model, without I/O, pyarrow or asyncio.

The bytes of footers, page indexes, page headers and Bloom filters come in; typed, checked descriptions of them go out.
``metadata`` finds the metadata and decodes them with ``schema``, ``row_group`` and ``column_chunk``, which all use
``thrift``. ``page_index`` and ``chunk_pages`` locate pages. ``statistics`` interprets bounds; it ignores those that the
writer gets wrong according to ``writer_faults``.
"""
