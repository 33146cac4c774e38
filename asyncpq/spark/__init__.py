"""asyncpq on Spark: the extra ``asyncpq[spark]``."""
