"""Bytes of a Parquet file to its model, without I/O, pyarrow or asyncio.

In come the bytes of footers, page indexes, page headers and bloom filters; out come typed, checked descriptions of
them. ``metadata`` finds the metadata and decodes them with ``schema``, ``row_group`` and ``column_chunk``, all
through ``thrift``. ``page_index`` and ``chunk_pages`` locate pages. ``statistics`` says what bounds prove, unless
``writer_faults`` knows that the writer gets them wrong.
"""
