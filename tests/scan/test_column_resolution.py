"""Names of columns become leaves: which are returned, which the predicate reads, and which it prunes by."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError
from asyncpq.parquet.schema import Projection
from asyncpq.scan.column_resolution import ReadColumns, meant, resolve_output
from tests.parquet_files import PrunedFile

TABLE = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "place": pa.array([{"city": "a", "street": {"name": "b"}}] * 2),
        "tags": pa.array([["x"], []], pa.list_(pa.string())),
    }
)
SCHEMA = PrunedFile(TABLE, rows_per_page=2).metadata.schema  # leaves: id, city, street.name, tags


def test_without_names_all_fields_come_whole() -> None:
    assert resolve_output(SCHEMA, None) == SCHEMA.whole_fields


def test_fields_come_in_the_order_of_the_names_and_parts_of_one_together() -> None:
    assert resolve_output(SCHEMA, ["place.street", "id", "place.city"]) == (Projection(1, (1, 2)), Projection(0, (0,)))
    assert resolve_output(SCHEMA, [2]) == (Projection(2, (3,)),)


@pytest.mark.parametrize("names", [["id", "id"], ["place", "place.city"], [0, "id"]])
def test_a_leaf_named_twice_is_refused(names: list[str | int]) -> None:
    with pytest.raises(AmbiguousColumnError, match="twice"):
        resolve_output(SCHEMA, names)


def test_columns_of_the_predicate_stand_first_and_only_values_of_rows_have_bounds() -> None:
    output = resolve_output(SCHEMA, ["id", "place.city"])
    columns = ReadColumns(SCHEMA, output, ["place.city", "tags", "place.street"])
    assert [(leaf.leaf, leaf.field, leaf.predicate) for leaf in columns.leaves] == [
        (1, 1, True),
        (3, 2, True),
        (2, 1, True),
        (0, 0, False),
    ]
    assert [leaf.leaf for leaf in columns.unfiltered] == [0, 1]
    assert [*columns.bounded] == ["place.city"]  # not a repeated leaf, nor a group
    blind = columns.without_bounds({"place.city"})
    assert not blind.bounded
    assert blind.leaves == columns.leaves
    assert [*columns.bounded] == ["place.city"]


def test_a_name_that_the_file_lacks_gets_a_hint() -> None:
    with pytest.raises(ColumnNotFoundError):
        resolve_output(SCHEMA, ["plaze"])
    assert "place" in (meant(SCHEMA, "plaze") or "")
    assert meant(SCHEMA, "place") is None
