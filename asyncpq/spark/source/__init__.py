"""The data source ``asyncpq`` of Spark: batch reads, streams, and writes."""
