"""Streams of new files on Spark itself: what test_streaming.py shows, with its checkpoints and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _put(folder: Path, number: int) -> None:
    """A file of ten ids."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = pa.array(range(10 * number, 10 * number + 10), pa.int64())
    hidden = folder / f"_{number}"
    pq.write_table(pa.table({"id": ids, "text": pa.array([f"{number}"] * 10)}), hidden)
    hidden.rename(folder / f"{number}.parquet")


class Sink:
    """Rows of each batch, as ``foreachBatch`` gets them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, frame: Any, number: int) -> None:
        self.batches.append(sorted(row["id"] for row in frame.collect()))


def test_a_stream_from_beginning_to_restart(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    from asyncpq.spark.shipping import register

    register(spark)
    lake, sink = tmp_path / "lake" / "part=1", Sink()
    stream = spark.readStream.format("asyncpq").option("maxFilesPerTrigger", "2").option("columns", "id,part")

    def run(trigger: dict[str, Any], schema: str | None = None) -> None:
        reader = stream if schema is None else stream.schema(schema)
        writer = reader.load(str(tmp_path / "lake")).filter("id % 2 = 0").writeStream
        query = (
            writer.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        try:
            query.awaitTermination(90)
        finally:
            query.stop()

    for number in range(3):
        _put(lake, number)
    run({"availableNow": True})
    assert sink.batches == [list(range(0, 20, 2)), list(range(20, 30, 2))]
    _put(lake, 3)
    run({"availableNow": True})
    assert sink.batches[2:] == [list(range(30, 40, 2))]
    (lake / "4.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    with pytest.raises(StreamingQueryException, match=r"4\.parquet"):
        run({"availableNow": True})
    _put(lake, 4)  # the batch that failed is made of the version that is gone
    with pytest.raises(StreamingQueryException, match="ignoreMissingFiles"):
        run({"availableNow": True})
    stream.option("ignoreMissingFiles", "true")
    run({"availableNow": True}, "id bigint, part int")
    assert [batch for batch in sink.batches[3:] if batch] == [list(range(40, 50, 2))]


def test_streams_are_not_written(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    from asyncpq.spark.shipping import register

    register(spark)
    rows = spark.readStream.format("rate").load()
    writer = rows.writeStream.format("asyncpq").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="foreachBatch"):
        writer.start(str(tmp_path / "lake")).awaitTermination(90)
