"""Spark's types and values in Parquet files, read and written.

In: a Parquet schema or Arrow batches, and Spark's settings (``read_conf``). Out: Spark's schema (``parquet_schema``,
``partition_types``) and batches of its types (``conversion``, ``special_types``).
"""
