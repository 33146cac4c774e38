"""The source with filters pushed down whatever Spark's version, to see what comes of it."""

from __future__ import annotations

from asyncpq.spark.data_source import AsyncpqDataSource


class LeakySource(AsyncpqDataSource):
    """Allows ``pushdown=true`` where it is not safe."""

    @classmethod
    def name(cls) -> str:
        return "asyncpq_leaky"

    @staticmethod
    def require_safe_pushdown() -> None:
        """Any version will do."""
