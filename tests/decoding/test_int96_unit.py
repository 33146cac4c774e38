"""INT96 as microseconds: years that nanoseconds in 64 bits do not reach."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq import ReadOptions, blocking
from asyncpq.errors import InvalidOptionError


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("store_schema", [True, False])
def test_all_years(tmp_path: Path, use_dictionary: bool, store_schema: bool) -> None:
    moments = [dt.datetime(1000, 1, 1, 0, 0, 0, 1), None, dt.datetime(2020, 1, 1), dt.datetime(9999, 12, 31)] * 50
    kind = pa.timestamp("us")
    columns = {
        "flat": pa.array(moments, kind),
        "list": pa.array([[moment] for moment in moments], pa.list_(kind)),
        "struct": pa.array([{"t": moment} for moment in moments], pa.struct([("t", kind)])),
    }
    path = tmp_path / "f.parquet"
    pq.write_table(
        pa.table(columns),
        path,
        use_deprecated_int96_timestamps=True,
        use_dictionary=use_dictionary,
        store_schema=store_schema,
        row_group_size=70,
    )
    with blocking.Session(read=ReadOptions(int96_unit="us")) as session, session.open_file(str(path)) as file:
        assert file.schema.types == [array.type for array in columns.values()]
        with file.scan() as scan:
            table = pa.Table.from_batches(list(scan))
    assert table.to_pydict() == {name: array.to_pylist() for name, array in columns.items()}
    with blocking.Session() as session, session.open_file(str(path)) as file:
        assert file.schema.field("flat").type == pa.timestamp("ns")


def test_other_units() -> None:
    with pytest.raises(InvalidOptionError, match="int96_unit"):
        ReadOptions(int96_unit="ms")  # type: ignore[arg-type]
