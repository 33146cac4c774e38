"""Arrays brought from a file's type to a dataset's: the values that plain Python makes of them, at every depth."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncpq.datasets.column_matching import view_of
from asyncpq.decoding.casts import cast_to
from tests.decoding.evolution import converted, evolved, with_ids
from tests.parquet_samples import OpenFile
from tests.random_tables import NestedFile, nested_files
from tests.reads import read_as


def values(array: pa.Array | pa.ChunkedArray) -> str:
    return repr(array.to_pylist())


@given(nested_files(), st.booleans(), st.data())
def test_a_file_reads_as_the_table_that_its_columns_became(file: NestedFile, by_id: bool, data: st.DataObject) -> None:
    """Whole columns, read through their leaves; names change hands, and count only where there are no ids."""
    written = file.data
    old = file.table.schema
    if by_id:
        old = with_ids(old)
        written = file.writer.write(pa.Table.from_arrays(file.table.columns, schema=old))
    names = data.draw(st.permutations([*old.names, "p"]))
    changes = [data.draw(evolved(field, name)) for field, name in zip(old, names, strict=False)]
    changes = data.draw(st.permutations(changes))
    try:
        wanted = [converted(change, file.table.column(change.before.name)) for change in changes]
    except (pa.ArrowInvalid, OverflowError):
        assume(False)  # an int8 dictionary or integer that has no room
        raise
    schema = pa.schema([change.arrow for change in changes])
    found = read_as(written, schema, fields=tuple(change.after for change in changes))
    assert found.schema.equals(schema)
    found.validate(full=True)
    for change, column in zip(changes, wanted, strict=True):
        assert values(found.column(change.after.name)) == values(column), change


@given(nested_files(), st.data())
def test_any_slice_of_an_array_conforms(file: NestedFile, data: st.DataObject) -> None:
    """Offsets that do not begin at 0, values outside the slice and under nulls."""
    field = data.draw(st.sampled_from(list(file.table.schema)))
    change = data.draw(evolved(field, "p"))
    array = pa.concat_arrays(file.table.column(field.name).chunks)
    start = data.draw(st.integers(0, len(array)))
    array = array.slice(start, data.draw(st.integers(0, len(array) - start)))
    try:
        wanted = converted(change, array)
    except (pa.ArrowInvalid, OverflowError):
        assume(False)
        raise
    version = OpenFile(file.data).version
    view = view_of(version, pa.schema([change.arrow]), (change.after,), {})
    (match,) = view.match(version, [0])
    assert match.source is not None
    conform = cast_to(match, array.type, frozenset(range(match.source.first_leaf, match.source.leaf_stop)))
    found = array if conform is None else conform(array)
    found.validate(full=True)
    assert found.type.equals(change.after.type)
    assert values(found) == values(wanted)
